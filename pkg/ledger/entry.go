package ledger

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/subset"
)

// stage is how far a pod is on its way to a node:
//
//	Waiting ── PodAsks ──► Claimed ── NodeFound ──► Reserved ── BindSent ──► Binding ── PodSeen on its node ──► Bound
//	   ▲                    ▲  └─ PodAsks: moves to an earlier subset           │
//	   │                    └──── NodeLost, BindRefused ◄───────────────────────┤
//	   └───────────────────────── BindUnknown: the slot stays taken ◄───────────┘
//
// Once a pod has a node, the API server's word counts. Everything before is a promise of this process. After a restart the next process makes these
// promises again, in the order of its queue.
type stage uint8

// The stages of a pod.
const (
	// stageWaiting: the pod holds no slot, except those of uncertain binds.
	stageWaiting stage = iota
	// stageClaimed: the pod looks for a node. It holds a slot in one subset, or was let go without one.
	stageClaimed
	// stageReserved: the pod has found a node.
	stageReserved
	// stageBinding: the bind has been sent.
	stageBinding
	// stageBound: the API server shows the pod on a node.
	stageBound
)

var stageNames = [stageBound + 1]string{"waiting", "claimed", "reserved", "binding", "bound"}

func (s stage) String() string { return stageNames[s] }

// waitReason is why a pod in stage Waiting or Claimed is not in a cycle.
type waitReason uint8

// What a pod waits for.
const (
	// forCycle: it waits for its cycle. It is new, or it was woken.
	forCycle waitReason = iota
	// forNextSubset: it waits for its cycle, which continues its round through the subsets.
	forNextSubset
	// forNode: no node of the subset that it has claimed fits.
	forNode
	// forSlot: every subset that it may use is full.
	forSlot
	// forAnyNode: no subset with quota has a node for it.
	forAnyNode
	// forNews: its owner, its spread or the replicas of its workload are not known.
	forNews
)

// entry is a pod that has a controller, and is active or ends on its node.
type entry struct {
	pod   *corev1.Pod
	owner *owner
	// account of the workload whose spread divides the pod. Nil if there is none.
	account *account
	scope   string
	stage   stage
	// ending is true for a bound pod that terminates. It holds a slot only if its spread says so, and is no pod of the workload any more.
	ending bool
	// slot is the name of the subset in which the pod holds a slot. Empty if it holds none.
	slot string
	// uncertain are binds whose outcome is unknown. Their slots stay taken until it is known.
	uncertain []uncertainBind
	// record of the pod's Binding, as it was when the pod was first seen on its node.
	record *subset.Record
	// search is nil once the pod is on a node.
	*search
}

// uncertainBind is a bind that may have happened, or may still happen until a time.
type uncertainBind struct {
	slot  string
	until time.Time
}

// search is the state of a pod that looks for a node.
type search struct {
	// order of the pod. The pod with the lower order is served first.
	order uint64
	wait  waitReason
	// list is the waitlist that the pod is in. Nil if it is in none.
	list *waitlist
	// woken is true from when the pod was woken until its cycle.
	woken bool
	// overdue is true if an Audit has found the pod woken and without a cycle.
	overdue bool
	// probeOf is the waitlist of exhausted pods that this pod has left in order to be tried for all of them.
	probeOf *waitlist
	// own are the tolerations of the pod without those that admission added. shape and rules are computed when they are first needed.
	own          []corev1.Toleration
	shape, rules string
	// tried are the subsets that refused the pod in this round of cycles. preempted are those of them in which it found no victims either.
	tried, preempted subset.Mask
	// lent is true if the pod has claimed a subset above its quota; see subset.Verdict.
	lent bool
	// nominated is true if the pod waits in its claimed subset for victims to terminate.
	nominated bool
	// stays is true if the last cycle of the pod found no node in its claimed subset, and the pod waits there for one until something changes.
	stays bool
	// failing says how often the pod has lost the node that it had found. unbindable are the tried subsets in which that happened too often.
	failing    failing
	unbindable subset.Mask
	// forGroup is true if the pod has its slot for as long as it has a node; see SlotTried.
	forGroup bool
	// together are the pods with which it waits for slots. Nil for a pod that waits by itself.
	together *together
	// asked is the position with which the pod asked last.
	asked int32
	// newsBy is when the pod stops waiting for news. Zero if it has not waited yet.
	newsBy time.Time
}

func (e *entry) policy() *subset.Policy {
	if e.account == nil {
		return nil
	}
	return e.account.policy
}

// index of the subset in which the pod holds a slot, or subset.None.
func (e *entry) index() int { return indexOf(e.policy(), e.slot) }

