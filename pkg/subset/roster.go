package subset

import (
	"cmp"
	"slices"

	"github.com/google/btree"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// Roster is the pods of one spread at one plan. It knows which pods are above a quota, which have a wrong deletion cost, and which wait for a slot
// that others hold. The cost of an update or a query depends on how much has changed or is wrong, and not on the number of pods. It is not safe for
// concurrent use.
type Roster struct {
	// Latest is the revision that the workload rolls out, for the costs of a spread that behaves as OpenKruise's. Empty if the workload has no
	// revisions, or one controller for all of them. It must be set before the first Put.
	Latest string

	policy *Policy
	spread string
	plan   Plan

	members map[types.UID]*Member
	tally   *Tally
	places  map[place]*ranking
	onNode  map[string]map[types.UID]*Member
	// ages are the bound pods of each controller, the oldest first.
	ages  map[types.UID]*btree.BTreeG[*Member]
	costs map[costGroup]costs
	// waiting are the pending pods that admission picked a subset for, and booked is their tally.
	waiting map[types.UID]*Member
	booked  *Tally
}

// Member is a pod of a roster. The roster owns it and changes it with the next Put of the pod.
type Member struct {
	// Pod without its node, which is not needed any more.
	Pod
	// Subset the pod is bound in, or None. A pod that has ended was bound there.
	Subset int
	// Adopted is true if the node decides about the pod's subset, and not a record of Berth's.
	Adopted bool

	// overQuota is true if the pod is above the quota of its subset.
	overQuota bool
	// costs is the group that computes its deletion cost, and aloneThen its half of the group. Nil if the pod gets no cost.
	costs     costs
	group     costGroup
	aloneThen bool
}

// place is one subset of one quota scope.
type place struct {
	scope  string
	subset int
}

// degree of the trees. Subsets have dozens or thousands of pods.
const degree = 16

// NewRoster is a roster without pods. It copies the plan.
func (p *Policy) NewRoster(plan *Plan, spread string) *Roster {
	return &Roster{
		policy: p, spread: spread, plan: *plan,
		members: map[types.UID]*Member{}, tally: p.NewTally(), places: map[place]*ranking{}, onNode: map[string]map[types.UID]*Member{},
		ages: map[types.UID]*btree.BTreeG[*Member]{}, costs: map[costGroup]costs{},
		waiting: map[types.UID]*Member{}, booked: p.NewTally(),
	}
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
	if known {
		r.leave(m)
		if ageChanges(&m.Pod, &pod) {
			r.forgetAge(m)
		}
	} else {
		m = &Member{}
		r.members[pod.UID] = m
	}
	m.Pod, m.Node = pod, nil
	m.Subset, m.Adopted = r.policy.SubsetOf(&pod, r.spread)
	if livesOnNode(&pod) {
		r.rememberAge(m)
	}
	r.enter(m)
	return m
}

// Remove forgets a pod. An unknown pod is no error.
func (r *Roster) Remove(uid types.UID) {
	if m, known := r.members[uid]; known {
		r.leave(m)
		r.forgetAge(m)
		delete(r.members, uid)
	}
}

// Replan replaces the plan.
func (r *Roster) Replan(plan *Plan) {
	r.plan = *plan
	for at, here := range r.places {
		r.requota(here, r.quotaOf(at.subset))
	}
}

// Plan that the roster uses.
func (r *Roster) Plan() *Plan { return &r.plan }

// Tally of the pods that hold a slot. The caller must not change it. It changes with the roster.
func (r *Roster) Tally() *Tally { return r.tally }

// Held is the tally with the pending pods that admission picked a subset for, in a new tally.
func (r *Roster) Held() *Tally {
	held := r.tally.Clone()
	for _, m := range r.waiting {
		index, _ := r.policy.AdmittedTo(m.Admitted, r.spread)
		held.Add(r.policy.ScopeOf(m.Revision), index)
	}
	return held
}

func livesOnNode(pod *Pod) bool { return pod.Active && pod.NodeName != "" }

// enter counts a pod. A pod that ends may hold a slot, and is neither above a quota nor gets a cost.
func (r *Roster) enter(m *Member) {
	scope := r.policy.ScopeOf(m.Revision)
	if !m.Active {
		if r.policy.HoldsSlot(&m.Pod) {
			r.tally.Add(scope, m.Subset)
		}
		return
	}
	if m.NodeName == "" {
		if index, counts := r.policy.AdmittedTo(m.Admitted, r.spread); counts && index != None {
			r.waiting[m.UID] = m
			r.booked.Add(scope, index)
		}
		return
	}
	r.tally.Add(scope, m.Subset)
	at := place{scope, m.Subset}
	if r.places[at] == nil {
		r.places[at] = newRanking(r.quotaOf(m.Subset))
	}
	r.places[at].kept.ReplaceOrInsert(m)
	r.settle(r.places[at])
	here := r.onNode[m.NodeName]
	if here == nil {
		here = map[types.UID]*Member{}
		r.onNode[m.NodeName] = here
	}
	here[m.UID] = m
	r.nodeShared(here)
	r.assignCost(m)
}

// leave undoes enter. The pod must be as it was then.
func (r *Roster) leave(m *Member) {
	scope := r.policy.ScopeOf(m.Revision)
	if !m.Active {
		if r.policy.HoldsSlot(&m.Pod) {
			r.tally.Remove(scope, m.Subset)
		}
		return
	}
	if m.NodeName == "" {
		if index, counts := r.policy.AdmittedTo(m.Admitted, r.spread); counts && index != None {
			delete(r.waiting, m.UID)
			r.booked.Remove(scope, index)
		}
		return
	}
	r.withdrawCost(m)
	here := r.onNode[m.NodeName]
	if delete(here, m.UID); len(here) == 0 {
		delete(r.onNode, m.NodeName)
	}
	r.nodeShared(here)
	r.tally.Remove(scope, m.Subset)
	at := place{scope, m.Subset}
	ranked := r.places[at]
	ranked.remove(m)
	if r.settle(ranked); ranked.empty() {
		delete(r.places, at)
	}
}

// nodeShared updates the cost of the other pod when a node gets its second pod, or loses all but one.
func (r *Roster) nodeShared(here map[types.UID]*Member) {
	if len(here) > 2 {
		return
	}
	for _, m := range here {
		r.reassignCost(m)
	}
}

// alone is true for the only pod of the workload on its node.
func (r *Roster) alone(m *Member) bool { return len(r.onNode[m.NodeName]) == 1 }

// ranking divides the pods of a place into those that are kept and those above the quota. Both are in the order of keepBefore.
type ranking struct {
	quota      int32
	kept, over *btree.BTreeG[*Member]
}

func newRanking(quota int32) *ranking {
	first := func(a, b *Member) bool { return keepBefore(&a.Pod, &b.Pod) < 0 }
	return &ranking{quota: quota, kept: btree.NewG(degree, first), over: btree.NewG(degree, first)}
}

func (k *ranking) empty() bool { return k.kept.Len()+k.over.Len() == 0 }

func (k *ranking) remove(m *Member) {
	if m.overQuota {
		k.over.Delete(m)
	} else {
		k.kept.Delete(m)
	}
	m.overQuota = false
}

// quotaOf is 0 for pods of no subset: the plan has no place for them.
func (r *Roster) quotaOf(subset int) int32 {
	if subset == None {
		return 0
	}
	return r.plan.Quota[subset]
}

func (r *Roster) requota(k *ranking, quota int32) {
	if k.quota != quota {
		k.quota = quota
		r.settle(k)
	}
}

// settle moves pods between kept and over until kept has as many as the quota allows.
func (r *Roster) settle(k *ranking) {
	for k.quota != NoLimit && k.kept.Len() > int(k.quota) {
		m, _ := k.kept.DeleteMax()
		m.overQuota = true
		k.over.ReplaceOrInsert(m)
		r.reassignCost(m)
	}
	for k.over.Len() > 0 && (k.quota == NoLimit || k.kept.Len() < int(k.quota)) {
		m, _ := k.over.DeleteMin()
		m.overQuota = false
		k.kept.ReplaceOrInsert(m)
		r.reassignCost(m)
	}
}

// ageChanges is true if the pod's position in ages may change.
func ageChanges(before, after *Pod) bool {
	return before.Owner != after.Owner || before.Revision != after.Revision || !before.Created.Equal(after.Created) || livesOnNode(before) != livesOnNode(after)
}

func (r *Roster) rememberAge(m *Member) {
	ages := r.ages[m.Owner]
	if ages == nil {
		ages = btree.NewG(degree, func(a, b *Member) bool {
			return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID)) < 0
		})
		r.ages[m.Owner] = ages
	}
	r.changeAges(ages, func() { ages.ReplaceOrInsert(m) })
}

