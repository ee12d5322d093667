package ledger

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// gang are the pods of a pod group in one account and one quota scope. Unless the spread divides pod groups, they are in one subset: the first that asks
// claims slots for all of them, and when one of them has to leave the subset before its bind is sent, all do.
type gang struct {
	key     gangKey
	members map[types.UID]*entry
	// stuck are subsets in which a member found no node while others had found theirs.
	stuck subset.Mask
	// retry is how long the gang rests since it last gave its claims back and had no other subset to try, and backoffUntil when that ends.
	backoff      time.Duration
	backoffUntil time.Time
}

type gangKey struct{ scope, group string }

// joinGang puts a pod of an account with its gang, if it has one that must stay together.
func (l *Ledger) joinGang(e *entry) {
	a, group := e.account, e.pod.Labels[v1alpha1.PodGroupLabel]
	if group == "" || a.policy == nil || a.policy.PodGroups == v1alpha1.PodGroupsDivided {
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
}

// regroup takes in that a pod may have another pod group.
func (l *Ledger) regroup(e *entry) {
	if had := e.gang; e.account != nil && (had == nil || had.key.group != e.pod.Labels[v1alpha1.PodGroupLabel]) {
		l.leaveGang(e)
		l.joinGang(e)
		if e.gang != had {
			switch {
			case e.search == nil:
			case e.wait == ForSlot || e.wait == ForNode:
				l.dequeue(e)
				l.enqueue(e)
			case e.wait == ForAnyNode:
				l.wake(e) // it may go where its previous gang could not
			}
			l.wakeNext(e.account, e.scope) // both gangs may go where they could not
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
			l.wake(other) // fewer need less room
			break
		}
	}
	l.unstick(g)
}

// unstick has a gang go on from where some of it found no node, once none of it has one.
func (l *Ledger) unstick(g *gang) {
	if g != nil && g.stuck != 0 && !g.hasNodes() {
		stuck := g.stuck
		g.stuck = 0
		l.disperse(g, stuck, false)
	}
}

// seen is the gang as the model sees it; nil for no gang.
func (g *gang) seen() *subset.Gang {
	if g == nil {
		return nil
	}
	found, firm := &subset.Gang{In: subset.None}, false
	for _, e := range g.members {
		switch holds := e.holds(); {
		case holds != 0:
			// Pods that have a node, or may have one, count before those that have claims. If they are in several subsets, because they were bound
			// before they were a gang, the first of these is theirs.
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

// claimForAll claims slots for all of a pod's gang that have none, in the subset that the pod has been given. They share its round through the subsets.
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

// maxGangBackoff is the longest rest of a gang.
const maxGangBackoff = 10 * time.Second

// disperse takes back what the members have claimed. They go on at once to subsets that have not been tried. Without a tried subset the gang rests: if its
// pods took the slots back as soon as a node changes, two gangs could keep each other from completing. Those whose node is found keep their slot until they
// give it back. Fresh is true if they were given their claims in this cycle, so that nobody else has found them taken.
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

// rests is true if the gang is not to claim slots yet.
func (g *gang) isBackingOff(now time.Time) bool { return g != nil && now.Before(g.backoffUntil) }

// endBackoff has the rest of a gang go on once one of it has a node: that decides where all of them go.
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

// wakeGangs wakes the gangs of a scope that wait for slots, if there are enough for all of their pods.
// It returns how many pods it has woken.
func (l *Ledger) wakeGangs(a *account, scope string) (woken int) {
	kept := a.tally.Kept(scope)
	for key, g := range a.gangs {
		if key.scope != scope || g.isBackingOff(l.now) {
			continue
		}
		of := g.seen()
		fits := func(e *entry) bool {
			return a.policy.Admit(&a.plan, kept, subset.Candidate{Holds: e.holds(), Gang: of}).Reason != v1alpha1.ReasonSubsetsFull
		}
		room := a.policy.Admit(&a.plan, kept, subset.Candidate{Gang: of}).Reason != v1alpha1.ReasonSubsetsFull
		for _, e := range g.members {
			if e.stage == Waiting && e.wait == ForSlot && (room || len(e.uncertain) > 0 && fits(e)) {
				l.wake(e)
				woken++
			}
		}
	}
	return woken
}

// hasNodes is true if a member has found a node, and has or may have it still.
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

// hasNode is true for a pod that has found a node, and has or may have it still.
func (e *entry) hasNode() bool { return e.stage > Claimed || len(e.uncertain) > 0 }

// gangMayGoOn is true if all of the pod's gang can go on to a subset together, once those that have found their nodes give them back.
func (l *Ledger) gangMayGoOn(e *entry, pod subset.Candidate) bool {
	if !e.gang.hasNodes() {
		return false
	}
	pod.Gang = &subset.Gang{In: subset.None, Size: int32(len(e.gang.members))}
	a := e.account
	return a.policy.Admit(&a.plan, a.tally.Kept(e.scope), pod).Reason == v1alpha1.ReasonAdmitted
}
