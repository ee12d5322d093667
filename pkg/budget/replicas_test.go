package budget

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

const site = "Site.example.com"

// factsOfNobody has pods of which no workload tells how many there should be.
func factsOfNobody(unread []string, states ...State) Facts {
	f := facts(0, states...)
	f.Workloads, f.Unread = nil, unread
	for i := range f.Pods {
		f.Pods[i].Unmanaged = true
	}
	return f
}

func TestReplicasThatNobodyCanTell(t *testing.T) {
	unread := []string{site}
	beside := func(f Facts, replicas int32, states ...State) Facts {
		of := facts(replicas, states...)
		f.Workloads = of.Workloads
		for i := range of.Pods {
			of.Pods[i].UID += "-of-web"
		}
		f.Pods = append(f.Pods, of.Pods...)
		return f
	}
	tests := map[string]struct {
		rule      string
		ifHealthy bool
		replicas  *int32
		facts     Facts
		exempts   bool
		want      v1beta1.Reason
		refused   bool
	}{
		"maxUnavailable holds every pod that serves":         {rule: "max 1", facts: factsOfNobody(unread, times(3, Available)...), want: v1beta1.ReasonReplicasUnknown, refused: true},
		"so does it above the pods that are there":           {rule: "max 9", facts: factsOfNobody(unread, times(3, Available)...), want: v1beta1.ReasonReplicasUnknown, refused: true},
		"so does a percentage in minAvailable":               {rule: "min 50%", facts: factsOfNobody(unread, times(3, Available)...), want: v1beta1.ReasonReplicasUnknown, refused: true},
		"and a pod that may serve":                           {rule: "max 1", facts: factsOfNobody(unread, Doubtful, Available), want: v1beta1.ReasonReplicasUnknown, refused: true},
		"pods that others replace during a rollout are none": {rule: "max 1", facts: beside(factsOfNobody(unread, Available), 1, times(5, Available)...), want: v1beta1.ReasonReplicasUnknown, refused: true},
		"pods without a controller are held as well":         {rule: "max 1", facts: factsOfNobody(nil, times(3, Available)...), want: v1beta1.ReasonReplicasUnknown, refused: true},
		"beside pods of a workload they count while they exist": {rule: "max 1", facts: beside(factsOfNobody(nil, Available), 2, Available, Available),
			want: v1beta1.ReasonWithinBudget},
		"beside pods of a workload that is gone as well": {rule: "max 1", facts: func() Facts {
			f := beside(factsOfNobody(nil, Available), 0, Available)
			f.Workloads[0].Gone = true
			return f
		}(), want: v1beta1.ReasonNothingDesired},
		"beside a workload that asks for none they are held, for instance a Job that has ended": {rule: "max 1", facts: beside(factsOfNobody(nil, Available, Available), 0),
			want: v1beta1.ReasonReplicasUnknown, refused: true},
		"a count in minAvailable needs no replicas": {rule: "min 2", facts: factsOfNobody(unread, times(3, Available)...), want: v1beta1.ReasonWithinBudget},
		"and holds":                                        {rule: "min 3", facts: factsOfNobody(unread, times(3, Available)...), want: v1beta1.ReasonBudgetExhausted, refused: true},
		"a budget that needs no pod holds none":            {rule: "max 100%", facts: factsOfNobody(unread, Available), want: v1beta1.ReasonNothingDesired},
		"the author can tell them":                         {rule: "max 1", replicas: ptr.To[int32](3), facts: factsOfNobody(unread, times(3, Available)...), want: v1beta1.ReasonWithinBudget},
		"a pod that does not serve goes":                   {rule: "max 1", facts: factsOfNobody(unread, Unavailable, Available), want: v1beta1.ReasonPodUnavailable},
		"and stays if the policy holds such pods":          {rule: "max 1", ifHealthy: true, facts: factsOfNobody(unread, Unavailable, Available), want: v1beta1.ReasonReplicasUnknown, refused: true},
		"a pod that has not started goes":                  {rule: "max 1", facts: factsOfNobody(unread, Pending, Available), want: v1beta1.ReasonPodUnavailable},
		"a pod that terminates goes":                       {rule: "max 1", facts: factsOfNobody(unread, Gone, Available), want: v1beta1.ReasonPodUnavailable},
		"a pod that is taken out of all budgets may leave": {rule: "max 1", facts: factsOfNobody(unread, Available), exempts: true, want: v1beta1.ReasonExempted},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pub := budgetOf(tc.rule)
			pub.Spec.ProtectTotalReplicas = tc.replicas
			if tc.ifHealthy {
				pub.Spec.UnhealthyPodPolicy = v1beta1.IfHealthyBudget
			}
			r := request("p0", v1beta1.OperationEvict)
			r.Exempts = tc.exempts
			p := compile(t, pub)
			d := p.Decide(tc.facts, []Request{r}, metav1.Time{})
			if v := d.Verdicts[0]; v.Reason != tc.want || v.Allowed == tc.refused {
				t.Fatalf("got %+v, want %s", v, tc.want)
			}
			if tc.want != v1beta1.ReasonReplicasUnknown {
				return
			}
			if len(tc.facts.Unread) > 0 != strings.Contains(d.Verdicts[0].Message, site) || !strings.Contains(d.Verdicts[0].Message, "minAvailable with a count, or set spec.protectTotalReplicas") {
				t.Errorf("%q does not say what to do", d.Verdicts[0].Message)
			}
			if d.Changed || d.Tally.Allowed != 0 || d.Tally.Desired != d.Tally.Total {
				t.Errorf("%+v is published, and the ledger is %+v", d.Tally, d.Ledger)
			}
			Publish(&pub.Status, pub.Generation, nil, d.Tally)
			if p.Forecast(pub).may(&tc.facts.Pods[0]) && d.Tally.Available <= d.Tally.Total {
				t.Error("a client that reads the status expects that the pod may go")
			}
		})
	}
}

