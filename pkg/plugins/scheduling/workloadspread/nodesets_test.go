package workloadspread

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// newCache creates the cache of a real scheduler. The cache needs the scheduler's metrics.
func newCache(tb testing.TB) cache.Cache {
	tb.Helper()
	metrics.Register()
	return newSchedulerCache(tb.Context())
}

// subsetsOf returns subsets that select the nodes of these zones.
func subsetsOf(tb testing.TB, zones ...string) []subset.Subset {
	tb.Helper()
	spec := &v1beta1.WorkloadSpreadSpec{TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
	for _, zone := range zones {
		spec.Subsets = append(spec.Subsets, v1beta1.Subset{Name: zone, RequiredNodeSelector: &corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}}}})
	}
	policy, errs := subset.Compile(&v1beta1.WorkloadSpread{Spec: *spec}, field.NewPath("spec"))
	if len(errs) > 0 {
		tb.Fatal(errs)
	}
	return policy.Subsets
}

func zoneNode(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}}
}

func TestNodeSetsAgreeWithEverySnapshotOfTheSchedulersCache(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		nodes, snapshot, nodeSets := newCache(t), cache.NewEmptySnapshot(), newNodeSets(defaultSettings().notices)
		subsets := subsetsOf(t, "a", "b", "c")
		changed := func(name string) *corev1.Node {
			node := zoneNode(name, string("abc"[random.IntN(3)]))
			if random.IntN(4) == 0 {
				node.Spec.Taints = []corev1.Taint{{Key: "berth.dev/node-ends"}}
			}
			return node
		}
		known := map[string]*corev1.Node{}
		var marks []int64
		for step := range 300 {
			for range random.IntN(4) {
				name := fmt.Sprintf("node-%d", random.IntN(12))
				switch node := known[name]; {
				case node == nil:
					known[name] = changed(name)
					nodes.AddNode(klog.Logger{}, known[name])
				case random.IntN(3) == 0:
					delete(known, name)
					if err := nodes.RemoveNode(klog.Logger{}, node); err != nil {
						t.Fatal(err)
					}
				case random.IntN(2) == 0:
					known[name] = changed(name)
					nodes.UpdateNode(klog.Logger{}, node, known[name])
				default:
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(seed, step), UID: types.UID(fmt.Sprint(random.Uint64()))}}
					pod.Spec.NodeName = name
					if err := nodes.AddPod(klog.Logger{}, pod); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := nodes.UpdateSnapshot(klog.Logger{}, snapshot); err != nil {
				t.Fatal(err)
			}
			list, err := snapshot.NodeInfos().List()
			if err != nil {
				t.Fatal(err)
			}
			if len(list) == 0 {
				continue
			}
			nodeSets.update(list)
			for i := range subsets[:1+step*3/300] { // the test uses the later subsets only after many changes
				want := sets.New[string]()
				for _, info := range list {
					if subsets[i].Holds(info.Node()) && len(info.Node().Spec.Taints) == 0 {
						want.Insert(info.Node().Name)
					}
				}
				if diff := cmp.Diff(want, nodeSets.of(&subsets[i])); diff != "" {
					t.Fatalf("seed %d, step %d: nodes of subset %s (-want +got):\n%s", seed, step, subsets[i].Name, diff)
				}
			}
			marks = append(marks, nodeSets.newest)
			since := marks[random.IntN(len(marks))]
			changed, want := map[string]int{}, map[string]int{}
			nodeSets.one(&subset.Subset{}, since, fmt.Sprintf("node-%d", random.IntN(12)), func(info fwk.NodeInfo) bool {
				changed[info.Node().Name]++
				return false
			})
			for _, info := range list {
				if info.GetGeneration() > since && len(info.Node().Spec.Taints) == 0 {
					want[info.Node().Name] = 1
				}
			}
			if diff := cmp.Diff(want, changed); diff != "" {
				t.Fatalf("seed %d, step %d: nodes that changed since generation %d (-want +got):\n%s", seed, step, since, diff)
			}
		}
	}
}

// BenchmarkNodeSets measures the cost of a cycle of a spread's pod per node of the cluster. One node has changed since the previous cycle.
func BenchmarkNodeSets(b *testing.B) {
	for _, size := range []int{100, 5000} {
		b.Run(fmt.Sprintf("nodes=%d", size), func(b *testing.B) {
			nodes, snapshot, nodeSets := newCache(b), cache.NewEmptySnapshot(), newNodeSets(defaultSettings().notices)
			for i := range size {
				nodes.AddNode(klog.Logger{}, zoneNode(fmt.Sprintf("node-%d", i), string("abc"[i%3])))
			}
			in := subsetsOf(b, "a")
			i := 0
			for b.Loop() {
				b.StopTimer()
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}}
				pod.Spec.NodeName = fmt.Sprintf("node-%d", i%size)
				i++
				if err := nodes.AddPod(klog.Logger{}, pod); err != nil {
					b.Fatal(err)
				}
				if err := nodes.UpdateSnapshot(klog.Logger{}, snapshot); err != nil {
					b.Fatal(err)
				}
				list, err := snapshot.NodeInfos().List()
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				nodeSets.update(list)
				if nodeSets.of(&in[0]) == nil {
					b.Fatal("no node set")
				}
			}
		})
	}
}
