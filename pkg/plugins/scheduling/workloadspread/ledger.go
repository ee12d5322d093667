package workloadspread

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// ledger knows which pod holds which slot. It is shared by all profiles of a scheduler, for they share the quotas.
//
// A pod's slot goes this way, and every step may come twice, late or not at all:
//
//	waiting ── choose ──► claimed ── reserve ──► reserved ── startBind ──► binding ── the pod is seen on its node ──► bound
//	   ▲                    ▲  └─ choose: moves to an earlier subset           │
//	   │                    └──── unreserve, bindRefused ◄─────────────────────┤
//	   └──────────────────────── bindUncertain: the slot stays taken ◄─────────┘
//
// What is true of a pod once it has a node is what the API server says. Everything before that is a promise of this process, made again
// by a successor in the order of its queue.
//
// All methods may be called from any goroutine. Pods are woken after the mutex is released, because the scheduling queue calls the
// plugin's hints under a lock of its own.
type ledger struct {
	clock              clock.WithDelayedExecution
	observationTimeout time.Duration
	workloads          workloads
	pods               podLister
	nodes              func(name string) *corev1.Node
	predicates         predicates
	activate           func(pods map[string]*corev1.Pod)
	// gated is true if the gate is there to hold a pod.
	gated    func(*corev1.Pod) bool
	announce func(announcement)

	mu      sync.Mutex
	entries map[types.UID]*entry
	spreads spreadIndex
	tiers   tiers
	// orphans are pods whose owner has not been seen yet, by the owner's UID. Those without a node are held.
	orphans map[types.UID]map[types.UID]*corev1.Pod
	// strays are pods that admission found a spread for which has not been seen, and when they stop waiting for it.
	strays map[types.UID]time.Time
	// unclassified are bound pods without a record whose node has not been seen yet.
	unclassified map[types.UID]*entry
	// promises are slots that binds may yet take and no entry holds: the pod has none, or one of a spread that is invalid or lacks the subset.
	promises map[types.UID]*promise
	// ahead are pods that a read has shown on their nodes, and no event yet. The cache may still have them without.
	ahead map[types.UID]*corev1.Pod
	// ended are the pods whose end was reported since a list began that may show them as they were before; nil while none is read.
	ended sets.Set[types.UID]
	order uint64
	awake map[string]*corev1.Pod
	// announcements to be made after the mutex is released.
	announcements []announcement
	// lowest priority of any pod ever seen. A pod that is not above it need not try to preempt.
	lowest int32
	// event that the hints are being asked about, and the lines of exhausted pods of which it has woken one.
	event  any
	served map[*waitlist]bool
}

// workloads tells of the objects above a pod. Implementations must not call back into the ledger.
type workloads interface {
	// parent is the controller of the object, nil if it has none; false if the object has not been seen.
	parent(namespace string, owner workload.Owner) (*workload.Owner, bool)
	// replicas that the workload of a spread asks for; false if that is not known. For each workload they are remembered as the last spec had them
	// read, so only the spread that divides the workload may ask.
	replicas(target workloadKey, spec *v1alpha1.WorkloadSpreadSpec) (int32, bool)
	// forget is called when no spread names the workload any more.
	forget(target workloadKey)
	// selector of the workload's pods; nil if it is not known.
	selector(target workloadKey) labels.Selector
}

type slotState uint8

const (
	// waiting: the pod holds no slot but those of uncertain binds.
	waiting slotState = iota
	// claimed: a slot is promised, and the pod looks for a node.
	claimed
	// reserved: the pod has found a node.
	reserved
	// binding: the bind has been sent.
	binding
	// bound: the API server shows the pod on a node.
	bound
)

// podLister reads the cache that the ledger's events come from. A pod that it holds will be reported gone in due course.
type podLister interface {
	// cached is true if the cache holds this very pod.
	cached(pod *corev1.Pod) bool
	// inNamespace are all pods of a namespace.
	inNamespace(namespace string) []*corev1.Pod
}