func (r *Roster) forgetAge(m *Member) {
	ages := r.ages[m.Owner]
	if ages == nil || !livesOnNode(&m.Pod) {
		return
	}
	r.changeAges(ages, func() { ages.Delete(m) })
	if ages.Len() == 0 {
		delete(r.ages, m.Owner)
	}
}

// changeAges makes a change to the ages of a controller's pods. If that changes the newest revision, it updates their costs.
func (r *Roster) changeAges(ages *btree.BTreeG[*Member], change func()) {
	before, had := ages.Max()
	change()
	if after, has := ages.Max(); had && has && before.Revision != after.Revision {
		ages.Ascend(func(m *Member) bool {
			r.reassignCost(m)
			return true
		})
	}
}

// isOlder is true for a pod of an older revision; see Costs.
func (r *Roster) isOlder(m *Member) bool {
	if len(r.policy.Subsets) == 1 {
		return false
	}
	if r.policy.Kruise {
		return r.Latest != "" && m.Revision != r.Latest
	}
	newest, _ := r.ages[m.Owner].Max()
	return newest.Revision != m.Revision
}

// Excess is a bound pod above the plan.
type Excess struct {
	Pod Pod
	// Subset the pod is in, or None.
	Subset int
	// Reason is ReasonOverQuota or ReasonNoSubset.
	Reason v1beta1.Reason
}

