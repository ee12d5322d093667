package endpoint

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestNarrow(t *testing.T) {
	own := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	shipped := admissionregistrationv1.MatchCondition{Name: "shipped", Expression: "true"}
	for name, tc := range map[string]struct {
		before      *metav1.LabelSelector
		expressions []string
		changed     bool
		matched     map[string]bool // labels of an object, as a selector, and whether the webhook is called
	}{
		"it starts without a condition": {nil, []string{"x"}, true, map[string]bool{"": true}},
		"the same again":                {nil, []string{"x", "x"}, false, map[string]bool{"": true}},
		"another one":                   {nil, []string{"x", "y"}, true, map[string]bool{"": true}},
		"no object at all":              {nil, []string{"false"}, true, map[string]bool{"": false, "a=b": false, nothingLabel + "=": false}},
		"none, twice":                   {nil, []string{"false", "false"}, false, map[string]bool{"": false}},
		"some again":                    {nil, []string{"false", "x"}, true, map[string]bool{"": true, "a=b": true}},
		"somebody else's selector":      {own, []string{"false"}, true, map[string]bool{"": false, "a=b": true}},
		"which stays":                   {own, []string{"false", "x"}, true, map[string]bool{"": false, "a=b": true}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{
				{Name: "other"},
				{Name: SidecarWebhook, ObjectSelector: tc.before, MatchConditions: []admissionregistrationv1.MatchCondition{shipped}},
			}}
			var changed bool
			for _, expression := range tc.expressions {
				changed = Narrow(c, SidecarWebhook, PickCondition, expression)
			}
			if changed != tc.changed {
				t.Errorf("changed is %v", changed)
			}
			last := tc.expressions[len(tc.expressions)-1]
			want := []admissionregistrationv1.MatchCondition{shipped, {Name: PickCondition, Expression: last}}
			if diff := cmp.Diff(want, c.Webhooks[1].MatchConditions); diff != "" {
				t.Errorf("conditions, -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(admissionregistrationv1.MutatingWebhook{Name: "other"}, c.Webhooks[0]); diff != "" {
				t.Errorf("another webhook, -want +got:\n%s", diff)
			}
			selector, err := metav1.LabelSelectorAsSelector(c.Webhooks[1].ObjectSelector)
			if err != nil {
				t.Fatal(err)
			}
			for text, want := range tc.matched {
				object, err := labels.ConvertSelectorToLabelsMap(text)
				if err != nil {
					t.Fatal(err)
				}
				if got := c.Webhooks[1].ObjectSelector == nil || selector.Matches(object); got != want {
					t.Errorf("an object with the labels %q: %v", text, got)
				}
			}
		})
	}
}
