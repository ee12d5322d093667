package workload

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// KruiseConfiguration is OpenKruise's ConfigMap with the list of custom kinds.
var KruiseConfiguration = types.NamespacedName{Namespace: "kruise-system", Name: "kruise-configuration"}

// kruiseKindsKey is the key of the list in KruiseConfiguration.
const kruiseKindsKey = "WorkloadSpread_Watch_Custom_Workload_WhiteList"

// KruiseKinds is OpenKruise's list of custom kinds. Its other fields are about owners, which Berth finds without a
// list.
type KruiseKinds struct {
	Workloads []struct {
		Group, Version, Kind, ReplicasPath string
	}
}

// ReadKruiseKinds reads the list in KruiseConfiguration. Without one it is empty.
func ReadKruiseKinds(configuration *corev1.ConfigMap) (KruiseKinds, error) {
	var list KruiseKinds
	text := configuration.Data[kruiseKindsKey]
	if text == "" {
		return list, nil
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return KruiseKinds{}, fmt.Errorf("reading %s in ConfigMap %s: %w", kruiseKindsKey, KruiseConfiguration, err)
	}
	return list, nil
}

// PathOf is the path to the replicas of a kind: the one listed for this version, or else for another version. It is
// empty if the list has none.
func (l KruiseKinds) PathOf(kind schema.GroupVersionKind) string {
	path := ""
	for _, one := range l.Workloads {
		if one.Group == kind.Group && one.Kind == kind.Kind && one.ReplicasPath != "" && (path == "" || one.Version == kind.Version) {
			path = one.ReplicasPath
		}
	}
	return path
}
