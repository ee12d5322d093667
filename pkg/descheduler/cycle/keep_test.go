package cycle

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

func TestWhatIsKeptOfAPod(t *testing.T) {
	volumes := []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}, {Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	whole := func(annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: annotations, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}},
			Spec: corev1.PodSpec{
				NodeName: "n", Tolerations: []corev1.Toleration{{Key: "spot"}}, Volumes: append([]corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}}, volumes...),
				InitContainers: []corev1.Container{{Name: "proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Command: []string{"run"}}},
				Containers: []corev1.Container{{Name: "main", Image: "web:1", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}, Ports: []corev1.ContainerPort{{HostPort: 80}},
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ImageID: "sha256:1", RestartCount: 7, Ready: true}}},
		}
	}
	want := whole(map[string]string{"a": "b"})
	want.ManagedFields, want.Spec.Volumes = nil, volumes
	want.Spec.InitContainers[0].Command, want.Spec.Containers[0].Env, want.Status.ContainerStatuses[0].ImageID = nil, nil, ""
	got, err := keepOfPod(whole(map[string]string{"a": "b", corev1.LastAppliedConfigAnnotation: "{}"}))
	if diff := cmp.Diff(any(want), got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	early, err := keepOfPod(whole(map[string]string{v1beta1.AdmittedAnnotation: "{}"}))
	if diff := cmp.Diff(whole(nil).Spec, early.(*corev1.Pod).Spec); diff != "" || err != nil {
		t.Errorf("a pod that was bound early: %v (-want +got):\n%s", err, diff)
	}
}
