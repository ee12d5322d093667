package ledger

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// Ledger is the state. New makes it.
type Ledger struct {
	// observation is how long a pod waits for news that may never come. With 0 what the ledger has seen is the latest.
	observation time.Duration
	// questions is the number of the last Question.
	questions int64

	pods     map[types.UID]*entry
	owners   ownerTree
	accounts map[Workload]*account
	// byName are the accounts by the names of their spreads.
	byName map[types.NamespacedName]*account
	// blindUntil is until when a pod without a spread waits, because its spread may have been created while no watch showed it.
	blindUntil time.Time
	// perNamespace counts spreads.
	perNamespace map[string]int
	nodes        map[string]*corev1.Node
	// unclassified are bound pods without a record whose node has not been seen, by the name of the node.
	unclassified map[string]sets.Set[types.UID]
	// ended are the pods that ended since ListBegins; nil while no list is read.
	ended sets.Set[types.UID]
	// unresolved are pods that no account divides and that wait for news.
	unresolved map[types.UID]*entry
	// lowest priority of any pod ever seen. A pod with this priority cannot preempt.
	lowest int32
	order  uint64
	timers []timer
	// change is the last one that ClusterChanged asked about, and served are the waitlists of which one pod is tried because of it.
	change any
	served map[*waitlist]bool

	// now and effects belong to the event that is being applied.
	now     time.Time
	effects Effects
}

// Workload names a workload without its version. Owner references and spreads both can be turned into it.
type Workload struct{ Namespace, Group, Kind, Name string }

func (w Workload) String() string { return fmt.Sprintf("%s %q", w.Kind, w.Name) }

// WorkloadOf is the name of an owner in a namespace.
func WorkloadOf(namespace string, o workload.Owner) Workload {
	return Workload{Namespace: namespace, Group: o.Kind.Group, Kind: o.Kind.Kind, Name: o.Name}
}

// New is an empty ledger. Observation is how long a pod waits for news: of its workload's replicas, if there are more pods than replicas; or of the
// spread that admission found, if the ledger has not seen it. 0 means that no pod waits.
func New(observation time.Duration) *Ledger {
	return &Ledger{
		observation:  observation,
		pods:         map[types.UID]*entry{},
		owners:       ownerTree{byID: map[ownerID]*owner{}, byKey: map[Workload]map[types.UID]*owner{}, ends: sets.New[schema.GroupKind]()},
		accounts:     map[Workload]*account{},
		byName:       map[types.NamespacedName]*account{},
		perNamespace: map[string]int{},
		nodes:        map[string]*corev1.Node{},
		unclassified: map[string]sets.Set[types.UID]{},
		unresolved:   map[types.UID]*entry{},
		served:       map[*waitlist]bool{},
	}
}

// Apply applies an event that happens at this time. Time must not go back.
func (l *Ledger) Apply(now time.Time, event Event) Effects {
	l.now, l.effects = now, Effects{}
	event.apply(l)
	if len(l.timers) > 0 {
		l.effects.At = l.timers[0].at
	}
	return l.effects
}

func (ev PodSeen) apply(l *Ledger) { l.observe(ev.Pod) }

func (ev PodRead) apply(l *Ledger) {
	if l.pods[ev.Pod.UID] != nil {
		l.observeRead(ev.Pod)
	}
}

func (ev PodListed) apply(l *Ledger) {
	if !l.ended.Has(ev.Pod.UID) {
		l.observeRead(ev.Pod)
	}
}

// observeRead updates a pod that was read. The read may be older than what the watch has shown. So it counts only if it shows a node that the ledger
// does not know, a gate that has been opened, or the end of the pod. In all else the ledger keeps the object of the watch, which the cache holds as well.
func (l *Ledger) observeRead(pod *corev1.Pod) {
	if e := l.pods[pod.UID]; e != nil && subset.IsActive(pod) {
		opened := e.stage != stageBound && subset.IsGated(e.pod) && !subset.IsGated(pod)
		if e.stage == stageBound || pod.Spec.NodeName == "" && !opened {
			return
		}
	}
	l.observe(pod)
}

