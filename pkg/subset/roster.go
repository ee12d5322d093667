package subset

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// Roster is the pods of one spread at one plan. It knows which pods are above a quota, which have a wrong deletion
// cost, and which wait for a slot that others hold. It counts all pods after a change, when it is asked. It is not safe
// for concurrent use.
type Roster struct {
	// Latest is the revision that the workload rolls out, for the costs of a spread that behaves as OpenKruise's. Empty
	// if the workload has no revisions, or one controller for all of them. It must be set before the first Put.
	Latest string

	policy  *Policy
	spread  string
	plan    Plan
	members map[types.UID]*Member
	// counted is nil after a change.
	counted *counted
}

// Member is a pod of a roster. The roster owns it and changes it with the next Put of the pod.
type Member struct {
	// Pod without its node, which is not needed any more.
	Pod
	// Subset the pod is bound in, or None. A pod that has ended was bound there.
	Subset int
	// Adopted is true if the node decides about the pod's subset, and not a record of Berth's.
	Adopted bool
	// asked is the deletion cost that the pod's application asks for, 0 if it asks for none.
	asked int32
}

// counted is what the roster finds by looking at all pods.
type counted struct {
	tally *Tally
	// live are the active pods on nodes, in no particular order, and over are those of them above the quota of their
	// subset.
	live []*Member
	over map[*Member]bool
	// onNode counts the live pods of each node. newest is the youngest of the live pods of each controller.
	onNode map[string]int
	newest map[types.UID]*Member
	// waiting are the pending pods that a subset was picked for.
	waiting []*Pod
}

// place is one subset of one quota scope.
type place struct {
	scope  string
	subset int
}

// NewRoster is a roster without pods. It copies the plan.
func (p *Policy) NewRoster(plan *Plan, spread string) *Roster {
	return &Roster{policy: p, spread: spread, plan: *plan, members: map[types.UID]*Member{}}
}

// rosterOf is a roster of pods.
func (p *Policy) rosterOf(plan *Plan, pods []Pod, spread string) *Roster {
	r := p.NewRoster(plan, spread)
	for i := range pods {
		r.Put(pods[i])
	}
	return r
}

// Put adds a pod, or updates it.
func (r *Roster) Put(pod Pod) *Member {
	m, known := r.members[pod.UID]
	if !known {
		m = &Member{}
		r.members[pod.UID] = m
	}
	m.Subset, m.Adopted = r.policy.SubsetOf(&pod, r.spread)
	m.Pod, m.Node, m.asked = pod, nil, r.policy.asked(&pod)
	r.counted = nil
	return m
}

// Remove forgets a pod. An unknown pod is no error.
func (r *Roster) Remove(uid types.UID) {
	delete(r.members, uid)
	r.counted = nil
}

// Replan replaces the plan.
func (r *Roster) Replan(plan *Plan) { r.plan, r.counted = *plan, nil }

// Plan that the roster uses.
func (r *Roster) Plan() *Plan { return &r.plan }

// Tally of the pods that hold a slot. The caller must not change it.
func (r *Roster) Tally() *Tally { return r.count().tally }

// Held is the tally with the pending pods that a subset was picked for, in a new tally.
func (r *Roster) Held() *Tally {
	held := r.count().tally.Clone()
	for _, pod := range r.count().waiting {
		index, _ := r.policy.AdmittedTo(pod.Admitted, r.spread)
		held.Add(r.policy.ScopeOf(pod.Revision), index)
	}
	return held
}