// entry is a live pod of a spread.
type entry struct {
	pod    *corev1.Pod
	owner  types.UID
	spread *spread
	scope  string
	state  slotState
	// subset of the slot, or subset.None: no slot while waiting, and otherwise a pod let go because every subset was full.
	subset int
	// uncertain are subsets of binds whose outcome is unknown. Their slots are taken until it is known.
	uncertain subset.Mask
	// doubtUntil is when the last of them can no longer happen.
	doubtUntil time.Time
	// record is what the pod's Binding said when the pod was first seen on its node.
	record *subset.Record
	// order of the pod's first cycle: the earlier pod is served first.
	order uint64
	// woken since its last cycle began. Until it has had its next, or a node, or passes it on, a free slot is meant for it: of the subset wokenFor, or
	// of any if that is subset.None.
	woken    bool
	wokenFor int
	// overdue: it was on its way to a cycle already when overdue pods were last looked for.
	overdue bool
	// fresh: the slot was given to the pod in this cycle, so nobody else has found it taken.
	fresh bool
	// held since its last cycle for news of its workload.
	held bool
	// parked since its last cycle; see gate.go.
	parked bool
	// shape of the pod, once it is needed; see memo.go. own are the tolerations that it has not from admission.
	shape string
	own   []corev1.Toleration
	// A pod of strategy Adaptive goes through its subsets in a round of cycles. tried are those in which it found no node, preempted those in
	// which it found no victims either. again is true while the next cycle belongs to the same round, preempting while this cycle may
	// preempt, and nominated while the pod waits for its victims to leave.
	tried, preempted             subset.Mask
	again, preempting, nominated bool
	// exhausted: the pod's last cycle found that no subset with quota has a node. wasExhausted: some cycle before did.
	exhausted, wasExhausted bool
	// retry is how long an exhausted pod waits before it is tried without any event, and retrying the clock for that.
	retry    time.Duration
	retrying clock.Timer
	// since when the pod has looked for a node in a subset.
	since map[int]time.Time
	// patience is when the pod stops waiting for news of its workload. Zero before it began to wait.
	patience time.Time
	place    waitplace
}

// holds are the subsets in which the pod takes a slot.
func (e *entry) holds() subset.Mask {
	if e.subset == subset.None {
		return e.uncertain
	}
	return e.uncertain.With(e.subset)
}

// decision is what PreFilter leaves for the later steps of the same cycle. Reserve, which comes once, completes it.
type decision struct {
	spread *spread
	policy *subset.Policy
	// subset the pod may use, or subset.None if it may use any node.
	subset int
	// ordinal of the pod in the subset, counted from 1, once its slot is reserved.
	ordinal int32
	// metadata that the bind sets.
	metadata subset.Metadata
	// members are the nodes of the subset in this cycle's snapshot, by name; nil if the subset selects every node.
	members sets.Set[string]
	// newest generation of a node in this cycle's snapshot.
	newest int64
	// own tolerations of the pod, which admission may have added to.
	own []corev1.Toleration
	// outside is what is said of nodes outside of the subset.
	outside string
}

// ruling is the answer to a pod that asks for a subset. A nil decision without a reason means that no spread divides the pod.
type ruling struct {
	*decision
	reason  v1alpha1.Reason
	message string
}

func newLedger(c clock.WithDelayedExecution, observationTimeout time.Duration, w workloads, p podLister, nodes func(string) *corev1.Node,
	activate func(map[string]*corev1.Pod), announce func(announcement)) *ledger {
	return &ledger{
		clock:              c,
		observationTimeout: observationTimeout,
		workloads:          w,
		pods:               p,
		nodes:              nodes,
		activate:           activate,
		gated:              func(*corev1.Pod) bool { return false },
		announce:           announce,
		entries:            map[types.UID]*entry{},
		spreads:            newSpreadIndex(),
		tiers:              newTiers(),
		orphans:            map[types.UID]map[types.UID]*corev1.Pod{},
		strays:             map[types.UID]time.Time{},
		unclassified:       map[types.UID]*entry{},
		promises:           map[types.UID]*promise{},
		ahead:              map[types.UID]*corev1.Pod{},
		awake:              map[string]*corev1.Pod{},
		served:             map[*waitlist]bool{},
	}
}

