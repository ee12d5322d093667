package subset

import (
	"math/bits"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// Mask is a set of subsets by index.
type Mask uint64

// With adds a subset. None adds nothing.
func (m Mask) With(subset int) Mask { return m | 1<<uint(subset) }

// Has is true if the subset is in the set. None is in no set.
func (m Mask) Has(subset int) bool { return m&(1<<uint(subset)) != 0 }

// First is the lowest index in the set, 64 if it is empty.
func (m Mask) First() int { return bits.TrailingZeros64(uint64(m)) }

// Candidate is a pod that asks for a subset.
type Candidate struct {
	// Holds are the subsets in which the pod itself holds a counted slot. These slots do not count against it.
	Holds Mask
	// Behind is how many other counted slots of subset Claim belong to pending pods that asked later. After a quota was
	// lowered, these pods give way to this one. Claim is one of Holds.
	Behind int32
	Claim  int
	// Admitted is true for a pod that carries the patch of a subset. It may use that subset only: Within, or none if
	// Within is None.
	Admitted bool
	Within   int
	// Lent is true for a pod that was given a subset above its quota; see Verdict.
	Lent bool
	// Closed are subsets in which no node fits this pod. Strategy Fixed ignores them.
	Closed Mask
	// Prefers are subsets that are tried before all others, because a node of theirs is nominated for the pod.
	Prefers Mask
	// HasHome is true for a pod of a StatefulSet that belongs in subset Home; see Policy.SubsetAt. Home is None if the
	// pod is beyond all quotas.
	HasHome bool
	Home    int
	// Together is how many pods a subset must have room for at once, this one among them. 0 and 1 are this pod alone.
	Together int32
}

// outOfTheWay is how many counted slots of a subset are ignored for this pod: its own, and those that give way to it.
func (c *Candidate) outOfTheWay(subset int) int32 {
	switch {
	case !c.Holds.Has(subset):
		return 0
	case subset == c.Claim:
		return 1 + c.Behind
	default:
		return 1
	}
}

// Verdict is the model's answer for a Candidate.
type Verdict struct {
	// Subset that the pod may use. None if the pod is let go without one, or is refused.
	Subset int
	// Lent is true if the subset was at its quota when the pod first got it, and the pod takes the share of another
	// subset, which had no node for it. The pods of all subsets together are then no more than the replicas.
	Lent bool
	// Reason is ReasonAdmitted, ReasonUnplaced (let go), ReasonSubsetsFull, ReasonAdmittedSubsetFull or
	// ReasonNoNodeFits (refused).
	Reason v1beta1.Reason
}

// Allowed is true if the pod may be scheduled, in a subset or without one.
func (v Verdict) Allowed() bool {
	return v.Reason == v1beta1.ReasonAdmitted || v.Reason == v1beta1.ReasonUnplaced
}

// Admit picks the subset of one pod: the first, in the order of Next, that has quota left and, with strategy Adaptive,
// is not closed to the pod. If no subset has quota left, the spread decides whether the pod is let go or refused. If
// the subsets with quota left are all closed, the pod is refused. Admit allocates no memory.
//
// Kept must count every slot that is taken, promised or possibly taken. A slot that is missing there puts a pod over
// quota.
func (p *Policy) Admit(plan *Plan, kept Counts, pod Candidate) Verdict {
	if pod.Admitted {
		return p.admitWithin(plan, kept, pod)
	}
	if pod.Prefers != 0 {
		if preferred := p.Next(plan, kept, pod, ^pod.Prefers|pod.Closed); preferred != None {
			return Verdict{Subset: preferred, Lent: pod.Lent, Reason: v1beta1.ReasonAdmitted}
		}
	}
	closed := pod.Closed
	if p.Strategy == v1beta1.FixedScheduleStrategy {
		closed = 0
	}
	if next := p.Next(plan, kept, pod, closed); next != None {
		return Verdict{Subset: next, Lent: pod.Lent, Reason: v1beta1.ReasonAdmitted}
	}
	switch {
	case closed != 0 && p.Next(plan, kept, pod, 0) != None:
		pod.Lent = true
		if next := p.Next(plan, kept, pod, closed); next != None {
			return Verdict{Subset: next, Lent: true, Reason: v1beta1.ReasonAdmitted}
		}
		return Verdict{Subset: None, Reason: v1beta1.ReasonNoNodeFits}
	case p.WhenFull == v1beta1.WhenFullSchedule:
		return Verdict{Subset: None, Reason: v1beta1.ReasonUnplaced}
	default:
		return Verdict{Subset: None, Reason: v1beta1.ReasonSubsetsFull}
	}
}

// Next is the subset that is due for the next pod, of those with room for it that are not skipped. It is None if there
// is none. Subsets below their minimum come first, in order. Then come, if the spread has shares, subsets below their
// target, and then all others; in both the subset that has the fewest pods for its weight comes first. Without shares
// all others come in order.
//
// For a pod with a home the home comes first. Without shares the subsets after it follow, and then those before it, the
// nearest first: the pod takes no slot of a lower ordinal while there is another. A pod beyond all quotas takes none if
// the spread says whenFull: Schedule.
func (p *Policy) Next(plan *Plan, kept Counts, pod Candidate, skip Mask) int {
	if pod.HasHome {
		return p.nextFromHome(plan, kept, &pod, skip)
	}
	return p.nextDue(plan, kept, &pod, skip)
}

func (p *Policy) nextFromHome(plan *Plan, kept Counts, pod *Candidate, skip Mask) int {
	home := pod.Home
	if home == None {
		if p.WhenFull == v1beta1.WhenFullSchedule {
			return None
		}
		home = len(plan.Quota) // the last subset comes first
	}
	open := func(i int) bool { return !skip.Has(i) && p.hasRoom(plan, kept, i, pod) }
	if p.shares {
		if home < len(plan.Quota) && open(home) {
			return home
		}
		return p.nextDue(plan, kept, pod, skip)
	}
	for i := home; i < len(plan.Quota); i++ {
		if open(i) {
			return i
		}
	}
	for i := home - 1; i >= 0; i-- {
		if open(i) {
			return i
		}
	}
	return None
}

func (p *Policy) nextDue(plan *Plan, kept Counts, pod *Candidate, skip Mask) int {
	next := None
	for i := range plan.Quota {
		if skip.Has(i) || !p.hasRoom(plan, kept, i, pod) {
			continue
		}
		if !p.ranked {
			return i
		}
		if next == None || p.dueBefore(plan, kept, pod, i, next) {
			next = i
		}
	}
	return next
}

// dueBefore is true if a subset gets the next pod although an earlier one has room.
func (p *Policy) dueBefore(plan *Plan, kept Counts, pod *Candidate, later, earlier int) bool {
	a, b := kept.At(later)-pod.outOfTheWay(later), kept.At(earlier)-pod.outOfTheWay(earlier)
	switch {
	case b < plan.Min[earlier]:
		return false
	case a < plan.Min[later]:
		return true
	case !p.shares:
		return false
	}
	if plan.Target != nil {
		if below := a < plan.Target[later]; below != (b < plan.Target[earlier]) {
			return below
		}
	}
	return allocation.CompareShares(p.Subsets[later].Weight, max(a, 0), p.Subsets[earlier].Weight, max(b, 0)) < 0
}

// Places are the subsets that pods of a group may try together, in this order: those with room for pod.Together pods at
// once, and then those with room for the given number, which is at least 1. Within both they are in the order in which
// they are due. Strategy Fixed has one place. If no subset has room, the places are None alone if the spread lets pods
// go without a subset, and nil if the pods must wait.
func (p *Policy) Places(plan *Plan, kept Counts, pod Candidate, atLeast int32) (places []int) {
	pod.HasHome = false // that of one pod is not that of all
	skip := Mask(0)
	if pod.Admitted {
		skip = ^skip.With(pod.Within)
	}
	for _, pod.Together = range []int32{pod.Together, atLeast} {
		for next := p.nextDue(plan, kept, &pod, skip); next != None; next = p.nextDue(plan, kept, &pod, skip) {
			places, skip = append(places, next), skip.With(next)
			if p.Strategy == v1beta1.FixedScheduleStrategy {
				return places
			}
		}
	}
	if places == nil && p.WhenFull == v1beta1.WhenFullSchedule {
		return []int{None}
	}
	return places
}

// admitWithin is the verdict on a pod whose subset admission picked.
func (p *Policy) admitWithin(plan *Plan, kept Counts, pod Candidate) Verdict {
	switch {
	case pod.Within == None:
		return Verdict{Subset: None, Reason: v1beta1.ReasonUnplaced}
	case p.HasRoom(plan, kept, pod.Within, pod):
		return Verdict{Subset: pod.Within, Reason: v1beta1.ReasonAdmitted}
	default:
		return Verdict{Subset: None, Reason: v1beta1.ReasonAdmittedSubsetFull}
	}
}

// BindsEarly is true if admission picks the subset of each pod, so that it can apply the subset's patch, or because
// clients expect the pick there.
func (p *Policy) BindsEarly() bool {
	return p.Binding == v1beta1.EarlyBinding || p.Binding == v1beta1.AutoBinding && (p.Kruise || p.patchesSpec)
}

// AdmittedTo is the subset that was picked for a pod before its bind, by admission or when its gate was opened, or None
// if the pod was let go. It is false if no pick counts, and the pod may use any subset. A pick does not count if it is
// for another spread or for a subset that is gone. One of admission does not count either if the spread binds late by
// now.
func (p *Policy) AdmittedTo(admitted *Admitted, spread string) (index int, counts bool) {
	if admitted == nil || admitted.Spread != spread || !p.BindsEarly() && !admitted.Opened {
		return None, false
	}
	if admitted.Subset == "" {
		return None, true
	}
	index = p.Index(admitted.Subset)
	return index, index != None
}

// PickEarly is the subset whose patch a new pod gets. If Admit refuses the pod, PickEarly returns its home, or else the
// first subset, and the pod waits for it: a pod cannot be patched later.
func (p *Policy) PickEarly(plan *Plan, kept Counts, pod Candidate) Verdict {
	verdict := p.Admit(plan, kept, pod)
	if verdict.Reason == v1beta1.ReasonNoNodeFits {
		pod.Closed = 0
		verdict = p.Admit(plan, kept, pod)
	}
	if !verdict.Allowed() {
		verdict.Subset = 0
		if pod.HasHome && pod.Home != None {
			verdict.Subset = pod.Home
		}
	}
	return verdict
}

// HasRoom is true if the subset's quota has room for the pod. For a lent pod, room in the quotas of all
// subsets together is enough.
func (p *Policy) HasRoom(plan *Plan, kept Counts, subset int, pod Candidate) bool {
	return p.hasRoom(plan, kept, subset, &pod)
}

// hasRoom is HasRoom without a copy of the candidate, for loops over the subsets.
func (p *Policy) hasRoom(plan *Plan, kept Counts, subset int, pod *Candidate) bool {
	quota := plan.Quota[subset]
	if quota == NoLimit || kept.At(subset)-pod.outOfTheWay(subset)+max(pod.Together, 1) <= quota {
		return true
	}
	return pod.Lent && p.lends && quota > 0 && kept.sum()-int32(bits.OnesCount64(uint64(pod.Holds))) < plan.Replicas
}

// Free is how many more pods the subset takes, or NoLimit.
func Free(quota, kept int32) int32 {
	if quota == NoLimit {
		return NoLimit
	}
	return max(quota-kept, 0)
}

// Holds is true if the subset selects the node, by labels and fields.
func (s *Subset) Holds(node *corev1.Node) bool {
	return s.required == nil || s.required.Match(node)
}

// SelectsAllNodes is true if the subset selects every node.
func (s *Subset) SelectsAllNodes() bool { return s.required == nil }

// NodesKey is equal for two subsets, of any spreads, only if they select the same nodes. It is empty if the subset
// selects every node.
func (s *Subset) NodesKey() string { return s.nodesKey }

// Tolerates is true if the pod's own tolerations and those of the subset cover every NoSchedule and NoExecute taint of
// the node. A toleration of the subset with tolerationSeconds does not: it says when a pod leaves such a node, and a
// new one would leave it as well. The operators Lt and Gt are supported. A scheduler that does not support them refuses
// such nodes in its filter TaintToleration.
func (s *Subset) Tolerates(node *corev1.Node, own []corev1.Toleration) bool {
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !corev1helpers.TolerationsTolerateTaint(klog.Logger{}, own, taint, true) &&
			!corev1helpers.TolerationsTolerateTaint(klog.Logger{}, s.lasting, taint, true) {
			return false
		}
	}
	return true
}

// Fits says whether a pod of the subset, with these tolerations of its own, may use the node. It returns
// ReasonAdmitted, or why not.
func (s *Subset) Fits(node *corev1.Node, own []corev1.Toleration) v1beta1.Reason {
	if !s.Holds(node) {
		return v1beta1.ReasonNodeOutsideSubset
	}
	if !s.Tolerates(node, own) {
		return v1beta1.ReasonTaintNotTolerated
	}
	return v1beta1.ReasonAdmitted
}

// HasPreferences is true if the subset ranks its nodes.
func (s *Subset) HasPreferences() bool { return s.preferred != nil }

// Preference is the sum of the weights of the preferred terms that the node matches.
func (s *Subset) Preference(node *corev1.Node) int64 {
	if s.preferred == nil {
		return 0
	}
	return s.preferred.Score(node)
}