// count looks at all pods, unless nothing has changed since it last did. A pod that ends may hold a slot, and is
// neither above a quota nor gets a cost.
func (r *Roster) count() *counted {
	if r.counted != nil {
		return r.counted
	}
	c := &counted{tally: r.policy.NewTally(), over: map[*Member]bool{}, onNode: map[string]int{}, newest: map[types.UID]*Member{}}
	places := map[place][]*Member{}
	for _, m := range r.members {
		scope := r.policy.ScopeOf(m.Revision)
		if r.policy.HoldsSlot(&m.Pod) {
			c.tally.Add(scope, m.Subset)
		}
		switch {
		case !m.Active:
		case m.NodeName != "":
			c.live = append(c.live, m)
			c.onNode[m.NodeName]++
			if newest := c.newest[m.Owner]; newest == nil || cmp.Or(newest.Created.Compare(m.Created), cmp.Compare(newest.UID, m.UID)) < 0 {
				c.newest[m.Owner] = m
			}
			at := place{scope, m.Subset}
			places[at] = append(places[at], m)
		default:
			if index, counts := r.policy.AdmittedTo(m.Admitted, r.spread); counts && index != None {
				c.waiting = append(c.waiting, &m.Pod)
			}
		}
	}
	for at, here := range places {
		quota := int32(0) // the plan has no place for pods of no subset
		if at.subset != None {
			quota = r.plan.Quota[at.subset]
		}
		if quota == NoLimit || len(here) <= int(quota) {
			continue
		}
		slices.SortFunc(here, byKeepBefore)
		for _, m := range here[quota:] {
			c.over[m] = true
		}
	}
	r.counted = c
	return c
}

func byKeepBefore(a, b *Member) int { return keepBefore(&a.Pod, &b.Pod) }

// excess is a bound pod above the plan.
type excess struct {
	Pod Pod
	// Subset the pod is in, or None.
	Subset int
	// Reason is ReasonOverQuota or ReasonNoSubset.
	Reason v1beta1.Reason
}

// Surplus lists the active bound pods above the plan, those to delete first in front: pods of no subset, then those
// above the quota of the last subset, and so on to the first. Inside a subset, ready and old pods are kept. Each quota
// scope is judged by itself, with the same plan. Lent pods are not above the plan.
func (r *Roster) Surplus() []excess {
	var surplus []excess
	for m := range r.count().over {
		reason := v1beta1.ReasonOverQuota
		if m.Subset == None {
			reason = v1beta1.ReasonNoSubset
		}
		surplus = append(surplus, excess{Pod: m.Pod, Subset: m.Subset, Reason: reason})
	}
	slices.SortFunc(surplus, func(a, b excess) int {
		return cmp.Or(cmp.Compare(r.policy.surplusCost(a.Subset), r.policy.surplusCost(b.Subset)), keepBefore(&b.Pod, &a.Pod))
	})
	return r.withoutLent(surplus)
}

// withoutLent leaves out the pods that may stay above their quota.
func (r *Roster) withoutLent(surplus []excess) []excess {
	if !r.policy.lends {
		return surplus
	}
	over := map[string]int32{} // how many pods of each scope are above quotas and not lent
	for _, scope := range r.Tally().Scopes() {
		over[scope] = r.policy.OverQuota(&r.plan, r.Tally().Kept(scope))
	}
	return slices.DeleteFunc(surplus, func(e excess) bool {
		if e.Subset == None {
			return false
		}
		scope := r.policy.ScopeOf(e.Pod.Revision)
		over[scope]--
		return over[scope] < 0
	})
}

// Surplus is Roster.Surplus of these pods.
func (p *Policy) Surplus(plan *Plan, pods []Pod, spread string) []excess {
	return p.rosterOf(plan, pods, spread).Surplus()
}

// Overbooked are pending pods whose subset, picked by admission, has no room for them, although a replacement would get
// another subset. They should be replaced. The oldest pods keep their subset. A pod of a Job is left waiting, because
// its Job would count a failure.
func (r *Roster) Overbooked() []*Pod {
	waiting := r.count().waiting
	slices.SortFunc(waiting, keepBefore)
	kept := r.Tally().Clone()
	var overbooked []*Pod
	for _, pod := range waiting {
		index, _ := r.policy.AdmittedTo(pod.Admitted, r.spread)
		scope := r.policy.ScopeOf(pod.Revision)
		if r.policy.HasRoom(&r.plan, kept.Kept(scope), index, Candidate{Lent: pod.Admitted.Lent}) {
			kept.Add(scope, index)
		} else {
			overbooked = append(overbooked, pod)
		}
	}
	return slices.DeleteFunc(overbooked, func(pod *Pod) bool {
		scope := r.policy.ScopeOf(pod.Revision)
		verdict := r.policy.Admit(&r.plan, kept.Kept(scope), Candidate{})
		kept.Add(scope, verdict.Subset)
		return !verdict.Allowed() || pod.OfJob
	})
}
