package ledger

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// A pod that asks again keeps its slot, or moves to an earlier subset that has room by now.
func (ev PodAsks) apply(l *Ledger) {
	e := l.pods[ev.Pod.UID]
	switch {
	case e == nil:
		return // no spread divides it
	case e.stage > stageClaimed:
		l.effects.Answer = Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: "the pod is being bound already"}
		return
	case e.account == nil:
		l.effects.Answer = l.answerUndivided(e)
		return
	}
	answer := l.held(e)
	if ev.Try && answer.Reason == "" {
		l.try(e, &ev)
		return
	}
	if answer.Reason == "" {
		e.asked = e.position()
		candidate := l.candidate(e)
		tried, closed, check := l.checkSubsets(e, candidate, &ev.Results)
		if check != nil {
			l.effects.Check = check
			return
		}
		l.startCycle(e)
		e.tried = tried
		answer = l.admit(e, candidate, closed)
	} else {
		l.startCycle(e)
	}
	l.answer(e, answer)
}

// answerUndivided is the answer to a pod without an account: no spread divides it, or that is not known yet.
func (l *Ledger) answerUndivided(e *entry) (answer Answer) {
	_, missing := l.resolve(e)
	switch {
	case missing != nil:
		answer = Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: fmt.Sprintf(
			"waiting to see %s %q, which owns the pod; if it is gone, delete the pod", missing.Kind, missing.Name)}
	case subset.AwaitsSpread(e.pod) && !l.lateAfter(e, ruledWait):
		answer = Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: "waiting to see the WorkloadSpread that a rule makes for the workload; see that berth-united runs"}
	case !subset.AwaitsSpread(e.pod) && subset.WasAdmitted(e.pod) && !l.lateForNews(e):
		// Admission had found a spread. The watch of spreads may be behind that of pods. The spread may also be deleted, and no event tells that.
		answer = Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: "waiting to see the WorkloadSpread that divided the pod when it was created"}
	case l.now.Before(l.blindUntil):
		answer = Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: "waiting for a moment, because the watch of WorkloadSpreads was interrupted and one of them may divide the pod"}
		l.remindAt(e, l.blindUntil)
	}
	if answer.Reason != "" {
		e.wait = forNews
		l.unresolved[e.pod.UID] = e
	}
	return answer
}

// held is a refusal if the pod must wait for news before a subset can be chosen.
func (l *Ledger) held(e *entry) Answer {
	a := e.account
	switch {
	case a.policy == nil:
		return Answer{Reason: v1beta1.ReasonInvalidSpread, Message: fmt.Sprintf("WorkloadSpread %q cannot be used until it is corrected: %s", a.active().Name, a.invalid)}
	case a.policy.UsesPercent() && !a.replicasKnown:
		return Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: fmt.Sprintf(
			"WorkloadSpread %q has percentages, and the replicas of %s are not known; see condition Ready of the spread", a.active().Name, a.workload)}
	case l.lagsBehind(e):
		if l.lateForNews(e) {
			l.askForReplicas(a, e.owner.uid)
		}
		return Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: fmt.Sprintf(
			"%s has more pods than the %d replicas that the scheduler has seen; waiting for the new number", a.workload, a.plan.Replicas)}
	case l.predecessorsRun(a) && !l.lateForNews(e):
		return Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: fmt.Sprintf("waiting for the pods of the %s that was deleted before to end", a.workload)}
	case l.awaitsOrdinals(e) && !l.lateForNews(e):
		return Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: fmt.Sprintf("waiting to read which ordinals %s gives to its pods", a.workload)}
	}
	return Answer{}
}

// lagsBehind is true if the workload has more pods than the replicas that the ledger has seen, it does not know why, and a quota depends on the replicas. They may have been raised, or the
// pods are left of the time before they were lowered.
func (l *Ledger) lagsBehind(e *entry) bool {
	a := e.account
	live := a.live[e.owner.uid]
	return l.observation > 0 && a.policy != nil && a.replicasKnown && live > a.explained[e.owner.uid] && a.policy.LagsBehind(&a.plan, live)
}

// startCycle records that the pod has its cycle.
func (l *Ledger) startCycle(e *entry) {
	if e.wait != forNextSubset {
		e.tried, e.preempted, e.unbindable = 0, 0, 0
	}
}

// candidate is the pod as package subset needs it.
func (l *Ledger) candidate(e *entry) subset.Candidate {
	a := e.account
	admitted := subset.AdmittedOf(e.pod)
	c := a.policy.At(&a.plan, e.position(), subset.Candidate{Holds: e.holds(), Lent: e.lent})
	if c.Within, c.Admitted = a.policy.AdmittedTo(admitted, a.active().Name); c.Admitted {
		c.Lent = admitted.Lent
	}
	claim := e.index()
	if e.stage != stageClaimed && e.stage != stageReserved || claim == subset.None {
		return c
	}
	if quota := a.plan.Quota[claim]; quota == subset.NoLimit || a.tally.Kept(e.scope).At(claim) <= quota {
		return c
	}
	// The quota was lowered below the number of claims. Pods that asked first keep their claim. If a slot may also be taken by an uncertain bind, it
	// stays taken when its pod gives up the claim.
	c.Claim = claim
	for _, other := range a.members {
		if other.stage == stageClaimed && other.scope == e.scope && other.slot == e.slot && other.order > e.order && !other.mayBeBoundIn(e.slot) {
			c.Behind++
		}
	}
	return c
}