// locked runs f under the mutex and then wakes the pods that f found reason to wake, and announces what f found worth it.
func (l *ledger) locked(f func()) {
	l.mu.Lock()
	f()
	awake := l.awake
	if len(awake) > 0 {
		l.awake = map[string]*corev1.Pod{}
	}
	announcements := l.announcements
	l.announcements = nil
	l.mu.Unlock()
	if len(awake) > 0 {
		l.activate(awake)
	}
	for _, a := range announcements {
		l.announce(a)
	}
}

// choose gives a pod its subset for this cycle, and with it a slot. A pod that asks again keeps its slot, or moves to an earlier subset
// that has room by now.
//
// nodes are those of the cycle's snapshot. Nil leaves them as they were in the last.
func (l *ledger) choose(pod *corev1.Pod, nodes []fwk.NodeInfo) (answer ruling) {
	l.locked(func() {
		e, held := l.enter(pod)
		if held != nil {
			answer = *held
			return
		}
		if e == nil {
			return
		}
		if e.state > claimed {
			answer = ruling{reason: v1alpha1.ReasonWorkloadNotObserved, message: "the pod is being bound already"}
			return
		}
		wasWoken := e.woken
		l.unwake(e)
		e.parked, e.exhausted, e.fresh = false, false, false
		if !e.again {
			e.tried, e.preempted = 0, 0
		}
		e.again, e.preempting = false, false
		if nodes != nil {
			l.tiers.update(nodes)
		}
		answer = l.rule(e)
		e.held = answer.reason == v1alpha1.ReasonWorkloadNotObserved
		e.exhausted = answer.reason == v1alpha1.ReasonNoNodeFits
		e.wasExhausted = e.wasExhausted || e.exhausted
		subsetAttempts.WithLabelValues(answer.result()).Inc()
		if answer.decision == nil {
			l.release(e)
			e.state = waiting
			l.wait(e)
			l.park(e, answer.reason)
			l.announceIfFirst(e, answer)
		}
		if wasWoken && !e.held {
			l.wakeNext(e.spread, e.scope) // if the slot it was woken for is still free, it was of no use to the pod
		}
	})
	return answer
}

// result is the answer in the word of the metric.
func (r ruling) result() string {
	switch {
	case r.decision != nil && r.subset == subset.None:
		return "unplaced"
	case r.decision != nil:
		return "chosen"
	case r.reason == v1alpha1.ReasonSubsetsFull || r.reason == v1alpha1.ReasonAdmittedSubsetFull:
		return "full"
	case r.reason == v1alpha1.ReasonNoNodeFits:
		return "exhausted"
	default:
		return "held"
	}
}

// enter finds or makes the entry of a pod in its cycle. Nil if no spread divides the pod; a ruling if that cannot be known yet.
func (l *ledger) enter(pod *corev1.Pod) (*entry, *ruling) {
	if e := l.entries[pod.UID]; e != nil {
		return e, nil
	}
	if !l.pods.cached(pod) {
		// It was deleted while it was in the queue. An entry made now would never be taken out again.
		return nil, &ruling{reason: v1alpha1.ReasonWorkloadNotObserved, message: "the pod is gone"}
	}
	s, missing := l.resolve(pod)
	if missing != nil {
		l.orphan(pod, missing.UID)
		return nil, &ruling{reason: v1alpha1.ReasonWorkloadNotObserved, message: fmt.Sprintf(
			"waiting to see %s %q, which owns the pod; if it is gone, delete the pod", missing.Kind.Kind, missing.Name)}
	}
	if s == nil && l.awaitsSpread(pod) {
		return nil, &ruling{reason: v1alpha1.ReasonWorkloadNotObserved, message: "waiting to see the WorkloadSpread that was there when the pod was created"}
	}
	if s == nil {
		return nil, nil
	}
	return l.add(pod, s), nil
}

