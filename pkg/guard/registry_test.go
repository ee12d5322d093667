package guard

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestAPolicyIsOfTheSpecOfTheBudget asks about budgets that change, with the same policies.
func TestAPolicyIsOfTheSpecOfTheBudget(t *testing.T) {
	p := newPolicies()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	budget := func(uid types.UID, generation int64, app string) *v1beta1.PodUnavailableBudget {
		return &v1beta1.PodUnavailableBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "web", UID: uid, Generation: generation},
			Spec:       v1beta1.PodUnavailableBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, MaxUnavailable: ptr.To(intstr.FromInt32(1))},
		}
	}
	invalid := budget("web", 3, "web")
	invalid.Spec.MaxUnavailable = nil
	for _, step := range []struct {
		what string
		of   *v1beta1.PodUnavailableBudget
		want int
	}{
		{"it selects the pod", budget("web", 1, "web"), 1},
		{"nothing has changed", budget("web", 1, "web"), 1},
		{"it selects others", budget("web", 2, "db"), 0},
		{"it is invalid", invalid, 0},
		{"it is corrected", budget("web", 4, "web"), 1},
		{"another one has its name", budget("other", 1, "db"), 0},
	} {
		if got := p.covering(&v1beta1.PodUnavailableBudgetList{Items: []v1beta1.PodUnavailableBudget{*step.of}}, pod); len(got) != step.want {
			t.Errorf("%s: %d budgets may cover the pod, want %d", step.what, len(got), step.want)
		}
	}
	total := budget("web", 4, "web")
	total.Annotations = map[string]string{v1beta1.ProtectTotalReplicasAnnotation: "7"}
	if policy := p.of(total); policy.Replicas == nil || *policy.Replicas != 7 {
		t.Error("the policy is without an annotation that the budget got since")
	}
	// A client of v1alpha1 changes annotations, and the API server gives the budget no new generation.
	for what, tc := range map[string]struct {
		change func(spec *v1beta1.PodUnavailableBudgetSpec)
		is     func(policy *model.Policy) bool
	}{
		"operations": {func(spec *v1beta1.PodUnavailableBudgetSpec) {
			spec.ProtectOperations = []v1beta1.Operation{v1beta1.OperationDelete}
		}, func(policy *model.Policy) bool { return !policy.Protects(v1beta1.OperationUpdate) }},
		"replicas": {func(spec *v1beta1.PodUnavailableBudgetSpec) { spec.ProtectTotalReplicas = ptr.To[int32](8) },
			func(policy *model.Policy) bool { return policy.Replicas != nil && *policy.Replicas == 8 }},
		"ignored pods": {func(spec *v1beta1.PodUnavailableBudgetSpec) {
			spec.IgnoredPodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		}, func(policy *model.Policy) bool { return policy.Ignored.Matches(labels.Set(pod.Labels)) }},
	} {
		pub := budget("web", 5, "web")
		p.of(pub)
		if tc.change(&pub.Spec); !tc.is(p.of(pub)) {
			t.Errorf("the policy still has the %s from before the change", what)
		}
	}
	for i := range 3 * mostCompiled {
		p.of(budget(types.UID(fmt.Sprint(i)), 1, "web"))
	}
	if n := p.compiled.Len(); n != mostCompiled {
		t.Errorf("%d policies are kept, want %d", n, mostCompiled)
	}
}

// BenchmarkTheBudgetsOfAPod compares a pod with the 2,000 budgets of its namespace, as each request does two or three times.
func BenchmarkTheBudgetsOfAPod(b *testing.B) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	values := slices.Repeat([]string{""}, maxSelector-1)
	for i := range values {
		values[i] = fmt.Sprintf("value-%d", i)
	}
	for name, expression := range map[string]metav1.LabelSelectorRequirement{
		"small": {Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values[:1]},
		"large": {Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values},
	} {
		pubs := &v1beta1.PodUnavailableBudgetList{}
		for i := range 2000 {
			pubs.Items = append(pubs.Items, v1beta1.PodUnavailableBudget{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), Generation: 1},
				Spec: v1beta1.PodUnavailableBudgetSpec{
					Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{expression}}, MaxUnavailable: ptr.To(intstr.FromInt32(1)),
				},
			})
		}
		b.Run(name+"/first", func(b *testing.B) {
			for b.Loop() {
				newPolicies().covering(pubs, pod)
			}
		})
		b.Run(name+"/again", func(b *testing.B) {
			p := newPolicies()
			p.covering(pubs, pod)
			for b.Loop() {
				p.covering(pubs, pod)
			}
		})
	}
}