func (e *entry) mayBeBoundIn(slot string) bool {
	return slices.ContainsFunc(e.uncertain, func(d uncertainBind) bool { return d.slot == slot })
}

// checkSubsets goes through the subsets with quota, in the order in which they are due, up to the first that may have a node for the pod. Closed are
// those that have none. A subset that had no node when the pod tried it in this round, and may have one now, counts as not tried. If ask is not nil, the
// caller must check these nodes first, and the other results do not count.
func (l *Ledger) checkSubsets(e *entry, candidate subset.Candidate, results *CheckResults) (tried, closed subset.Mask, ask *NodeCheck) {
	a := e.account
	if e.wait == forNextSubset {
		tried = e.tried
	}
	if !a.isAdaptive() || candidate.Admitted {
		return tried, 0, nil
	}
	kept, preempts := a.tally.Kept(e.scope), l.preemptsFirst(e)
	for seen := subset.Mask(0); ; {
		i := a.policy.Next(&a.plan, kept, candidate, seen)
		if i == subset.None || preempts && !tried.Has(i) { // a subset without a node may have victims
			return tried, closed, nil
		}
		seen = seen.With(i)
		switch result := results.at(a.policy, i); {
		case result == notChecked:
			return tried, closed, &NodeCheck{Policy: a.policy, Subset: i, Own: e.own, Shape: e.shapeOf(), Tried: tried.Has(i)}
		case result == Infeasible:
			closed = closed.With(i)
		case result == FeasibleAgain:
			return tried &^ subset.Mask(0).With(i), closed, nil
		case !tried.Has(i):
			return tried, closed, nil
		}
	}
}

// admit asks the model and takes the slot that it grants.
func (l *Ledger) admit(e *entry, candidate subset.Candidate, closed subset.Mask) Answer {
	a := e.account
	kept := a.tally.Kept(e.scope)
	candidate.Closed = e.tried | closed
	candidate.Prefers = l.nominatedTo(e)
	preempts := false
	e.nominated = e.nominated && e.index() != subset.None && a.policy.HasRoom(&a.plan, kept, e.index(), candidate)
	if e.nominated {
		// The pod stays until its victims have terminated, and asks DefaultPreemption whether they have.
		candidate.Closed, preempts = ^subset.Mask(0).With(e.index()), true
	}
	verdict := a.policy.Admit(&a.plan, kept, candidate)
	if verdict.Reason == v1beta1.ReasonNoNodeFits && l.mayPreempt(e.pod) {
		// Every subset has refused the pod. Now it may preempt, in the order of the subsets.
		candidate.Closed, candidate.Prefers = e.preempted, 0
		verdict = a.policy.Admit(&a.plan, kept, candidate)
		preempts = verdict.Allowed()
	}
	preempts = preempts || verdict.Allowed() && l.preemptsFirst(e)
	if !verdict.Allowed() {
		answer := l.describe(e, verdict.Reason)
		answer.retries = verdict.Reason == v1beta1.ReasonNoNodeFits && e.tried&^closed != 0
		if verdict.Reason == v1beta1.ReasonAdmittedSubsetFull {
			answer.Message = fmt.Sprintf("subset %q, whose patch the pod carries, is full now; berth-controller replaces the pod. %s",
				a.policy.Subsets[candidate.Within].Name, answer.Describe(nil))
		}
		return answer
	}
	e.lent = verdict.Lent
	d := e.decide(verdict.Subset)
	d.preempts = preempts
	if name := d.Name(); name != e.slot {
		l.dequeue(e)
		before := e.holds()
		freed := l.setSlots(e, name, e.uncertain)
		d.fresh = e.holds()&^before != 0 // a bind without an answer may hold the slot already
		if freed != 0 {                  // whoever was woken for a slot that is taken now takes another one, or none
			l.wakeFor(a, e.scope, freed)
		}
	}
	return Answer{Decision: d}
}

// decide is the decision for a subset, which may be subset.None.
func (e *entry) decide(index int) *Decision {
	a := e.account
	d := &Decision{Spread: a.active(), Policy: a.policy, Subset: index, Own: e.own}
	if index != subset.None {
		d.Metadata = a.metadata[index]
	}
	return d
}

// nominatedTo is the first subset that has the node to which the pod is nominated, by a preemption or by another component.
func (l *Ledger) nominatedTo(e *entry) (mask subset.Mask) {
	return mask.With(e.firstWith(l.nodes[e.pod.Status.NominatedNodeName]))
}

