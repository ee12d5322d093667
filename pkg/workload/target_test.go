package workload

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

func TestWins(t *testing.T) {
	spread := func(name string, second int) *v1beta1.WorkloadSpread {
		return &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.Date(2026, 1, 1, 0, 0, second, 0, time.UTC),
		}}
	}
	ofRule := func(spread *v1beta1.WorkloadSpread, label string) *v1beta1.WorkloadSpread {
		spread.Labels = map[string]string{label: "rule"}
		return spread
	}
	tests := map[string]struct {
		a, b *v1beta1.WorkloadSpread
		want bool
	}{
		"the older spread wins":                                 {spread("z", 1), spread("a", 2), true},
		"the younger spread does not":                           {spread("a", 2), spread("z", 1), false},
		"of two made in the same second the first by name wins": {spread("a", 1), spread("z", 1), true},
		"and the second by name does not":                       {spread("z", 1), spread("a", 1), false},
		"a spread does not win against itself":                  {spread("a", 1), spread("a", 1), false},
		"an older spread of a rule does not win":                {ofRule(spread("a", 1), v1beta1.RuleLabel), spread("z", 2), false},
		"a younger one wins against that":                       {spread("z", 2), ofRule(spread("a", 1), v1beta1.ClusterRuleLabel), true},
		"of two rules the older spread wins":                    {ofRule(spread("z", 1), v1beta1.RuleLabel), ofRule(spread("a", 2), v1beta1.RuleLabel), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Wins(tc.a, tc.b); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
