package budget

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

type edit = func(*v1beta1.PodUnavailableBudget)

func edited(edits ...edit) *v1beta1.PodUnavailableBudget {
	pub := budgetOf("max 1")
	for _, e := range edits {
		e(pub)
	}
	return pub
}

func selects(app string) edit {
	return func(b *v1beta1.PodUnavailableBudget) {
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
}

func targets(name string) edit {
	return func(b *v1beta1.PodUnavailableBudget) {
		b.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}
	}
}

func emptySelector(b *v1beta1.PodUnavailableBudget) { b.Spec.Selector = &metav1.LabelSelector{} }
func noSelector(b *v1beta1.PodUnavailableBudget)    { b.Spec.Selector = nil }

func replicas(value string) edit {
	return func(b *v1beta1.PodUnavailableBudget) {
		b.Annotations = map[string]string{v1beta1.ProtectTotalReplicasAnnotation: value}
	}
}

func twoMay(b *v1beta1.PodUnavailableBudget) { b.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(2)) }

func fieldsOf(errs field.ErrorList) (fields []string) {
	for _, e := range errs {
		fields = append(fields, e.Field)
	}
	return fields
}

const totalReplicas = "metadata.annotations[pub.kruise.io/protect-total-replicas]"

func TestWhatIsRefusedOfANewBudget(t *testing.T) {
	tests := map[string]struct {
		budget *v1beta1.PodUnavailableBudget
		want   []string
	}{
		"a selector":                     {budget: edited()},
		"a target":                       {budget: edited(noSelector, targets("web"))},
		"both":                           {budget: edited(targets("web")), want: []string{"spec.selector"}},
		"an empty selector":              {budget: edited(emptySelector), want: []string{"spec.selector"}},
		"an empty selector and a target": {budget: edited(emptySelector, targets("web")), want: []string{"spec.selector"}},
		"a number of pods":               {budget: edited(replicas("12"))},
		"no number of pods":              {budget: edited(replicas("many")), want: []string{totalReplicas}},
		"an empty number of pods":        {budget: edited(replicas("")), want: []string{totalReplicas}},
		"less than no pods":              {budget: edited(replicas("-1")), want: []string{totalReplicas}},
		"more than there can be":         {budget: edited(replicas("2147483648")), want: []string{totalReplicas}},
		"several":                        {budget: edited(emptySelector, replicas("x")), want: []string{"spec.selector", totalReplicas}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, fieldsOf(Refuse(tc.budget))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if _, errs := Compile(tc.budget); len(errs) > 0 {
				t.Errorf("one that is there already is not used: %v", errs)
			}
		})
	}
}

func TestWhatIsRefusedOfAChange(t *testing.T) {
	tests := map[string]struct {
		before, after *v1beta1.PodUnavailableBudget
		want          []string
	}{
		"the number that may go":          {before: edited(), after: edited(twoMay)},
		"the selector":                    {before: edited(), after: edited(selects("other")), want: []string{"spec.selector"}},
		"the target":                      {before: edited(noSelector, targets("web")), after: edited(noSelector, targets("other")), want: []string{"spec.targetRef"}},
		"a target in place of a selector": {before: edited(), after: edited(noSelector, targets("web")), want: []string{"spec.selector", "spec.targetRef"}},
		"a target beside the selector":    {before: edited(), after: edited(targets("web")), want: []string{"spec.selector", "spec.targetRef"}},
		"a selector that is empty now":    {before: edited(), after: edited(emptySelector), want: []string{"spec.selector", "spec.selector"}},
		"the same selector in other words": {before: edited(), after: edited(func(b *v1beta1.PodUnavailableBudget) {
			b.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{}
		})},
		"one that was refused today stays":       {before: edited(targets("web")), after: edited(targets("web"), twoMay)},
		"it may be corrected by its target":      {before: edited(targets("web")), after: edited(noSelector, targets("web"))},
		"it may be corrected by its selector":    {before: edited(emptySelector), after: edited(selects("web"))},
		"and not to another one that is refused": {before: edited(emptySelector), after: edited(targets("web")), want: []string{"spec.selector"}},
		"one that could not be used":             {before: edited(noSelector), after: edited()},
		"a wrong number that was there":          {before: edited(replicas("x")), after: edited(replicas("x"), twoMay)},
		"another wrong number":                   {before: edited(replicas("x")), after: edited(replicas("y")), want: []string{totalReplicas}},
		"a wrong number in place of a right one": {before: edited(replicas("1")), after: edited(replicas("y")), want: []string{totalReplicas}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, fieldsOf(RefuseChange(tc.before, tc.after))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
