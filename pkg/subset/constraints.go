package subset

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

// Constraints are what is true of a late-bound pod in whatever subset it ends: it may use a node only if some subset selects it, and it
// tolerates what any of them tolerates. Admission adds them to the pod, so that those who know nothing of spreads (autoscalers, preemption,
// deschedulers) see where it may go:
//
//	tolerations = own ∪ those of every subset
//	required    = own ∧ (term of subset 0 ∨ term of subset 1 ∨ …)
//
// They are never narrower than what the scheduler allows the pod, as long as the spread stays as it is, and usually wider: the scheduler goes
// by OwnTolerations and the one subset. They are immutable and safe for concurrent use. The zero value adds nothing.
type Constraints struct {
	tolerations []corev1.Toleration
	// terms are nil if any node may be used.
	terms []corev1.NodeSelectorTerm
}

const (
	// maxTerms bounds the terms of a pod that are the product of its own and those of the subsets.
	maxTerms = 128
	// maxRecord bounds the annotation, in bytes. All annotations of a pod together may have 256 KiB.
	maxRecord = 64 << 10
)

// compileConstraints reads a valid spec. There are no terms if some subset takes any node, or if a pod is let go to any node once all subsets
// are full, which cannot happen while one of them has no limit.
func compileConstraints(spec *v1alpha1.WorkloadSpreadSpec, policy *Policy) Constraints {
	var c Constraints
	anyNode, limited := false, true
	for i := range spec.Subsets {
		for _, t := range spec.Subsets[i].Tolerations {
			if !hasToleration(c.tolerations, &t) {
				c.tolerations = append(c.tolerations, t)
			}
		}
		if term := spec.Subsets[i].RequiredNodeSelectorTerm; term != nil {
			c.terms = orTerm(c.terms, term)
		} else {
			anyNode = true
		}
		limited = limited && policy.Subsets[i].Limit.kind != unlimited
	}
	if anyNode || limited && policy.WhenFull == v1alpha1.WhenFullSchedule {
		c.terms = nil
	}
	return c
}

// constraintsOf are those of a pod that is known to end in a subset.
func constraintsOf(spec *v1alpha1.Subset) Constraints {
	c := Constraints{tolerations: spec.Tolerations}
	if term := spec.RequiredNodeSelectorTerm; term != nil {
		c.terms = []corev1.NodeSelectorTerm{*term}
	}
	return c
}

// Addition says what AddTo added to a pod.
type Addition struct {
	// Tolerations that the pod has not itself.
	Tolerations []corev1.Toleration
	// Terms of the subsets, of which every required term of the pod now fulfils one.
	Terms []corev1.NodeSelectorTerm
	// TooMany is true if something was left out: with the pod's own, it would have been too much for one pod. The scheduler enforces it anyway.
	TooMany bool
}

// record is the value of v1alpha1.ConstraintsAnnotation: what admission added, by value. Others may add to the pod before and after, so that
// counts would not tell whose is what.
type record struct {
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Terms of the subsets, and Own, the required terms that the pod had before; nil if it had none.
	Terms []corev1.NodeSelectorTerm `json:"terms,omitempty"`
	Own   []corev1.NodeSelectorTerm `json:"own,omitempty"`
}

func (r *record) empty() bool { return len(r.Tolerations) == 0 && len(r.Terms) == 0 }

// AddTo adds the constraints to a pod, and notes on it what it added. What an earlier call added, for this or another spread, to this pod or
// to the one that it was copied from, is taken back first; so it may be called any number of times. Slices and maps of the pod are replaced,
// not changed, and what replaces them is shared with the spread and must not be changed either.
func (c *Constraints) AddTo(pod *corev1.Pod) Addition {
	before := recordOf(pod)
	own := ownPlacement(pod, before)

	var now record
	for i := range c.tolerations {
		if !hasToleration(own.tolerations, &c.tolerations[i]) {
			now.Tolerations = append(now.Tolerations, c.tolerations[i])
		}
	}
	terms, narrowed, tooMany := and(own.terms, c.terms)
	if narrowed {
		now.Terms, now.Own = c.terms, own.terms
	}
	value, fits := encode(&now)
	if !fits {
		tooMany, terms = true, own.terms
		now.Terms, now.Own = nil, nil
		if value, fits = encode(&now); !fits {
			now, value = record{}, ""
		}
	}

	if !own.complete || !sameTolerations(before.Tolerations, now.Tolerations) {
		pod.Spec.Tolerations = slices.Concat(own.tolerations, now.Tolerations)
	}
	setRequiredTerms(pod, terms)
	setRecord(pod, value)
	return Addition{Tolerations: now.Tolerations, Terms: now.Terms, TooMany: tooMany}
}

// OwnTolerations are the tolerations of a pod without those that admission added. With those of a pod's subset, and not with those of all
// subsets, they say which taints keep it away. It reads JSON: call it once for a pod. The slice may be the pod's own.
func OwnTolerations(pod *corev1.Pod) []corev1.Toleration {
	own, _ := without(pod.Spec.Tolerations, recordOf(pod).Tolerations)
	return own
}

