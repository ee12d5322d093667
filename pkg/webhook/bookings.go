package webhook

import (
	"maps"
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
// The model decides in which subset a pod counts, by the current policy. Pods with the same signature share a bucket, and the model is asked once for
// each bucket.
type bookings struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// buckets of the pods in the cache that count, or may count, by the UID of the pod.
	buckets map[types.UID]*bucket
	spreads map[types.NamespacedName]*account
	// controllers of these pods, by namespace and UID.
	controllers map[string]map[types.UID]buckets
	// swept is when the picks of all spreads were last cleaned up.
	swept time.Time
}

// account of one spread. A spread without pods and picks has none.
type account struct {
	// buckets whose pods name the spread.
	buckets buckets
	// picks that no pod in the cache carries yet, by mark.
	picks map[string]pick
	// lag of the replicas, if they arrive later than the pods.
	lag lag
}

type buckets map[signature]*bucket

// bucket is the pods with the same signature. It has at least one.
type bucket struct {
	signature
	// pods by UID. They are shared with the cache and must not be changed.
	pods map[types.UID]*corev1.Pod
}

// signature is what decides in which subset a pod counts, except its node and labels.
type signature struct {
	controller types.UID
	// spread that the pods name. Pods without a name are bound, and another scheduler bound them.
	spread types.NamespacedName
	place
	// picked is what admission picked for a pod that is bound by now. It counts if its record does not.
	picked subset.Admitted
}

// place is the revision and subset that a pod of a spread names.
type place struct {
	revision, subset string
	// bound is true if the pod's record names the place. Otherwise admission has picked it.
	bound bool
	// ending is true if the pods terminate. They count if the spread says so.
	ending bool
}

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
	return &bookings{clock: clock, buckets: map[types.UID]*bucket{}, spreads: map[types.NamespacedName]*account{}, controllers: map[string]map[types.UID]buckets{}}
}

// accountOf returns the account, and makes it if there is none.
func (b *bookings) accountOf(spread types.NamespacedName) *account {
	a := b.spreads[spread]
	if a == nil {
		a = &account{buckets: buckets{}, picks: map[string]pick{}}
		b.spreads[spread] = a
	}
	return a
}

func (b *bookings) closeIfEmpty(spread types.NamespacedName) {
	if a := b.spreads[spread]; a != nil && len(a.buckets) == 0 && len(a.picks) == 0 {
		delete(b.spreads, spread)
	}
}

// seen adds or updates a pod in the cache.
func (b *bookings) seen(object metav1.Object) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	admitted := subset.AdmittedOf(pod)
	now, counts := signatureOf(pod, admitted)
	b.mu.Lock()
	defer b.mu.Unlock()
	if admitted != nil {
		picked := types.NamespacedName{Namespace: pod.Namespace, Name: admitted.Spread}
		if a := b.spreads[picked]; a != nil {
			delete(a.picks, admitted.Pick)
			defer b.closeIfEmpty(picked)
		}
	}
	if before := b.buckets[pod.UID]; counts && before != nil && before.signature == now {
		before.pods[pod.UID] = pod
		return
	}
	b.drop(pod.UID)
	if counts {
		b.add(pod, now)
	}
}

// signatureOf is false for a pod that counts nowhere: it has ended, or terminates without a node, no spread can divide it, or it is pending and admission picked
// nothing for it.
func signatureOf(pod *corev1.Pod, admitted *subset.Admitted) (signature, bool) {
	owner := workload.ControllerOf(pod)
	ending := subset.IsEnding(pod)
	if !subset.IsActive(pod) && !ending || owner == nil || workload.EndsChain(owner.Kind) {
		return signature{}, false
	}
	of := signature{controller: owner.UID, spread: types.NamespacedName{Namespace: pod.Namespace}, place: place{revision: subset.RevisionOf(pod), ending: ending}}
	if of.bound = pod.Spec.NodeName != ""; of.bound {
		if record := subset.RecordOf(pod); record != nil {
			of.spread.Name, of.subset = record.Spread, record.Subset
		}
		if admitted != nil {
			of.picked = subset.Admitted{Spread: admitted.Spread, Subset: admitted.Subset}
		}
		return of, true
	}
	if admitted == nil {
		return of, false
	}
	of.spread.Name, of.subset = admitted.Spread, admitted.Subset
	return of, true
}

// gone removes a pod that has left the cache.
func (b *bookings) gone(object metav1.Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(object.GetUID())
}

