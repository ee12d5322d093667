package lineage

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/test/testkit"
)

const pools = `subsets:
- name: a
  requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}
  tolerations: [{key: a, operator: Exists}]
- name: b
  requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}
  tolerations: [{key: b, operator: Exists}]
`

// What would be made in place of a pod is what admission and scheduler would make of it in the subset, not a copy of
// what this one is bound to.
func TestTheReplacementIsForTheOtherSubset(t *testing.T) {
	policy := testkit.Policy(t, pools)
	victim := podOf("web-1")
	victim.UID, victim.Spec.NodeName, victim.Status.Phase = "p", "node", corev1.PodRunning
	victim.Spec.Tolerations = []corev1.Toleration{{Key: "own", Operator: corev1.TolerationOpExists}}
	policy.Constraints.AddTo(victim)
	made, err := take(t).Replacement(victim, policy, "web", 0)
	if err != nil {
		t.Fatal(err)
	}
	expectTolerates(t, made, "own a")
	terms := made.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || terms[0].MatchExpressions[0].Values[0] != "a" {
		t.Errorf("it requires %v", terms)
	}
	if made.Spec.NodeName != "" || made.UID == victim.UID || made.Status.Phase != "" {
		t.Errorf("it is the pod itself: %s on %s", made.UID, made.Spec.NodeName)
	}
	if victim.Spec.NodeName != "node" || len(victim.Spec.Tolerations) != 3 {
		t.Errorf("the pod was changed: %v", victim.Spec)
	}
}

func expectTolerates(t *testing.T, pod *corev1.Pod, want string) {
	t.Helper()
	var keys []string
	for _, toleration := range pod.Spec.Tolerations {
		keys = append(keys, toleration.Key)
	}
	if got := strings.Join(keys, " "); got != want {
		t.Errorf("it tolerates %s, want %s", got, want)
	}
}

// A pod that carries the patch of a subset is replaced by one with the patch of the other subset. Containers, volumes
// and tolerations that others have added to it stay.
func TestTheReplacementOfAnEarlyBoundPod(t *testing.T) {
	policy := testkit.Policy(t, strings.NewReplacer(
		"- name: a\n", "- name: a\n  patch: {spec: {containers: [{name: main, resources: {limits: {cpu: 300m}}}, {name: helper, image: h}], tolerations: [{key: patched, operator: Exists}]}}\n",
		"- name: b\n", "- name: b\n  patch: {spec: {containers: [{name: main, resources: {requests: {cpu: 700m}}}]}}\n").Replace(pools))
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "set"}}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main"}}
	admitted, err := policy.BindEarly(podFrom(&set.Spec.Template, "ns"), 0, v1beta1.AdmittedSubset{Name: "web", Subset: "a"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	admitted.Name, admitted.UID = "db-0", "p"
	admitted.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set", Controller: ptr.To(true)}}
	admitted.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"}}}}
	admitted.Spec.Containers = append(admitted.Spec.Containers, corev1.Container{Name: "sidecar", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}}})
	for i := range admitted.Spec.Containers { // as a LimitRange would
		if c := &admitted.Spec.Containers[i]; c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		if c := &admitted.Spec.Containers[i]; c.Resources.Requests.Memory().IsZero() {
			c.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("64Mi")
		}
	}
	admitted.Spec.Tolerations = append(admitted.Spec.Tolerations, corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists})
	if _, err := take(t).Replacement(admitted, policy, "web", 1); err == nil {
		t.Error("something is known of a pod without a template")
	}
	made, err := take(t, set).Replacement(admitted, policy, "web", 1)
	if err != nil {
		t.Fatal(err)
	}
	requests := map[string]string{}
	for _, c := range made.Spec.Containers {
		requests[c.Name] = c.Resources.Requests.Cpu().String() + " " + c.Resources.Requests.Memory().String()
	}
	if len(requests) != 2 || requests["main"] != "700m 0" || requests["sidecar"] != "50m 64Mi" {
		t.Errorf("its containers request %v", requests)
	}
	if len(made.Spec.Volumes) != 1 || made.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != "data-db-0" {
		t.Errorf("its volumes are %v", made.Spec.Volumes)
	}
	expectTolerates(t, made, "gpu b")
	if in := subset.AdmittedOf(made); in == nil || in.Subset != "b" {
		t.Errorf("it says that admission picked %v", in)
	}
}

// A pod that was resized is replaced by one as large as the template says. What a LimitRange has added stays.
func TestTheReplacementOfAResizedPod(t *testing.T) {
	amounts := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "set"}}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	pod := podOf("db-0")
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set", Controller: ptr.To(true)}}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: amounts("100m", "64Mi")}}}
	for generation, want := range map[int64]string{1: "100m", 2: "1"} {
		pod.Generation = generation
		made, err := take(t, set).Replacement(pod, testkit.Policy(t, pools), "web", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := made.Spec.Containers[0].Resources.Requests; got.Cpu().String() != want || got.Memory().String() != "64Mi" {
			t.Errorf("generation %d: it requests %v", generation, got)
		}
	}
	if pod.Spec.Containers[0].Resources.Requests.Cpu().String() != "100m" {
		t.Error("the pod was changed")
	}
}