// Narrow is the pod as plugins should see it that ask where it may go, once this is its subset: it requires one of the subset's nodes as well, and has
// lost the tolerations that admission added for other subsets only. own are its OwnTolerations. The pod gains no toleration, although it may lack some of
// the subset's because the webhook was down: the taints keep it away all the same. The result is the pod itself if nothing changes, and otherwise a copy
// that shares slices and maps with the pod and the spread.
func (s *Subset) Narrow(pod *corev1.Pod, own []corev1.Toleration) *corev1.Pod {
	tolerations := slices.Clip(own)
	for i := range s.tolerations {
		if t := &s.tolerations[i]; !hasToleration(tolerations, t) && hasToleration(pod.Spec.Tolerations, t) {
			tolerations = append(tolerations, *t)
		}
	}
	product, narrowed, _ := and(requiredTerms(pod), s.Constraints.terms)
	if !narrowed && len(tolerations) == len(pod.Spec.Tolerations) {
		return pod
	}
	narrow := *pod
	narrow.Spec.Tolerations = tolerations
	if narrowed {
		var terms []corev1.NodeSelectorTerm
		for i := range product { // those of other subsets lie within the subset's own, unless the pod had terms before
			terms = orTerm(terms, &product[i])
		}
		setRequiredTerms(&narrow, terms)
	}
	return &narrow
}

// WasAdmitted is true if admission has noted on the pod that a spread divides it. That it has not does not mean that none does: not every spread has
// something to note, and the webhook may have been down.
func WasAdmitted(pod *corev1.Pod) bool {
	_, constrained := pod.Annotations[v1alpha1.ConstraintsAnnotation]
	_, early := pod.Annotations[v1alpha1.AdmittedAnnotation]
	return constrained || early
}

// recordOf is what is noted on the pod. What cannot be read was not written by Berth, and then all of the pod is its own.
func recordOf(pod *corev1.Pod) *record {
	value, found := pod.Annotations[v1alpha1.ConstraintsAnnotation]
	if !found {
		return &record{}
	}
	r := &record{}
	if err := json.Unmarshal([]byte(value), r); err != nil {
		return &record{}
	}
	return r
}

func encode(r *record) (value string, fits bool) {
	if r.empty() {
		return "", true
	}
	content, err := json.Marshal(r)
	return string(content), err == nil && len(content) <= maxRecord
}

func setRecord(pod *corev1.Pod, value string) {
	current, found := pod.Annotations[v1alpha1.ConstraintsAnnotation]
	if found == (value != "") && current == value {
		return
	}
	annotations := make(map[string]string, len(pod.Annotations)+1)
	for k, v := range pod.Annotations {
		annotations[k] = v
	}
	delete(annotations, v1alpha1.ConstraintsAnnotation)
	if value != "" {
		annotations[v1alpha1.ConstraintsAnnotation] = value
	}
	pod.Annotations = annotations
}

// placement is what a pod has itself.
type placement struct {
	tolerations []corev1.Toleration
	// complete is true if all tolerations that were added are still there.
	complete bool
	// terms are nil if the pod requires nothing.
	terms []corev1.NodeSelectorTerm
}

// ownPlacement takes back what was added. Terms are taken back only if they are still as they were left: whoever has changed them since has
// made them the pod's own.
func ownPlacement(pod *corev1.Pod, added *record) placement {
	var own placement
	own.tolerations, own.complete = without(pod.Spec.Tolerations, added.Tolerations)
	own.terms = requiredTerms(pod)
	if len(added.Terms) > 0 {
		if left, narrowed, _ := and(added.Own, added.Terms); narrowed && slices.EqualFunc(left, own.terms, sameTerm) {
			own.terms = added.Own
		}
	}
	return own
}

// requiredTerms of the pod: nil if it has none, and not nil but empty if it has a selector without terms, which is invalid.
func requiredTerms(pod *corev1.Pod) []corev1.NodeSelectorTerm {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	if terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms; terms != nil {
		return terms
	}
	return []corev1.NodeSelectorTerm{}
}

func setRequiredTerms(pod *corev1.Pod, terms []corev1.NodeSelectorTerm) {
	current := requiredTerms(pod)
	if (current == nil) == (terms == nil) && slices.EqualFunc(current, terms, sameTerm) {
		return
	}
	affinity, nodeAffinity := corev1.Affinity{}, corev1.NodeAffinity{}
	if pod.Spec.Affinity != nil {
		affinity = *pod.Spec.Affinity
	}
	if affinity.NodeAffinity != nil {
		nodeAffinity = *affinity.NodeAffinity
	}
	nodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
	if terms != nil {
		nodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: terms}
	}
	affinity.NodeAffinity = &nodeAffinity
	if terms == nil && len(nodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		affinity.NodeAffinity = nil
	}
	pod.Spec.Affinity = &affinity
	if affinity.NodeAffinity == nil && affinity.PodAffinity == nil && affinity.PodAntiAffinity == nil {
		pod.Spec.Affinity = nil
	}
}