func (b *bookings) add(pod *corev1.Pod, of signature) {
	inNamespace := b.controllers[pod.Namespace]
	if inNamespace == nil {
		inNamespace = map[types.UID]buckets{}
		b.controllers[pod.Namespace] = inNamespace
	}
	ofController := inNamespace[of.controller]
	if ofController == nil {
		ofController = buckets{}
		inNamespace[of.controller] = ofController
	}
	in := ofController[of]
	if in == nil {
		in = &bucket{signature: of, pods: map[types.UID]*corev1.Pod{}}
		ofController[of] = in
		if of.spread.Name != "" {
			b.accountOf(of.spread).buckets[of] = in
		}
	}
	in.pods[pod.UID] = pod
	b.buckets[pod.UID] = in
}

// drop forgets a pod by what was known of it: its controller and annotations may have changed since. An unknown pod is no error.
func (b *bookings) drop(uid types.UID) {
	in := b.buckets[uid]
	if in == nil {
		return
	}
	delete(b.buckets, uid)
	if delete(in.pods, uid); len(in.pods) > 0 {
		return
	}
	if a := b.spreads[in.spread]; a != nil {
		delete(a.buckets, in.signature)
		b.closeIfEmpty(in.spread)
	}
	inNamespace := b.controllers[in.spread.Namespace]
	if delete(inNamespace[in.controller], in.signature); len(inNamespace[in.controller]) > 0 {
		return
	}
	if delete(inNamespace, in.controller); len(inNamespace) == 0 {
		delete(b.controllers, in.spread.Namespace)
	}
}

// scope is one quota scope of a spread.
type scope struct {
	spread types.NamespacedName
	policy *subset.Policy
	// name of the scope, as Policy.ScopeOf returns it.
	name string
}

func scopeOf(spread types.NamespacedName, policy *subset.Policy, revision string) scope {
	return scope{spread, policy, policy.ScopeOf(revision)}
}

// subsetOf is where pods count that name this spread and place, or None if they do not count in this scope. It is false if they are bound and their
// record is ignored: then their nodes decide.
func (s *scope) subsetOf(spread string, at place) (index int, told bool) {
	switch {
	case s.policy.ScopeOf(at.revision) != s.name, at.ending && !s.policy.CountsEnding:
		return subset.None, true
	case at.bound:
		return s.policy.RecordedIn(&subset.Record{Spread: spread, Subset: at.subset}, s.spread.Name)
	default:
		index, _ = s.policy.AdmittedTo(&subset.Admitted{Spread: spread, Subset: at.subset}, s.spread.Name)
		return index, true
	}
}

// adopts is true for pods whose nodes decide where they count, if the spread divides them.
func (s *scope) adopts(pods *bucket) bool {
	_, told := s.subsetOf(pods.spread.Name, pods.place)
	return !told
}

// adoptable is one pod of each controller in the namespace with pods whose nodes decide where they count, if the spread divides them. The pods must
// not be changed.
func (b *bookings) adoptable(in *scope) []*corev1.Pod {
	b.mu.Lock()
	defer b.mu.Unlock()
	var each []*corev1.Pod
	for _, ofController := range b.controllers[in.spread.Namespace] {
		if pod := ofController.adoptable(in); pod != nil {
			each = append(each, pod)
		}
	}
	return each
}

func (c buckets) adoptable(in *scope) *corev1.Pod {
	for _, bucket := range c {
		if !in.adopts(bucket) {
			continue
		}
		for _, pod := range bucket.pods {
			if in.policy.Selects(pod.Labels) {
				return pod
			}
		}
	}
	return nil
}

// alike are pods that a spread adopts in the same subset: the same node, pick and, if the spread looks at them, labels.
type alike struct {
	node   string
	picked subset.Admitted
	// uid of the pod if the spread looks at labels.
	uid types.UID
}

// adoptedOn is how many such pods these controllers have, and how many of them are of the revision.
func (b *bookings) adoptedOn(in *scope, controllers []types.UID, revision string) (adopted map[alike]*adoptees, ofRevision int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	adopted = map[alike]*adoptees{}
	for _, controller := range controllers {
		for _, bucket := range b.controllers[in.spread.Namespace][controller] {
			if !in.adopts(bucket) {
				continue
			}
			for _, pod := range bucket.pods {
				if !in.policy.Selects(pod.Labels) {
					continue
				}
				of := alike{node: pod.Spec.NodeName, picked: bucket.picked}
				if in.policy.Kruise {
					of.uid = pod.UID
				}
				if adopted[of] == nil {
					adopted[of] = &adoptees{labels: pod.Labels}
				}
				if adopted[of].pods++; bucket.revision == revision && !bucket.ending {
					ofRevision++
				}
			}
		}
	}
	return adopted, ofRevision
}

