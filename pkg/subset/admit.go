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
	// Holds are the subsets in which the pod itself holds a counted slot. These slots do not count against it.
	Holds Mask
	// Behind is how many other counted slots of subset Claim belong to pending pods that asked later. After a quota was lowered, these pods give way
	// to this one. Claim is one of Holds.
	Behind int32
	Claim  int
	// Admitted is true for a pod that carries the patch of a subset. It may use that subset only: Within, or none if Within is None.
	Admitted bool
	Within   int
	// Closed are subsets in which no node fits this pod. Strategy Fixed ignores them.
	Closed Mask
	// Prefers are subsets that are tried before all others, because a node of theirs is nominated for the pod.
	Prefers Mask
	// Gang is nil for a pod that need not share a subset with its pod group.
	Gang *Gang
}

// Gang are the other pods of a pod group, which must be in the same subset.
type Gang struct {
	// Size is how many pods of the group still need a slot, including this one.
	Size int32
	// Held is true if pods of the group hold slots in subset In. In is None if they were let go without a subset.
	Held bool
	In   int
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
	// Reason is ReasonAdmitted, ReasonUnplaced (let go), ReasonSubsetsFull, ReasonAdmittedSubsetFull or ReasonNoNodeFits (refused).
	Reason v1alpha1.Reason
}

// Allowed is true if the pod may be scheduled, in a subset or without one.
func (v Verdict) Allowed() bool {
	return v.Reason == v1alpha1.ReasonAdmitted || v.Reason == v1alpha1.ReasonUnplaced
}

// Admit picks the subset of one pod: the first that has quota left and, with strategy Adaptive, is not closed to the pod. If no subset has quota
// left, the spread decides whether the pod is let go or refused. If the subsets with quota left are all closed, the pod is refused. Admit allocates
// no memory.
//
// Kept must count every slot that is taken, promised or possibly taken. A slot that is missing there puts a pod over quota.
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

// admitWithin is the verdict on a pod whose subset admission picked.
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

// BindsEarly is true if admission picks the subset of each pod, so that it can apply the subset's patch.
func (p *Policy) BindsEarly() bool {
	return p.Binding == v1alpha1.EarlyBinding || p.Binding == v1alpha1.AutoBinding && p.PatchesSpec()
}

// AdmittedTo is the subset that admission picked for a pod, or None if admission let the pod go. It is false if no pick counts, and the pod may use
// any subset. A pick does not count if it is for another spread or for a subset that is gone, or if the spread binds late by now.
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

// PickEarly is the subset whose patch a new pod gets. If Admit refuses the pod, PickEarly returns the first subset, and the pod waits for it: a pod
// cannot be patched later.
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

// HasRoom is true if the subset's quota has room for the pod and for all pods of its gang that need a slot.
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

// NodesKey is equal for two subsets, of any spreads, only if they select the same nodes. It is empty if the subset selects every node.
func (s *Subset) NodesKey() string { return s.nodesKey }

// Tolerates is true if the pod's own tolerations and those of the subset cover every NoSchedule and NoExecute taint of the node. The operators Lt and
// Gt are supported. A scheduler that does not support them refuses such nodes in its filter TaintToleration.
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

// Fits says whether a pod of the subset, with these tolerations of its own, may use the node. It returns ReasonAdmitted, or why not.
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