// rule asks the model and takes the slot it grants.
func (l *ledger) rule(e *entry) ruling {
	s := e.spread
	switch {
	case s.policy == nil:
		return ruling{reason: v1alpha1.ReasonInvalidSpread, message: fmt.Sprintf("WorkloadSpread %q cannot be used until it is corrected: %s", s.key.Name, s.invalid)}
	case s.policy.UsesPercent() && !s.replicasKnown:
		return ruling{reason: v1alpha1.ReasonWorkloadNotObserved, message: fmt.Sprintf(
			"WorkloadSpread %q takes percentages of the replicas of %s, which are not known; see the spread's status", s.key.Name, s.target)}
	case s.policy.LagsBehind(&s.plan, s.live[e.owner]) && l.patient(e):
		return ruling{reason: v1alpha1.ReasonWorkloadNotObserved, message: fmt.Sprintf(
			"%s has more pods than the %d replicas last seen; waiting for the new number", s.target, s.plan.Replicas)}
	}
	candidate := l.candidate(e)
	var closed subset.Mask
	if s.policy.Strategy == v1alpha1.AdaptiveScheduleStrategy && !candidate.Admitted {
		closed = l.closed(e, candidate)
	}
	candidate.Closed = e.tried | closed
	e.nominated = e.nominated && e.subset != subset.None && s.policy.HasRoom(&s.plan, s.tally.Kept(e.scope), e.subset, candidate)
	if e.nominated {
		// Until its victims have left it stays, and asks DefaultPreemption whether they have.
		candidate.Closed, e.preempting = ^subset.Mask(0).With(e.subset), true
	}
	verdict := s.policy.Admit(&s.plan, s.tally.Kept(e.scope), candidate)
	if verdict.Reason == v1alpha1.ReasonNoNodeFits && l.mayPreempt(e.pod) {
		// Every subset has refused the pod, so now it may preempt, in the order of the subsets.
		candidate.Closed = e.preempted
		if verdict = s.policy.Admit(&s.plan, s.tally.Kept(e.scope), candidate); verdict.Allowed() {
			e.preempting = true
		}
	}
	if !verdict.Allowed() {
		if verdict.Reason == v1alpha1.ReasonNoNodeFits && e.tried&^closed != 0 {
			l.tryAgainLater(e)
		}
		message := l.explain(e)
		if verdict.Reason == v1alpha1.ReasonAdmittedSubsetFull {
			message = fmt.Sprintf("subset %q, whose patch the pod carries, has filled since; the pod is replaced. %s", s.policy.Subsets[candidate.Within].Name, message)
		}
		return ruling{reason: verdict.Reason, message: message}
	}
	if verdict.Subset != e.subset {
		l.leave(e)
		freed := l.setSlots(e, verdict.Subset, e.uncertain)
		e.fresh = true
		l.wakeNext(s, e.scope)
		l.wakeExhausted(s, e.scope, freed)
	}
	e.state = claimed
	l.wait(e)
	d := &decision{spread: s, policy: s.policy, subset: verdict.Subset, newest: l.tiers.newest, own: e.own}
	if d.subset != subset.None {
		d.members, d.outside, d.metadata = l.tiers.of(&s.policy.Subsets[d.subset]), s.outside[d.subset], s.metadata[d.subset]
	}
	return ruling{decision: d}
}

// mayPreempt is false for a pod that can have no victims.
func (l *ledger) mayPreempt(pod *corev1.Pod) bool {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return false
	}
	return corev1helpers.PodPriority(pod) > l.lowest
}