// firstWith is the first subset that has the node for the pod. It is subset.None if there is none, and without a node.
func (e *entry) firstWith(node *corev1.Node) int {
	if node == nil {
		return subset.None
	}
	for i := range e.policy().Subsets {
		if e.policy().Subsets[i].Fits(node, e.own) == v1beta1.ReasonAdmitted {
			return i
		}
	}
	return subset.None
}

// preemptsFirst is true for a pod that preempts in each subset before it goes on to the next.
func (l *Ledger) preemptsFirst(e *entry) bool {
	return e.policy().Adaptive.PreemptsFirst && e.account.isAdaptive() && l.mayPreempt(e.pod)
}

// mayPreempt is false for a pod that can have no victims.
func (l *Ledger) mayPreempt(pod *corev1.Pod) bool {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return false
	}
	return corev1helpers.PodPriority(pod) > l.lowest
}

// answer gives the pod its answer. A refused pod holds no slot and joins a waitlist.
func (l *Ledger) answer(e *entry, answer Answer) {
	a := e.account
	l.effects.Answer = answer
	e.stays = false
	wasWoken := e.woken
	l.unwake(e)
	l.startProbe(e)
	l.dequeue(e)
	if answer.Decision != nil {
		e.stage = stageClaimed
		e.wait = forNode
		l.enqueue(e)
	} else {
		if picked, counts := e.picked(); !counts || picked != e.index() || waitFor(answer.Reason) != forNews {
			l.release(e, false)
		}
		e.wait = waitFor(answer.Reason)
		l.enqueue(e)
		if e.wait == forSlot {
			l.passProbe(e.search) // the others do not wait for a node any more either, and their messages should say so
		}
		if answer.retries {
			l.tryAgainLater(e.list)
		}
		if !a.announced && (e.wait == forAnyNode || answer.Reason == v1beta1.ReasonSubsetsFull) {
			a.announced, l.effects.Announce = true, true
		}
	}
	if took := answer.Decision != nil && answer.Decision.fresh; wasWoken && !took && e.wait != forNews {
		l.wakeNext(a, e.scope) // if the slot for which it was woken is still free, the pod could not use it
	}
}

func waitFor(reason v1beta1.Reason) waitReason {
	switch reason {
	case v1beta1.ReasonSubsetsFull, v1beta1.ReasonAdmittedSubsetFull:
		return forSlot
	case v1beta1.ReasonNoNodeFits:
		return forAnyNode
	default:
		return forNews
	}
}

// release gives up the slot of a claim. It keeps those of uncertain binds.
func (l *Ledger) release(e *entry, fresh bool) {
	l.dequeue(e)
	e.stage = stageWaiting
	e.lent, e.forGroup = false, false
	if e.slot == "" {
		return
	}
	freed := l.setSlots(e, "", e.uncertain)
	if fresh {
		freed = 0 // nobody has found the slot taken
	}
	l.wakeFor(e.account, e.scope, freed)
}

func (ev NoNodeFound) apply(l *Ledger) {
	e, d := l.pods[ev.UID], ev.Decision
	if e == nil || e.stage != stageClaimed || e.policy() != d.Policy || e.index() != d.Subset {
		l.effects.Next = GoOn // its spread has changed, and that has woken the pod
		return
	}
	l.effects.Answer = l.describe(e, "")
	if d.preempts || l.isFixed(e) {
		l.effects.Next = Preempt
		return
	}
	e.tried = e.tried.With(d.Subset)
	l.tryNext(e, d)
	l.effects.Next = GoOn
}

// isFixed is true for a pod that has no other subset to go on to.
func (l *Ledger) isFixed(e *entry) bool { return !e.account.isAdaptive() || l.candidate(e).Admitted }

// A pod that is nominated, by this preemption or an earlier one, keeps its claim while its victims terminate. Otherwise a sibling would take the
// slot, and the pod would preempt in another subset as well.
func (ev Preempted) apply(l *Ledger) {
	e, d := l.pods[ev.UID], ev.Decision
	switch {
	case e == nil || e.stage != stageClaimed || e.policy() != d.Policy || e.index() != d.Subset:
		return
	case d.Subset == subset.None || l.isFixed(e):
		e.stays = !ev.Nominated
		return
	case !d.preempts:
		return
	}
	if e.nominated = ev.Nominated; e.nominated {
		l.passProbe(e.search) // its victims may take their time
		return
	}
	e.tried, e.preempted = e.tried.With(d.Subset), e.preempted.With(d.Subset)
	l.tryNext(e, d)
}

// tryNext gives up the claim and wakes the pod at once.
func (l *Ledger) tryNext(e *entry, d *Decision) {
	l.release(e, d.fresh)
	e.nominated = false
	e.wait = forNextSubset
	l.wake(e)
}
