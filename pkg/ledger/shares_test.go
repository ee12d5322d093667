package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/subset"
)

// sharing is a world in which a Deployment grows, shrinks and is rolled out. Its ReplicaSets delete the pods with the least deletion cost first, and the
// costs are what Berth's controller writes.
type sharing struct {
	*world
	r    *rand.Rand
	spec string
	pods []subset.Pod // bound
	made int
}

// layouts are specs of three subsets, and what each subset has at some numbers of replicas. At the others it has its target.
var layouts = map[string]struct {
	spec string
	at   map[int32][]int32
}{
	"20/20/60 %": {`subsets: [{name: a, maxReplicas: "20%"}, {name: b, maxReplicas: "20%"}, {name: c, maxReplicas: "60%"}]`,
		map[int32][]int32{0: {0, 0, 0}, 1: {0, 0, 1}, 2: {0, 0, 2}, 5: {1, 1, 3}, 7: {1, 1, 5}, 10: {2, 2, 6}, 40: {8, 8, 24}}},
	"weights 1:1:3": {`subsets: [{name: a, weight: 1}, {name: b, weight: 1}, {name: c, weight: 3}]`,
		map[int32][]int32{0: {0, 0, 0}, 1: {0, 0, 1}, 2: {0, 0, 2}, 5: {1, 1, 3}, 7: {1, 1, 5}, 10: {2, 2, 6}, 40: {8, 8, 24}}},
	"33/33/34 %": {`subsets: [{name: a, maxReplicas: "33%"}, {name: b, maxReplicas: "33%"}, {name: c, maxReplicas: "34%"}]`,
		map[int32][]int32{1: {0, 0, 1}, 3: {1, 1, 1}, 10: {3, 3, 4}}},
	"at least 3 in each": {`subsets: [{name: a, minReplicas: 3}, {name: b, minReplicas: 3}, {name: c, minReplicas: 3}]`,
		map[int32][]int32{2: {2, 0, 0}, 4: {3, 1, 0}, 9: {3, 3, 3}, 40: {34, 3, 3}}},
	"at least 3, at most 10": {`subsets: [{name: a, minReplicas: 3, maxReplicas: 10}, {name: b, minReplicas: 3, maxReplicas: 10}, {name: c, minReplicas: 3}]`,
		map[int32][]int32{9: {3, 3, 3}, 12: {6, 3, 3}, 20: {10, 7, 3}, 40: {10, 10, 20}}},
	"at least 2 and then 1:1:3": {`subsets: [{name: a, minReplicas: 2, weight: 1}, {name: b, minReplicas: 2, weight: 1}, {name: c, weight: 3}]`,
		map[int32][]int32{3: {2, 1, 0}, 4: {2, 2, 0}, 10: {2, 2, 6}, 15: {3, 3, 9}}},
	"1:1:3 with at most 5 in c": {`subsets: [{name: a, weight: 1}, {name: b, weight: 1}, {name: c, weight: 3, maxReplicas: 5}]`,
		map[int32][]int32{7: {1, 1, 5}, 11: {3, 3, 5}, 40: {18, 17, 5}}},
	"c has no weight": {`subsets: [{name: a, weight: 1}, {name: b, weight: 1}, {name: c, minReplicas: 1}]`,
		map[int32][]int32{1: {0, 0, 1}, 4: {2, 1, 1}, 40: {20, 19, 1}}},
}

func TestEverySizeHasOneLayout(t *testing.T) {
	for name, tc := range layouts {
		t.Run(name, func(t *testing.T) {
			s := newSharing(t, tc.spec)
			expect := func(event string, size int32) {
				t.Helper()
				kept, want := s.kept(), s.ledger.byName[spreadKey].plan.Target
				if known, isKnown := tc.at[size]; isKnown {
					want = known
				}
				if !slices.Equal(kept, want) {
					t.Errorf("%s, %d pods are %v, want %v", event, size, kept, want)
				}
			}
			for size := range int32(41) {
				s.resize("v1", size)
				expect("one by one up", size)
			}
			for size := int32(40); size >= 0; size-- {
				s.resize("v1", size)
				expect("one by one down", size)
			}
			for size := range int32(41) {
				s.resize("v1", 0)
				s.resize("v1", size)
				expect("all at once", size)
				s.rollOut("v1", "v2", size, 2)
				expect("after a rollout", size)
				s.resize("v2", 40)
				s.resize("v2", size)
				expect("scaled down at once", size)
				s.rollOut("v2", "v1", size, 2)
				expect("after the next rollout", size)
				s.resize("v1", size/2)
				s.restart()
				s.resize("v1", size)
				expect("with a new scheduler", size)
			}
		})
	}
}

