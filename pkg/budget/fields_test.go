package budget

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

func annotated(key, value string) edit {
	return func(b *v1beta1.PodUnavailableBudget) { metav1.SetMetaDataAnnotation(&b.ObjectMeta, key, value) }
}

func ignores(selector metav1.LabelSelector) edit {
	return func(b *v1beta1.PodUnavailableBudget) { b.Spec.IgnoredPodSelector = &selector }
}

var debugPods = metav1.LabelSelector{MatchLabels: map[string]string{"role": "debug"}}

const debugText = `{"matchLabels": {"role": "debug"}}`

// TestAFieldMeansWhatItsAnnotationMeans: v1alpha1 has annotations for three fields of v1beta1, and conversion leaves some of them annotations.
func TestAFieldMeansWhatItsAnnotationMeans(t *testing.T) {
	debug := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "role": "debug"}}}
	for name, tc := range map[string]struct {
		budget   *v1beta1.PodUnavailableBudget
		protects string
		replicas *int32
		ignores  bool
	}{
		"neither":           {edited(), "DELETE EVICT UPDATE RESIZE", nil, false},
		"an empty list":     {edited(func(b *v1beta1.PodUnavailableBudget) { b.Spec.ProtectOperations = []v1beta1.Operation{} }), "DELETE EVICT UPDATE RESIZE", nil, false},
		"the fields":        {edited(protects("EVICT", "RESIZE"), total(7), ignores(debugPods)), "EVICT RESIZE", ptr.To[int32](7), true},
		"the annotations":   {edited(annotated(v1beta1.ProtectOperationsAnnotation, "evict, RESIZE"), annotated(v1beta1.ProtectTotalReplicasAnnotation, "7"), annotated(v1beta1.IgnoredPodSelectorAnnotation, debugText)), "EVICT RESIZE", ptr.To[int32](7), true},
		"both: the fields":  {edited(protects("EVICT"), annotated(v1beta1.ProtectOperationsAnnotation, "DELETE"), total(3), annotated(v1beta1.ProtectTotalReplicasAnnotation, "7")), "EVICT", ptr.To[int32](3), false},
		"an empty selector": {edited(annotated(v1beta1.IgnoredPodSelectorAnnotation, "{}")), "DELETE EVICT UPDATE RESIZE", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			policy := compile(t, tc.budget)
			var protected []string
			for _, operation := range v1beta1.ProtectableOperations {
				if policy.Protects(operation) {
					protected = append(protected, string(operation))
				}
			}
			if got := strings.Join(protected, " "); got != tc.protects {
				t.Errorf("protects from %s, want %s", got, tc.protects)
			}
			if ptr.Deref(policy.Replicas, -1) != ptr.Deref(tc.replicas, -1) {
				t.Errorf("got %v replicas, want %v", policy.Replicas, tc.replicas)
			}
			if got := IsExempt(debug, policy.Ignored); got != tc.ignores {
				t.Errorf("ignores the pod: %t, want %t", got, tc.ignores)
			}
		})
	}
}

func protects(operations ...v1beta1.Operation) edit {
	return func(b *v1beta1.PodUnavailableBudget) { b.Spec.ProtectOperations = operations }
}

func total(replicas int32) edit {
	return func(b *v1beta1.PodUnavailableBudget) { b.Spec.ProtectTotalReplicas = &replicas }
}

// TestAnIgnoredPodIsTreatedAsOneWithTheAnnotation: whatever the model says of a pod with NoProtectAnnotation, it says of an ignored pod.
func TestAnIgnoredPodIsTreatedAsOneWithTheAnnotation(t *testing.T) {
	policy := compile(t, edited(ignores(debugPods)))
	pod := func(role, noProtect string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": "web", "role": role, v1beta1.ProtectedLabel: "true"},
			Annotations: map[string]string{v1beta1.NoProtectAnnotation: noProtect}}}
	}
	served, ignored, exempt := pod("serve", ""), pod("debug", ""), pod("serve", "true")
	if got, want := Observe(ignored, policy.Ignored, false).State, Observe(exempt, nil, false).State; got != Exempt || want != Exempt {
		t.Errorf("got %s and %s, want %s", got, want, Exempt)
	}
	for _, out := range []*corev1.Pod{ignored, exempt} {
		if !Leaves(served, out, labels.Everything(), policy.Ignored) || Leaves(out, served, labels.Everything(), policy.Ignored) {
			t.Errorf("%v: leaves the budget only when it becomes exempt", out.Labels)
		}
	}
}

// TestWhatIsRefusedOfTheFieldsAndTheirAnnotations: all violations at once, each with its path.
func TestWhatIsRefusedOfTheFieldsAndTheirAnnotations(t *testing.T) {
	const annotations = "metadata.annotations"
	for name, tc := range map[string]struct {
		budget *v1beta1.PodUnavailableBudget
		want   []string
	}{
		"fields": {edited(protects("EVICT"), total(7), ignores(debugPods)), nil},
		"annotations": {edited(annotated(v1beta1.ProtectOperationsAnnotation, "evict, RESIZE"), annotated(v1beta1.ProtectTotalReplicasAnnotation, "7"),
			annotated(v1beta1.IgnoredPodSelectorAnnotation, debugText)), nil},
		"wrong fields": {edited(protects("EVICT", "FLY"), total(-1), ignores(metav1.LabelSelector{})), []string{
			"spec.ignoredPodSelector: Invalid value", "spec.protectOperations[1]: Unsupported value", "spec.protectTotalReplicas: Invalid value"}},
		"wrong annotations": {edited(annotated(v1beta1.ProtectOperationsAnnotation, "EVICT,FLY"), annotated(v1beta1.ProtectTotalReplicasAnnotation, "many"),
			annotated(v1beta1.IgnoredPodSelectorAnnotation, "role=debug")), []string{
			annotations + "[pub.kruise.io/protect-total-replicas]: Invalid value", annotations + "[kruise.io/pub-protect-operations]: Invalid value",
			annotations + "[policy.berth.dev/ignored-pod-selector]: Invalid value"}},
		"an operator that does not exist": {edited(annotated(v1beta1.IgnoredPodSelectorAnnotation, `{"matchExpressions":[{"key":"a","operator":"Is"}]}`)), []string{
			annotations + "[policy.berth.dev/ignored-pod-selector]: Invalid value"}},
		"both": {edited(protects("EVICT"), annotated(v1beta1.ProtectOperationsAnnotation, "DELETE"), total(3), annotated(v1beta1.ProtectTotalReplicasAnnotation, "7"),
			ignores(debugPods), annotated(v1beta1.IgnoredPodSelectorAnnotation, debugText)), []string{
			annotations + "[pub.kruise.io/protect-total-replicas]: Forbidden", annotations + "[kruise.io/pub-protect-operations]: Forbidden",
			annotations + "[policy.berth.dev/ignored-pod-selector]: Forbidden"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs := Compile(tc.budget)
			errs = append(errs, Refuse(tc.budget)...)
			if len(errs) != len(tc.want) {
				t.Fatalf("got %v, want %v", errs, tc.want)
			}
			for i := range errs {
				if !strings.HasPrefix(errs[i].Error(), tc.want[i]) {
					t.Errorf("got %v, want %s", errs[i], tc.want[i])
				}
			}
		})
	}
}
