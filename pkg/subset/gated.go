package subset

import (
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// EffectiveBinding is how admission treats new pods: Early, Gated or Late. Auto is Early if admission must pick the
// subset. Otherwise it is Gated beside a node autoscaler and Late elsewhere. Only admission asks: a pod shows everybody
// else how it was admitted.
func (p *Policy) EffectiveBinding(besideAutoscaler bool) v1beta1.BindingMode {
	switch {
	case p.BindsEarly():
		return v1beta1.EarlyBinding
	case p.Binding == v1beta1.GatedBinding, p.Binding == v1beta1.AutoBinding && besideAutoscaler:
		return v1beta1.GatedBinding
	default:
		return v1beta1.LateBinding
	}
}

// IsGated is true if the pod has Berth's scheduling gate.
func IsGated(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.SchedulingGates, isSubsetGate)
}

// OtherGates are the pod's scheduling gates without Berth's.
func OtherGates(pod *corev1.Pod) []corev1.PodSchedulingGate {
	if !IsGated(pod) {
		return pod.Spec.SchedulingGates
	}
	return slices.DeleteFunc(slices.Clone(pod.Spec.SchedulingGates), isSubsetGate)
}

func isSubsetGate(gate corev1.PodSchedulingGate) bool { return gate.Name == v1beta1.SubsetGate }

// Gate adds Berth's scheduling gate to a new pod. It does nothing for a pod that has it.
func Gate(pod *corev1.Pod) {
	if !IsGated(pod) {
		pod.Spec.SchedulingGates = append(slices.Clip(pod.Spec.SchedulingGates), corev1.PodSchedulingGate{Name: v1beta1.SubsetGate})
	}
}

// Open is a pod with Berth's scheduling gate as it is without the gate, in a subset, or with None in no subset. It
// carries the pick, and it requires one of the subset's nodes. So everybody who reads the pod sees where it may go. It
// keeps all tolerations, because the API server lets nobody take one away. The pod itself is not changed. Both share
// slices and maps.
//
// With a nil policy the pod only loses the gate: no spread divides it. Now is the time of the pick. If the pod has no
// node, it is since when it waits for one.
//
// The API server accepts this change of a pod with a gate, and of no other, because each of the pod's terms only gets
// more requirements.
func (p *Policy) Open(pod *corev1.Pod, spread string, index int, now time.Time) (*corev1.Pod, error) {
	open := *pod
	open.Spec.SchedulingGates = OtherGates(pod)
	if p == nil {
		return &open, nil
	}
	added := recordOf(pod)
	note := v1beta1.AdmittedSubset{Name: spread, Pick: string(pod.UID), Time: metav1.NewTime(now)}
	if index != None {
		s := &p.Subsets[index]
		note.Subset = s.Name
		for i := range s.Constraints.tolerations { // the subset may have more of them than at admission
			if t := &s.Constraints.tolerations[i]; !hasToleration(open.Spec.Tolerations, t) {
				open.Spec.Tolerations = append(slices.Clip(open.Spec.Tolerations), *t)
				added.Tolerations = append(added.Tolerations, *t)
			}
		}
		if terms, narrowed, _ := and(requiredTerms(pod), s.Constraints.terms); narrowed { // as many terms as before
			added.Terms, added.Own = []corev1.NodeSelectorTerm{*s.term}, requiredTerms(pod)
			setRequiredTerms(&open, terms)
		}
	}
	if value, fits := encode(added); fits {
		annotate(&open, v1beta1.ConstraintsAnnotation, value)
	}
	pick, err := json.Marshal(note)
	if err != nil {
		return nil, err
	}
	annotate(&open, v1beta1.AdmittedAnnotation, string(pick))
	return &open, nil
}