// TestASchedulerThatIsKilledInTheMiddleKeepsTheLayout replaces the scheduler while pods hold claims and while it does not know of the last binds yet.
func TestASchedulerThatIsKilledInTheMiddleKeepsTheLayout(t *testing.T) {
	for name, tc := range layouts {
		t.Run(name, func(t *testing.T) {
			s := newSharing(t, tc.spec)
			for size := range int32(41) {
				s.resize("v1", 0)
				s.scale(size)
				var waiting []*corev1.Pod
				for range size {
					waiting = append(waiting, s.newPod("v1"))
				}
				for i, pod := range waiting {
					switch s.r.IntN(3) {
					case 0:
						s.ask(pod) // a claim, which the next scheduler does not know
					case 1:
						s.bind(pod)
						waiting[i] = nil
					}
				}
				s.restart()
				waiting = slices.DeleteFunc(waiting, func(p *corev1.Pod) bool { return p == nil })
				for _, pod := range waiting {
					s.see(pod)
				}
				s.r.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
				for _, pod := range waiting {
					s.bind(pod)
				}
				if want := s.ledger.byName[spreadKey].plan.Target; !slices.Equal(s.kept(), want) {
					t.Errorf("%d pods are %v, want %v", size, s.kept(), want)
				}
			}
		})
	}
}

func newSharing(t *testing.T, spec string) *sharing {
	t.Helper()
	s := &sharing{world: newWorld(t, 0), r: rand.New(rand.NewPCG(1, 1)), spec: spec}
	s.seeReplicaSet("v1")
	s.seeReplicaSet("v2")
	s.spread(1, spec)
	return s
}

// restart replaces the scheduler. The new one knows the bound pods.
func (s *sharing) restart() {
	replicas := s.ledger.byName[spreadKey].plan.Replicas
	s.world = newWorld(s.t, replicas)
	s.seeReplicaSet("v1")
	s.seeReplicaSet("v2")
	s.spread(1, s.spec)
	for i := range s.pods {
		s.seeBound(inRevision(podOf(s.pods[i].Owner, s.pods[i].Name), s.pods[i].Revision), "node-a", s.pods[i].Record.Subset)
	}
}

// resize sets the replicas, and makes or deletes pods of the revision.
func (s *sharing) resize(revision string, replicas int32) {
	s.t.Helper()
	s.scale(replicas)
	s.grow(revision, replicas)
	s.shrink(revision, replicas)
}

// rollOut replaces the pods as a Deployment does with maxUnavailable: 0.
func (s *sharing) rollOut(from, to string, replicas, surge int32) {
	s.t.Helper()
	for s.count(to) < replicas {
		s.grow(to, min(replicas, replicas+surge-s.count(from)))
		s.shrink(from, replicas-s.count(to))
	}
	s.shrink(from, 0)
}

// grow makes pods of the revision until it has this number. All of them claim a slot, and then find a node in any order.
func (s *sharing) grow(revision string, replicas int32) {
	s.t.Helper()
	var pods []*corev1.Pod
	for n := s.count(revision); n < replicas; n++ {
		pod := s.newPod(revision)
		s.ask(pod)
		pods = append(pods, pod)
	}
	s.r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	for _, pod := range pods {
		s.bind(pod)
	}
}

func (s *sharing) newPod(revision string) *corev1.Pod {
	s.made++
	pod := inRevision(podOf(types.UID(revision), fmt.Sprintf("pod-%d", s.made)), revision)
	s.see(pod)
	return pod
}

func (s *sharing) bind(pod *corev1.Pod) {
	s.t.Helper()
	d := s.schedule(pod)
	s.seeBound(pod, "node-a", d.Name())
	cost := d.Policy.DeletionCost(d.Subset, d.Ordinal)
	s.pods = append(s.pods, subset.Pod{Name: pod.Name, UID: pod.UID, Owner: pod.OwnerReferences[0].UID, Revision: pod.Labels["pod-template-hash"], Active: true,
		Ready: true, NodeName: "node-a", Record: &subset.Record{Spread: "web", Subset: d.Name()}, Cost: &cost, Created: time.Unix(int64(s.made), 0)})
}

// shrink deletes the pods of the revision with the least cost until it has this number.
func (s *sharing) shrink(revision string, replicas int32) {
	s.t.Helper()
	a := s.ledger.byName[spreadKey]
	for _, cost := range a.policy.Costs(&a.plan, s.pods, "web") {
		i := slices.IndexFunc(s.pods, func(p subset.Pod) bool { return p.UID == cost.Pod.UID })
		s.pods[i].Cost = ptr.To(cost.Cost)
	}
	for s.count(revision) > replicas {
		least := -1
		for i := range s.pods {
			if s.pods[i].Revision == revision && (least == -1 || *s.pods[i].Cost < *s.pods[least].Cost) {
				least = i
			}
		}
		s.apply(PodGone{UID: s.pods[least].UID})
		s.pods = slices.Delete(s.pods, least, least+1)
	}
}

func (s *sharing) count(revision string) (n int32) {
	for i := range s.pods {
		if s.pods[i].Revision == revision {
			n++
		}
	}
	return n
}

func (s *sharing) kept() []int32 {
	policy := s.ledger.byName[spreadKey].policy
	kept := make([]int32, len(policy.Subsets))
	for i := range s.pods {
		kept[policy.Index(s.pods[i].Record.Subset)]++
	}
	return kept
}
