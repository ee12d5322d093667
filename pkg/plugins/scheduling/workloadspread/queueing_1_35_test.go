//go:build !kubernetes_1_37

package workloadspread

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// Kubernetes 1.37 signs a pod when it enters the queue. A pod of a spread has no subset then, and so no signature: it gets no node of another pod.

// place runs the part of a pod's cycle that concerns batching, and returns the hint. It puts the pod on the hinted node, or without a hint on the
// first feasible node. The other feasible nodes are candidates for the next pods.
func (b *batch) place(pod *corev1.Pod, feasible ...string) string {
	b.t.Helper()
	requesting(pod, "1")
	b.snapshot = internalcache.NewSnapshot(b.pods, b.nodes)
	b.cycle++
	state := framework.NewCycleState()
	if _, status, _ := b.framework.RunPreFilterPlugins(b.t.Context(), state, pod); !status.IsSuccess() {
		b.t.Fatalf("%s: %v", pod.Name, status)
	}
	hint, signature := b.framework.GetNodeHint(b.t.Context(), pod, state, b.cycle)
	chosen, others := hint, nodeNames(nil)
	if hint == "" {
		chosen, others = feasible[0], feasible[1:]
	}
	b.framework.StoreScheduleResults(b.t.Context(), signature, hint, chosen, &others, b.cycle)
	if status := b.framework.RunReservePluginsReserve(b.t.Context(), state, pod, chosen); !status.IsSuccess() {
		b.t.Fatalf("%s: %v", pod.Name, status)
	}
	placed := pod.DeepCopy()
	placed.Spec.NodeName = chosen
	b.pods = append(b.pods, placed)
	return hint
}

func (b *batch) expectHint(pod *corev1.Pod, want string, feasible ...string) {
	b.t.Helper()
	if got := b.place(pod, feasible...); got != want {
		b.t.Errorf("%s has the hint %q, want %q", pod.Name, got, want)
	}
}

// nodeNames implements framework.SortedScoredNodes.
type nodeNames []string

// Len returns how many nodes are left.
func (n *nodeNames) Len() int { return len(*n) }

// Pop returns and removes the best node.
func (n *nodeNames) Pop() string {
	best := (*n)[0]
	*n = (*n)[1:]
	return best
}

func TestNodesAreHandedOnToPodsOfTheSameSubsetOnly(t *testing.T) {
	b := newBatch(t, "a", "a", "b", "b", "b", "b", "b")
	// Every node is in b, which prefers other nodes than a does.
	const spec = `subsets:
- {name: a, maxReplicas: 1, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, preferredNodeSelector: [{weight: 1, preference: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}]}`
	b.spread(1, spec)
	pods := b.podsNamed("p", 5)
	b.expectHint(pods[0], "", "a0", "a1")
	b.expectHint(pods[1], "", "b2", "b3", "b4", "b5", "b6", "a1")
	b.expectHint(pods[2], "b3")
	// A change of the spread may change the preferences.
	b.spread(2, strings.Replace(spec, "weight: 1", "weight: 2", 1))
	b.expectHint(pods[3], "", "b4", "b5", "b6")
	b.expectHint(pods[4], "b5")
}
