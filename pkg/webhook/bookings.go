package webhook

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// bookings count the pods of spreads that bind early, as this replica knows them: the pods in the cache, and the pods for which it has picked a
// subset and that are not in the cache yet. With one replica that is exact. With several, a replica may miss recent picks of the others. The
// scheduler counts for all of them and does not bind pods above a quota. bookings is safe for concurrent use.
//
// The model decides in which subset a pod counts, by the current policy. A pick looks at all pods of the workload: about half a millisecond for 3,000.
type bookings struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// pods in the cache that count, or may count, by the UIDs of their controller and of the pod.
	pods map[types.UID]map[types.UID]booked
	// controllers are those of these pods, by the UID of the pod.
	controllers map[types.UID]types.UID
	// picks of each spread that no pod in the cache carries yet, by mark.
	picks map[types.NamespacedName]map[string]pick
	// lags of the spreads whose replicas arrive later than the pods.
	lags map[types.NamespacedName]lag
	// swept is when the picks and lags of all spreads were last cleaned up.
	swept time.Time
}

// booked is what a pick looks at of a pod in the cache. The labels are shared with the cache and must not be changed.
type booked struct {
	revision, node string
	labels         map[string]string
	record         *subset.Record
	admitted       *subset.Admitted
	active, ending bool
}

// place is the revision and subset that were picked for a pod.
type place struct{ revision, subset string }

type pick struct {
	place
	until time.Time
}

// pickTTL is how long a pick counts without a pod. A pod whose creation failed after admission never arrives.
const pickTTL = 10 * time.Second

// maxPicks is how many picks of one spread count without a pod. The cache shows a new pod within milliseconds, so there are many only if others
// refuse the pods afterwards, for instance because of a ResourceQuota. Then the oldest pick is forgotten; its pod most likely never arrives.
const maxPicks = 1000

func newBookings(clock clock.PassiveClock) *bookings {
	return &bookings{
		clock: clock, pods: map[types.UID]map[types.UID]booked{}, controllers: map[types.UID]types.UID{},
		picks: map[types.NamespacedName]map[string]pick{}, lags: map[types.NamespacedName]lag{},
	}
}

// seen adds or updates a pod in the cache.
func (b *bookings) seen(object metav1.Object) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	now := booked{
		revision: subset.RevisionOf(pod), node: pod.Spec.NodeName, labels: pod.Labels, record: subset.RecordOf(pod), admitted: subset.AdmittedOf(pod),
		active: subset.IsActive(pod), ending: subset.IsEnding(pod),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(pod.UID)
	if now.admitted != nil {
		delete(b.picks[types.NamespacedName{Namespace: pod.Namespace, Name: now.admitted.Spread}], now.admitted.Pick)
	}
	if owner := workload.ControllerOf(pod); owner != nil && !workload.EndsChain(owner.Kind) && now.mayCount() {
		if b.pods[owner.UID] == nil {
			b.pods[owner.UID] = map[types.UID]booked{}
		}
		b.pods[owner.UID][pod.UID], b.controllers[pod.UID] = now, owner.UID
	}
}

// mayCount is false for a pod that has ended, or terminates without a node, or is pending and nothing was picked for it.
func (p *booked) mayCount() bool {
	return (p.active || p.ending) && (p.node != "" || p.admitted != nil)
}

// gone removes a pod that has left the cache.
func (b *bookings) gone(object metav1.Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(object.GetUID())
}

// drop forgets a pod at the controller that it had. An unknown pod is no error.
func (b *bookings) drop(uid types.UID) {
	controller := b.controllers[uid]
	delete(b.controllers, uid)
	if delete(b.pods[controller], uid); len(b.pods[controller]) == 0 {
		delete(b.pods, controller)
	}
}

// candidate is a pod that asks for a subset.
type candidate struct {
	spread   types.NamespacedName
	policy   *subset.Policy
	revision string
	// owners are the workload, and all owners of pods below it.
	owners []owner
	// node reads a node. It is nil if the node is gone.
	node func(name string) (*corev1.Node, error)
	// mark identifies the pick.
	mark string
	// trial is true for a dry run.
	trial  bool
	closed subset.Mask
	// position of the pod in its StatefulSet; see subset.Pod.
	position int32
	// replicas of the workload. With mayLag they may be older than the pods.
	replicas int32
	mayLag   bool
}

// owner of pods of a workload. divided is true for the labels of pods that the spread of a nearer owner divides.
type owner struct {
	uid     types.UID
	divided func(labels map[string]string) bool
}

// book picks a subset and remembers the pick under its mark, unless this is a trial.
func (b *bookings) book(pod *candidate) (subset.Verdict, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept, alike, err := b.count(pod)
	if err != nil {
		return subset.Verdict{}, err
	}
	plan := b.plan(pod, alike+1)
	verdict := pod.policy.PickEarly(&plan, kept, pod.policy.At(&plan, pod.position, subset.Candidate{Closed: pod.closed}))
	if !pod.trial {
		picked := place{revision: pod.revision}
		if verdict.Subset != subset.None {
			picked.subset = pod.policy.Subsets[verdict.Subset].Name
		}
		b.note(pod.spread, picked, pod.mark)
	}
	return verdict, nil
}

// likeness says which pods without a record the same subset adopts: those that are on the same node, and admission has picked the same for them.
type likeness struct{ node, spread, picked string }

