package workload

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// Owner is an object that may own pods, directly or through others. It has no version, because two references may use
// different ones.
type Owner struct {
	Kind schema.GroupKind
	Name string
	// UID is empty for an owner that is known by its name only.
	UID types.UID
}

// LongestOwnerChain bounds the walk from a pod to its workload. Real chains have two or three links.
const LongestOwnerChain = 8

// TargetOf is the workload that a spread names.
func TargetOf(spread *v1beta1.WorkloadSpread) Owner {
	ref := spread.Spec.TargetReference
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		gv.Group = ref.APIVersion // it matches nothing, and subset.Compile reports the field
	}
	return Owner{Kind: schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, Name: ref.Name}
}

// ControllerOf is the object's controller, or nil.
func ControllerOf(object metav1.Object) *Owner {
	ref := metav1.GetControllerOfNoCopy(object)
	if ref == nil {
		return nil
	}
	owner := OwnerOf(ref)
	return &owner
}

// OwnerOf is the owner that a reference names. It is empty if there is no reference.
func OwnerOf(ref *metav1.OwnerReference) Owner {
	if ref == nil {
		return Owner{}
	}
	return Owner{Kind: schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind(), Name: ref.Name, UID: ref.UID}
}

// ControllerUID is the UID of the object's controller, or empty.
func ControllerUID(object metav1.Object) types.UID {
	if ref := metav1.GetControllerOfNoCopy(object); ref != nil {
		return ref.UID
	}
	return ""
}

// HaveSameController is true if both objects name the same controller, or none. The version in the references does not
// matter.
func HaveSameController(a, b metav1.Object) bool {
	one, other := ControllerOf(a), ControllerOf(b)
	if one == nil || other == nil {
		return one == other
	}
	return *one == *other
}

// CountsDeletions is true for kinds of owners that take a pod that somebody deletes for one that has failed.
func CountsDeletions(kind schema.GroupKind) bool {
	return kind == schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}
}

// IsOfJob is true if the object's controller is of a kind that CountsDeletions.
func IsOfJob(object metav1.Object) bool {
	owner := ControllerOf(object)
	return owner != nil && CountsDeletions(owner.Kind)
}

// EndsChain is true for kinds of owners that no spread divides and above which no spread is looked for.
func EndsChain(kind schema.GroupKind) bool {
	k, isBuiltIn := kinds[kind]
	return isBuiltIn && !k.Watched || kind == schema.GroupKind{Group: corev1.GroupName, Kind: "Node"}
}
