package subset

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// Constraints hold for a late-bound pod in whatever subset it ends: it may use a node only if some subset selects the
// node, and it tolerates what any subset tolerates. Admission adds them to the pod, so that components that do not know
// spreads (autoscalers, preemption, deschedulers) see where the pod may go:
//
//	tolerations = own ∪ those of every subset
//	required    = own ∧ (term of subset 0 ∨ term of subset 1 ∨ …)
//
// While the spread stays as it is, they are never narrower than what the scheduler allows the pod, and usually wider:
// the scheduler goes by OwnTolerations and one subset. They are immutable and safe for concurrent use. The zero value
// adds nothing.
type Constraints struct {
	tolerations []corev1.Toleration
	// terms are nil if the pod may use any node.
	terms []corev1.NodeSelectorTerm
}

const (
	// maxTerms bounds the product of the pod's own terms and those of the subsets.
	maxTerms = 128
	// maxRecord bounds the annotation, in bytes. All annotations of a pod together may have 256 KiB.
	maxRecord = 64 << 10
)

// compileConstraints reads a valid spec. There are no terms if some subset selects every node, or if pods may use any
// node once all subsets are full. The latter cannot happen if a subset has no limit.
func compileConstraints(spec *v1beta1.WorkloadSpreadSpec, policy *Policy) Constraints {
	var c Constraints
	anyNode, limited := false, true
	for i := range spec.Subsets {
		for _, t := range spec.Subsets[i].Tolerations {
			if !hasToleration(c.tolerations, &t) {
				c.tolerations = append(c.tolerations, t)
			}
		}
		if term := spec.Subsets[i].RequiredNodeSelector; term != nil {
			c.terms = orTerm(c.terms, term)
		} else {
			anyNode = true
		}
		limited = limited && policy.Subsets[i].Limit.kind != unlimited
	}
	if anyNode || limited && policy.WhenFull == v1beta1.WhenFullSchedule {
		c.terms = nil
	}
	return c
}

// WithoutTerms are the constraints of a gated pod. It gets the terms of one subset when its gate is opened, and then
// its terms may only get narrower.
func (c *Constraints) WithoutTerms() *Constraints { return &Constraints{tolerations: c.tolerations} }

// record is the value of v1beta1.ConstraintsAnnotation: what admission added, by value. Others may add to the pod
// before and after, so counts would not tell whose is what.
type record struct {
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Terms of the subsets, and Own, the required terms that the pod had before. Own is nil if it had none.
	Terms []corev1.NodeSelectorTerm `json:"terms,omitempty"`
	Own   []corev1.NodeSelectorTerm `json:"own,omitempty"`
}

// AddTo adds the constraints to a pod and records what it added. It first takes back what an earlier call added, for
// this or another spread, to this pod or to the pod that it was copied from. So it may be called any number of times.
// It replaces slices and maps of the pod and does not change them. The new ones are shared with the spread and must not
// be changed.
//
// tooMany is true if the terms of the subsets were left out because their product with the pod's own terms is too long.
// The scheduler enforces them anyway.
func (c *Constraints) AddTo(pod *corev1.Pod) (tooMany bool) {
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
	annotate(pod, v1beta1.ConstraintsAnnotation, value)
	return tooMany
}

// OwnTolerations are the tolerations of a pod without those that admission added. Together with those of the pod's
// subset they say which taints keep the pod away. The function decodes JSON: call it once per pod. The slice may be the
// pod's own.
func OwnTolerations(pod *corev1.Pod) []corev1.Toleration {
	own, _ := without(pod.Spec.Tolerations, recordOf(pod).Tolerations)
	return own
}

