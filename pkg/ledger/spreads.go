package ledger

import (
	"maps"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// account counts the slots of one workload that a spread names.
type account struct {
	workload Workload
	// spreads that name the workload. The first one divides its pods; see workload.Wins.
	spreads []*v1beta1.WorkloadSpread
	// dividing is the spread from which the policy was compiled. Nil before the first.
	dividing *v1beta1.WorkloadSpread
	members  map[types.UID]*entry
	// live counts the live pods by their direct owner, including waiting ones.
	live map[types.UID]int32
	// read are the replicas that the caller read. Nil if it has not, or if the workload does not exist.
	read *int32
	// ordinals are those that the caller read. Nil if it has read none, or if the kind does not hide them.
	ordinals *workload.Ordinals

	// policy is nil if the spec of the dividing spread is invalid. invalid then says why.
	policy  *subset.Policy
	invalid string
	// plan for the workload's replicas. It is made for 0 replicas as long as they are not known.
	plan          subset.Plan
	replicasKnown bool
	// explained are the pods, by their direct owner, that do not show that news of the replicas are late: they have lived since before the replicas were read. asked are those of the open
	// question. Its number is 0 if none is open.
	explained, asked map[types.UID]int32
	question         int64
	// tally of all slots: claimed, reserved, binding, uncertain and bound.
	tally *subset.Tally
	// metadata is what a bind sets on the pods of each subset.
	metadata []subset.Metadata
	// waiting are the waitlists of pods that wait for a slot, by quota scope.
	waiting map[string]*waitlist
	// exhausted are the waitlists of pods of strategy Adaptive for which no subset with quota has a node, by class.
	exhausted map[podClass]*waitlist
	// skipUntil is until when no pod with an open gate waits in each subset, because one has waited there in vain.
	skipUntil []time.Time
	// announced is true if an event says that pods have to wait.
	announced bool
}

// active is the spread that divides the workload.
func (a *account) active() *v1beta1.WorkloadSpread { return a.spreads[0] }

// divides is true if the spread selects the pod. The pod must belong to the workload.
func (a *account) divides(pod *corev1.Pod) bool {
	return a.policy == nil || a.policy.Selects(pod.Labels)
}

func (a *account) scopeOf(pod *corev1.Pod) string {
	if a.policy == nil {
		return ""
	}
	return a.policy.ScopeOf(subset.RevisionOf(pod))
}

// nobodyWaits is true if no pod of the account waits for a slot or a node.
func (a *account) nobodyWaits() bool { return len(a.waiting) == 0 && len(a.exhausted) == 0 }

func nameOf(spread *v1beta1.WorkloadSpread) types.NamespacedName {
	return types.NamespacedName{Namespace: spread.Namespace, Name: spread.Name}
}

// A change that compiles to the same policy is ignored.
func (ev SpreadSeen) apply(l *Ledger) {
	key, target := nameOf(ev.Spread), WorkloadOf(ev.Spread.Namespace, workload.TargetOf(ev.Spread))
	if a := l.byName[key]; a != nil {
		known := a.spreads[a.find(key)]
		if subset.SamePolicy(known, ev.Spread) {
			return
		}
		if known.UID != ev.Spread.UID || a.workload != target {
			l.dropSpread(key)
		}
	}
	a := l.accounts[target]
	if a == nil {
		a = &account{workload: target, members: map[types.UID]*entry{}, live: map[types.UID]int32{}}
		l.accounts[target] = a
	}
	if i := a.find(key); i >= 0 {
		a.spreads[i] = ev.Spread
	} else {
		a.spreads = append(a.spreads, ev.Spread)
		l.byName[key] = a
		l.perNamespace[key.Namespace]++
	}
	l.reelect(a)
}

const (
	// longestBlindness is how long pods wait for a watch of spreads after the last one has ended. A reflector tries again within it, however often it has failed.
	longestBlindness = time.Minute
	// catchUp is how long a new watch has to show what happened before it began. The API server sends that first.
	catchUp = 500 * time.Millisecond
)

// An API server ends the watches of a kind whose definition changes, as happens when Berth is installed, and refuses new ones for a moment.
func (ev SpreadsWatched) apply(l *Ledger) {
	before, wait := l.blindUntil, longestBlindness
	switch {
	case ev.Open && before.IsZero():
		return // the first watch, which begins after a list
	case ev.Open:
		wait = catchUp
	}
	l.blindUntil = l.now.Add(wait)
	for _, e := range l.unresolved {
		if !before.IsZero() && e.newsBy.Equal(before) {
			l.remindAt(e, l.blindUntil)
		}
	}
}

func (ev SpreadGone) apply(l *Ledger) {
	if l.byName[ev.Key] != nil {
		l.dropSpread(ev.Key)
	}
}

func (a *account) find(key types.NamespacedName) int {
	return slices.IndexFunc(a.spreads, func(s *v1beta1.WorkloadSpread) bool { return nameOf(s) == key })
}

func (l *Ledger) dropSpread(key types.NamespacedName) {
	a := l.byName[key]
	delete(l.byName, key)
	if l.perNamespace[key.Namespace]--; l.perNamespace[key.Namespace] == 0 {
		delete(l.perNamespace, key.Namespace)
		for _, e := range l.unresolved {
			if e.pod.Namespace == key.Namespace {
				l.wake(e)
			}
		}
	}
	a.spreads = slices.DeleteFunc(a.spreads, func(s *v1beta1.WorkloadSpread) bool { return nameOf(s) == key })
	if len(a.spreads) > 0 {
		l.reelect(a)
		return
	}
	l.effects.Forget = append(l.effects.Forget, a.workload)
	delete(l.accounts, a.workload)
	for _, e := range a.members {
		l.reassign(e) // under a workload further up the owner chain, or none
		l.wake(e)
	}
}

// reelect makes the oldest spread divide the pods of the workload, by its current spec.
func (l *Ledger) reelect(a *account) {
	sort.SliceStable(a.spreads, func(i, j int) bool { return workload.Wins(a.spreads[i], a.spreads[j]) })
	if a.dividing == a.active() {
		return // a younger spread has changed, which divides no pods
	}
	l.compile(a)
}

// compile replaces the policy of an account and recounts its pods. Slots keep the name of their subset.
func (l *Ledger) compile(a *account) {
	spread := a.active()
	if had := a.dividing; had == nil || had.Spec.TargetReference.APIVersion != spread.Spec.TargetReference.APIVersion ||
		!slices.Equal(subset.ReplicaPaths(had), subset.ReplicaPaths(spread)) {
		a.read, a.question = nil, 0 // it was read in another way
	}
	policy, errs := subset.Compile(spread, field.NewPath("spec"))
	a.dividing, a.policy, a.invalid, a.tally, a.plan, a.announced = spread, policy, "", nil, subset.Plan{}, false
	a.waiting, a.exhausted = map[string]*waitlist{}, map[podClass]*waitlist{}
	a.skipUntil = make([]time.Time, len(spread.Spec.Subsets))
	if len(errs) > 0 {
		a.policy, a.invalid = nil, errs.ToAggregate().Error()
	} else {
		a.tally = policy.NewTally()
		a.metadata = make([]subset.Metadata, len(policy.Subsets))
		l.replan(a)
	}
	l.effects.Follow = append(l.effects.Follow, spread)
	for _, e := range a.members {
		l.recount(e)
	}
	for _, e := range a.members {
		l.reassign(e) // which does nothing if the spread still selects it
		l.claimPick(e)
		l.wake(e)
	}
	l.owners.below(a.workload, func(e *entry) {
		if l.reassign(e) {
			l.wake(e)
		}
	})
}

// recount counts a member by the new policy of its account.
func (l *Ledger) recount(e *entry) {
	a := e.account
	slot, uncertain := e.slot, e.uncertain
	e.slot, e.uncertain, e.scope = "", nil, a.scopeOf(e.pod)
	if e.search != nil {
		e.beginAgain()
	}
	switch {
	case e.stage == stageBound:
		e.slot = slot
		slot = l.classify(e)
		e.slot = ""
	case e.stage < stageBinding && indexOf(a.policy, slot) == subset.None:
		e.stage, slot = stageWaiting, ""
	case e.stage == stageReserved:
		e.stage = stageClaimed // its decision was made by the previous policy
	}
	l.setSlots(e, slot, uncertain)
}

// TargetVersion is the API version of the workload that a spread names, without the group.
func TargetVersion(spread *v1beta1.WorkloadSpread) string {
	return schema.FromAPIVersionAndKind(spread.Spec.TargetReference.APIVersion, spread.Spec.TargetReference.Kind).Version
}

func (ev ReplicasRead) apply(l *Ledger) {
	a := l.accounts[ev.Workload]
	if a == nil || ev.Version != TargetVersion(a.active()) || !slices.Equal(ev.Paths, subset.ReplicaPaths(a.active())) {
		return
	}
	a.read = nil
	if ev.Known {
		a.read = &ev.Replicas
	}
	if before, now := a.ordinals, ev.Ordinals; now != nil && (before == nil || before.UID != now.UID || before.Generation < now.Generation) {
		a.ordinals = now
		l.wakeRenumbered(a.members)
		l.wakeWaiting(a) // pods may wait for the list, and slots may have come free meanwhile
	}
	l.answered(ev.Workload, ev.Question)
	l.workloadNews(ev.Workload)
}

func (ev OwnerRead) apply(l *Ledger) {
	o := l.owners.byID[idOfObject(ev.Kind, ev.Object)]
	if o == nil || o.object == nil {
		return // it is gone, or another one has its name
	}
	l.answered(o.Workload, ev.Question)
	if ev.Object.GetGeneration() >= o.object.GetGeneration() { // else the watch was faster
		OwnerSeen{Kind: ev.Kind, Object: ev.Object}.apply(l)
		o.read = ev.Object.GetGeneration()
	}
}

// answered wakes the pods that have asked this question.
func (l *Ledger) answered(key Workload, question int64) {
	a := l.accounts[key]
	if a == nil || a.question == 0 || a.question != question {
		return
	}
	a.explained, a.asked, a.question = a.asked, nil, 0
	if a.policy != nil {
		l.wakeWaiting(a)
	}
}

// workloadNews follows a change of a workload. If a quota changes, it wakes the pods that wait for it.
func (l *Ledger) workloadNews(key Workload) {
	if a := l.accounts[key]; a != nil && a.policy != nil && l.replan(a) {
		l.wakeWaiting(a)
	}
}

// wakeWaiting wakes pods that wait for news, and as many others as may be of use.
func (l *Ledger) wakeWaiting(a *account) {
	for _, e := range a.members {
		if e.search != nil && e.stage <= stageClaimed && e.wait == forNews {
			l.wake(e)
		}
	}
	for scope := range a.waiting {
		l.wakeNext(a, scope)
	}
	for _, line := range a.exhausted {
		l.wakeFirst(line)
	}
}

// replan reads the workload's replicas and the selector of its pods. It returns whether any quota has changed.
func (l *Ledger) replan(a *account) bool {
	object, _ := l.owners.object(a.workload).(runtime.Object)
	var selector labels.Selector // read only if a patch sets labels, because workloads change often
	if object != nil && slices.ContainsFunc(a.policy.Subsets, func(in subset.Subset) bool { return len(in.Metadata.Labels) > 0 }) {
		selector = workload.Selector(object)
	}
	for i := range a.metadata {
		a.metadata[i] = a.policy.Subsets[i].MetadataFor(selector)
	}
	replicas, known := a.replicasOf(object)
	if a.plan.Quota != nil && a.replicasKnown == known && a.plan.Replicas == max(replicas, 0) {
		return false
	}
	a.plan, a.replicasKnown = a.policy.Plan(replicas), known
	if !known {
		a.question = 0 // the workload may be gone, and nobody answers
	}
	return true
}

// askForReplicas has the caller read the replicas, unless the open question is about all pods of the owner.
func (l *Ledger) askForReplicas(a *account, owner types.UID) {
	if a.question != 0 && a.live[owner] <= a.asked[owner] {
		return
	}
	l.questions++
	a.question, a.asked = l.questions, maps.Clone(a.live)
	l.effects.Read = append(l.effects.Read, Question{a.workload, a.question})
}

func (a *account) replicasOf(object runtime.Object) (int32, bool) {
	if len(subset.ReplicaPaths(a.active())) == 0 && object != nil {
		if replicas, err := workload.Replicas(object, nil); err == nil {
			return replicas, true
		}
	}
	if a.read == nil {
		return 0, false
	}
	return *a.read, true
}
