package spread

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-project/berth/pkg/controller/frame"
)

// kruiseKindsKey is the key of the list in frame.KruiseConfiguration.
const kruiseKindsKey = "WorkloadSpread_Watch_Custom_Workload_WhiteList"

// kruiseKinds is OpenKruise's list of custom kinds. Its other fields are about owners, which Berth finds without a
// list.
type kruiseKinds struct {
	Workloads []struct {
		Group, Version, Kind, ReplicasPath string
	}
}

// readKruiseKinds reads the list in frame.KruiseConfiguration. Without one it is empty.
func readKruiseKinds(configuration *corev1.ConfigMap) (kruiseKinds, error) {
	var list kruiseKinds
	text := configuration.Data[kruiseKindsKey]
	if text == "" {
		return list, nil
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return kruiseKinds{}, fmt.Errorf("reading %s in ConfigMap %s: %w", kruiseKindsKey, frame.KruiseConfiguration, err)
	}
	return list, nil
}

// pathOf is the path to the replicas of a kind: the one listed for this version, or else for another version. It is
// empty if the list has none.
func (l kruiseKinds) pathOf(kind schema.GroupVersionKind) string {
	path := ""
	for _, one := range l.Workloads {
		if one.Group == kind.Group && one.Kind == kind.Kind && one.ReplicasPath != "" && (path == "" || one.Version == kind.Version) {
			path = one.ReplicasPath
		}
	}
	return path
}
