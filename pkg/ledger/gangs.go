package ledger

import (
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
}

// regroup takes in that a pod may have another pod group.
func (l *Ledger) regroup(e *entry) {
	if e.account != nil && (e.gang == nil || e.gang.key.group != e.pod.Labels[v1alpha1.PodGroupLabel]) {
		l.leaveGang(e)
		l.joinGang(e)
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
}

// seen is the gang as the model sees it; nil for no gang.
func (g *gang) seen() *subset.Gang {
	if g == nil {
		return nil
	}
	found := &subset.Gang{In: subset.None}
	for _, e := range g.members {
		switch {
		case e.index() != subset.None:
			// If bound pods are in several subsets, because they were bound before they were a gang, the first of these is theirs.
			if !found.Held || found.In == subset.None || e.index() < found.In {
				found.Held, found.In = true, e.index()
			}
		case e.stage == Waiting:
			found.Size++
		default:
			found.Held = true // let go
		}
	}
	return found
}

// claimForAll claims slots for all members that have none, in the subset that a member has been given.
func (l *Ledger) claimForAll(g *gang, slot string) {
	if g == nil || slot == "" {
		return
	}
	for _, e := range g.members {
		if e.stage != Waiting || e.slot != "" || !e.account.policy.HasRoom(&e.account.plan, e.account.tally.Kept(e.scope), e.account.policy.Index(slot), subset.Candidate{Holds: e.holds()}) {
			continue
		}
		wasAsleep := e.wait != ForCycle && e.wait != ForNextSubset
		l.unwake(e)
		l.leave(e)
		l.setStage(e, Claimed)
		l.setSlots(e, slot, e.uncertain)
		if wasAsleep {
			l.wake(e)
		}
	}
}

// disperse takes back what the members have claimed, and has them tried again. Those whose node is found keep their slot until they give it back.
func (l *Ledger) disperse(g *gang, tried subset.Mask) {
	if g == nil {
		return
	}
	for _, e := range g.members {
		if e.stage != Claimed {
			continue
		}
		l.release(e, true)
		e.wait = ForCycle
		if tried != 0 {
			e.tried, e.wait = e.tried|tried, ForNextSubset
		}
		l.wake(e)
	}
}

// wakeGangs wakes the gangs of a scope that wait for slots, if there are enough for all of their pods.
func (l *Ledger) wakeGangs(a *account, scope string) {
	for key, g := range a.gangs {
		if key.scope != scope {
			continue
		}
		for _, e := range g.members {
			if e.stage == Waiting && e.wait == ForSlot && a.policy.Admit(&a.plan, a.tally.Kept(scope), l.candidate(e)).Reason != v1alpha1.ReasonSubsetsFull {
				l.wake(e)
			}
		}
	}
}

// hasNodes is true if a member has found a node.
func (g *gang) hasNodes() bool {
	if g == nil {
		return false
	}
	for _, e := range g.members {
		if e.stage > Claimed {
			return true
		}
	}
	return false
}