// explain says of every subset why the pod is not in it.
func (l *ledger) explain(e *entry) string { return l.explainExcept(e, subset.None, "") }

// explainIn is explain for a pod in the middle of a cycle, which has just found out why no node of a subset fits. Empty if the pod is gone.
func (l *ledger) explainIn(pod *corev1.Pod, index int, why string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[pod.UID]
	if e == nil || e.spread.policy == nil || index >= len(e.spread.policy.Subsets) {
		return ""
	}
	return l.explainExcept(e, index, why)
}

func (l *ledger) explainExcept(e *entry, index int, why string) string {
	return fmt.Sprintf("WorkloadSpread %q: %s", e.spread.key.Name, l.describeSubsets(e, index, why))
}

// describeSubsets says of every subset what keeps the pod from it, and of the one with the index, if there is one, the given why.
func (l *ledger) describeSubsets(e *entry, index int, why string) string {
	s := e.spread
	kept := s.tally.Kept(e.scope)
	parts := make([]string, len(s.policy.Subsets))
	for i := range parts {
		in := &s.policy.Subsets[i]
		entry, known := s.memo[e.shapeKey(i)]
		switch {
		case i == index:
			parts[i] = in.Name + ": " + why
		case subset.Free(s.plan.Quota[i], kept.At(i)) == 0:
			parts[i] = s.policy.DescribeSubset(&s.plan, kept, i)
		case known && entry.why != "":
			parts[i] = in.Name + ": " + entry.why
		default:
			parts[i] = s.policy.DescribeSubset(&s.plan, kept, i)
		}
	}
	return strings.Join(parts, "; ")
}

// candidate is the pod as the model sees it.
func (l *ledger) candidate(e *entry) subset.Candidate {
	c := subset.Candidate{Holds: e.holds()}
	c.Within, c.Admitted = e.spread.policy.AdmittedTo(subset.AdmittedOf(e.pod), e.spread.key.Name)
	if e.state != claimed || e.subset == subset.None {
		return c
	}
	if quota := e.spread.plan.Quota[e.subset]; quota == subset.NoLimit || e.spread.tally.Kept(e.scope).At(e.subset) <= quota {
		return c
	}
	// The quota was lowered below what is claimed. Those who asked first keep their claim. A slot that an uncertain bind may have taken as well
	// stays taken when its pod gives the claim up.
	c.Claim = e.subset
	for _, other := range e.spread.members {
		if other.scope == e.scope && other.subset == e.subset && other.state == claimed && !other.uncertain.Has(e.subset) && other.order > e.order {
			c.Behind++
		}
	}
	return c
}

// patient is true while the pod should wait for news of its workload. It will be woken by the news or when its patience ends.
func (l *ledger) patient(e *entry) bool {
	now := l.clock.Now()
	if e.patience.IsZero() {
		e.patience = now.Add(l.observationTimeout)
		l.wakeAfter(e, l.observationTimeout)
	}
	return now.Before(e.patience)
}

// tryAgainLater is for an exhausted pod of which a subset was refused by more than its nodes: pods elsewhere, volumes, claims. What
// changed there while the pod was in the middle of its round has no generation and no event that comes again.
func (l *ledger) tryAgainLater(e *entry) {
	e.retry = min(max(2*e.retry, firstRetry), lastRetry)
	if e.retrying != nil {
		e.retrying.Stop() // it has been tried since
	}
	e.retrying = l.wakeAfter(e, e.retry)
}

const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// wakeAfter wakes a pod that has found no node by then.
func (l *ledger) wakeAfter(e *entry, wait time.Duration) clock.Timer {
	uid := e.pod.UID
	return l.clock.AfterFunc(wait, func() {
		l.locked(func() {
			if e := l.entries[uid]; e != nil && e.state <= claimed {
				l.wake(e)
			}
		})
	})
}

