package webhook

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1internal "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"

	"github.com/berth-project/berth/pkg/subset"
)

// tryPatch applies a patch to a pod of the template. The API server's own validation then shows what is wrong with the result and was not wrong
// before. An error has the path of the patch, and names the field in the pod. tryPatch returns the pod before and after. After is nil if the patch could
// not be applied.
//
// The pod is defaulted before it is patched, as at admission: some defaults conflict with patches.
func tryPatch(patch *subset.Patch, template *corev1.PodTemplateSpec, namespace string, path *field.Path) (before, after *corev1.Pod, errs field.ErrorList) {
	before = &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	before.Namespace, before.Name = namespace, "pod"
	corev1internal.SetObjectDefaults_Pod(before)
	after, err := patch.Apply(before)
	if err != nil {
		return before, nil, field.ErrorList{field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("on a pod of the workload: %v", err))}
	}
	known := map[string]int{}
	for _, e := range podErrors(before) {
		known[nameIn(before, e.Field)+": "+e.ErrorBody()]++
	}
	for _, e := range podErrors(after) {
		at := nameIn(after, e.Field)
		if key := at + ": " + e.ErrorBody(); known[key] > 0 {
			known[key]--
			continue
		}
		detail := "at " + at + " of the patched pod"
		if e.Detail != "" {
			detail += ": " + e.Detail
		}
		errs = append(errs, &field.Error{Type: e.Type, Field: path.String(), BadValue: e.BadValue, Detail: detail})
	}
	return before, after, errs
}

// nameIn is a field of a pod with the names of containers and volumes in place of their indexes, which a patch changes.
func nameIn(pod *corev1.Pod, at string) string {
	for i := range pod.Spec.Containers {
		at = strings.Replace(at, fmt.Sprintf("spec.containers[%d]", i), fmt.Sprintf("spec.containers[%s]", pod.Spec.Containers[i].Name), 1)
	}
	for i := range pod.Spec.InitContainers {
		at = strings.Replace(at, fmt.Sprintf("spec.initContainers[%d]", i), fmt.Sprintf("spec.initContainers[%s]", pod.Spec.InitContainers[i].Name), 1)
	}
	for i := range pod.Spec.Volumes {
		at = strings.Replace(at, fmt.Sprintf("spec.volumes[%d]", i), fmt.Sprintf("spec.volumes[%s]", pod.Spec.Volumes[i].Name), 1)
	}
	return at
}

// podErrors are the API server's errors for the creation of a pod.
func podErrors(pod *corev1.Pod) field.ErrorList {
	// Berth does not know whether the API server allows privileged containers, so it allows them. The first call decides for the process.
	capabilities.Setup(true, 0)
	pod = pod.DeepCopy()
	corev1internal.SetObjectDefaults_Pod(pod)
	var internal core.Pod
	if err := corev1internal.Convert_v1_Pod_To_core_Pod(pod, &internal, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("converting the pod: %w", err))}
	}
	return validation.ValidatePodCreate(&internal, podOptions)
}

// podOptions allow everything that the API server may allow. Its feature gates are not known.
var podOptions = validation.PodValidationOptions{
	ResourceIsPod: true,
	AllowRelaxedEnvironmentVariableValidation:           true,
	AllowRelaxedDNSSearchValidation:                     true,
	AllowPodLifecycleSleepActionZeroValue:               true,
	PodLevelResourcesEnabled:                            true,
	InPlacePodLevelResourcesVerticalScalingEnabled:      true,
	AllowSidecarResizePolicy:                            true,
	AllowMatchLabelKeysInPodTopologySpread:              true,
	AllowMatchLabelKeysInPodTopologySpreadSelectorMerge: true,
	AllowEnvFilesValidation:                             true,
	AllowContainerRestartPolicyRules:                    true,
	AllowTaintTolerationComparisonOperators:             true,
	AllowUserNamespacesHostNetworkSupport:               true,
	AllowRestartAllContainers:                           true,
}

// claimVolume is the volume that a StatefulSet's controller, and others like it, add to every pod for a claim of volumeClaimTemplates.
func claimVolume(claim metav1.Object) corev1.Volume {
	return corev1.Volume{
		Name:         claim.GetName(),
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.GetName()}},
	}
}
