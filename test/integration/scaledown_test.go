package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

const oneOneThree = spreadHeader + `
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - {name: a, maxReplicas: 20%, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - {name: b, maxReplicas: 20%, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
  - {name: c, maxReplicas: 60%, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [c]}]}}
`

// waitForRest waits until the workload has this number of active pods. All must be ready, and each must have a unique deletion cost. It returns the
// number of pods in each subset. A ReplicaSet deletes pods that are not ready first, whatever their cost.
func waitForRest(t *testing.T, ns string, replicas int) map[string]int {
	t.Helper()
	var kept map[string]int
	waitFor(t, fmt.Sprintf("%d pods in order", replicas), func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		kept = map[string]int{}
		costs, active := map[int]bool{}, 0
		for i := range pods {
			if pods[i].DeletionTimestamp != nil {
				continue
			}
			active++
			if !isReady(&pods[i]) {
				continue
			}
			cost, err := strconv.Atoi(pods[i].Annotations[v1beta1.PodDeletionCostAnnotation])
			if err != nil {
				return "", err
			}
			costs[cost] = true
			kept[pods[i].Labels[v1beta1.SubsetLabel]]++
		}
		if active != replicas || len(costs) != replicas {
			return fmt.Sprintf("%d active pods, %d costs of those that are ready: %v", active, len(costs), kept), nil
		}
		return "", nil
	})
	return kept
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func TestPercentagesKeepTheirProportionWhateverTheWorkloadIsScaledDownTo(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b", "c")
	ns := namespace(t)
	apply(t, ns, oneOneThree)
	apply(t, ns, deployment("web", 100, ""))
	// expect fails unless each subset is within one pod of its share.
	expect := func(replicas int) {
		t.Helper()
		kept := waitForRest(t, ns, replicas)
		for in, share := range map[string]int{"a": 20, "b": 20, "c": 60} {
			if low, high := share*replicas/100, (share*replicas+99)/100; kept[in] < low || kept[in] > high {
				t.Errorf("%d replicas: %v, want %d to %d in %s", replicas, kept, low, high, in)
			}
		}
	}
	for _, replicas := range []int{100, 50, 25, 10, 5} {
		scale(t, ns, "web", replicas)
		expect(replicas)
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 12 { // like a HorizontalPodAutoscaler, up and down
		replicas := 1 + random.IntN(60)
		scale(t, ns, "web", replicas)
		expect(replicas)
	}
	expectNoViolation(t)
}

func TestCountsAreScaledDownFromTheLastSubsetToTheFirst(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "6"))
	apply(t, ns, deployment("web", 10, ""))
	for _, step := range []struct {
		replicas int
		want     string
	}{{10, "a=6 b=4"}, {7, "a=6 b=1"}, {3, "a=3 b=0"}, {8, "a=6 b=2"}, {1, "a=1 b=0"}} {
		scale(t, ns, "web", step.replicas)
		expectPlaces(t, ns, step.want)
	}
	expectNoViolation(t)
}

// TestAnApplicationSaysWhichPodOfASubsetIsBusy: it writes the annotation that Kubernetes documents. The order of the subsets stays.
func TestAnApplicationSaysWhichPodOfASubsetIsBusy(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "2"))
	apply(t, ns, deployment("web", 6, ""))
	expectPlaces(t, ns, "a=2 b=4")
	annotate := func(ctx context.Context, pod, cost string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, v1beta1.PodDeletionCostAnnotation, cost)
		_, err := the.Client.CoreV1().Pods(ns).Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	// The ReplicaSet controller would delete the youngest of a subset first.
	youngest := func(in string) string {
		pods, err := the.Pods(t.Context(), ns)
		if err != nil {
			t.Fatal(err)
		}
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Labels[v1beta1.SubsetLabel] != in || p.DeletionTimestamp != nil })
		return slices.MaxFunc(pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) }).Name
	}
	inA, inB := youngest("a"), youngest("b")
	costOf := func(pod string, want string) {
		t.Helper()
		waitFor(t, "pod "+pod+" costs "+want, func(ctx context.Context) (string, error) {
			got, err := the.Client.CoreV1().Pods(ns).Get(ctx, pod, metav1.GetOptions{})
			if err != nil || got.Annotations[v1beta1.PodDeletionCostAnnotation] == want {
				return "", err
			}
			return fmt.Sprint(got.Annotations), nil
		})
	}
	for _, pod := range []string{inA, inB} {
		if err := annotate(t.Context(), pod, `"1000"`); err != nil {
			t.Fatal(err)
		}
	}
	costOf(inA, "222")
	costOf(inB, "122")
	scale(t, ns, "web", 3)
	expectPlaces(t, ns, "a=2 b=1")
	costOf(inB, "122") // it is there
	if err := annotate(t.Context(), inB, `"0"`); err != nil {
		t.Fatal(err)
	}
	costOf(inB, "100")
	scale(t, ns, "web", 1)
	expectPlaces(t, ns, "a=1 b=0")
	costOf(inA, "222")
	expectNoViolation(t)
}