// reserve makes the slot of this cycle's decision final. False if the spread has changed since, so that the decision no longer holds.
func (l *ledger) reserve(pod *corev1.Pod, d *decision) (ok bool) {
	l.locked(func() {
		e := l.entries[pod.UID]
		if e == nil || e.state != claimed || e.spread != d.spread || e.spread.policy != d.policy || e.subset != d.subset {
			return
		}
		if d.subset != subset.None && !d.policy.HasRoom(&e.spread.plan, e.spread.tally.Kept(e.scope), d.subset, l.candidate(e)) {
			return
		}
		e.state = reserved
		d.ordinal = e.spread.tally.Kept(e.scope).At(d.subset)
		wasWoken := e.woken
		l.unwake(e)
		l.leave(e)
		if wasWoken {
			l.wakeNext(e.spread, e.scope) // it was woken in the middle of this cycle, and takes no other slot than it has
		}
		if e.wasExhausted {
			l.wakeLike(e) // where this pod found room there may be more
		}
		l.wakeUnplaced(e.spread, e.scope, e.holds())
		e.wasExhausted, e.preempting, e.nominated = false, false, false
		e.spread.announced = e.spread.announced && !e.spread.nobodyWaits()
		subsetAttempts.WithLabelValues("reserved").Inc()
		ok = true
	})
	return ok
}

// unreserve takes a reservation back. The pod keeps its claim. After startBind it does nothing: what the bind did decides.
func (l *ledger) unreserve(uid types.UID) {
	l.locked(func() {
		if e := l.entries[uid]; e != nil && e.state == reserved {
			e.state = claimed
			l.wait(e)
		}
	})
}

// startBind is called before the bind request is sent.
func (l *ledger) startBind(uid types.UID) (ok bool) {
	l.locked(func() {
		if e := l.entries[uid]; e != nil && e.state == reserved {
			e.state, ok = binding, true
		}
	})
	return ok
}

// bindRefused is called when the API server certainly did not bind the pod. The pod keeps its claim.
func (l *ledger) bindRefused(uid types.UID) {
	l.locked(func() {
		l.promiseRefused(uid)
		if e := l.entries[uid]; e != nil && e.state == binding {
			e.state = claimed
			l.wait(e)
		}
	})
}

// bindUncertain is called when the bind may or may not have happened, and may yet happen until the doubt ends. Its slot stays taken until
// observe shows the pod on a node or gone, or bindSettled says that it did not happen.
func (l *ledger) bindUncertain(uid types.UID, doubt time.Duration) {
	l.locked(func() {
		uncertainBinds.Inc()
		doubtUntil := l.clock.Now().Add(doubt)
		l.promiseUncertain(uid, doubtUntil)
		e := l.entries[uid]
		if e == nil || e.state != binding {
			return
		}
		uncertain := e.uncertain
		if e.subset != subset.None {
			uncertain = uncertain.With(e.subset)
		}
		e.state = waiting
		e.doubtUntil = doubtUntil
		l.setSlots(e, subset.None, uncertain)
		l.wait(e)
	})
}

// doubt is how long an uncertain bind of the pod may still happen.
func (l *ledger) doubt(uid types.UID) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var until time.Time
	if e := l.entries[uid]; e != nil {
		until = e.doubtUntil
	}
	if p := l.promises[uid]; p != nil && p.doubtUntil.After(until) {
		until = p.doubtUntil
	}
	return until.Sub(l.clock.Now())
}

// bindSettled is called when a pod was read from the API server without a node. Uncertain binds did not happen if they were past all
// doubt when the read began.
func (l *ledger) bindSettled(uid types.UID, readAt time.Time) {
	l.locked(func() {
		l.promiseSettled(uid, readAt)
		e := l.entries[uid]
		if e == nil || e.state == bound || e.uncertain == 0 || readAt.Before(e.doubtUntil) {
			return
		}
		freed := l.setSlots(e, e.subset, 0)
		l.wakeNext(e.spread, e.scope)
		l.wakeExhausted(e.spread, e.scope, freed)
	})
}

