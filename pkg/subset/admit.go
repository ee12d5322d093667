package subset

import (
	"math/bits"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

// Mask is a set of subsets by index.
type Mask uint64

// With adds a subset.
func (m Mask) With(subset int) Mask { return m | 1<<uint(subset) }

// Has is true if the subset is in the set.
func (m Mask) Has(subset int) bool { return m&(1<<uint(subset)) != 0 }

// First is the lowest index in the set, 64 if it is empty.
func (m Mask) First() int { return bits.TrailingZeros64(uint64(m)) }

// Candidate is a pod that asks for a subset.
type Candidate struct {
	// Holds are the subsets in which the pod itself holds a counted slot. Its own slot never stands in its way.
	Holds Mask
	// Behind is how many other counted slots of Claim, one of the subsets it holds, belong to pending pods that asked later. They give way
	// to this one when a quota was lowered.
	Behind int32
	Claim  int
	// Admitted is true for a pod that carries the patch of a subset. It may use that one only: Within, or none if Within is None.
	Admitted bool
	Within   int
	// Closed are subsets that this pod is known to find no node in. Strategy Fixed pays no heed to them.
	Closed Mask
	// Prefers are subsets that come before all others: one of their nodes is nominated for the pod.
	Prefers Mask
	// Gang is nil for a pod that may be in another subset than the pods that belong with it.
	Gang *Gang
}

// Gang are the other pods of a pod group, which must be in the same subset.
type Gang struct {
	// Size is how many pods of the group need a slot that hold none, this one included.
	Size int32
	// Held is true if pods of the group hold slots. They hold them in In, or were let go without a subset if In is None.
	Held bool
	In   int
}

// outOfTheWay is how many counted slots of a subset do not stand in the pod's way: its own, and those that give way to it.
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

// Verdict is the answer to a Candidate.
type Verdict struct {
	// Subset the pod may use. None if the pod is let go without one, or refused.
	Subset int
	// Reason is ReasonAdmitted, ReasonUnplaced (let go), ReasonSubsetsFull, ReasonAdmittedSubsetFull or ReasonNoNodeFits (refused).
	Reason v1alpha1.Reason
}

// Allowed is true if the pod may go on, in a subset or without one.
func (v Verdict) Allowed() bool {
	return v.Reason == v1alpha1.ReasonAdmitted || v.Reason == v1alpha1.ReasonUnplaced
}

// Admit picks the subset of one pod: the first that has quota left and, with strategy Adaptive, is not closed to it. If none has quota
// left, the pod is let go or refused, as the spread says; if some have and are closed, it is refused. It allocates nothing.
//
// It relies on kept counting every slot that is taken, promised or possibly taken; a slot missing there is a pod over quota.
func (p *Policy) Admit(plan *Plan, kept Counts, pod Candidate) Verdict {
	if pod.Admitted {
		return p.admitWithin(plan, kept, pod)
	}
	if gang := pod.Gang; gang != nil && gang.Held && gang.In == None {
		return Verdict{Subset: None, Reason: v1alpha1.ReasonUnplaced}
	}
	full, first := true, None
	for i := range plan.Quota {
		if !p.HasRoom(plan, kept, i, pod) {
			continue
		}
		full = false
		switch closed := pod.Closed.Has(i); {
		case !closed && pod.Prefers.Has(i):
			return Verdict{Subset: i, Reason: v1alpha1.ReasonAdmitted}
		case first == None && (!closed || p.Strategy == v1alpha1.FixedScheduleStrategy):
			first = i
		}
		if first != None && pod.Prefers == 0 {
			break
		}
	}
	switch {
	case first != None:
		return Verdict{Subset: first, Reason: v1alpha1.ReasonAdmitted}
	case !full:
		return Verdict{Subset: None, Reason: v1alpha1.ReasonNoNodeFits}
	case p.WhenFull == v1alpha1.WhenFullSchedule && (pod.Gang == nil || !pod.Gang.Held):
		return Verdict{Subset: None, Reason: v1alpha1.ReasonUnplaced}
	default:
		return Verdict{Subset: None, Reason: v1alpha1.ReasonSubsetsFull}
	}
}

// admitWithin is the answer to a pod that admission picked a subset for.
func (p *Policy) admitWithin(plan *Plan, kept Counts, pod Candidate) Verdict {
	switch {
	case pod.Within == None:
		return Verdict{Subset: None, Reason: v1alpha1.ReasonUnplaced}
	case p.HasRoom(plan, kept, pod.Within, pod):
		return Verdict{Subset: pod.Within, Reason: v1alpha1.ReasonAdmitted}
	default:
		return Verdict{Subset: None, Reason: v1alpha1.ReasonAdmittedSubsetFull}
	}
}

// BindsEarly is true if admission picks the subset of a pod, so that it can apply the subset's patch.
func (p *Policy) BindsEarly() bool {
	return p.Binding == v1alpha1.EarlyBinding || p.Binding == v1alpha1.AutoBinding && p.PatchesSpec()
}

// AdmittedTo is the subset that admission picked for a pod, or None if it let the pod go; false if nothing was picked that still counts, so
// that the pod may use any subset: for another spread, a subset that is gone, or before the spread was changed to bind late.
func (p *Policy) AdmittedTo(admitted *Admitted, spread string) (index int, counts bool) {
	if admitted == nil || admitted.Spread != spread || !p.BindsEarly() {
		return None, false
	}
	if admitted.Subset == "" {
		return None, true
	}
	index = p.Index(admitted.Subset)
	return index, index != None
}

// PickEarly is the subset whose patch a pod is to carry. Where a late-bound pod would be refused, an early-bound one is given the first subset all
// the same, and waits for it: it cannot be patched later.
func (p *Policy) PickEarly(plan *Plan, kept Counts, closed Mask) Verdict {
	verdict := p.Admit(plan, kept, Candidate{Closed: closed})
	if verdict.Reason == v1alpha1.ReasonNoNodeFits {
		verdict = p.Admit(plan, kept, Candidate{})
	}
	if !verdict.Allowed() {
		verdict.Subset = 0
	}
	return verdict
}

// HasRoom is true if the pod fits into the quota of this one subset, together with the pods of its gang that need a slot.
func (p *Policy) HasRoom(plan *Plan, kept Counts, subset int, pod Candidate) bool {
	needs := int32(1)
	if gang := pod.Gang; gang != nil {
		switch {
		case !gang.Held:
			needs = gang.Size
		case gang.In != subset:
			return false
		}
	}
	quota := plan.Quota[subset]
	return quota == NoLimit || kept.At(subset)-pod.outOfTheWay(subset)+needs <= quota
}

// Free is how many more pods the subset takes; NoLimit if any number.
func Free(quota, kept int32) int32 {
	if quota == NoLimit {
		return NoLimit
	}
	return max(quota-kept, 0)
}

// Holds is true if the node is one of the subset's nodes, by its labels and fields.
func (s *Subset) Holds(node *corev1.Node) bool {
	return s.required == nil || s.required.Match(node)
}

// SelectsAllNodes is true if every node is one of the subset's nodes.
func (s *Subset) SelectsAllNodes() bool { return s.required == nil }

// NodesKey is equal for two subsets, of any spreads, only if they hold the same nodes. It is empty if the subset selects all nodes.
func (s *Subset) NodesKey() string { return s.nodesKey }

// Tolerates is true if the tolerations, together with those of the subset, cover every taint of the node that keeps pods away. The operators Lt
// and Gt count. In a scheduler without them, its filter TaintToleration refuses what they let pass here.
func (s *Subset) Tolerates(node *corev1.Node, own []corev1.Toleration) bool {
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !corev1helpers.TolerationsTolerateTaint(klog.Logger{}, own, taint, true) &&
			!corev1helpers.TolerationsTolerateTaint(klog.Logger{}, s.tolerations, taint, true) {
			return false
		}
	}
	return true
}

// Fits says whether a pod of the subset, with tolerations of its own, may use the node: ReasonAdmitted, or why not.
func (s *Subset) Fits(node *corev1.Node, own []corev1.Toleration) v1alpha1.Reason {
	if !s.Holds(node) {
		return v1alpha1.ReasonNodeOutsideSubset
	}
	if !s.Tolerates(node, own) {
		return v1alpha1.ReasonTaintNotTolerated
	}
	return v1alpha1.ReasonAdmitted
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