// adoptees are pods that are alike.
type adoptees struct {
	pods int32
	// labels of one of them, which must not be changed.
	labels map[string]string
}

// candidate is a pod that asks for a subset.
type candidate struct {
	revision string
	// mark identifies the pick.
	mark string
	// trial is true for a dry run.
	trial bool
	// adopted are the pods that count by their nodes. adoptedAlike is how many of them are of this revision.
	adopted      subset.Counts
	adoptedAlike int32
	closed       subset.Mask
	// position of the pod in its StatefulSet; see subset.Pod.
	position int32
	// replicas of the workload. With mayLag they may be older than the pods.
	replicas int32
	mayLag   bool
}

// book picks a subset and remembers the pick under its mark, unless this is a trial.
func (b *bookings) book(in *scope, pod *candidate) subset.Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept, alike := b.kept(in, pod.revision)
	for i := range kept {
		kept[i] += pod.adopted.At(i)
	}
	plan := b.plan(in, pod, alike+pod.adoptedAlike+1)
	verdict := in.policy.PickEarly(&plan, kept, in.policy.At(&plan, pod.position, subset.Candidate{Closed: pod.closed}))
	if !pod.trial {
		picked := place{revision: pod.revision}
		if verdict.Subset != subset.None {
			picked.subset = in.policy.Subsets[verdict.Subset].Name
		}
		b.note(in.spread, picked, pod.mark)
	}
	return verdict
}

// plan is for the known replicas. While these may lag behind, it is for the number of pods of the candidate's revision, including the candidate.
func (b *bookings) plan(in *scope, pod *candidate, alike int32) subset.Plan {
	plan := in.policy.Plan(pod.replicas)
	if !pod.mayLag || !in.policy.LagsBehind(&plan, alike) {
		return plan
	}
	var now lag
	if a := b.spreads[in.spread]; a != nil {
		now = a.lag
	}
	now.meet(pod.replicas, b.clock.Now())
	if !pod.trial {
		b.accountOf(in.spread).lag = now
	}
	if now.isOver() {
		return plan
	}
	return in.policy.Plan(alike)
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
	now, picks := b.clock.Now(), b.accountOf(spread).picks
	if _, noted := picks[mark]; !noted && len(picks) >= maxPicks {
		delete(picks, oldestOf(picks))
	}
	picks[mark] = pick{at, now.Add(pickTTL)}
	if now.Sub(b.swept) >= pickTTL {
		b.sweep(now)
	}
}

func oldestOf(picks map[string]pick) (oldest string) {
	var until time.Time
	for mark, p := range picks {
		if oldest == "" || p.until.Before(until) {
			oldest, until = mark, p.until
		}
	}
	return oldest
}

// sweep forgets expired picks of all spreads. Nobody may ask about one of these spreads again.
func (b *bookings) sweep(now time.Time) {
	b.swept = now
	for spread, a := range b.spreads {
		maps.DeleteFunc(a.picks, func(_ string, p pick) bool { return now.After(p.until) })
		b.closeIfEmpty(spread)
	}
}

// kept counts the pods of a scope that name their subset. ofRevision counts those of the revision, including pods in no subset.
func (b *bookings) kept(in *scope, revision string) (kept subset.Counts, ofRevision int32) {
	now := b.clock.Now()
	kept = make(subset.Counts, len(in.policy.Subsets))
	add := func(at place, pods int) {
		index, told := in.subsetOf(in.spread.Name, at)
		if index != subset.None {
			kept[index] += int32(pods)
		}
		if told && !at.ending && at.revision == revision {
			ofRevision += int32(pods)
		}
	}
	if a := b.spreads[in.spread]; a != nil {
		for _, bucket := range a.buckets {
			add(bucket.place, len(bucket.pods))
		}
		for mark, p := range a.picks {
			if now.After(p.until) {
				delete(a.picks, mark)
				continue
			}
			add(p.place, 1)
		}
		b.closeIfEmpty(in.spread)
	}
	return kept, ofRevision
}