// observe takes in a pod as an event shows it, possibly older than what is known.
func (l *ledger) observe(pod *corev1.Pod) {
	l.locked(func() {
		if pod.Spec.NodeName != "" {
			delete(l.ahead, pod.UID)
		}
		l.observeLocked(pod)
	})
}

// observeKnown takes in a pod that was read by itself. If its end has been reported meanwhile, no event comes any more that would free a slot.
func (l *ledger) observeKnown(pod *corev1.Pod) {
	l.locked(func() {
		if l.entries[pod.UID] != nil {
			l.observeRead(pod)
		}
	})
}

// observeListed takes in a pod from a list that was begun after startList. The same holds for it as for observeKnown, but the list may know of
// pods that no event has told of yet.
func (l *ledger) observeListed(pod *corev1.Pod) {
	l.locked(func() {
		if !l.ended.Has(pod.UID) {
			l.observeRead(pod)
		}
	})
}

// observeRead takes in a pod that was read. If that is the first to show it on its node, it is remembered until an event does, because the entry,
// which goes with its spread, could not be made again from the cache.
func (l *ledger) observeRead(pod *corev1.Pod) {
	e := l.entries[pod.UID]
	known := e != nil && e.state == bound
	l.observeLocked(pod)
	if e = l.entries[pod.UID]; e != nil && e.state == bound && !known {
		l.ahead[pod.UID] = e.pod
	}
}

// startList has the ledger remember who ends, until endList.
func (l *ledger) startList() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = sets.New[types.UID]()
}

func (l *ledger) endList() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = nil
}

func (l *ledger) observeLocked(pod *corev1.Pod) {
	l.lowest = min(l.lowest, corev1helpers.PodPriority(pod))
	e := l.entries[pod.UID]
	if !subset.IsActive(pod) {
		l.end(pod.UID)
		return
	}
	if shown := l.ahead[pod.UID]; shown != nil && pod.Spec.NodeName == "" {
		pod = shown
	}
	if e != nil && e.owner == workload.ControllerUID(pod) && e.spread.divides(pod) {
		if e.parked && (!equality.Semantic.DeepEqual(pod.Spec, e.pod.Spec) || !maps.Equal(pod.Labels, e.pod.Labels)) {
			l.wake(e) // it is another pod by now
		}
		if pod.Spec.NodeName != "" || e.state < bound {
			e.pod, e.shape, e.own = pod, "", subset.OwnTolerations(pod)
		}
		if pod.Spec.NodeName != "" && e.state != bound {
			l.settle(e)
		}
		return
	}
	wasOrphan := l.forget(pod.UID)
	if pod.Spec.NodeName != "" {
		delete(l.promises, pod.UID) // what its binds could become is known
	}
	s, missing := l.resolve(pod)
	_, isStray := l.strays[pod.UID]
	if pod.Spec.NodeName == "" && (e != nil || wasOrphan && missing == nil || isStray && s != nil) {
		l.awake[string(pod.UID)] = pod // whatever it was waiting for is not what it waits for now
	}
	if missing != nil {
		l.orphan(pod, missing.UID)
		return
	}
	if s == nil {
		return
	}
	if e = l.add(pod, s); pod.Spec.NodeName != "" {
		l.settle(e)
	}
}

// gone takes in that a pod was deleted, or has ended.
func (l *ledger) gone(uid types.UID) {
	l.locked(func() { l.end(uid) })
}

// end forgets a pod for good.
func (l *ledger) end(uid types.UID) {
	if l.ended != nil {
		l.ended.Insert(uid)
	}
	l.forget(uid)
	delete(l.promises, uid)
	delete(l.ahead, uid)
	delete(l.strays, uid)
}

