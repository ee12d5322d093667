package budget

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

const gate corev1.PodConditionType = "InPlaceUpdateReady"

// gated gives the pod a readiness gate whose condition has the value; an empty one leaves the condition out.
func gated(value corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
		if value != "" {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: gate, Status: value})
		}
	}
}

func marked(p *corev1.Pod) { p.Labels[v1beta1.UnavailableLabelPrefix+"maintenance"] = "" }

// running has the pod's container ready or not.
func running(ready bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Ready = ready }
}

func revision(v string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.ResourceVersion = v } }

func failed(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }

func TestWhatTakesAPodOutOfService(t *testing.T) {
	tests := map[string]struct {
		before, after *corev1.Pod
		want          bool
	}{
		"nothing":                            {before: pod(), after: pod()},
		"it is not ready any more":           {before: pod(), after: pod(unready), want: true},
		"it tells nothing of being ready":    {before: pod(), after: pod(func(p *corev1.Pod) { p.Status.Conditions = nil }), want: true},
		"it was not ready before":            {before: pod(unready), after: pod(unready)},
		"it gets ready":                      {before: pod(unready), after: pod()},
		"it is said to have failed":          {before: pod(), after: pod(failed), want: true},
		"a gate is turned off":               {before: pod(gated("True")), after: pod(gated("False")), want: true},
		"a gate is not known any more":       {before: pod(gated("True")), after: pod(gated("Unknown")), want: true},
		"the condition of a gate is removed": {before: pod(gated("True")), after: pod(gated("")), want: true},
		"a gate is off and on at once": {before: pod(gated("True")), after: pod(gated("False"), func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: gate, Status: corev1.ConditionTrue})
		}), want: true},
		"a gate is turned on":                 {before: pod(gated("False")), after: pod(gated("True"))},
		"a gate stays off":                    {before: pod(gated("False")), after: pod(gated("False"))},
		"a gate is off and the pod follows":   {before: pod(gated("False")), after: pod(gated("False"), unready)},
		"a gate of a pod that is not ready":   {before: pod(unready, gated("True")), after: pod(unready, gated("False"))},
		"a condition that is no gate":         {before: pod(condition("True")), after: pod(condition("False"))},
		"a container is reported not ready":   {before: pod(running(true)), after: pod(running(false), unready)},
		"a container is not reported at all":  {before: pod(running(true)), after: pod(unready, func(p *corev1.Pod) { p.Status.ContainerStatuses = nil })},
		"a container was not ready before":    {before: pod(running(false)), after: pod(running(false), unready), want: true},
		"its containers run and it is not":    {before: pod(running(true)), after: pod(running(true), unready), want: true},
		"its containers have ended":           {before: pod(running(true)), after: pod(running(false), failed)},
		"a label says so":                     {before: pod(), after: pod(marked), want: true},
		"another label says so":               {before: pod(marked), after: pod(marked, func(p *corev1.Pod) { p.Labels[v1beta1.UnavailableLabelPrefix+"x"] = "" })},
		"the label is taken off":              {before: pod(marked), after: pod()},
		"the label of a pod that is unready":  {before: pod(unready), after: pod(unready, marked)},
		"a marked pod that is made unready":   {before: pod(marked), after: pod(marked, unready)},
		"a label that only looks like it":     {before: pod(), after: pod(func(p *corev1.Pod) { p.Labels["unavailable-pod.kruise.io"] = "" })},
		"a status that says nothing about it": {before: pod(), after: pod(func(p *corev1.Pod) { p.Status.Message = "x" })},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := TakesOut(tc.before, tc.after); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func condition(value corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "Other", Status: value})
	}
}

