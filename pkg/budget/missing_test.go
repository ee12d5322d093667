package budget

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

func TestARefusalNamesPodsThatAreMissing(t *testing.T) {
	named := func(name string, state State, why string) Pod {
		return Pod{Name: name, UID: types.UID(name), State: state, Why: why}
	}
	long := strings.Repeat("x", 253)
	tests := map[string]struct {
		pods   []Pod
		ledger []string
		want   string
	}{
		"none": {pods: []Pod{named("a", Available, "")}},
		"those first that somebody may have to look after": {want: "; missing: d (is old), c (is not ready), b (has not started) and 2 more",
			pods: []Pod{named("a", Available, ""), named("b", Pending, "has not started"), named("c", Unavailable, "is not ready"), named("d", Doubtful, "is old"), named("e", Gone, "terminates")}, ledger: []string{"a"}},
		"what is under way, whatever else the pod is": {want: "; missing: a (DELETE under way), b (DELETE under way)", ledger: []string{"a", "b", "gone"},
			pods: []Pod{named("b", Doubtful, "is old"), named("a", Available, "")}},
		"none that has ended":                  {pods: []Pod{named("a", Gone, ""), named("b", Gone, "terminates")}, want: "; missing: b (terminates)"},
		"those that are in no budget":          {pods: []Pod{named("a", Exempt, "")}, want: "; missing: a (exempt)"},
		"as many as there is room for":         {pods: []Pod{named("a", Doubtful, "is old"), named(long, Unavailable, "is not ready")}, want: "; missing: a (is old) and 1 more"},
		"only how many, if a name is too long": {pods: []Pod{named(long, Unavailable, "is not ready")}, want: "; missing: 1 pods"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := facts(9)
			f.Pods = tc.pods
			for _, pod := range tc.ledger {
				f.Ledger = append(f.Ledger, v1beta1.LedgerEntry{UID: types.UID(pod), Name: pod, Operation: v1beta1.OperationDelete})
			}
			if got := Missing(f); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			f.Pods = append(f.Pods, named("z", Available, ""))
			d := compile(t, budgetOf("max 1")).Decide(f, []Request{request("z", v1beta1.OperationEvict)}, metav1.Time{})
			if got := d.Verdicts[0]; got.Allowed || !strings.Contains(got.Message, tc.want+"; try again") {
				t.Errorf("got %+v, want a refusal with %q", got, tc.want)
			}
		})
	}
	t.Run("also those that went in the same decision", func(t *testing.T) {
		d := compile(t, budgetOf("max 1")).Decide(facts(3, Available, Available, Available), []Request{request("p0", v1beta1.OperationEvict), request("p1", v1beta1.OperationEvict)}, metav1.Time{})
		if got := d.Verdicts[1].Message; !strings.Contains(got, "missing: p0 (EVICT under way); try again") {
			t.Error(got)
		}
	})
	t.Run("in an event, whatever their names are", func(t *testing.T) {
		pub := budgetOf("max 1")
		pub.Name = long
		f := facts(9, times(9, Unavailable)...)
		for i := range f.Pods {
			f.Pods[i].Name = fmt.Sprint(strings.Repeat("y", 40), i)
		}
		f.Pods = append(f.Pods, named("z", Available, ""))
		asked := Request{Name: long, UID: "z", Operation: v1beta1.OperationUpdate}
		if got := compile(t, pub).Decide(f, []Request{asked}, metav1.Time{}).Verdicts[0].Message; len(got) > 1024 {
			t.Errorf("%d bytes: %s", len(got), got)
		}
	})
}