// forget gives all slots of a pod back. Those that its binds may yet take are promised, in case its spread comes again. True if the pod was
// waiting for its owner.
func (l *ledger) forget(uid types.UID) (wasOrphan bool) {
	for owner, pods := range l.orphans {
		if pods[uid] == nil {
			continue
		}
		wasOrphan = true
		if delete(pods, uid); len(pods) == 0 {
			delete(l.orphans, owner)
		}
	}
	e := l.entries[uid]
	if e == nil {
		return wasOrphan
	}
	delete(l.entries, uid)
	delete(l.unclassified, uid)
	s := e.spread
	if s.policy != nil {
		l.promise(e, s.policy)
	}
	delete(s.members, uid)
	if s.live[e.owner]--; s.live[e.owner] <= 0 {
		delete(s.live, e.owner)
	}
	l.unwake(e)
	turn := e.wasExhausted && e.place.list == nil
	l.leave(e)
	left := l.setSlots(e, subset.None, 0)
	l.wakeNext(s, e.scope)
	if left != 0 {
		l.wakeBehind(s, e.scope, left)
	}
	l.wakeExhausted(s, e.scope, left)
	if turn {
		l.wakeLike(e)
	}
	return wasOrphan
}

// add makes the entry of a pod that the spread divides.
func (l *ledger) add(pod *corev1.Pod, s *spread) *entry {
	l.order++
	e := &entry{pod: pod, own: subset.OwnTolerations(pod), owner: workload.ControllerUID(pod), spread: s, subset: subset.None, order: l.order}
	if s.policy != nil {
		e.scope = s.policy.ScopeOf(subset.RevisionOf(pod))
	}
	l.entries[pod.UID] = e
	s.members[pod.UID] = e
	s.live[e.owner]++
	l.redeem(e)
	return e
}

// settle counts a pod where the API server shows it. From then on its record and its node's labels are not read again, so that neither a
// changed annotation nor a relabelled node moves it to another quota.
func (l *ledger) settle(e *entry) {
	l.unwake(e)
	l.leave(e)
	e.state, e.held = bound, false
	delete(l.promises, e.pod.UID)
	e.record = subset.RecordOf(e.pod)
	s := e.spread
	if s.policy == nil {
		return
	}
	before := e.holds()
	freed := l.setSlots(e, l.classify(e), 0)
	l.wakeNext(s, e.scope)
	l.wakeExhausted(s, e.scope, freed)
	l.wakeUnplaced(s, e.scope, e.holds()&^before)
}

// classify is the subset of a bound pod by the record that was first seen on it.
func (l *ledger) classify(e *entry) int {
	pod := subset.Observe(e.pod, l.nodes(e.pod.Spec.NodeName))
	pod.Record = e.record
	index, adopted := e.spread.policy.SubsetOf(&pod, e.spread.key.Name)
	if adopted && pod.Node == nil {
		l.unclassified[pod.UID] = e
	} else {
		delete(l.unclassified, pod.UID)
	}
	return index
}

// setSlots is the only place where the tally changes. It returns the subsets in which the pod holds a slot no longer.
func (l *ledger) setSlots(e *entry, index int, uncertain subset.Mask) (freed subset.Mask) {
	before := e.holds()
	e.subset, e.uncertain = index, uncertain
	after := e.holds()
	if before == after {
		return 0
	}
	for i := range e.spread.policy.Subsets {
		switch had, has := before.Has(i), after.Has(i); {
		case has && !had:
			e.spread.tally.Add(e.scope, i)
		case had && !has:
			e.spread.tally.Remove(e.scope, i)
		}
	}
	return before &^ after
}

// release gives up the slot of a claim, and keeps those of uncertain binds.
func (l *ledger) release(e *entry) {
	if e.spread.policy == nil {
		e.subset = subset.None
		return
	}
	l.leave(e)
	if e.subset == subset.None {
		return
	}
	freed := l.setSlots(e, subset.None, e.uncertain)
	l.wakeNext(e.spread, e.scope)
	if !e.fresh {
		l.wakeExhausted(e.spread, e.scope, freed)
	}
}