func indexOf(policy *subset.Policy, name string) int {
	if policy == nil || name == "" {
		return subset.None
	}
	return policy.Index(name)
}

// holds are the subsets in which the pod takes a slot.
func (e *entry) holds() (mask subset.Mask) {
	policy := e.policy()
	mask = mask.With(indexOf(policy, e.slot))
	for _, d := range e.uncertain {
		mask = mask.With(indexOf(policy, d.slot))
	}
	return mask
}

// differsBy is true if something has changed in the pod that decides where it may go.
func (e *entry) differsBy(pod *corev1.Pod) bool {
	return !equality.Semantic.DeepEqual(pod.Spec, e.pod.Spec) || !maps.Equal(pod.Labels, e.pod.Labels) || !maps.Equal(pod.Annotations, e.pod.Annotations)
}

// add makes the entry of a pod.
func (l *Ledger) add(pod *corev1.Pod, owner *owner) *entry {
	l.order++
	e := &entry{pod: pod, owner: owner, search: &search{order: l.order}}
	if pod.Spec.NodeName == "" {
		e.own = subset.OwnTolerations(pod) // nobody needs it for a pod on its node
	}
	l.pods[pod.UID], owner.pods[pod.UID] = e, e
	return e
}

// adopt records that a pod has another owner.
func (l *Ledger) adopt(e *entry, owner *owner) {
	l.leaveAccount(e)
	delete(e.owner.pods, e.pod.UID)
	l.owners.prune(e.owner)
	e.owner = owner
	owner.pods[e.pod.UID] = e
}

// drop gives back all slots of a pod and forgets it.
func (l *Ledger) drop(uid types.UID) {
	e := l.pods[uid]
	if e == nil {
		return
	}
	l.endWaitForNews(e)
	l.leaveAccount(e)
	l.forgetNode(e)
	delete(l.pods, uid)
	delete(e.owner.pods, uid)
	l.owners.prune(e.owner)
}

// reassign finds the account that divides the pod now, and the scope that it counts in. It returns true if one of them has changed: what the pod
// waited for before does not count any more.
func (l *Ledger) reassign(e *entry) (moved bool) {
	had := e.account
	to, _ := l.resolve(e)
	if to == had && (to == nil || to.scopeOf(e.pod) == e.scope) {
		return false
	}
	l.endWaitForNews(e)
	l.leaveAccount(e)
	if to != nil {
		l.joinAccount(e, to)
		if e.stage == stageBound && to != had {
			l.setSlots(e, l.classify(e), nil)
		}
		l.crowd(e, e.holds())
		l.wakeUnplaced(to, e.scope, e.holds())
	}
	return true
}

// leaveAccount removes the pod from its account. The pod keeps the names of the slots that its binds have or may get.
func (l *Ledger) leaveAccount(e *entry) {
	a := e.account
	if a == nil {
		return
	}
	if e.search != nil {
		l.unwake(e)
		l.dequeue(e)
	}
	slot, uncertain := e.slot, e.uncertain
	left := l.setSlots(e, "", nil)
	delete(a.members, e.pod.UID)
	if !e.ending {
		a.oneLess(e.owner)
	}
	scope := e.scope
	e.account, e.scope, e.uncertain = nil, "", uncertain
	if e.stage >= stageBinding {
		e.slot = slot
	} else {
		e.stage = stageWaiting // a claim is valid under one spread and in one scope
	}
	l.wakeAfter(a, scope, left)
	l.passProbe(e.search)
}

// oneLess says that a pod of an owner has begun to end, or is gone.
func (a *account) oneLess(owner *owner) {
	if a.live[owner.uid]--; a.live[owner.uid] <= 0 {
		delete(a.live, owner.uid)
	}
	for _, of := range []map[types.UID]int32{a.explained, a.asked} { // it may have been one of those
		if of[owner.uid] > 0 {
			of[owner.uid]--
		}
	}
}

// beginEnd records that a pod terminates. It may go on to hold its slot.
func (l *Ledger) beginEnd(e *entry) {
	e.ending = true
	a := e.account
	if a == nil {
		return
	}
	a.oneLess(e.owner)
	left := l.setSlots(e, l.classify(e), nil)
	l.wakeAfter(a, e.scope, left)
}

// wakeAfter wakes the pods that may go on because a pod has left these subsets, or its workload.
func (l *Ledger) wakeAfter(a *account, scope string, left subset.Mask) {
	l.wakeFor(a, scope, left)
	if left != 0 {
		l.wakeBehind(a, scope, left)
	}
	if len(l.owners.byKey[a.workload]) > 1 && a.policy != nil && !l.predecessorsRun(a) {
		l.wakeWaiting(a) // they may have waited for that
	}
}