// count counts the pods of the candidate's quota scope by their subsets, and the picks whose pods are not in the cache yet. alike is how many active ones
// are of the candidate's revision, in a subset or not.
func (b *bookings) count(in *candidate) (kept subset.Counts, alike int32, _ error) {
	kept = make(subset.Counts, len(in.policy.Subsets))
	add := func(pod *subset.Pod, index int) {
		if pod.Active && pod.Revision == in.revision {
			alike++
		}
		if index != subset.None && in.policy.ScopeOf(pod.Revision) == in.policy.ScopeOf(in.revision) {
			kept[index]++
		}
	}
	adopted := map[likeness]int{}
	for _, owner := range in.owners {
		for _, known := range b.pods[owner.uid] {
			if !in.policy.Selects(known.labels) || owner.divided(known.labels) {
				continue
			}
			pod := subset.Pod{
				Revision: known.revision, Record: known.record, Admitted: known.admitted, Labels: known.labels, NodeName: known.node, Active: known.active, Ending: known.ending,
			}
			if pod.NodeName == "" {
				if index, _ := in.policy.AdmittedTo(pod.Admitted, in.spread.Name); pod.Admitted.Spread == in.spread.Name {
					add(&pod, index)
				}
				continue
			}
			index, recorded := in.policy.RecordedIn(pod.Record, in.spread.Name)
			if !recorded {
				of := likeness{node: known.node}
				if known.admitted != nil {
					of.spread, of.picked = known.admitted.Spread, known.admitted.Subset
				}
				same, found := adopted[of]
				if index = same; !found || in.policy.Kruise { // then labels count, too
					var err error
					if pod.Node, err = in.node(pod.NodeName); err != nil {
						return nil, 0, err
					}
					index, _ = in.policy.SubsetOf(&pod, in.spread.Name)
					adopted[of] = index
				}
			}
			if !in.policy.HoldsSlot(&pod) {
				index = subset.None
			}
			add(&pod, index)
		}
	}
	now := b.clock.Now()
	for _, p := range b.picks[in.spread] {
		if !now.After(p.until) {
			index, _ := in.policy.AdmittedTo(&subset.Admitted{Spread: in.spread.Name, Subset: p.subset}, in.spread.Name)
			add(&subset.Pod{Revision: p.revision, Active: true}, index)
		}
	}
	return kept, alike, nil
}

// plan is for the known replicas. While these may lag behind, it is for the number of pods of the candidate's revision, including the candidate.
func (b *bookings) plan(pod *candidate, alike int32) subset.Plan {
	plan := pod.policy.Plan(pod.replicas)
	if !pod.mayLag || !pod.policy.LagsBehind(&plan, alike) {
		return plan
	}
	now := b.lags[pod.spread]
	now.meet(pod.replicas, b.clock.Now())
	if !pod.trial {
		b.lags[pod.spread] = now
	}
	if now.isOver() {
		return plan
	}
	return pod.policy.Plan(alike)
}

// lag is a time in which there are more pods than the last known replicas. New replicas end it. If none arrive for maxLag, the number is right and
// the workload has more pods than it asks for. Larger quotas than those of the scheduler and the controller would then make them replace pods without
// end.
type lag struct {
	replicas    int32
	since, last time.Time
}

// maxLag is how long new replicas are awaited. The status controller needs 200 ms to two seconds to write them.
const maxLag = 5 * time.Second

// meet records that there is a pod above the replicas. After maxLag without such a pod another lag begins.
func (l *lag) meet(replicas int32, now time.Time) {
	if l.replicas != replicas || now.Sub(l.last) > maxLag {
		l.since = now
	}
	l.replicas, l.last = replicas, now
}

func (l *lag) isOver() bool { return l.last.Sub(l.since) > maxLag }

// keep remembers a pick that was made before, maybe by another replica. It counts once however often it is kept. Room is not checked: the pod carries
// the patch of the subset, and a second patch would not undo the first. If others have filled the subset meanwhile, the scheduler does not bind the
// pod, and the pod is replaced.
func (b *bookings) keep(spread types.NamespacedName, at place, mark string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note(spread, at, mark)
}

func (b *bookings) note(spread types.NamespacedName, at place, mark string) {
	now := b.clock.Now()
	if now.Sub(b.swept) >= pickTTL {
		b.sweep(now)
	}
	picks := b.picks[spread]
	if picks == nil {
		picks = map[string]pick{}
		b.picks[spread] = picks
	}
	if _, noted := picks[mark]; !noted && len(picks) >= maxPicks {
		delete(picks, slices.MinFunc(slices.Collect(maps.Keys(picks)), func(a, b string) int { return picks[a].until.Compare(picks[b].until) }))
	}
	picks[mark] = pick{at, now.Add(pickTTL)}
}

// sweep forgets expired picks and lags of all spreads. Nobody may ask about one of these spreads again.
func (b *bookings) sweep(now time.Time) {
	b.swept = now
	for spread, picks := range b.picks {
		maps.DeleteFunc(picks, func(_ string, p pick) bool { return now.After(p.until) })
		if len(picks) == 0 {
			delete(b.picks, spread)
		}
	}
	maps.DeleteFunc(b.lags, func(_ types.NamespacedName, l lag) bool { return now.Sub(l.last) > maxLag })
}