// Surplus lists the active bound pods above the plan, those to delete first in front: pods of no subset, then those above the quota of the last
// subset, and so on to the first. Inside a subset, ready and old pods are kept. Each quota scope is judged by itself, with the same plan. Lent pods are
// not above the plan.
func (r *Roster) Surplus() []Excess {
	var surplus []Excess
	for at, here := range r.places {
		reason := v1beta1.ReasonOverQuota
		if at.subset == None {
			reason = v1beta1.ReasonNoSubset
		}
		here.over.Ascend(func(m *Member) bool {
			surplus = append(surplus, Excess{Pod: m.Pod, Subset: at.subset, Reason: reason})
			return true
		})
	}
	slices.SortFunc(surplus, func(a, b Excess) int {
		return cmp.Or(cmp.Compare(r.policy.surplusCost(a.Subset), r.policy.surplusCost(b.Subset)), keepBefore(&b.Pod, &a.Pod))
	})
	return r.withoutLent(surplus)
}

// withoutLent leaves out the pods that may stay above their quota.
func (r *Roster) withoutLent(surplus []Excess) []Excess {
	if !r.policy.lends {
		return surplus
	}
	over := map[string]int32{} // how many pods of each scope are above quotas and not lent
	for _, scope := range r.tally.Scopes() {
		over[scope] = r.policy.OverQuota(&r.plan, r.tally.Kept(scope))
	}
	return slices.DeleteFunc(surplus, func(e Excess) bool {
		if e.Subset == None {
			return false
		}
		scope := r.policy.ScopeOf(e.Pod.Revision)
		over[scope]--
		return over[scope] < 0
	})
}

// Surplus is Roster.Surplus of these pods.
func (p *Policy) Surplus(plan *Plan, pods []Pod, spread string) []Excess {
	return p.rosterOf(plan, pods, spread).Surplus()
}

// Overbooked are pending pods whose subset, picked by admission, has no room for them, although a replacement would get another subset. They should
// be replaced. The oldest pods keep their subset. A pod of a Job is left waiting, because its Job would count a failure.
func (r *Roster) Overbooked() []*Pod {
	if !r.isOverbooked() {
		return nil
	}
	waiting := make([]*Pod, 0, len(r.waiting))
	for _, m := range r.waiting {
		waiting = append(waiting, &m.Pod)
	}
	slices.SortFunc(waiting, keepBefore)
	kept := r.tally.Clone()
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

// isOverbooked is true if there is any overbooked pod.
func (r *Roster) isOverbooked() bool {
	for _, scope := range r.booked.Scopes() {
		booked, counts, over := r.booked.Kept(scope), slices.Clone(r.tally.Kept(scope)), false
		if counts == nil {
			counts = make(Counts, len(r.plan.Quota))
		}
		for i, quota := range r.plan.Quota {
			waiting := booked.At(i)
			if free := Free(quota, counts[i]); free != NoLimit && waiting > free {
				waiting, over = free, true
			}
			counts[i] += waiting
		}
		if over && r.policy.Admit(&r.plan, counts, Candidate{}).Allowed() {
			return true
		}
	}
	return false
}
