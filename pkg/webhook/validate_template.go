package webhook

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1internal "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"

	"github.com/berth-project/berth/pkg/subset"
)

// tryPatch applies a patch to a pod of the template, and asks the API server's own validation what is wrong with the result that was not wrong
// before. An error has the path of the part of the patch that it comes from, and names the place in the pod. It returns the pod before and
// after; after is nil if the patch could not be applied.
//
// The pod gets its defaults before it is patched, as at admission: some of them get in the way of a patch.
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
		_, inPod := patch.Locate(before, e.Field)
		known[inPod+": "+e.ErrorBody()]++
	}
	for _, e := range podErrors(after) {
		inPatch, inPod := patch.Locate(after, e.Field)
		if key := inPod + ": " + e.ErrorBody(); known[key] > 0 {
			known[key]--
			continue
		}
		detail := "at " + inPod + " of the patched pod"
		if e.Detail != "" {
			detail += ": " + e.Detail
		}
		errs = append(errs, &field.Error{Type: e.Type, Field: inPatch.String(), BadValue: e.BadValue, Detail: detail})
	}
	return before, after, errs
}

// podErrors are what the API server has to say to the creation of a pod.
func podErrors(pod *corev1.Pod) field.ErrorList {
	// Whether the API server allows privileged containers is not known, so it is left to it. The first call decides, for the process.
	capabilities.Setup(true, 0)
	pod = pod.DeepCopy()
	corev1internal.SetObjectDefaults_Pod(pod)
	var internal core.Pod
	if err := corev1internal.Convert_v1_Pod_To_core_Pod(pod, &internal, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, fmt.Errorf("converting the pod: %w", err))}
	}
	return validation.ValidatePodCreate(&internal, podOptions)
}

// podOptions allow what the API server may allow: its feature gates are not known.
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

// claimVolume is how a StatefulSet's controller, and others like it, add a volume for a claim of volumeClaimTemplates to every pod.
func claimVolume(claim metav1.Object) corev1.Volume {
	return corev1.Volume{
		Name:         claim.GetName(),
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.GetName()}},
	}
}
