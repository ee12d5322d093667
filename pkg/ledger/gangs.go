package ledger

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// gang is the pods of a pod group in one account and one quota scope. Unless the spread divides pod groups, they must be in one subset. The first pod
// that asks claims slots for all of them. If one of them must leave the subset before its bind is sent, all leave it.
type gang struct {
	key     gangKey
	members map[types.UID]*entry
	// stuck are subsets in which a member found no node while other members had found theirs.
	stuck subset.Mask
	// backoff is how long the gang waits after it gave back its claims and had no other subset to try. backoffUntil is when that ends.
	backoff      time.Duration
	backoffUntil time.Time
}

type gangKey struct{ scope, group string }

// joinGang adds a pod of an account to its gang, if its pod group must stay together.
func (l *Ledger) joinGang(e *entry) {
	a, group := e.account, e.pod.Labels[v1beta1.PodGroupLabel]
	if e.ending || group == "" || a.policy == nil || a.policy.PodGroups == v1beta1.PodGroupsDivided {
		return
	}
	if _, early := a.policy.AdmittedTo(subset.AdmittedOf(e.pod), a.active().Name); early {
		return // admission has picked its subset
	}
	key := gangKey{e.scope, group}
	g := a.gangs[key]
	if g == nil {
		g = &gang{key: key, members: map[types.UID]*entry{}}
		a.gangs[key] = g
	}
	g.members[e.pod.UID] = e
	e.gang = g
	l.endBackoff(g)
	if e.hasNode() {
		l.wakeGang(g)
	}
}

// wakeGang lets the members that wait be tried again, because another one has a node in another subset than they know.
func (l *Ledger) wakeGang(g *gang) {
	for _, e := range g.members {
		if e.stage == Waiting && (e.wait == ForSlot || e.wait == ForAnyNode) {
			l.wake(e)
		}
	}
}

// regroup follows a change of the pod's pod group.
func (l *Ledger) regroup(e *entry) {
	if had := e.gang; e.account != nil && (had == nil || had.key.group != e.pod.Labels[v1beta1.PodGroupLabel]) {
		l.leaveGang(e)
		l.joinGang(e)
		if e.gang != had {
			switch {
			case e.stage > Claimed: // it waits for nothing
			case e.wait == ForSlot || e.wait == ForNode:
				l.dequeue(e)
				l.enqueue(e)
			case e.wait == ForAnyNode:
				l.wake(e) // it may go where its previous gang could not
			}
			l.wakeNext(e.account, e.scope) // both gangs may go where they could not go before
		}
	}
}

func (l *Ledger) leaveGang(e *entry) {
	g := e.gang
	if g == nil {
		return
	}
	e.gang = nil
	if delete(g.members, e.pod.UID); len(g.members) == 0 && e.account.gangs[g.key] == g {
		delete(e.account.gangs, g.key)
	}
	for _, other := range g.members {
		if other.search != nil && other.place.list != nil && other.place.list.exhausted {
			l.wake(other) // a smaller gang needs less room
			break
		}
	}
	l.unstick(g)
}

// unstick lets a gang go on from subsets where some members found no node, once no member has a node.
func (l *Ledger) unstick(g *gang) {
	if g != nil && g.stuck != 0 && !g.hasNodes() {
		stuck := g.stuck
		g.stuck = 0
		l.disperse(g, stuck, false)
	}
}

// seen is the gang as package subset needs it. Nil for no gang.
func (g *gang) seen() *subset.Gang {
	if g == nil {
		return nil
	}
	found, firm := &subset.Gang{In: subset.None}, false
	for _, e := range g.members {
		switch holds := e.holds(); {
		case holds != 0:
			// Pods that have a node, or may have one, count before pods with claims. If they are in several subsets, because they were bound before
			// they were a gang, the first subset counts.
			in, has := holds.First(), e.hasNode()
			if found.In == subset.None || has && !firm || has == firm && in < found.In {
				found.Held, found.In, firm = true, in, has
			}
		case e.stage == Waiting:
			found.Size++
		default:
			found.Held = true // let go
		}
	}
	return found
}

// claimForAll claims slots in the subset that the pod was given, for all pods of its gang that have none. They join its round through the subsets.
func (l *Ledger) claimForAll(by *entry, slot string) {
	if by.gang == nil || slot == "" {
		return
	}
	for _, e := range by.gang.members {
		if e.stage != Waiting || e.slot != "" || !e.account.policy.HasRoom(&e.account.plan, e.account.tally.Kept(e.scope), e.account.policy.Index(slot), subset.Candidate{Holds: e.holds()}) {
			continue
		}
		wasAsleep := e.wait != ForCycle && e.wait != ForNextSubset || e.timer != nil // see disperse
		l.unwake(e)
		l.dequeue(e)
		l.setStage(e, Claimed)
		l.setSlots(e, slot, e.uncertain)
		if by.tried != 0 {
			e.tried, e.wait = e.tried|by.tried, ForNextSubset
		}
		if wasAsleep {
			l.wake(e)
		}
	}
}

