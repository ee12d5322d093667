package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// apiObject is an object of the API.
type apiObject interface {
	metav1.Object
	runtime.Object
}

// apiList is a list of such objects.
type apiList interface {
	metav1.ListInterface
	runtime.Object
}

// builtInKind is one of the built-in kinds, whose objects tell by themselves how many pods they ask for and which these
// are.
type builtInKind struct {
	// NewObject and NewList make empty ones.
	NewObject func() apiObject
	NewList   func() apiList
	// Watched is true for a kind that a spread may divide. Whoever serves spreads watches it from the start.
	Watched bool
}

var kinds = map[schema.GroupKind]builtInKind{
	{Group: appsv1.GroupName, Kind: "Deployment"}:            {func() apiObject { return &appsv1.Deployment{} }, func() apiList { return &appsv1.DeploymentList{} }, true},
	{Group: appsv1.GroupName, Kind: "ReplicaSet"}:            {func() apiObject { return &appsv1.ReplicaSet{} }, func() apiList { return &appsv1.ReplicaSetList{} }, true},
	{Group: appsv1.GroupName, Kind: "StatefulSet"}:           {func() apiObject { return &appsv1.StatefulSet{} }, func() apiList { return &appsv1.StatefulSetList{} }, true},
	{Group: batchv1.GroupName, Kind: "Job"}:                  {func() apiObject { return &batchv1.Job{} }, func() apiList { return &batchv1.JobList{} }, true},
	{Group: appsv1.GroupName, Kind: "DaemonSet"}:             {func() apiObject { return &appsv1.DaemonSet{} }, func() apiList { return &appsv1.DaemonSetList{} }, false},
	{Group: corev1.GroupName, Kind: "ReplicationController"}: {func() apiObject { return &corev1.ReplicationController{} }, func() apiList { return &corev1.ReplicationControllerList{} }, false},
}

// parts are fields of an object of a built-in kind. What the kind does not have is nil.
type parts struct {
	// Replicas is the field that says how many pods the object asks for: spec.parallelism of a Job.
	Replicas **int32
	Selector *metav1.LabelSelector
	Template *corev1.PodTemplateSpec
}

// PartsOf has nothing for an object of any other kind. The parts belong to the object.
func PartsOf(object runtime.Object) parts {
	switch w := object.(type) {
	case *appsv1.Deployment:
		return parts{&w.Spec.Replicas, w.Spec.Selector, &w.Spec.Template}
	case *appsv1.ReplicaSet:
		return parts{&w.Spec.Replicas, w.Spec.Selector, &w.Spec.Template}
	case *appsv1.StatefulSet:
		return parts{&w.Spec.Replicas, w.Spec.Selector, &w.Spec.Template}
	case *batchv1.Job:
		return parts{&w.Spec.Parallelism, w.Spec.Selector, &w.Spec.Template}
	case *appsv1.DaemonSet:
		return parts{nil, w.Spec.Selector, &w.Spec.Template}
	case *corev1.ReplicationController:
		return parts{&w.Spec.Replicas, &metav1.LabelSelector{MatchLabels: w.Spec.Selector}, w.Spec.Template}
	default:
		return parts{}
	}
}

// BuiltIn is false for a kind that is not built in.
func BuiltIn(kind schema.GroupKind) (builtInKind, bool) {
	k, is := kinds[kind]
	return k, is
}

// Watched are the built-in kinds that are watched from the start. The map is the caller's.
func Watched() map[schema.GroupKind]builtInKind {
	watched := map[schema.GroupKind]builtInKind{}
	for kind, k := range kinds {
		if k.Watched {
			watched[kind] = k
		}
	}
	return watched
}
