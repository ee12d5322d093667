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
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	oldapps "github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	oldpolicy "github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	oldsidecar "github.com/berth-project/berth/pkg/crd/sidecar/v1alpha1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	oldunited "github.com/berth-project/berth/pkg/crd/united/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// kind is one kind in all its versions.
type kind struct {
	hub schema.GroupVersionKind
	// newHub makes an empty object of the hub.
	newHub func() runtime.Object
	spokes []spoke
}

// spoke is a version besides the hub. The functions are nil if it has the fields of the hub.
type spoke struct {
	version        string
	toHub, fromHub func(content map[string]any)
	// inWords says a message about an object of the hub in the words of this version.
	inWords func(message string) string
}

var kinds = []kind{{
	hub:    v1beta1.Kind,
	newHub: func() runtime.Object { return &v1beta1.WorkloadSpread{} },
	spokes: []spoke{{
		version: oldapps.GroupVersion.Version,
		toHub:   oldapps.ToHub,
		fromHub: oldapps.FromHub,
		inWords: oldapps.InWords,
	}},
}, {
	hub:    policyv1beta1.Kind,
	newHub: func() runtime.Object { return &policyv1beta1.PodUnavailableBudget{} },
	spokes: []spoke{{
		version: oldpolicy.GroupVersion.Version,
		toHub:   oldpolicy.ToHub,
		fromHub: oldpolicy.FromHub,
		inWords: oldpolicy.InWords,
	}},
}, {
	hub:    unitedv1beta1.Kind,
	newHub: func() runtime.Object { return &unitedv1beta1.UnitedDeployment{} },
	spokes: []spoke{{version: oldunited.GroupVersion.Version}},
}, {
	hub:    sidecarv1beta1.Kind,
	newHub: func() runtime.Object { return &sidecarv1beta1.SidecarSet{} },
	spokes: []spoke{{version: oldsidecar.GroupVersion.Version}},
}}

// find returns the kind, and its version unless it is the hub.
func find(gvk schema.GroupVersionKind) (*kind, *spoke, bool) {
	for i := range kinds {
		k := &kinds[i]
		if k.hub.GroupKind() != gvk.GroupKind() {
			continue
		}
		if gvk.Version == k.hub.Version {
			return k, nil, true
		}
		if at := slices.IndexFunc(k.spokes, func(s spoke) bool { return s.version == gvk.Version }); at >= 0 {
			return k, &k.spokes[at], true
		}
	}
	return nil, nil, false
}

// Served is true for a kind of Berth in a version that the API server serves.
func Served(gvk schema.GroupVersionKind) bool {
	_, _, served := find(gvk)
	return served
}

// All are the kinds of Berth in all versions, with the hub first.
func All() []schema.GroupVersionKind {
	var all []schema.GroupVersionKind
	for i := range kinds {
		all = append(all, kinds[i].hub)
		for _, s := range kinds[i].spokes {
			all = append(all, kinds[i].hub.GroupKind().WithVersion(s.version))
		}
	}
	return all
}

// Convert changes the content of an object, as decoded from JSON, into the version apiVersion. It changes the maps of the content. It returns an error if
// the object is not one of Berth, or if Berth does not know the version. It never fails because of what an object contains.
func Convert(content map[string]any, apiVersion string) error {
	is, wanted := gvkOf(content), schema.FromAPIVersionAndKind(apiVersion, "")
	wanted.Kind = is.Kind
	_, from, known := find(is)
	_, to, served := find(wanted)
	if !known || !served || is.Group != wanted.Group {
		return fmt.Errorf("cannot convert %s from %s to %s", is.Kind, is.GroupVersion(), apiVersion)
	}
	if is.Version == wanted.Version {
		return nil
	}
	if from != nil && from.toHub != nil {
		from.toHub(content)
	}
	if to != nil && to.fromHub != nil {
		to.fromHub(content)
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
	if _, in, known := find(gvk); known && in != nil && in.inWords != nil {
		return in.inWords(message)
	}
	return message
}

// ErrorInWords is the error with the message in the words of the version of gvk.
func ErrorInWords(gvk schema.GroupVersionKind, err error) error {
	return errors.New(InWords(gvk, err.Error()))
}

// AddToScheme registers the types of all versions.
func AddToScheme(scheme *runtime.Scheme) error {
	return errors.Join(AddStored(scheme), oldapps.AddToScheme(scheme), oldpolicy.AddToScheme(scheme), oldunited.AddToScheme(scheme), oldsidecar.AddToScheme(scheme))
}

// AddStored registers the types of all kinds in the version that the API server stores, for programs that read and
// write objects in a cluster. FederatedReplicaSet has one version.
func AddStored(scheme *runtime.Scheme) error {
	return errors.Join(v1beta1.AddToScheme(scheme), policyv1beta1.AddToScheme(scheme), unitedv1beta1.AddToScheme(scheme), sidecarv1beta1.AddToScheme(scheme),
		federationv1alpha1.AddToScheme(scheme))
}

// ToHub returns an object of any version in the version of the hub. Objects that are not of Berth, and objects of the hub, stay what they are.
func ToHub(object runtime.Object) (runtime.Object, error) {
	k, in, known := find(object.GetObjectKind().GroupVersionKind())
	if !known || in == nil {
		return object, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	if err := Convert(content, k.hub.GroupVersion().String()); err != nil {
		return nil, err
	}
	hub := k.newHub()
	return hub, runtime.DefaultUnstructuredConverter.FromUnstructured(content, hub)
}

var strict = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	utilruntime.Must(AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}()

// Decode reads an object of Berth from YAML or JSON. It returns the object in the version of the hub, and the kind and version that it has in the document.
// Unknown and duplicate fields are a strict decoding error, which names them as the document does. With such an error it returns the object too, without
// these fields. With any other error the object is nil.
func Decode(document []byte) (runtime.Object, schema.GroupVersionKind, error) {
	object, gvk, err := strict.Decode(document, nil, nil)
	if gvk == nil {
		gvk = &schema.GroupVersionKind{}
	}
	if object == nil {
		return nil, *gvk, err
	}
	hub, failed := ToHub(object)
	if failed != nil {
		return nil, *gvk, failed
	}
	return hub, *gvk, err
}
