package webhook

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// bookings count the pods of spreads that bind early, as this replica knows them: those in the cache, and those that it has picked a subset for
// and that are not in the cache yet. With one replica that is exact; with several each may overlook what the others have picked a moment ago,
// and the scheduler, which counts for all, does not bind what is too many. It is safe for concurrent use.
type bookings struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// pods in the cache that count, by UID.
	pods    map[types.UID]booking
	spreads map[types.NamespacedName]*account
	// strangers are bound pods that carry no mark of a subset, by their controller: somebody else bound them.
	strangers map[types.UID]map[types.UID]*corev1.Pod
}

// account of one spread. There is none for a spread without pods and picks.
type account struct {
	// counts of pods in the cache.
	counts map[place]int32
	// picks that no pod in the cache carries yet, by their own mark.
	picks map[string]pick
}

// place is where a pod of a spread counts.
type place struct{ revision, subset string }

type booking struct {
	spread types.NamespacedName
	place
}

type pick struct {
	place
	until time.Time
}

// pickLasts is how long a pick counts without a pod. A pod whose creation failed after it was admitted never comes.
const pickLasts = 10 * time.Second

func newBookings(clock clock.PassiveClock) *bookings {
	return &bookings{clock: clock, pods: map[types.UID]booking{}, spreads: map[types.NamespacedName]*account{}, strangers: map[types.UID]map[types.UID]*corev1.Pod{}}
}

// accountOf makes the account if there is none.
func (b *bookings) accountOf(spread types.NamespacedName) *account {
	a := b.spreads[spread]
	if a == nil {
		a = &account{counts: map[place]int32{}, picks: map[string]pick{}}
		b.spreads[spread] = a
	}
	return a
}

func (b *bookings) closeIfEmpty(spread types.NamespacedName) {
	if a := b.spreads[spread]; a != nil && len(a.counts) == 0 && len(a.picks) == 0 {
		delete(b.spreads, spread)
	}
}

// seen takes in a pod that is in the cache.
func (b *bookings) seen(object metav1.Object) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	now := booking{types.NamespacedName{Namespace: pod.Namespace}, place{revision: subset.RevisionOf(pod)}}
	admitted, record := subset.AdmittedOf(pod), subset.RecordOf(pod)
	switch {
	case !subset.IsActive(pod):
	case record != nil:
		now.spread.Name, now.subset = record.Spread, record.Subset
	case admitted != nil:
		now.spread.Name, now.subset = admitted.Spread, admitted.Subset
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if admitted != nil {
		picked := types.NamespacedName{Namespace: pod.Namespace, Name: admitted.Spread}
		if a := b.spreads[picked]; a != nil {
			delete(a.picks, admitted.Pick)
			defer b.closeIfEmpty(picked)
		}
	}
	b.drop(pod)
	owner := workload.ControllerUID(pod)
	switch {
	case now.subset != "":
		b.pods[pod.UID] = now
		b.accountOf(now.spread).counts[now.place]++
	case subset.IsActive(pod) && pod.Spec.NodeName != "" && record == nil && admitted == nil && owner != "":
		if b.strangers[owner] == nil {
			b.strangers[owner] = map[types.UID]*corev1.Pod{}
		}
		b.strangers[owner][pod.UID] = pod
	}
}

// gone takes in a pod that has left the cache.
func (b *bookings) gone(object metav1.Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(object)
}

func (b *bookings) drop(object metav1.Object) {
	uid, owner := object.GetUID(), workload.ControllerUID(object)
	if delete(b.strangers[owner], uid); len(b.strangers[owner]) == 0 {
		delete(b.strangers, owner)
	}
	before, known := b.pods[uid]
	if !known {
		return
	}
	delete(b.pods, uid)
	a := b.spreads[before.spread]
	if a.counts[before.place]--; a.counts[before.place] == 0 {
		delete(a.counts, before.place)
		b.closeIfEmpty(before.spread)
	}
}

// strangersOf are the bound pods of a controller that carry no mark of a subset. They are shared and must not be changed.
func (b *bookings) strangersOf(owner types.UID) []*corev1.Pod {
	b.mu.Lock()
	defer b.mu.Unlock()
	pods := make([]*corev1.Pod, 0, len(b.strangers[owner]))
	for _, pod := range b.strangers[owner] {
		pods = append(pods, pod)
	}
	return pods
}

// book picks a subset and remembers the pick under its mark, unless it is a trial. adopted are pods that count besides those that carry the mark
// of a subset.
func (b *bookings) book(spread types.NamespacedName, policy *subset.Policy, plan *subset.Plan, adopted subset.Counts, closed subset.Mask,
	revision, mark string, trial bool) subset.Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	verdict := policy.PickEarly(plan, b.kept(spread, policy, revision, adopted), closed)
	if verdict.Subset != subset.None && !trial {
		b.note(spread, place{revision, policy.Subsets[verdict.Subset].Name}, mark)
	}
	return verdict
}

// keep remembers a pick that was made before, maybe by another replica. It counts once however often it is kept. Whether there is room is not asked:
// the pod carries the patch of the subset, and a second patch would not take back the first. If others have filled the subset meanwhile, the
// scheduler does not bind the pod, and it is replaced.
func (b *bookings) keep(spread types.NamespacedName, at place, mark string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note(spread, at, mark)
}

func (b *bookings) note(spread types.NamespacedName, at place, mark string) {
	b.accountOf(spread).picks[mark] = pick{at, b.clock.Now().Add(pickLasts)}
}

// kept counts the scope of a revision.
func (b *bookings) kept(spread types.NamespacedName, policy *subset.Policy, revision string, adopted subset.Counts) subset.Counts {
	kept, now := make(subset.Counts, len(policy.Subsets)), b.clock.Now()
	add := func(at place, n int32) {
		if i := policy.Index(at.subset); i != subset.None && policy.ScopeOf(at.revision) == policy.ScopeOf(revision) {
			kept[i] += n
		}
	}
	if a := b.spreads[spread]; a != nil {
		for at, n := range a.counts {
			add(at, n)
		}
		for mark, p := range a.picks {
			if now.After(p.until) {
				delete(a.picks, mark)
				continue
			}
			add(p.place, 1)
		}
		b.closeIfEmpty(spread)
	}
	for i := range kept {
		kept[i] += adopted.At(i)
	}
	return kept
}