// TestPodsOfAnUnreadWorkloadDoNotGoOneAfterAnother has a client that evicts a pod as soon as the previous one terminates, before anybody replaces it.
func TestPodsOfAnUnreadWorkloadDoNotGoOneAfterAnother(t *testing.T) {
	for name, unread := range map[string][]string{"of a kind that cannot be read": {site}, "of nobody": nil} {
		t.Run(name, func(t *testing.T) {
			p, f := compile(t, budgetOf("max 1")), factsOfNobody(unread, times(3, Available)...)
			for i := range f.Pods {
				d := p.Decide(f, []Request{request(f.Pods[i].Name, v1beta1.OperationEvict)}, metav1.Time{})
				if d.Verdicts[0].Allowed {
					f.Pods[i].State = Gone // it terminates, so its entry is struck out
				}
			}
			if left := p.Tally(f).Available; left < 2 {
				t.Errorf("%d of 3 are left", left)
			}
		})
	}
}

func TestWarningsAboutThePodsOfABudget(t *testing.T) {
	three := Facts{Workloads: []Workload{{Name: "StatefulSet a", Replicas: 3}, {Name: "StatefulSet b", Replicas: 3}, {Name: "StatefulSet c", Replicas: 3}}}
	const together = "spec.selector: the budget counts the pods of 3 workloads together, so all 3 pods of StatefulSet a may be unavailable at once; write a budget for each workload to keep pods of each"
	for name, tc := range map[string]struct {
		rule  string
		facts Facts
		want  string
	}{
		"nothing to warn of":           {"max 1", facts(3, times(3, Available)...), ""},
		"no pods yet":                  {"max 1", Facts{}, ""},
		"replicas that cannot be read": {"max 1", factsOfNobody([]string{site}, Available), "spec.maxUnavailable: no available pod may be deleted, evicted or restarted: Berth cannot read how many replicas " + site + " asks for;"},
		"a percentage of them":         {"min 50%", factsOfNobody(nil, Available), "spec.minAvailable: no available pod may be deleted, evicted or restarted: no controller says"},
		"a count over three workloads, which may empty one": {"min 3", three, together},
		"so may a percentage":                               {"max 30%", three, together},
		"less than any of them has":                         {"max 2", three, ""},
		"a workload with one pod beside them":               {"max 1", Facts{Workloads: []Workload{{Name: "Deployment web", Replicas: 4}, {Name: "Job report", Replicas: 1}}}, ""},
		"a budget that needs no pod":                        {"max 100%", three, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(compile(t, budgetOf(tc.rule)).WarningsAt(tc.facts), "\n")
			if diff := cmp.Diff(tc.want, got[:min(len(got), max(len(tc.want), 1))]); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