// maxGangBackoff is the longest backoff of a gang.
const maxGangBackoff = 10 * time.Second

// disperse takes back the claims of all members. They go on at once to subsets that have not been tried. Without a tried subset the gang backs off:
// if its pods claimed again as soon as a node changes, two gangs could keep each other from completing. Members that found a node keep their slot
// until they give it back. Fresh is true if the members got their claims in this cycle, so that no other pod has found these slots taken.
func (l *Ledger) disperse(g *gang, tried subset.Mask, fresh bool) {
	if g == nil {
		return
	}
	if tried == 0 {
		g.backoff = min(nextBackoff(g.backoff), maxGangBackoff)
		g.backoffUntil = l.now.Add(g.backoff)
	}
	var a *account
	var freed subset.Mask
	for _, e := range g.members {
		if e.stage > Claimed {
			continue
		}
		claimed := e.stage == Claimed
		if claimed {
			a = e.account
			l.dequeue(e)
			l.setStage(e, Waiting)
			freed |= l.setSlots(e, "", e.uncertain)
		}
		switch {
		case tried == 0:
			if e.wait != ForNews {
				l.dequeue(e)
				e.wait = ForCycle
			}
			l.wakeAt(e, g.backoffUntil)
		case claimed:
			e.tried, e.wait = e.tried|tried, ForNextSubset
			l.wake(e)
		}
	}
	if a == nil {
		return
	}
	l.wakeNext(a, g.key.scope)
	if !fresh {
		l.wakeExhausted(a, g.key.scope, freed)
	}
}

// isBackingOff is true if the gang must not claim slots yet.
func (g *gang) isBackingOff(now time.Time) bool { return g != nil && now.Before(g.backoffUntil) }

// endBackoff wakes the other members once one member has a node: that decides where all of them go.
func (l *Ledger) endBackoff(g *gang) {
	if !g.isBackingOff(l.now) || !g.hasNodes() {
		return
	}
	g.backoffUntil = time.Time{}
	for _, e := range g.members {
		if e.stage == Waiting && (e.timer != nil || e.place.list != nil && e.place.list.exhausted) {
			l.wake(e)
		}
	}
}

// wakeGangs wakes the gangs of a scope that wait for slots, if there are enough slots for all of their pods. It returns how many pods it woke.
func (l *Ledger) wakeGangs(a *account, scope string) (woken int) {
	kept := a.tally.Kept(scope)
	for key, g := range a.gangs {
		if key.scope != scope || g.isBackingOff(l.now) {
			continue
		}
		of := g.seen()
		fits := func(e *entry) bool {
			return a.policy.Admit(&a.plan, kept, subset.Candidate{Holds: e.holds(), Gang: of}).Reason != v1beta1.ReasonSubsetsFull
		}
		room := a.policy.Admit(&a.plan, kept, subset.Candidate{Gang: of}).Reason != v1beta1.ReasonSubsetsFull
		for _, e := range g.members {
			if e.stage == Waiting && e.wait == ForSlot && (room || len(e.uncertain) > 0 && fits(e)) {
				l.wake(e)
				woken++
			}
		}
	}
	return woken
}

// hasNodes is true if a member has found a node and has it, or may still have it.
func (g *gang) hasNodes() bool {
	if g == nil {
		return false
	}
	for _, e := range g.members {
		if e.hasNode() {
			return true
		}
	}
	return false
}

// isSettled is true if a member that has a node, or may still have one, has it in a subset. Otherwise the gang is only where its claims are.
func (g *gang) isSettled() bool {
	for _, e := range g.members {
		if e.hasNode() && e.holds() != 0 {
			return true
		}
	}
	return false
}

// hasNode is true for a pod that has found a node and has it, or may still have it.
func (e *entry) hasNode() bool { return e.stage > Claimed || len(e.uncertain) > 0 }

// gangMayGoOn is true if the whole gang can go on to another subset, once the members that found nodes give them back.
func (l *Ledger) gangMayGoOn(e *entry, pod subset.Candidate) bool {
	if !e.gang.hasNodes() {
		return false
	}
	pod.Gang = &subset.Gang{In: subset.None, Size: int32(len(e.gang.members))}
	a := e.account
	return a.policy.Admit(&a.plan, a.tally.Kept(e.scope), pod).Reason == v1beta1.ReasonAdmitted
}
