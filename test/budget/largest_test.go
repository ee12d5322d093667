package budget

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestTheLargestPodsCostTheAPIServerLittle gives each expression of Berth about pods the largest pods that a tenant can create. The API server evaluates the
// expressions itself at each update, also at a dry run, and whether or not Berth runs.
func TestTheLargestPodsCostTheAPIServerLittle(t *testing.T) {
	namespace := newNamespace(t)
	many := func(n int, add func(i int)) {
		for i := range n {
			add(i)
		}
	}
	for name, grow := range map[string]func(*corev1.Pod){
		"keys": func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1beta1.SelectorKeysAnnotation: strings.Repeat("a,", 100_000)}
		},
		"some keys": func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1beta1.SelectorKeysAnnotation: strings.Repeat("a,", 512)}
		},
		"labels": func(p *corev1.Pod) {
			many(5_000, func(i int) { p.Labels[fmt.Sprint("example.com/a-label-", i)] = "x" })
		},
		"annotations": func(p *corev1.Pod) {
			p.Annotations = map[string]string{}
			many(5_000, func(i int) { p.Annotations[fmt.Sprint("example.com/", i)] = "x" })
		},
		"owners": func(p *corev1.Pod) {
			many(5_000, func(i int) {
				p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint(i))})
			})
		},
		"containers": func(p *corev1.Pod) {
			many(300, func(i int) {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), Image: "image"})
				p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: fmt.Sprint("i", i), Image: "image"})
			})
		},
		"gates": func(p *corev1.Pod) {
			many(2_000, func(i int) {
				p.Spec.ReadinessGates = append(p.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: corev1.PodConditionType(fmt.Sprint("example.com/", i))})
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			// cost is the processor time of the API server for one update of the pod.
			cost := func(protected bool) time.Duration {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "large-", Labels: map[string]string{"large": "yes"}},
					Spec: corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "main", Image: "image"}}}}
				if grow(pod); protected {
					pod.Labels[v1beta1.ProtectedLabel] = v1beta1.ProtectedValue
				}
				pod, err := the.Client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				before, err := the.CPU()
				if err != nil {
					t.Fatal(err)
				}
				const times = 3
				for i := range times {
					patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/changed":"%d"}}}`, i)
					if _, err := the.Client.CoreV1().Pods(namespace).Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
						t.Fatal(err)
					}
				}
				after, err := the.CPU()
				if err != nil {
					t.Fatal(err)
				}
				return after.Since(before)[sandbox.APIServer] / times
			}
			// The least of three: whatever else the API server and the machine do meanwhile only adds to it.
			without, with := min(cost(false), cost(false), cost(false)), min(cost(true), cost(true), cost(true))
			t.Logf("one update costs %v, and %v if the pod is protected", without, with)
			// For each policy and webhook that matches, the API server converts both pods some more times: up to four times the cost. Work that grows with the
			// square of a pod's size cost 5 s.
			if limit := 8*without + 50*time.Millisecond; with > limit {
				t.Errorf("one update of a protected pod costs %v, want at most %v", with, limit)
			}
		})
	}
}

// TestAnEvictionBesideManyProtectedPodsCostsTheAPIServerLittle: a policy would convert each of them for an eviction without a mark.
func TestAnEvictionBesideManyProtectedPodsCostsTheAPIServerLittle(t *testing.T) {
	cost := func(protected int) time.Duration {
		namespace := newNamespace(t)
		apply(t, namespace, "{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 1}}")
		for i := range protected + 1 {
			labels := map[string]string{"app": "web", v1beta1.ProtectedLabel: v1beta1.ProtectedValue}
			if i == 0 {
				labels = map[string]string{"app": "other"}
			}
			// The annotation leaves the controller nothing to write meanwhile.
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("pod-", i), Labels: labels, Annotations: map[string]string{v1beta1.SelectorKeysAnnotation: "app"}},
				Spec: corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "main", Image: "image"}}}}
			if _, err := the.Client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		before, err := the.CPU()
		if err != nil {
			t.Fatal(err)
		}
		const times = 10
		for range times {
			eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "pod-0"}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
			if err := the.Client.CoreV1().Pods(namespace).EvictV1(t.Context(), eviction); err != nil {
				t.Fatal(err)
			}
		}
		after, err := the.CPU()
		if err != nil {
			t.Fatal(err)
		}
		return after.Since(before)[sandbox.APIServer] / times
	}
	few, many := cost(1), cost(500)
	t.Logf("one eviction costs %v beside one protected pod, and %v beside 500", few, many)
	if limit := 3*few + 30*time.Millisecond; many > limit {
		t.Errorf("one eviction costs %v beside 500 protected pods, want at most %v", many, limit)
	}
}
