package workloadspread

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

// BenchmarkCycle is the plugin's share of a scheduling cycle that depends on what the cluster holds: choosing a subset and reserving the
// slot. It must not grow with the pods of the workload, nor with other workloads. What grows with the nodes is in BenchmarkTiers.
func BenchmarkCycle(b *testing.B) {
	for _, size := range []struct{ spreads, pods int }{{1, 10}, {1, 1_000}, {1, 100_000}, {1_000, 10}, {1_000, 1_000}, {1_000, 100_000}} {
		b.Run(fmt.Sprintf("spreads=%d/pods=%d", size.spreads, size.pods), func(b *testing.B) {
			w := newWorld(b, int32(size.pods))
			for i := range size.spreads - 1 {
				object := &v1alpha1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("other-%d", i), UID: types.UID(fmt.Sprint(i)), Generation: 1}}
				object.Spec.TargetReference = v1alpha1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: object.Name}
				object.Spec.Subsets = []v1alpha1.Subset{{Name: "a"}}
				w.ledger.spreadChanged(object)
				w.workload[workloadKey{"ns", appsv1.GroupName, "Deployment", object.Name}] = 1
			}
			w.spread(1, twoThenAny)
			for i := range size.pods {
				w.ledger.observe(onNode(w.podOf("rs-uid", fmt.Sprintf("bound%d", i)), "node-b", "b"))
			}
			pod := w.pod("p")
			b.ReportAllocs()
			for b.Loop() {
				answer := w.ledger.choose(pod, nil)
				if answer.decision == nil || !w.ledger.reserve(pod, answer.decision) {
					b.Fatal("no slot")
				}
				w.ledger.unreserve(pod.UID)
			}
		})
	}
}

// BenchmarkFilter is the plugin's share for each node that the scheduler looks at.
func BenchmarkFilter(b *testing.B) {
	w := newWorld(b, 10)
	w.spread(1, adaptive)
	nodes := []fwk.NodeInfo{nodeInfo("a", "1"), nodeInfo("b", "1"), nodeInfo("c", "1")}
	pod, plugin, state := w.pod("p"), &Spread{core: &core{ledger: w.ledger}}, framework.NewCycleState()
	state.Write(stateKey, w.ledger.choose(pod, nodes).decision)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if status := plugin.Filter(b.Context(), state, pod, nodes[i%3]); status.IsSuccess() != (i%3 == 0) {
			b.Fatal(status)
		}
		i++
	}
}
