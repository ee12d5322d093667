package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Object is an object of the API.
type Object interface {
	metav1.Object
	runtime.Object
}

// List is a list of such objects.
type List interface {
	metav1.ListInterface
	runtime.Object
}

// Kind is one of the built-in kinds, whose objects tell by themselves how many pods they ask for and which these are.
type Kind struct {
	// NewObject and NewList make empty ones.
	NewObject func() Object
	NewList   func() List
	// Watched is true for a kind that a spread may divide. Whoever serves spreads watches it from the start.
	Watched bool
}

var kinds = map[schema.GroupKind]Kind{
	{Group: appsv1.GroupName, Kind: "Deployment"}:            {func() Object { return &appsv1.Deployment{} }, func() List { return &appsv1.DeploymentList{} }, true},
	{Group: appsv1.GroupName, Kind: "ReplicaSet"}:            {func() Object { return &appsv1.ReplicaSet{} }, func() List { return &appsv1.ReplicaSetList{} }, true},
	{Group: appsv1.GroupName, Kind: "StatefulSet"}:           {func() Object { return &appsv1.StatefulSet{} }, func() List { return &appsv1.StatefulSetList{} }, true},
	{Group: batchv1.GroupName, Kind: "Job"}:                  {func() Object { return &batchv1.Job{} }, func() List { return &batchv1.JobList{} }, true},
	{Group: appsv1.GroupName, Kind: "DaemonSet"}:             {func() Object { return &appsv1.DaemonSet{} }, func() List { return &appsv1.DaemonSetList{} }, false},
	{Group: corev1.GroupName, Kind: "ReplicationController"}: {func() Object { return &corev1.ReplicationController{} }, func() List { return &corev1.ReplicationControllerList{} }, false},
}

// Parts are fields of an object of a built-in kind. What the kind does not have is nil.
type Parts struct {
	// Replicas is the field that says how many pods the object asks for: spec.parallelism of a Job.
	Replicas **int32
	Selector *metav1.LabelSelector
	Template *corev1.PodTemplateSpec
}

// PartsOf has nothing for an object of any other kind. The parts belong to the object.
func PartsOf(object runtime.Object) Parts {
	switch w := object.(type) {
	case *appsv1.Deployment:
		return Parts{&w.Spec.Replicas, w.Spec.Selector, &w.Spec.Template}
	case *appsv1.ReplicaSet:
		return Parts{&w.Spec.Replicas, w.Spec.Selector, &w.Spec.Template}
	case *appsv1.StatefulSet:
		return Parts{&w.Spec.Replicas, w.Spec.Selector, &w.Spec.Template}
	case *batchv1.Job:
		return Parts{&w.Spec.Parallelism, w.Spec.Selector, &w.Spec.Template}
	case *appsv1.DaemonSet:
		return Parts{nil, w.Spec.Selector, &w.Spec.Template}
	case *corev1.ReplicationController:
		return Parts{&w.Spec.Replicas, &metav1.LabelSelector{MatchLabels: w.Spec.Selector}, w.Spec.Template}
	default:
		return Parts{}
	}
}

// BuiltIn is false for a kind that is not built in.
func BuiltIn(kind schema.GroupKind) (Kind, bool) {
	k, is := kinds[kind]
	return k, is
}

// Watched are the built-in kinds that are watched from the start. The map is the caller's.
func Watched() map[schema.GroupKind]Kind {
	watched := map[schema.GroupKind]Kind{}
	for kind, k := range kinds {
		if k.Watched {
			watched[kind] = k
		}
	}
	return watched
}