// Narrow is the pod as other plugins should see it once this is its subset: it also requires one of the subset's nodes,
// and it lacks the tolerations that admission added for other subsets only. Own are its OwnTolerations. The pod gains
// no toleration: if it lacks some of the subset's because the webhook was down, the taints keep it away in any case.
// The result is the pod itself if nothing changes. Otherwise it is a copy that shares slices and maps with the pod and
// the spread.
func (s *Subset) Narrow(pod *corev1.Pod, own []corev1.Toleration) *corev1.Pod {
	tolerations := slices.Clip(own)
	for i := range s.Constraints.tolerations {
		if t := &s.Constraints.tolerations[i]; !hasToleration(tolerations, t) && hasToleration(pod.Spec.Tolerations, t) {
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
		for i := range product { // terms of other subsets lie within the subset's own, unless the pod had terms before
			terms = orTerm(terms, &product[i])
		}
		setRequiredTerms(&narrow, terms)
	}
	return &narrow
}

// WasAdmitted is true if admission recorded on the pod that a spread divides it. If not, a spread may still divide it:
// for some spreads there is nothing to record, and the webhook may have been down.
func WasAdmitted(pod *corev1.Pod) bool {
	_, constrained := pod.Annotations[v1beta1.ConstraintsAnnotation]
	_, early := pod.Annotations[v1beta1.AdmittedAnnotation]
	return constrained || early
}

// Await notes on a new pod that a rule makes a spread of this name for its workload.
func Await(pod *corev1.Pod, spread string) { annotate(pod, v1beta1.AwaitsAnnotation, spread) }

// AwaitsSpread is true if the pod was created before the spread that a rule makes for its workload.
func AwaitsSpread(pod *corev1.Pod) bool { return pod.Annotations[v1beta1.AwaitsAnnotation] != "" }

// recordOf is the record on the pod. If it cannot be decoded, Berth did not write it, and everything in the pod is its
// own.
func recordOf(pod *corev1.Pod) *record {
	value, found := pod.Annotations[v1beta1.ConstraintsAnnotation]
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
	if len(r.Tolerations) == 0 && len(r.Terms) == 0 {
		return "", true
	}
	content, err := json.Marshal(r)
	return string(content), err == nil && len(content) <= maxRecord
}

// annotate sets an annotation of the pod, or removes it if the value is empty. It does not change the map of the pod,
// and replaces it only if something changes.
func annotate(pod *corev1.Pod, key, value string) {
	current, found := pod.Annotations[key]
	if found == (value != "") && current == value {
		return
	}
	annotations := make(map[string]string, len(pod.Annotations)+1)
	maps.Copy(annotations, pod.Annotations)
	delete(annotations, key)
	if value != "" {
		annotations[key] = value
	}
	pod.Annotations = annotations
}

// placement is what belongs to the pod itself.
type placement struct {
	tolerations []corev1.Toleration
	// complete is true if all added tolerations are still in the pod.
	complete bool
	// terms are nil if the pod requires nothing.
	terms []corev1.NodeSelectorTerm
}

// ownPlacement takes back what was added. Terms are taken back only if they are unchanged: if somebody has changed
// them, they belong to the pod.
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

// requiredTerms of the pod: nil if it has none; empty and not nil if it has a selector without terms, which is invalid.
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

// and is the product of two lists of terms, each of which is an OR: (a ∨ b) ∧ (s ∨ t) = a∧s ∨ a∧t ∨ b∧s ∨ b∧t. A term
// of the first list that implies a term of the second is not multiplied: a ∧ (s ∨ t) = a if a implies s. An empty term,
// which selects no node, is not multiplied either.
//
// narrowed is false if the result is the first list: the second list is empty or adds nothing, or the product is too
// long.
func and(own, subsets []corev1.NodeSelectorTerm) (terms []corev1.NodeSelectorTerm, narrowed, tooMany bool) {
	switch {
	case len(subsets) == 0:
		return own, false, false
	case own == nil:
		return subsets, true, false
	}
	for i := range own {
		if isEmpty(&own[i]) || slices.ContainsFunc(subsets, func(s corev1.NodeSelectorTerm) bool { return implies(&own[i], &s) }) {
			terms = append(terms, own[i])
			continue
		}
		narrowed = true
		for j := range subsets {
			terms = append(terms, join(&own[i], &subsets[j]))
		}
		if len(terms) > max(maxTerms, len(own)) { // with one term it is no longer than before
			return own, false, true
		}
	}
	if !narrowed {
		return own, false, false
	}
	return terms, true, false
}

// orTerm adds a term to an OR, unless one of its terms is as wide. It drops the terms that are not wider.
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

// isEmpty is true for a term without requirements. Such a term selects no node.
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

// without removes the added tolerations from a list, the last occurrence of each. complete is true if the list had all
// of them. The result is the list itself if it had none.
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
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect && operatorOf(a) == operatorOf(b) && ptr.Equal(a.TolerationSeconds, b.TolerationSeconds)
}

func operatorOf(t *corev1.Toleration) corev1.TolerationOperator {
	if t.Operator == "" {
		return corev1.TolerationOpEqual
	}
	return t.Operator
}
