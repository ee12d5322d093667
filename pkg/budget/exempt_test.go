package budget

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

func TestExemptingAPodTakesRoomAndNeedsItOnlyIfTheBudgetSaysSo(t *testing.T) {
	tests := map[string]struct {
		needsRoom  string
		rule       string
		operations string
		states     []State
		want       v1beta1.Reason
		available  int32 // afterwards
	}{
		"without room":                             {rule: "max 0", states: times(3, Available), want: v1beta1.ReasonExempted, available: 2},
		"with room":                                {rule: "max 1", states: times(3, Available), want: v1beta1.ReasonExempted, available: 2},
		"a budget that wants room has none":        {needsRoom: "true", rule: "max 0", states: times(3, Available), want: v1beta1.ReasonBudgetExhausted, available: 3},
		"a budget that wants room has some":        {needsRoom: "true", rule: "max 1", states: times(3, Available), want: v1beta1.ReasonWithinBudget, available: 2},
		"another value wants none":                 {needsRoom: "yes", rule: "max 0", states: times(3, Available), want: v1beta1.ReasonExempted, available: 2},
		"a pod that does not serve":                {needsRoom: "true", rule: "max 0", states: []State{Unavailable, Available}, want: v1beta1.ReasonPodUnavailable, available: 1},
		"a budget that only resizes have to ask":   {needsRoom: "true", operations: "RESIZE", rule: "max 0", states: times(3, Available), want: v1beta1.ReasonNotProtected, available: 3},
		"a pod that is exempt already is left out": {rule: "max 0", states: []State{Exempt, Available}, want: v1beta1.ReasonNotProtected, available: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pub := budgetOf(tc.rule)
			pub.Annotations = map[string]string{v1beta1.NoProtectNeedsRoomAnnotation: tc.needsRoom, v1beta1.ProtectOperationsAnnotation: tc.operations}
			r := request("p0", v1beta1.OperationLeave)
			r.Exempts = true
			d := compile(t, pub).Decide(facts(3, tc.states...), []Request{r}, metav1.Time{})
			if v := d.Verdicts[0]; v.Reason != tc.want || d.Tally.Available != tc.available || d.Changed != (len(d.Ledger) == 1) {
				t.Errorf("got %+v with %+v and %d entries, want %s and %d available", v, d.Tally, len(d.Ledger), tc.want, tc.available)
			}
		})
	}
}
