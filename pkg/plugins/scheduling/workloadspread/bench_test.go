package workloadspread

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
)

// BenchmarkCycle measures the plugin's share of a scheduling cycle: choosing a subset and reserving the slot. It must not grow with the pods of the
// workload or with other workloads. BenchmarkNodeSets measures what grows with the nodes.
func BenchmarkCycle(b *testing.B) {
	for _, size := range []struct{ spreads, pods int }{{1, 10}, {1, 1_000}, {1, 100_000}, {1_000, 10}, {1_000, 1_000}, {1_000, 100_000}} {
		b.Run(fmt.Sprintf("spreads=%d/pods=%d", size.spreads, size.pods), func(b *testing.B) {
			w := newWorld(b, int32(size.pods))
			for i := range size.spreads - 1 {
				object := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("other-%d", i), UID: types.UID(fmt.Sprint(i)), Generation: 1}}
				object.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: object.Name}
				object.Spec.Subsets = []v1beta1.Subset{{Name: "a"}}
				w.book.apply(ledger.SpreadSeen{Spread: object})
			}
			w.spread(1, twoThenAny)
			for i := range size.pods {
				w.see(onNode(podOf("rs-uid", fmt.Sprintf("bound%d", i)), "node-b", "b"))
			}
			benchmarkCycles(b, w)
		})
	}
}

func benchmarkCycles(b *testing.B, w *world) {
	b.Helper()
	pod := w.pod("p")
	b.ReportAllocs()
	for b.Loop() {
		d, _ := w.ask(ledger.PodAsks{Pod: pod}, nil)
		if d == nil || !w.book.apply(ledger.NodeFound{UID: pod.UID, Decision: d.Decision}).OK {
			b.Fatal("no slot")
		}
		w.book.apply(ledger.NodeLost{UID: pod.UID})
	}
}

// BenchmarkRules measures the same cycle beside 1,000 pods by what the subsets have.
func BenchmarkRules(b *testing.B) {
	for _, rule := range []struct{ name, subsets string }{
		{"counts", `{name: a, maxReplicas: 500}, {name: b, maxReplicas: 2000}, {name: c}`},
		{"percentages-and-rest", `{name: a, maxReplicas: 20%}, {name: b, maxReplicas: 20%}, {name: c}`},
		{"shares", `{name: a, maxReplicas: 20%}, {name: b, maxReplicas: 20%}, {name: c, maxReplicas: 60%}`},
		{"weights", `{name: a, weight: 1}, {name: b, weight: 1}, {name: c, weight: 3}`},
		{"minimums", `{name: a, minReplicas: 200}, {name: b, minReplicas: 200}, {name: c, minReplicas: 600}`},
	} {
		b.Run(rule.name, func(b *testing.B) {
			w := newWorld(b, 1001)
			w.spread(1, "subsets: ["+rule.subsets+"]")
			for i := range 1000 {
				w.see(onNode(podOf("rs-uid", fmt.Sprintf("bound%d", i)), "node-b", []string{"a", "b", "c", "c", "c"}[i%5]))
			}
			benchmarkCycles(b, w)
		})
	}
}

// BenchmarkFilter measures the plugin's share for each node that the scheduler checks.
func BenchmarkFilter(b *testing.B) {
	w := newWorld(b, 10)
	w.spread(1, adaptive)
	nodes := []fwk.NodeInfo{nodeInfo("a", "1"), nodeInfo("b", "1"), nodeInfo("c", "1")}
	pod, state := w.pod("p"), framework.NewCycleState()
	w.PreFilter(b.Context(), state, pod, nodes)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if status := w.Filter(b.Context(), state, pod, nodes[i%3]); status.IsSuccess() != (i%3 == 0) {
			b.Fatal(status)
		}
		i++
	}
}
