// Package versions converts WorkloadSpreads, PodUnavailableBudgets, UnitedDeployments and SidecarSets between the
// versions that the API server serves, and reads them from files. The types of v1beta1, which the API server stores,
// are the hub: every other version is converted to them and from them.
//
// The conversion works on content as decoded from JSON and not on Go types. So it keeps fields that this version of Berth does not know, for instance
// while replicas of two versions of Berth run. Begin reading at Convert.
package versions

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	oldapps "github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	oldpolicy "github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	rulesv1alpha1 "github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	oldsidecar "github.com/berth-project/berth/pkg/crd/sidecar/v1alpha1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	oldunited "github.com/berth-project/berth/pkg/crd/united/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// kind is one kind in its two versions: the hub, and an older one.
type kind struct {
	hub schema.GroupVersionKind
	old string
	// The functions are nil if both versions have the same fields.
	toHub, fromHub func(content map[string]any)
	// inWords says a message about an object of the hub in the words of the older version.
	inWords func(message string) string
}

var kinds = []kind{
	{v1beta1.Kind, oldapps.GroupVersion.Version, oldapps.ToHub, oldapps.FromHub, oldapps.InWords},
	{policyv1beta1.Kind, oldpolicy.GroupVersion.Version, oldpolicy.ToHub, oldpolicy.FromHub, oldpolicy.InWords},
	{hub: unitedv1beta1.Kind, old: oldunited.GroupVersion.Version},
	{hub: sidecarv1beta1.Kind, old: oldsidecar.GroupVersion.Version},
}

// find returns the kind, and whether it is in its older version. It is nil if Berth does not have the kind in this
// version.
func find(gvk schema.GroupVersionKind) (k *kind, isOld bool) {
	for i := range kinds {
		k := &kinds[i]
		if k.hub.GroupKind() == gvk.GroupKind() && (gvk.Version == k.hub.Version || gvk.Version == k.old) {
			return k, gvk.Version == k.old
		}
	}
	return nil, false
}

// Served is true for a kind of Berth in a version that the API server serves.
func Served(gvk schema.GroupVersionKind) bool {
	k, _ := find(gvk)
	return k != nil
}

// Old are the kinds of Berth in their older versions.
func Old() (all []schema.GroupVersionKind) {
	for i := range kinds {
		all = append(all, kinds[i].hub.GroupKind().WithVersion(kinds[i].old))
	}
	return all
}

// Convert changes the content of an object, as decoded from JSON, into the version apiVersion. It changes the maps of the content. It returns an error if
// the object is not one of Berth, or if Berth does not know the version. It never fails because of what an object contains.
func Convert(content map[string]any, apiVersion string) error {
	is, wanted := gvkOf(content), schema.FromAPIVersionAndKind(apiVersion, "")
	wanted.Kind = is.Kind
	k, fromOld := find(is)
	to, toOld := find(wanted)
	if k == nil || k != to {
		return fmt.Errorf("cannot convert %s from %s to %s", is.Kind, is.GroupVersion(), apiVersion)
	}
	switch {
	case fromOld && !toOld && k.toHub != nil:
		k.toHub(content)
	case !fromOld && toOld && k.fromHub != nil:
		k.fromHub(content)
	}
	content["apiVersion"] = apiVersion
	return nil
}

func gvkOf(content map[string]any) schema.GroupVersionKind {
	apiVersion, _ := content["apiVersion"].(string)
	name, _ := content["kind"].(string)
	return schema.FromAPIVersionAndKind(apiVersion, name)
}

// InWords returns a message about an object of the hub with the names that the fields have in the version of gvk. Other messages stay as they are.
func InWords(gvk schema.GroupVersionKind, message string) string {
	if k, isOld := find(gvk); isOld && k.inWords != nil {
		return k.inWords(message)
	}
	return message
}

// ErrorInWords is the error with the message in the words of the version of gvk.
func ErrorInWords(gvk schema.GroupVersionKind, err error) error {
	return errors.New(InWords(gvk, err.Error()))
}

// addAll registers the types of all versions.
func addAll(scheme *runtime.Scheme) error {
	return errors.Join(AddStored(scheme), oldapps.AddToScheme(scheme), oldpolicy.AddToScheme(scheme), oldunited.AddToScheme(scheme), oldsidecar.AddToScheme(scheme))
}

// AddStored registers the types of all kinds in the version that the API server stores, for programs that read and
// write objects in a cluster. FederatedReplicaSet and the rules have one version.
func AddStored(scheme *runtime.Scheme) error {
	return errors.Join(v1beta1.AddToScheme(scheme), policyv1beta1.AddToScheme(scheme), unitedv1beta1.AddToScheme(scheme), sidecarv1beta1.AddToScheme(scheme),
		federationv1alpha1.AddToScheme(scheme), rulesv1alpha1.AddToScheme(scheme))
}

var types = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(addAll(scheme))
	return scheme
}()

var strict = serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDeserializer()

// Decode reads an object of Berth from YAML or JSON. It returns the object in the version of the hub, and the kind and version that it has in the document.
// Unknown and duplicate fields are a strict decoding error, which names them as the document does. With such an error it returns the object too, without
// these fields. With any other error the object is nil.
func Decode(document []byte) (runtime.Object, schema.GroupVersionKind, error) {
	object, gvk, err := strict.Decode(document, nil, nil)
	if gvk == nil {
		gvk = &schema.GroupVersionKind{}
	}
	k, isOld := find(*gvk)
	if object == nil || !isOld {
		return object, *gvk, err
	}
	content, failed := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if failed == nil {
		failed = Convert(content, k.hub.GroupVersion().String())
	}
	hub, unknown := types.New(k.hub)
	if failed = errors.Join(failed, unknown); failed == nil {
		failed = runtime.DefaultUnstructuredConverter.FromUnstructured(content, hub)
	}
	if failed != nil {
		return nil, *gvk, failed
	}
	return hub, *gvk, err
}
