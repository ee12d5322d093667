package webhook

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// add sets the value at the path, whether there is one or not. The parent must exist.
func add(path string, value any) operation { return operation{Op: "add", Path: path, Value: value} }

func remove(path string) operation { return operation{Op: "remove", Path: path} }

const (
	// constraintsPath is that of v1beta1.ConstraintsAnnotation, with its slash escaped.
	constraintsPath = "/metadata/annotations/berth.dev~1constraints"
	affinityPath    = "/spec/affinity"
	requiredPath    = "requiredDuringSchedulingIgnoredDuringExecution"
)

// patchOf turns one pod into another, for the fields that admission changes: the scheduler's name, the gates, the tolerations, the required node
// affinity, and the annotation about them. It changes as little as possible, so that fields survive that this version of Kubernetes does not know.
func patchOf(before, after *corev1.Pod) []operation {
	var patch []operation
	if before.Spec.SchedulerName != after.Spec.SchedulerName {
		patch = append(patch, add("/spec/schedulerName", after.Spec.SchedulerName))
	}
	if gates := after.Spec.SchedulingGates; len(before.Spec.SchedulingGates) != len(gates) { // one was added
		patch = append(patch, add("/spec/schedulingGates", gates))
	}
	patch = append(patch, patchOfNote(before, after)...)
	patch = append(patch, patchOfTolerations(before.Spec.Tolerations, after.Spec.Tolerations)...)
	return append(patch, patchOfRequired(before, after)...)
}

func patchOfNote(before, after *corev1.Pod) []operation {
	was, had := before.Annotations[v1beta1.ConstraintsAnnotation]
	is, has := after.Annotations[v1beta1.ConstraintsAnnotation]
	switch {
	case had == has && was == is:
		return nil
	case !has:
		return []operation{remove(constraintsPath)}
	case len(before.Annotations) == 0:
		return []operation{add("/metadata/annotations", map[string]string{v1beta1.ConstraintsAnnotation: is})}
	default:
		return []operation{add(constraintsPath, is)}
	}
}

func patchOfTolerations(before, after []corev1.Toleration) []operation {
	const path = "/spec/tolerations"
	same := func(a, b []corev1.Toleration) bool {
		return slices.EqualFunc(a, b, func(x, y corev1.Toleration) bool { return x.MatchToleration(&y) && equalSeconds(x, y) })
	}
	switch {
	case same(before, after):
		return nil
	case len(after) == 0:
		return []operation{remove(path)}
	case len(before) == 0 || len(after) < len(before) || !same(before, after[:len(before)]):
		return []operation{add(path, after)}
	}
	var patch []operation
	for i := range after[len(before):] {
		patch = append(patch, add(path+"/-", &after[len(before)+i]))
	}
	return patch
}

func equalSeconds(a, b corev1.Toleration) bool {
	return equality.Semantic.DeepEqual(a.TolerationSeconds, b.TolerationSeconds)
}

func patchOfRequired(before, after *corev1.Pod) []operation {
	was, is := requiredOf(before), requiredOf(after)
	switch {
	case equality.Semantic.DeepEqual(was, is):
		return nil
	case is == nil:
		return []operation{remove(affinityPath + "/nodeAffinity/" + requiredPath)}
	case before.Spec.Affinity == nil:
		return []operation{add(affinityPath, map[string]any{"nodeAffinity": map[string]any{requiredPath: is}})}
	case before.Spec.Affinity.NodeAffinity == nil:
		return []operation{add(affinityPath+"/nodeAffinity", map[string]any{requiredPath: is})}
	default:
		return []operation{add(affinityPath+"/nodeAffinity/"+requiredPath, is)}
	}
}

func requiredOf(pod *corev1.Pod) *corev1.NodeSelector {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}