func TestTheStateOfAPodThatSomebodyTakesOutOfService(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want State
	}{
		"ready":          {pod(marked), Unavailable},
		"not ready":      {pod(marked, unready), Unavailable},
		"has not served": {pod(marked, unready, pending), Pending},
		"terminates":     {pod(marked, deleted), Gone},
		"exempt":         {pod(marked, exempt), Exempt},
		"gate":           {pod(gated("True")), Available},
		"its kubelet has yet to see that a gate is off": {pod(gated("False")), Doubtful},
		"its kubelet has seen that a gate is off":       {pod(gated("False"), unready), Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Observe(tc.pod, nil, false).State; got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestWhenItIsKnownWhatBecameOfAPodThatWasToBeUnready(t *testing.T) {
	entry := v1beta1.LedgerEntry{UID: "p0", Name: "p0", Operation: v1beta1.OperationUnready, Generation: 2, Revision: "10"}
	updated := entry
	updated.Operation = v1beta1.OperationUpdate
	unknown := entry
	unknown.Revision = ""
	tests := map[string]struct {
		entry              v1beta1.LedgerEntry
		pod                *corev1.Pod
		settled, mayExpire bool
	}{
		"it is as it was judged":                    {entry, pod(revision("10")), false, true},
		"a cache has it older than that":            {entry, pod(revision("9")), false, true},
		"it has changed since and serves":           {entry, pod(revision("11")), true, true},
		"revisions are numbers":                     {entry, pod(revision("9")), false, true},
		"it is not ready, and may be updated yet":   {entry, pod(revision("11"), unready), false, true},
		"its kubelet has yet to make it unready":    {entry, pod(revision("11"), gated("False")), false, true},
		"a label says that it does not serve":       {entry, pod(revision("11"), marked), false, true},
		"it terminates":                             {entry, pod(revision("10"), deleted), true, true},
		"it is gone":                                {entry, nil, true, true},
		"nobody knows what was judged":              {unknown, pod(revision("11")), false, true},
		"it was updated too, and runs the new spec": {updated, pod(revision("11")), true, true},
		"it may be made unready after its update":   {updated, pod(revision("10")), false, true},
		"it is updated and not ready":               {updated, pod(revision("11"), unready), false, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Settled(&tc.entry, tc.pod); got != tc.settled {
				t.Errorf("Settled: %t", got)
			}
			if got := MayExpire(&tc.entry, tc.pod); got != tc.mayExpire {
				t.Errorf("MayExpire: %t", got)
			}
		})
	}
}

// TestAnUpdaterNeedsRoomOnce goes the way of an updater: it makes a pod unready, changes it, and does so again later.
func TestAnUpdaterNeedsRoomOnce(t *testing.T) {
	for _, policy := range []v1beta1.UnhealthyPodPolicy{v1beta1.AlwaysAllowUnhealthy, v1beta1.IfHealthyBudget} {
		t.Run(string(policy), func(t *testing.T) {
			pub := budgetOf("max 1")
			pub.Spec.UnhealthyPodPolicy = policy
			p, f := compile(t, pub), facts(4, times(4, Available)...)
			ask := func(pod string, operation v1beta1.Operation, generation int64, revision string) (v1beta1.Reason, bool) {
				t.Helper()
				r := request(pod, operation)
				r.Generation, r.Revision = generation, revision
				d := p.Decide(f, []Request{r}, metav1.Time{})
				f.Ledger = d.Ledger
				return d.Verdicts[0].Reason, d.Changed
			}
			expect := func(reason v1beta1.Reason, written bool, wantReason v1beta1.Reason, wantWritten bool) {
				t.Helper()
				if reason != wantReason || written != wantWritten {
					t.Errorf("got %s, written %t; want %s, %t", reason, written, wantReason, wantWritten)
				}
			}
			reason, written := ask("p0", v1beta1.OperationUnready, 1, "10")
			expect(reason, written, v1beta1.ReasonWithinBudget, true)
			reason, written = ask("p0", v1beta1.OperationUnready, 1, "10") // the API server asks twice
			expect(reason, written, v1beta1.ReasonApproved, true)
			reason, written = ask("p1", v1beta1.OperationUnready, 1, "11")
			expect(reason, written, v1beta1.ReasonBudgetExhausted, false)
			f.Pods[0].State, f.Pods[3].State = Unavailable, Unavailable // p3 has failed by itself
			reason, written = ask("p0", v1beta1.OperationUpdate, 2, "")
			expect(reason, written, v1beta1.ReasonApproved, true)
			if e := f.Ledger[0]; len(f.Ledger) != 1 || e.Operation != v1beta1.OperationUpdate || e.Generation != 2 || e.Revision != "10" {
				t.Errorf("the ledger is %+v", f.Ledger)
			}
			// It serves again, and nobody has struck the entry out. It may be made unready again once p3 serves.
			f.Pods[0].State = Available
			reason, written = ask("p0", v1beta1.OperationUnready, 2, "20")
			expect(reason, written, v1beta1.ReasonBudgetExhausted, false)
			f.Pods[3].State = Available
			// What relies on the entry now must not be struck out with what it was before.
			reason, written = ask("p0", v1beta1.OperationUnready, 2, "20")
			expect(reason, written, v1beta1.ReasonApproved, true)
			if e := f.Ledger[0]; e.Operation != v1beta1.OperationUpdate || e.Revision != "20" || Settled(&e, pod(revision("20"))) {
				t.Errorf("the entry %+v", e)
			}
		})
	}
}

func TestMakingPodsUnreadyIsProtectedWhereUpdatingIs(t *testing.T) {
	for annotation, want := range map[string]bool{"": true, "UPDATE": true, "DELETE,EVICT": false, "RESIZE": false} {
		pub := budgetOf("max 1")
		pub.Annotations = map[string]string{v1beta1.ProtectOperationsAnnotation: annotation}
		if got := compile(t, pub).Protects(v1beta1.OperationUnready); got != want {
			t.Errorf("%q: got %t, want %t", annotation, got, want)
		}
	}
}