func (ev PodGone) apply(l *Ledger) { l.podEnded(ev.UID) }

func (ListBegins) apply(l *Ledger) { l.ended = sets.New[types.UID]() }

func (ListEnds) apply(l *Ledger) { l.ended = nil }

func (ev NodeSeen) apply(l *Ledger) {
	l.nodes[ev.Node.Name] = ev.Node
	waiting := l.unclassified[ev.Node.Name]
	delete(l.unclassified, ev.Node.Name)
	for uid := range waiting {
		if e := l.pods[uid]; e != nil && e.stage == stageBound && e.policy() != nil {
			l.setSlots(e, l.classify(e), nil)
			l.crowd(e, e.holds())
			l.wakeUnplaced(e.account, e.scope, e.holds())
		}
	}
}

func (ev NodeGone) apply(l *Ledger) {
	delete(l.nodes, ev.Name)
	for _, e := range l.pods {
		if e.account != nil && e.stage == stageClaimed && e.wait == forNode && e.pod.Status.NominatedNodeName == ev.Name {
			l.wake(e) // nothing keeps it from an earlier subset any more
		}
	}
}

// observe adds or updates a pod. The object may be older than what the ledger knows.
func (l *Ledger) observe(pod *corev1.Pod) {
	l.lowest = min(l.lowest, corev1helpers.PodPriority(pod))
	if !subset.IsActive(pod) && !subset.IsEnding(pod) {
		l.podEnded(pod.UID)
		return
	}
	controller := workload.ControllerOf(pod)
	e := l.pods[pod.UID]
	known, moved := e != nil, false
	switch {
	case e != nil && e.stage == stageBound && pod.Spec.NodeName == "", e != nil && !subset.IsGated(e.pod) && subset.IsGated(pod):
		return // an old event: a pod never loses its node, and never gets a gate
	case controller == nil || workload.EndsChain(controller.Kind):
		if e != nil {
			e.pod = pod
			l.wake(e)
			l.drop(pod.UID)
		}
		return // no spread can divide it
	case e == nil:
		e = l.add(pod, l.owners.of(idOf(pod.Namespace, *controller)))
	case e.owner.ownerID != idOf(pod.Namespace, *controller):
		moved = e.account != nil || l.isUnresolved(e) // what it waited for under its previous owner does not count any more
		l.adopt(e, l.owners.of(idOf(pod.Namespace, *controller)))
	}
	opened := false
	if e.search != nil && e.differsBy(pod) {
		opened = subset.IsGated(e.pod) && !subset.IsGated(pod)
		if e.wait == forSlot || opened {
			l.wakeTogether(e) // it may get another answer by now
		}
		e.shape, e.rules, e.own = "", "", subset.OwnTolerations(pod)
	}
	nominated := e.pod.Status.NominatedNodeName != pod.Status.NominatedNodeName
	e.pod = pod
	if pod.Spec.NodeName != "" && e.stage != stageBound {
		l.confirmBound(e)
	} else if e.stage == stageBound && e.record == nil {
		l.confirmRecord(e)
	} else if nominated && e.stage == stageClaimed && e.account != nil && e.wait == forNode {
		l.dequeue(e)
		l.enqueue(e)
		l.wakeNext(e.account, e.scope)
	}
	if opened {
		l.claimPick(e)
	}
	if !e.ending && subset.IsEnding(pod) {
		l.beginEnd(e)
	}
	if (l.reassign(e) || moved) && known {
		l.wake(e)
	}
}

// podEnded forgets a pod for good.
func (l *Ledger) podEnded(uid types.UID) {
	if l.ended != nil {
		l.ended.Insert(uid)
	}
	if e := l.pods[uid]; e != nil {
		l.skipAfter(e)
		if e.search != nil && e.together != nil && e.wait == forSlot {
			// The queue holds the whole group because of this pod, and another pod may have joined the group, which does not wait for slots. To try any pod of a group is to try
			// the group.
			l.effects.Wake = append(l.effects.Wake, e.pod)
		}
	}
	l.drop(uid)
}