// joinAccount counts a pod without an account in one, with the slots that it holds by name.
func (l *Ledger) joinAccount(e *entry, a *account) {
	a.members[e.pod.UID] = e
	if !e.ending {
		a.live[e.owner.uid]++
	}
	slot, uncertain := e.slot, e.uncertain
	e.slot, e.uncertain = "", nil
	e.account, e.scope = a, a.scopeOf(e.pod)
	if e.search != nil {
		e.beginAgain()
		e.newsBy = time.Time{}
	}
	l.setSlots(e, slot, uncertain)
	l.claimPick(e)
}

// beginAgain forgets what the pod has tried.
func (s *search) beginAgain() {
	s.wait, s.woken, s.list, s.probeOf, s.overdue = forCycle, false, nil, nil, false
	s.tried, s.preempted, s.lent, s.nominated, s.stays, s.failing, s.unbindable, s.together = 0, 0, false, false, false, failing{}, 0, nil
}

// failing is how often, and since when, a pod has lost the nodes that it found in a subset.
type failing struct {
	in    string
	times int
	since time.Time
}

// confirmBound counts a pod where the API server shows it. From then on its record and the labels of its node are not read again, so neither a
// changed annotation nor a changed node label moves it to another quota. A pod without a record may get one, once.
func (l *Ledger) confirmBound(e *entry) {
	a := e.account
	l.endWaitForNews(e)
	if a == nil {
		e.stage = stageBound
		e.record, e.slot, e.uncertain, e.search = subset.RecordOf(e.pod), "", nil, nil
		return
	}
	wasWoken, searched := e.woken, e.search
	l.unwake(e)
	l.dequeue(e)
	e.stage = stageBound
	e.record, e.search = subset.RecordOf(e.pod), nil
	before := e.holds()
	freed := l.setSlots(e, l.classify(e), nil)
	if wasWoken || freed != 0 {
		l.wakeFor(a, e.scope, freed)
	}
	l.crowd(e, e.holds()&^before)
	l.wakeUnplaced(a, e.scope, e.holds()&^before)
	l.passProbe(searched)
}

// confirmRecord counts a bound pod by the record that it has got from the controller, if it has. That is where it counts already, unless its node has
// other labels by now.
func (l *Ledger) confirmRecord(e *entry) {
	if e.record = subset.RecordOf(e.pod); e.record == nil || e.account == nil {
		return
	}
	before := e.holds()
	freed := l.setSlots(e, l.classify(e), nil)
	l.wakeFor(e.account, e.scope, freed)
	l.wakeUnplaced(e.account, e.scope, e.holds()&^before)
}

// classify is the name of the subset of a bound pod, by the record that was first seen on it.
func (l *Ledger) classify(e *entry) string {
	l.forgetNode(e)
	policy := e.policy()
	switch {
	case policy == nil:
		return e.slot
	case e.ending && !policy.CountsEnding:
		return ""
	}
	pod := subset.Observe(e.pod, l.nodes[e.pod.Spec.NodeName])
	pod.Record = e.record
	index, adopted := policy.SubsetOf(&pod, e.account.active().Name)
	if adopted && pod.Node == nil {
		waiting := l.unclassified[pod.NodeName]
		if waiting == nil {
			waiting = sets.New[types.UID]()
			l.unclassified[pod.NodeName] = waiting
		}
		waiting.Insert(pod.UID)
	}
	if index == subset.None {
		return ""
	}
	return policy.Subsets[index].Name
}

// forgetNode stops waiting for the pod's node to be seen.
func (l *Ledger) forgetNode(e *entry) {
	name := e.pod.Spec.NodeName
	if waiting := l.unclassified[name]; waiting != nil {
		if waiting.Delete(e.pod.UID); len(waiting) == 0 {
			delete(l.unclassified, name)
		}
	}
}

// setSlots is the only function that changes a tally. It returns the subsets in which the pod held a slot and holds none any more.
func (l *Ledger) setSlots(e *entry, slot string, uncertain []uncertainBind) (freed subset.Mask) {
	before := e.holds()
	e.slot, e.uncertain = slot, uncertain
	after, a := e.holds(), e.account
	if before == after || a == nil || a.policy == nil {
		return 0
	}
	for i := range a.policy.Subsets {
		switch had, has := before.Has(i), after.Has(i); {
		case has && !had:
			a.tally.Add(e.scope, i)
		case had && !has:
			a.tally.Remove(e.scope, i)
		}
	}
	return before &^ after
}