// and is the product of two lists of terms, each of which is an OR: (a ∨ b) ∧ (s ∨ t) = a∧s ∨ a∧t ∨ b∧s ∨ b∧t. A term of the first list that
// fulfils one of the second as it stands is not multiplied: a ∧ (s ∨ t) = a if a implies s. So is one that selects no node because it is
// empty, and a list of nothing else is left to the API server's validation.
//
// narrowed is false if the result is the first list: the second is empty, or adds nothing, or the product is too long.
func and(own, subsets []corev1.NodeSelectorTerm) (terms []corev1.NodeSelectorTerm, narrowed, tooMany bool) {
	switch {
	case len(subsets) == 0:
		return own, false, false
	case own == nil:
		return subsets, true, false
	}
	for i := range own {
		if isEmpty(&own[i]) {
			continue
		}
		if slices.ContainsFunc(subsets, func(s corev1.NodeSelectorTerm) bool { return implies(&own[i], &s) }) {
			terms = append(terms, own[i])
			continue
		}
		narrowed = true
		for j := range subsets {
			terms = append(terms, join(&own[i], &subsets[j]))
		}
		if len(terms) > max(maxTerms, len(own)) { // with one term it is no longer than it was
			return own, false, true
		}
	}
	if !narrowed {
		return own, false, false
	}
	return terms, true, false
}

// orTerm adds a term to an OR, unless one of its terms is as wide, and drops those that are not wider.
func orTerm(terms []corev1.NodeSelectorTerm, term *corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
	if slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool { return implies(term, &t) }) {
		return terms
	}
	terms = slices.DeleteFunc(terms, func(t corev1.NodeSelectorTerm) bool { return implies(&t, term) })
	return append(terms, *term)
}

func join(a, b *corev1.NodeSelectorTerm) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: union(a.MatchExpressions, b.MatchExpressions), MatchFields: union(a.MatchFields, b.MatchFields)}
}

func union(a, b []corev1.NodeSelectorRequirement) []corev1.NodeSelectorRequirement {
	all := slices.Clip(a)
	for i := range b {
		if !hasRequirement(a, &b[i]) {
			all = append(all, b[i])
		}
	}
	return all
}

// isEmpty is true for a term without requirements, which selects no node.
func isEmpty(t *corev1.NodeSelectorTerm) bool {
	return len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0
}

// implies is true if a has every requirement of b, so that b selects every node that a selects.
func implies(a, b *corev1.NodeSelectorTerm) bool {
	return hasRequirements(a.MatchExpressions, b.MatchExpressions) && hasRequirements(a.MatchFields, b.MatchFields)
}

func hasRequirements(all, wanted []corev1.NodeSelectorRequirement) bool {
	for i := range wanted {
		if !hasRequirement(all, &wanted[i]) {
			return false
		}
	}
	return true
}

func hasRequirement(all []corev1.NodeSelectorRequirement, wanted *corev1.NodeSelectorRequirement) bool {
	return slices.ContainsFunc(all, func(r corev1.NodeSelectorRequirement) bool { return sameRequirement(r, *wanted) })
}

func sameTerm(a, b corev1.NodeSelectorTerm) bool {
	return slices.EqualFunc(a.MatchExpressions, b.MatchExpressions, sameRequirement) && slices.EqualFunc(a.MatchFields, b.MatchFields, sameRequirement)
}

func sameRequirement(a, b corev1.NodeSelectorRequirement) bool {
	return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
}

// without is a list without those that were added to it, one for each, the last first; complete is true if all of them were in it. It is
// the list itself if none was.
func without(all, added []corev1.Toleration) (own []corev1.Toleration, complete bool) {
	own, complete = all, true
	for i := len(added) - 1; i >= 0; i-- {
		last := -1
		for j := range own {
			if sameToleration(&own[j], &added[i]) {
				last = j
			}
		}
		if last < 0 {
			complete = false
			continue
		}
		own = slices.Concat(own[:last], own[last+1:])
	}
	return own, complete
}

func hasToleration(all []corev1.Toleration, wanted *corev1.Toleration) bool {
	return slices.ContainsFunc(all, func(t corev1.Toleration) bool { return sameToleration(&t, wanted) })
}

func sameTolerations(a, b []corev1.Toleration) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.Toleration) bool { return sameToleration(&x, &y) })
}

func sameToleration(a, b *corev1.Toleration) bool {
	sameSeconds := a.TolerationSeconds == b.TolerationSeconds ||
		a.TolerationSeconds != nil && b.TolerationSeconds != nil && *a.TolerationSeconds == *b.TolerationSeconds
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect && operatorOf(a) == operatorOf(b) && sameSeconds
}

func operatorOf(t *corev1.Toleration) corev1.TolerationOperator {
	if t.Operator == "" {
		return corev1.TolerationOpEqual
	}
	return t.Operator
}