// podCounts are numbers of pods by stage, and of slots.
type podCounts struct {
	stages [stageBound + 1]int
	// Uncertain are pods with a bind whose outcome is unknown.
	Uncertain int
	// OverQuota are slots above the quota of their subset.
	OverQuota int32
}

// ByStage are the numbers of pods by the name of their stage: waiting, claimed, reserved, binding and bound.
func (c *podCounts) ByStage() map[string]int {
	pods := make(map[string]int, len(c.stages))
	for stage, n := range c.stages {
		pods[stageNames[stage]] = n
	}
	return pods
}

// Counts looks at every pod and every workload, which takes 7 ms for 100,000 pods. Only scrapes of metrics ask for it. Pods without an account, and those that end without a slot, are not counted.
func (l *Ledger) Counts() (counts podCounts) {
	for _, e := range l.pods {
		if e.account == nil || e.ending && e.slot == "" {
			continue
		}
		counts.stages[e.stage]++
		if len(e.uncertain) > 0 {
			counts.Uncertain++
		}
	}
	for _, a := range l.accounts {
		if a.tally == nil {
			continue // its spread is invalid
		}
		for _, scope := range a.tally.Scopes() {
			counts.OverQuota += a.policy.OverQuota(&a.plan, a.tally.Kept(scope))
		}
	}
	return counts
}

// Knows is true if the pod has been seen and has not ended.
func (l *Ledger) Knows(uid types.UID) bool { return l.pods[uid] != nil }

// IsBound is true if the pod has been seen on its node and has not ended.
func (l *Ledger) IsBound(uid types.UID) bool {
	e := l.pods[uid]
	return e != nil && e.stage == stageBound
}

// WaitsForSlot is true for a pod whose last answer was that every subset it may use is full, and that has not been woken since.
func (l *Ledger) WaitsForSlot(uid types.UID) bool {
	e := l.pods[uid]
	return e != nil && e.search != nil && e.account != nil && e.wait == forSlot
}

// GroupVersion is the version with which the pod's group asked, if the pod waits together with others. A group that has changed since may need less.
func (l *Ledger) GroupVersion(uid types.UID) string {
	if e := l.pods[uid]; e != nil && e.search != nil && e.together != nil {
		return e.together.version
	}
	return ""
}

// ClaimOf is the subset in which an unbound pod looks for a node. Nil if there is none.
func (l *Ledger) ClaimOf(uid types.UID) *subset.Subset {
	e := l.pods[uid]
	if e == nil || e.stage == stageBound || e.index() == subset.None {
		return nil
	}
	return &e.policy().Subsets[e.index()]
}

// MayUse is true if the pod looks for a node and may use this one: within the subset that it has claimed, or anywhere if it was let go without one.
func (l *Ledger) MayUse(uid types.UID, node *corev1.Node) bool {
	e := l.pods[uid]
	return e != nil && e.policy() != nil && e.stage != stageWaiting && e.stage != stageBound && e.policy().Subset(e.index()).Fits(node, e.own) == v1beta1.ReasonAdmitted
}

// UncertainUntil is when the last uncertain bind of the pod can no longer happen. Zero if it has none.
func (l *Ledger) UncertainUntil(uid types.UID) (until time.Time) {
	if e := l.pods[uid]; e != nil {
		for _, d := range e.uncertain {
			if d.until.After(until) {
				until = d.until
			}
		}
	}
	return until
}

// Namespaces are those that have a spread.
func (l *Ledger) Namespaces() sets.Set[string] { return sets.KeySet(l.perNamespace) }

// HasSpreads is true if there is a spread in the namespace.
func (l *Ledger) HasSpreads(namespace string) bool { return l.perNamespace[namespace] > 0 }

// Replicas of a workload, as its quotas are computed from them. False if no spread divides the workload, or if they are not known.
func (l *Ledger) Replicas(of Workload) (int32, bool) {
	a := l.accounts[of]
	if a == nil || !a.replicasKnown {
		return 0, false
	}
	return a.plan.Replicas, true
}
