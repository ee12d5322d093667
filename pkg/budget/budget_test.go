package budget

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/testkit/worlds"
)

// budgetOf makes a budget over app=web with a rule such as "max 1", "max 30%" or "min 80%".
func budgetOf(rule string) *v1beta1.PodUnavailableBudget {
	pub := &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	pub.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	kind, value, _ := strings.Cut(rule, " ")
	amount := intstr.Parse(value)
	if kind == "max" {
		pub.Spec.MaxUnavailable = &amount
	} else {
		pub.Spec.MinAvailable = &amount
	}
	return pub
}

func compile(t rapid.TB, pub *v1beta1.PodUnavailableBudget) *Policy {
	t.Helper()
	p, errs := Compile(pub)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return p
}

// facts has pods p0, p1, … in the states, of one workload with the replicas.
func facts(replicas int32, states ...State) Facts {
	f := Facts{Workloads: []Workload{{Name: "Deployment web", Replicas: replicas}}}
	for i, state := range states {
		name := fmt.Sprintf("p%d", i)
		f.Pods = append(f.Pods, Pod{Name: name, UID: types.UID(name), State: state})
	}
	return f
}

func times(n int, state State) []State { return slices.Repeat([]State{state}, n) }

func request(pod string, operation v1beta1.Operation) Request {
	return Request{Name: pod, UID: types.UID(pod), Operation: operation}
}

func TestDesired(t *testing.T) {
	tests := map[string]struct {
		rule        string
		total, want int32
	}{
		"maxUnavailable is taken off the replicas":              {"max 1", 10, 9},
		"a percentage of maxUnavailable rounds up":              {"max 30%", 11, 7},
		"a percentage of minAvailable rounds up":                {"min 81%", 20, 17},
		"maxUnavailable 0 wants every pod":                      {"max 0", 5, 5},
		"maxUnavailable above the replicas wants none":          {"max 7", 5, 0},
		"maxUnavailable 100% wants none":                        {"max 100%", 5, 0},
		"minAvailable is wanted as it is":                       {"min 3", 10, 3},
		"minAvailable above the replicas wants all there are":   {"min 12", 10, 10},
		"a workload without replicas wants none, by any count":  {"min 3", 0, 0},
		"a workload without replicas wants none, by percentage": {"max 30%", 0, 0},
		"the greatest number of replicas, by count":             {"max 2147483647", math.MaxInt32, 0},
		"the greatest number of replicas but one":               {"max 1", math.MaxInt32, math.MaxInt32 - 1},
		"the greatest number of replicas, by percentage":        {"max 50%", math.MaxInt32, math.MaxInt32 / 2},
		"all of the greatest number of replicas":                {"min 100%", math.MaxInt32, math.MaxInt32},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := compile(t, budgetOf(tc.rule)).Desired(tc.total); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestTally(t *testing.T) {
	all := facts(5, Available, Available, Doubtful, Unavailable, Pending, Gone, Exempt)
	tests := map[string]struct {
		rule   string
		change func(*v1beta1.PodUnavailableBudget, *Facts)
		want   Tally
	}{
		"only pods that surely are available count": {rule: "max 4", want: Tally{Total: 5, Desired: 1, Available: 2, Allowed: 1}},
		"a pod in the ledger is not available": {rule: "max 4", want: Tally{Total: 5, Desired: 1, Available: 1},
			change: func(_ *v1beta1.PodUnavailableBudget, f *Facts) { f.Ledger = []v1beta1.LedgerEntry{{UID: "p0"}} }},
		"an entry of another pod of the same name counts for nothing": {rule: "max 4", want: Tally{Total: 5, Desired: 1, Available: 2, Allowed: 1},
			change: func(_ *v1beta1.PodUnavailableBudget, f *Facts) {
				f.Ledger = []v1beta1.LedgerEntry{{UID: "old", Name: "p0"}}
			}},
		"a surge does not raise what is allowed above maxUnavailable": {rule: "max 1", want: Tally{Total: 1, Desired: 0, Available: 2, Allowed: 1},
			change: func(_ *v1beta1.PodUnavailableBudget, f *Facts) { f.Workloads[0].Replicas = 1 }},
		"several workloads add up": {rule: "max 4", want: Tally{Total: 8, Desired: 4, Available: 2},
			change: func(_ *v1beta1.PodUnavailableBudget, f *Facts) {
				f.Workloads = append(f.Workloads, Workload{Replicas: 3})
			}},
		"workloads that ask for more than there can be do not add up to none": {rule: "max 4", want: Tally{Total: math.MaxInt32, Desired: math.MaxInt32 - 4, Available: 2},
			change: func(_ *v1beta1.PodUnavailableBudget, f *Facts) {
				f.Workloads = []Workload{{Replicas: math.MaxInt32}, {Replicas: math.MaxInt32}, {Replicas: 5}}
			}},
		"nor does one that asks for less than none take from another": {rule: "max 4", want: Tally{Total: 5, Desired: 1, Available: 2, Allowed: 1},
			change: func(_ *v1beta1.PodUnavailableBudget, f *Facts) {
				f.Workloads = append(f.Workloads, Workload{Replicas: math.MinInt32})
			}},
		"a workload that is gone asks for none": {rule: "max 4", want: Tally{Total: 0, Desired: 0, Available: 2, Allowed: 2},
			change: func(_ *v1beta1.PodUnavailableBudget, f *Facts) { f.Workloads[0] = Workload{Gone: true} }},
		"pods of no workload count while they exist": {rule: "min 2", want: Tally{Total: 3, Desired: 2, Available: 2, Unmanaged: 3},
			change: func(_ *v1beta1.PodUnavailableBudget, f *Facts) {
				f.Workloads = nil
				for _, i := range []int{0, 1, 3, 5, 6} {
					f.Pods[i].Unmanaged = true
				}
			}},
		"the annotation takes the place of what workloads ask for": {rule: "max 4", want: Tally{Total: 6, Desired: 2, Available: 2},
			change: func(b *v1beta1.PodUnavailableBudget, _ *Facts) {
				b.Annotations = map[string]string{v1beta1.ProtectTotalReplicasAnnotation: "6"}
			}},
		"but not for a target that is gone": {rule: "max 4", want: Tally{Total: 0, Available: 2, Allowed: 2},
			change: func(b *v1beta1.PodUnavailableBudget, f *Facts) {
				b.Annotations = map[string]string{v1beta1.ProtectTotalReplicasAnnotation: "6"}
				b.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
				f.Workloads[0] = Workload{Gone: true}
			}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pub, f := budgetOf(tc.rule), all
			f.Pods, f.Workloads = slices.Clone(f.Pods), slices.Clone(f.Workloads)
			if tc.change != nil {
				tc.change(pub, &f)
			}
			if diff := cmp.Diff(tc.want, compile(t, pub).Tally(f)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestDecide(t *testing.T) {
	tests := map[string]struct {
		rule      string
		ifHealthy bool
		facts     Facts
		request   Request
		want      v1beta1.Reason
		refused   bool
	}{
		"a pod above the budget's need may go": {rule: "max 1", facts: facts(3, times(3, Available)...), want: v1beta1.ReasonWithinBudget},
		"a pod that is needed stays":           {rule: "max 1", facts: facts(3, Available, Available), want: v1beta1.ReasonBudgetExhausted, refused: true},
		"a pod that is not available may go":   {rule: "max 0", facts: facts(3, Unavailable, Available), want: v1beta1.ReasonPodUnavailable},
		"with IfHealthyBudget it is not evicted while others are missing": {rule: "max 1", ifHealthy: true, facts: facts(3, Unavailable, Available),
			request: request("p0", v1beta1.OperationEvict), want: v1beta1.ReasonBudgetUnhealthy, refused: true},
		"nor updated": {rule: "max 1", ifHealthy: true, facts: facts(3, Unavailable, Available),
			request: request("p0", v1beta1.OperationUpdate), want: v1beta1.ReasonBudgetUnhealthy, refused: true},
		"but its deletion ends the loss of its node": {rule: "max 1", ifHealthy: true, facts: facts(3, Unavailable, Unavailable, Available), want: v1beta1.ReasonPodUnavailable},
		"which is no way around the budget for a pod that may serve": {rule: "max 1", ifHealthy: true, facts: facts(3, Doubtful, Unavailable, Available),
			want: v1beta1.ReasonBudgetExhausted, refused: true},
		"with IfHealthyBudget it may go once enough are there": {rule: "max 1", ifHealthy: true, facts: facts(3, Unavailable, Available, Available),
			request: request("p0", v1beta1.OperationEvict), want: v1beta1.ReasonPodUnavailable},
		"with IfHealthyBudget a pod that never ran may go": {rule: "max 0", ifHealthy: true, facts: facts(3, Pending), want: v1beta1.ReasonPodUnavailable},
		"a pod that terminates may go":                     {rule: "max 0", ifHealthy: true, facts: facts(3, Gone), want: v1beta1.ReasonPodUnavailable},
		"a pod that may serve goes only if the rest suffice": {rule: "max 1", facts: facts(3, Doubtful, Available, Available),
			want: v1beta1.ReasonWithinBudget},
		"and stays if it is needed":                       {rule: "max 1", facts: facts(3, Doubtful, Available), want: v1beta1.ReasonBudgetExhausted, refused: true},
		"an exempt pod is nobody's business":              {rule: "max 0", facts: facts(1, Exempt), want: v1beta1.ReasonNotProtected},
		"pods of a workload scaled to 0 may all go":       {rule: "max 0", facts: facts(0, Available), want: v1beta1.ReasonNothingDesired},
		"a workload that was scaled down gives pods up":   {rule: "max 1", facts: facts(1, Available, Available), want: v1beta1.ReasonNothingDesired},
		"a workload that was scaled up keeps what it has": {rule: "max 1", facts: facts(5, times(3, Available)...), want: v1beta1.ReasonBudgetExhausted, refused: true},
		"a pod that is not there any more may go":         {rule: "max 0", facts: facts(2, Available, Available), request: request("p9", v1beta1.OperationDelete), want: v1beta1.ReasonPodUnavailable},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pub := budgetOf(tc.rule)
			if tc.ifHealthy {
				pub.Spec.UnhealthyPodPolicy = v1beta1.IfHealthyBudget
			}
			if tc.request.Name == "" {
				tc.request = request("p0", v1beta1.OperationDelete)
			}
			d := compile(t, pub).Decide(tc.facts, []Request{tc.request}, metav1.Time{})
			v := d.Verdicts[0]
			if v.Reason != tc.want || v.Allowed == tc.refused {
				t.Fatalf("got %+v, want %s", v, tc.want)
			}
			if recorded := len(d.Ledger) == 1; recorded != (v.Allowed && v.Reason != v1beta1.ReasonNotProtected) || recorded != d.Changed {
				t.Errorf("the ledger is %+v: what is let through is recorded, and nothing else", d.Ledger)
			}
			if tc.refused && !strings.Contains(v.Message, "PodUnavailableBudget web needs") {
				t.Errorf("message %q does not name the budget and its numbers", v.Message)
			}
		})
	}
	t.Run("of a group, as many go as there is room for, and the first of them", func(t *testing.T) {
		group := []Request{request("p1", v1beta1.OperationDelete), request("p0", v1beta1.OperationEvict), request("p2", v1beta1.OperationUpdate)}
		d := compile(t, budgetOf("max 2")).Decide(facts(5, times(5, Available)...), group, metav1.Time{})
		if !d.Verdicts[0].Allowed || !d.Verdicts[1].Allowed || d.Verdicts[2].Allowed || d.Tally.Available != 3 || d.Tally.Allowed != 0 {
			t.Errorf("%+v", d)
		}
	})
	t.Run("operations that the annotation leaves out go unasked", func(t *testing.T) {
		pub := budgetOf("max 0")
		pub.Annotations = map[string]string{v1beta1.ProtectOperationsAnnotation: "evict, RESIZE"}
		p := compile(t, pub)
		for operation, protected := range map[v1beta1.Operation]bool{"DELETE": false, "EVICT": true, "UPDATE": false, "RESIZE": true, "LEAVE": false} {
			d := p.Decide(facts(1, Available), []Request{request("p0", operation)}, metav1.Time{})
			if d.Verdicts[0].Allowed == protected || d.Changed {
				t.Errorf("%s: %+v", operation, d)
			}
		}
	})
}

func TestRenewal(t *testing.T) {
	p, f := compile(t, budgetOf("max 1")), facts(2, Available, Available)
	entry := v1beta1.LedgerEntry{UID: "p0", Name: "p0", Operation: v1beta1.OperationUpdate, Generation: 3, Renewals: 7}
	tests := map[string]struct {
		request Request
		want    v1beta1.LedgerEntry
	}{
		"the same operation again renews the entry":       {Request{Operation: "UPDATE", Generation: 3}, v1beta1.LedgerEntry{Operation: "UPDATE", Generation: 3, Renewals: 8}},
		"a later update moves the entry on":               {Request{Operation: "UPDATE", Generation: 4}, v1beta1.LedgerEntry{Operation: "UPDATE", Generation: 4, Renewals: 8}},
		"a deletion takes the place of an update":         {Request{Operation: "DELETE", Generation: 3}, v1beta1.LedgerEntry{Operation: "DELETE", Generation: 3, Renewals: 8}},
		"an update never takes the place of more than it": {Request{Operation: "RESIZE", Generation: 2}, v1beta1.LedgerEntry{Operation: "UPDATE", Generation: 3, Renewals: 8}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := f
			f.Ledger = []v1beta1.LedgerEntry{entry}
			tc.request.UID, tc.request.Name, tc.want.UID, tc.want.Name = "p0", "p0", "p0", "p0"
			d := p.Decide(f, []Request{tc.request}, metav1.Time{})
			if diff := cmp.Diff([]v1beta1.LedgerEntry{tc.want}, d.Ledger); diff != "" || !d.Changed || !d.Verdicts[0].Allowed {
				t.Errorf("%+v (-want +got)\n%s", d.Verdicts, diff)
			}
		})
	}
}

// TestAnEntryAloneApprovesNothing asks about a pod with an entry, when one of the two others must serve and may have failed.
func TestAnEntryAloneApprovesNothing(t *testing.T) {
	tests := map[string]struct {
		policy      v1beta1.UnhealthyPodPolicy
		pod, others []State
		want        v1beta1.Reason
	}{
		"a pod that serves goes if enough others serve":               {others: []State{Available, Available}, pod: []State{Available}, want: v1beta1.ReasonApproved},
		"a pod that serves stays if too few others serve":             {others: []State{Available, Unavailable}, pod: []State{Available}, want: v1beta1.ReasonBudgetExhausted},
		"so does a pod that may serve":                                {others: []State{Available, Unavailable}, pod: []State{Doubtful}, want: v1beta1.ReasonBudgetExhausted},
		"a pod that does not serve goes":                              {others: []State{Available, Unavailable}, pod: []State{Unavailable}, want: v1beta1.ReasonApproved},
		"so that its updater goes on, also below the budget":          {others: []State{Available, Unavailable}, pod: []State{Unavailable}, want: v1beta1.ReasonApproved, policy: v1beta1.IfHealthyBudget},
		"a pod that has not started goes":                             {others: []State{Available, Unavailable}, pod: []State{Pending}, want: v1beta1.ReasonApproved},
		"a pod that the count does not have is none of the available": {others: []State{Available, Unavailable}, want: v1beta1.ReasonApproved},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pub := budgetOf("max 1")
			pub.Spec.UnhealthyPodPolicy = tc.policy
			f := facts(3, slices.Concat(tc.others, tc.pod)...)
			f.Ledger = []v1beta1.LedgerEntry{{UID: "p2", Name: "p2", Operation: v1beta1.OperationDelete}}
			r := request("p2", v1beta1.OperationDelete)
			d := compile(t, pub).Decide(f, []Request{r}, metav1.Time{})
			if got := d.Verdicts[0]; got.Reason != tc.want || d.Changed != got.Allowed || len(d.Ledger) != 1 {
				t.Errorf("%+v with ledger %+v, want %s and a write if it is allowed", got, d.Ledger, tc.want)
			}
		})
	}
}

// TestAnOperationThatNeverHappensLosesItsApproval tries without end what something else refuses each time.
func TestAnOperationThatNeverHappensLosesItsApproval(t *testing.T) {
	p, f := compile(t, budgetOf("max 1")), facts(3, times(3, Available)...)
	for i := range maxRenewals + 1 {
		d := p.Decide(f, []Request{request("p0", v1beta1.OperationEvict)}, metav1.Time{})
		if f.Ledger = d.Ledger; !d.Verdicts[0].Allowed || len(d.Ledger) != 1 {
			t.Fatalf("attempt %d: %+v", i, d)
		}
	}
	d := p.Decide(f, []Request{request("p0", v1beta1.OperationEvict)}, metav1.Time{})
	if v := d.Verdicts[0]; v.Allowed || v.Reason != v1beta1.ReasonApprovalUnused || !strings.Contains(v.Message, "100 times") || d.Changed {
		t.Errorf("got %+v, changed %t, want the entry left to expire", v, d.Changed)
	}
	if d := p.Decide(f, []Request{request("p1", v1beta1.OperationDelete)}, metav1.Time{}); d.Verdicts[0].Allowed {
		t.Errorf("got %+v of another pod, while the entry is there", d.Verdicts[0])
	}
}

func TestManyRequestsForOnePodInOneDecisionAreOneApproval(t *testing.T) {
	var requests []Request
	for range 64 {
		requests = append(requests, request("p0", v1beta1.OperationDelete))
	}
	d := compile(t, budgetOf("max 1")).Decide(facts(3, times(3, Available)...), requests, metav1.Time{})
	for i, v := range d.Verdicts {
		if !v.Allowed {
			t.Fatalf("request %d: %+v", i, v)
		}
	}
	if len(d.Ledger) != 1 || d.Ledger[0].Renewals != 0 {
		t.Errorf("the ledger is %+v", d.Ledger)
	}
}

// pod makes a pod that is available.
func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p0", UID: "p0", Generation: 2, Labels: map[string]string{"app": "web", v1beta1.ProtectedLabel: "true"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:1", ResizePolicy: []corev1.ContainerResizePolicy{
			{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}, {ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ObservedGeneration: 2,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Image: "docker.io/library/web:1"}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func unready(p *corev1.Pod)    { p.Status.Conditions[0].Status = corev1.ConditionFalse }
func pending(p *corev1.Pod)    { p.Status.Phase = corev1.PodPending }
func exempt(p *corev1.Pod)     { p.Annotations = map[string]string{v1beta1.NoProtectAnnotation: "true"} }
func unlabelled(p *corev1.Pod) { delete(p.Labels, v1beta1.ProtectedLabel) }
func deleted(p *corev1.Pod)    { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
func image(i string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Image = i }
}
func memory(amount string) func(*corev1.Pod) { return requests(corev1.ResourceMemory, amount) }
func requests(name corev1.ResourceName, amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{name: resource.MustParse(amount)}
	}
}

func neverChanged(p *corev1.Pod) { p.Generation, p.Status.ObservedGeneration = 1, 1 }

func deferred(p *corev1.Pod) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonDeferred})
}

// infeasible is what a kubelet says of a resize in this generation of the pod.
func infeasible(generation int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
			Reason: corev1.PodReasonInfeasible, ObservedGeneration: generation})
	}
}

func beingResized(p *corev1.Pod) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue})
}

func sidecar(asked, runs string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "side", Image: asked, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "side", Image: runs}}
	}
}

func deadline(restart corev1.RestartPolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.RestartPolicy, p.Spec.ActiveDeadlineSeconds = restart, ptr.To[int64](600)
	}
}

// gateOpened is a pod whose spec has changed once, before its containers started.
func gateOpened(p *corev1.Pod) {
	p.Annotations = map[string]string{"berth.dev/admitted-subset": `{"name":"web","subset":"a","pick":"p0"}`}
}

func TestState(t *testing.T) {
	tests := map[string]struct {
		pod      *corev1.Pod
		nodeGone bool
		want     State
	}{
		"a ready, protected pod is available":                       {pod: pod(), want: Available},
		"one that is not ready is not":                              {pod: pod(unready), want: Unavailable},
		"one that never ran is pending":                             {pod: pod(unready, pending), want: Pending},
		"one that terminates is gone":                               {pod: pod(deleted), want: Gone},
		"one that has failed is gone":                               {pod: pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), want: Gone},
		"one on a node that does not exist is gone":                 {pod: pod(), nodeGone: true, want: Gone},
		"one that is taken out is exempt":                           {pod: pod(exempt), want: Exempt},
		"one without the label is in doubt":                         {pod: pod(unlabelled), want: Doubtful},
		"one whose spec the kubelet has not seen is in doubt":       {pod: pod(func(p *corev1.Pod) { p.Generation = 3 }), want: Doubtful},
		"one that was changed and runs another tag is in doubt":     {pod: pod(image("web:2")), want: Doubtful},
		"also if the kubelet does not tell what it has seen":        {pod: pod(image("web:2"), func(p *corev1.Pod) { p.Status.ObservedGeneration = 0 }), want: Doubtful},
		"one that was never changed runs what it should":            {pod: pod(image("web:2"), neverChanged), want: Available},
		"nor was one whose gate Berth has opened":                   {pod: pod(image("web:2"), gateOpened), want: Available},
		"the pick of another pod proves nothing":                    {pod: pod(image("web:2"), gateOpened, func(p *corev1.Pod) { p.UID = "copy" }), want: Doubtful},
		"one whose gate was opened may be changed afterwards":       {pod: pod(image("web:2"), gateOpened, func(p *corev1.Pod) { p.Generation, p.Status.ObservedGeneration = 3, 3 }), want: Doubtful},
		"an image that is reported by digest proves nothing":        {pod: pod(func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Image = "sha256:abc" }), want: Available},
		"one that a deadline will end is in doubt":                  {pod: pod(deadline(corev1.RestartPolicyAlways)), want: Doubtful},
		"one that is to end anyway may be made with a deadline":     {pod: pod(deadline(corev1.RestartPolicyNever), neverChanged), want: Available},
		"one that is to end anyway may have got an earlier one":     {pod: pod(deadline(corev1.RestartPolicyNever)), want: Doubtful},
		"a sidecar that runs another tag is a container":            {pod: pod(sidecar("side:2", "side:1")), want: Doubtful},
		"a sidecar that runs what it should is one too":             {pod: pod(sidecar("side:1", "side:1")), want: Available},
		"a kubelet that reports no generation is taken at its word": {pod: pod(func(p *corev1.Pod) { p.Generation, p.Status.ObservedGeneration = 3, 0 }), want: Available},
		"one that is to restart for its memory is in doubt": {pod: pod(memory("2Mi"), func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}}
		}), want: Doubtful},
		"one whose resize waits for room and takes no restart is available": {pod: pod(requests(corev1.ResourceCPU, "2"), deferred, func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
		}), want: Available},
		"one whose resize is infeasible is available, whatever its kubelet reports": {pod: pod(memory("2Mi"), infeasible(2), func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}}
		}), want: Available},
		"a smaller resize after that may restart it": {pod: pod(memory("2Mi"), infeasible(1), func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}}
		}), want: Doubtful},
		"one whose resources are not reported may restart": {pod: pod(requests(corev1.ResourceCPU, "2"), deferred), want: Doubtful},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Observe(tc.pod, nil, tc.nodeGone).State; got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestChanges(t *testing.T) {
	web := labels.SelectorFromSet(labels.Set{"app": "web"})
	other := func(p *corev1.Pod) { p.Labels["app"] = "other" }
	tests := map[string]struct {
		after                     *corev1.Pod
		restarts, resized, leaves bool
	}{
		"nothing":              {after: pod()},
		"an image":             {after: pod(image("web:2")), restarts: true},
		"a deadline":           {after: pod(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) }), restarts: true},
		"memory":               {after: pod(memory("2Mi")), resized: true},
		"cpu, in place":        {after: pod(requests(corev1.ResourceCPU, "2"))},
		"a label":              {after: pod(other), leaves: true},
		"another label":        {after: pod(func(p *corev1.Pod) { p.Labels["x"] = "y" })},
		"the protection label": {after: pod(unlabelled), leaves: true},
		"the exemption":        {after: pod(exempt), leaves: true},
		"an init container": {after: pod(func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "new", Image: "x"}}
		})},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := pod()
			if got := Restarts(before, tc.after); got != tc.restarts {
				t.Errorf("Restarts: %t", got)
			}
			if got := ResizeRestarts(before, tc.after); got != tc.resized {
				t.Errorf("ResizeRestarts: %t", got)
			}
			if got := Leaves(before, tc.after, web, nil); got != tc.leaves {
				t.Errorf("Leaves: %t", got)
			}
		})
	}
}

func TestSettled(t *testing.T) {
	removal := v1beta1.LedgerEntry{UID: "p0", Name: "p0", Operation: v1beta1.OperationDelete}
	update := v1beta1.LedgerEntry{UID: "p0", Name: "p0", Operation: v1beta1.OperationUpdate, Generation: 2}
	tests := map[string]struct {
		entry v1beta1.LedgerEntry
		pod   *corev1.Pod
		want  bool
	}{
		"a deleted pod that is gone":                    {entry: removal, want: true},
		"a deleted pod that terminates":                 {entry: removal, pod: pod(deleted), want: true},
		"a deleted pod that lives is not":               {entry: removal, pod: pod()},
		"one that was exempted meanwhile is not":        {entry: removal, pod: pod(exempt)},
		"one that is to leave is not":                   {entry: v1beta1.LedgerEntry{UID: "p0", Name: "p0", Operation: v1beta1.OperationLeave}, pod: pod()},
		"an updated pod that runs the new spec":         {entry: update, pod: pod(), want: true},
		"an updated pod that is not ready is not":       {entry: update, pod: pod(unready)},
		"an update that has not happened is not":        {entry: update, pod: pod(func(p *corev1.Pod) { p.Generation, p.Status.ObservedGeneration = 1, 1 })},
		"one whose container runs the old image is not": {entry: update, pod: pod(image("web:2"))},
		"one that was changed back meanwhile is not":    {entry: update, pod: pod(func(p *corev1.Pod) { p.Generation = 3 })},
		"one that is being resized is not":              {entry: update, pod: pod(beingResized)},
		"one whose kubelet does not tell is not":        {entry: update, pod: pod(func(p *corev1.Pod) { p.Status.ObservedGeneration = 0 })},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Settled(&tc.entry, tc.pod); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestWhatMayExpire(t *testing.T) {
	unseen := func(p *corev1.Pod) { p.Generation = 3 }
	tests := map[string]struct {
		operation v1beta1.Operation
		pod       *corev1.Pod
		want      bool
	}{
		"a deletion": {v1beta1.OperationDelete, pod(), true},
		"a deletion of a pod that the kubelet is busy with": {v1beta1.OperationEvict, pod(unseen, beingResized), true},
		"a change that was seen":                            {v1beta1.OperationUpdate, pod(image("web:2")), true},
		"a change that did not happen":                      {v1beta1.OperationUpdate, pod(neverChanged), true},
		"a change that the kubelet has not seen":            {v1beta1.OperationUpdate, pod(unseen), false},
		"a change of a pod that left":                       {v1beta1.OperationUpdate, nil, true},
		"a resize that is going on":                         {v1beta1.OperationResize, pod(beingResized), false},
		"a resize that waits for room, perhaps for ever":    {v1beta1.OperationResize, pod(deferred), true},
		"leaving, and the pod is not the budget's any more": {v1beta1.OperationLeave, nil, true},
		"leaving, and the pod is exempt":                    {v1beta1.OperationLeave, pod(exempt), true},
		"leaving, and the pod is still there as it was":     {v1beta1.OperationLeave, pod(), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			entry := &v1beta1.LedgerEntry{UID: "p0", Name: "p0", Operation: tc.operation, Generation: 2}
			if got := MayExpire(entry, tc.pod); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestImagesAreTheSameHoweverTheyAreReported(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	for reported, asked := range map[string]string{
		"docker.io/library/web:1": "web:1", "docker.io/a/web:latest": "a/web", "quay.io/a/web:1": "quay.io/a/web:1", "localhost/web:latest": "localhost/web",
		"docker.io/library/web" + digest: "web:1" + digest, "localhost:5000/web:1": "localhost:5000/web:1",
	} {
		if !SameImage(reported, asked) {
			t.Errorf("%s is not %s", reported, asked)
		}
	}
	for reported, asked := range map[string]string{"web:1": "web:2", "a/web:1": "b/web:1", "sha256:a": "web:1", "Web": "Web:latest", "web" + digest: "web:1"} {
		if SameImage(reported, asked) {
			t.Errorf("%s is %s", reported, asked)
		}
	}
}

func TestCompile(t *testing.T) {
	tests := map[string]struct {
		change  func(*v1beta1.PodUnavailableBudget)
		errors  string
		warning string
	}{
		"a budget": {change: func(*v1beta1.PodUnavailableBudget) {}},
		"targetRef takes precedence over selector": {warning: "spec.selector: not used",
			change: func(b *v1beta1.PodUnavailableBudget) {
				b.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
			}},
		"maxUnavailable takes precedence over minAvailable": {warning: "spec.minAvailable: not used",
			change: func(b *v1beta1.PodUnavailableBudget) { b.Spec.MinAvailable = ptr.To(intstr.FromInt32(1)) }},
		"maxUnavailable 0 is worth a warning": {warning: "never finish",
			change: func(b *v1beta1.PodUnavailableBudget) { b.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(0)) }},
		"an unknown operation does not take the protection away": {warning: `"FLY" is not an operation`,
			change: func(b *v1beta1.PodUnavailableBudget) {
				b.Annotations = map[string]string{v1beta1.ProtectOperationsAnnotation: "FLY"}
			}},
		"a number of replicas that is none is not used": {warning: "must be a number of pods",
			change: func(b *v1beta1.PodUnavailableBudget) {
				b.Annotations = map[string]string{v1beta1.ProtectTotalReplicasAnnotation: "-1"}
			}},
		"a budget without subject":                          {errors: "selector or targetRef", change: func(b *v1beta1.PodUnavailableBudget) { b.Spec.Selector = nil }},
		"a budget without amount":                           {errors: "maxUnavailable, minAvailable or perSubset", change: func(b *v1beta1.PodUnavailableBudget) { b.Spec.MaxUnavailable = nil }},
		"a percentage above all":                            {errors: "spec.maxUnavailable", change: func(b *v1beta1.PodUnavailableBudget) { b.Spec.MaxUnavailable = ptr.To(intstr.FromString("101%")) }},
		"a percentage as a PodDisruptionBudget may have it": {change: func(b *v1beta1.PodUnavailableBudget) { b.Spec.MaxUnavailable = ptr.To(intstr.FromString("0050%")) }},
		"a text": {errors: "spec.maxUnavailable", change: func(b *v1beta1.PodUnavailableBudget) { b.Spec.MaxUnavailable = ptr.To(intstr.FromString("many")) }},
		"a target without name and kind": {errors: "spec.targetRef.kind", change: func(b *v1beta1.PodUnavailableBudget) {
			b.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "v1"}
		}},
		"a policy that there is none like": {errors: "spec.unhealthyPodPolicy", change: func(b *v1beta1.PodUnavailableBudget) { b.Spec.UnhealthyPodPolicy = "Never" }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pub := budgetOf("max 1")
			tc.change(pub)
			p, errs := Compile(pub)
			if tc.errors == "" && len(errs) > 0 || tc.errors != "" && !strings.Contains(errs.ToAggregate().Error(), tc.errors) {
				t.Fatalf("errors %v, want %q", errs, tc.errors)
			}
			if p != nil && !strings.Contains(strings.Join(p.Warnings, "\n"), tc.warning) {
				t.Errorf("warnings %q, want %q", p.Warnings, tc.warning)
			}
		})
	}
}

func TestOverlaps(t *testing.T) {
	tests := map[string]struct {
		a, b string
		want bool
	}{
		"the same label and value":                  {"app=web", "app=web", true},
		"the same label, another value":             {"app=web", "app=db", false},
		"no label in common cannot be judged":       {"app=web", "backend=true", false},
		"a narrower selector":                       {"app=web", "app=web,tier=front", true},
		"one label in common, another apart":        {"app=web,tier=front", "app=web,tier=back", false},
		"a set and a value of it":                   {"app in (web,db)", "app=db", true},
		"a set and a value outside":                 {"app in (web,db)", "app=x", false},
		"what one excludes":                         {"app=web", "app!=web", false},
		"two exclusions leave room":                 {"app!=web", "app!=db", true},
		"existence and a value":                     {"app", "app=web", true},
		"absence and a value":                       {"!app", "app=web", false},
		"absence and an exclusion":                  {"!app", "app!=web", true},
		"everything and anything":                   {"", "app=web", true},
		"what contradicts itself picks nothing":     {"app=web,app=db", "app=web", false},
		"what contradicts itself, against all pods": {"app=web,app=db", "", false},
		"two sets and the value in both":            {"app in (a,b),app in (b,c)", "app notin (a,c)", true},
		"two sets without a value in both":          {"app in (a,b)", "app in (b,c),app!=b", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := parse(t, tc.a), parse(t, tc.b)
			if Overlaps(a, b) != tc.want || Overlaps(b, a) != tc.want {
				t.Errorf("got %t and %t, want %t", Overlaps(a, b), Overlaps(b, a), tc.want)
			}
		})
	}
	if Overlaps(labels.Nothing(), labels.Everything()) {
		t.Error("a selector of nothing overlaps with nothing")
	}
}

// Whoever writes a budget decides how many values its selector has. Comparing every value with every other one took minutes for these.
func TestSelectorsAreComparedInTimeThatGrowsWithTheirSize(t *testing.T) {
	const values = 200_000
	values1, values2 := make([]string, values), make([]string, values)
	for i := range values {
		values1[i], values2[i] = "a"+strconv.Itoa(i), "b"+strconv.Itoa(i)
	}
	a, err := labels.NewRequirement("app", selection.In, values1)
	if err != nil {
		t.Fatal(err)
	}
	for _, operator := range []selection.Operator{selection.In, selection.NotIn} {
		b, err := labels.NewRequirement("app", operator, values2)
		if err != nil {
			t.Fatal(err)
		}
		if got := Overlaps(labels.NewSelector().Add(*a), labels.NewSelector().Add(*b)); got != (operator == selection.NotIn) {
			t.Errorf("%s: got %t", operator, got)
		}
	}
}

func parse(t *testing.T, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSelectorsWithACommonLabelOverlapExactlyIfSomePodHasBoth tries all pods with values of a small world.
func TestSelectorsWithACommonLabelOverlapExactlyIfSomePodHasBoth(t *testing.T) {
	terms := []string{"a=1", "a=2", "a!=1", "a in (1,2)", "a notin (1,2)", "a", "!a", "b=1", "b!=1", "!b"}
	var worlds []labels.Set
	for _, a := range []string{"", "1", "2", "3"} {
		for _, b := range []string{"", "1", "2"} {
			set := labels.Set{}
			if a != "" {
				set["a"] = a
			}
			if b != "" {
				set["b"] = b
			}
			worlds = append(worlds, set)
		}
	}
	for range 2000 {
		a, b := parse(t, "a,"+pick(terms)), parse(t, pick(terms)+","+pick(terms)+",a")
		want := slices.ContainsFunc(worlds, func(s labels.Set) bool { return a.Matches(s) && b.Matches(s) })
		if got := Overlaps(a, b); got != want {
			t.Fatalf("%q and %q: got %t, want %t", a, b, got, want)
		}
	}
}

func pick(terms []string) string { return terms[rand.N(len(terms))] }

var (
	allStates     = []State{Available, Available, Available, Doubtful, Unavailable, Pending, Gone, Exempt}
	allOperations = []string{string(v1beta1.OperationDelete), string(v1beta1.OperationEvict), string(v1beta1.OperationUpdate), string(v1beta1.OperationResize), string(v1beta1.OperationLeave), string(v1beta1.OperationUnready)}
	allRules      = []string{"max 0", "max 1", "max 3", "max 30%", "max 100%", "min 0", "min 2", "min 8", "min 50%", "min 100%"}
)

// someRequests are up to twice as many as there are pods, so that some pods are asked about again.
func someRequests(h *worlds.History, pods int) []Request {
	all := make([]Request, h.Number("requests", 2*pods+1))
	for i := range all {
		h.Line()
		all[i] = request(fmt.Sprintf("p%d", h.Number("pod", pods)), v1beta1.Operation(h.Pick(allOperations...)))
	}
	return all
}

func someFacts(h *worlds.History) Facts {
	states := make([]State, 1+h.Number("more-pods", 12))
	for i := range states {
		states[i] = allStates[h.Number("state", len(allStates))]
	}
	return facts(int32(h.Number("replicas", 14)), states...)
}

// checkDecision makes up a budget, pods and requests, and checks that after every approval enough pods are left, that the numbers are those of the
// ledger, and that asking again changes no approval.
func checkDecision(t rapid.TB, h *worlds.History) {
	t.Helper()
	f := someFacts(h)
	p := compile(t, budgetOf(h.Pick(allRules...)))
	before := p.Tally(f)
	requests := someRequests(h, len(f.Pods))
	lost := map[types.UID]bool{}
	serving := map[types.UID]bool{}
	for _, pod := range f.Pods {
		serving[pod.UID] = pod.State == Available
	}
	d := p.Decide(f, requests, metav1.Time{})
	for i, v := range d.Verdicts {
		if !v.Allowed || v.Reason == v1beta1.ReasonNotProtected {
			continue
		}
		if !serving[requests[i].UID] || lost[requests[i].UID] {
			continue
		}
		lost[requests[i].UID] = true
		if left := before.Available - int32(len(lost)); left < before.Desired {
			t.Fatalf("after request %d of %+v, %d are left of %+v", i, requests, left, before)
		}
	}
	f.Ledger = d.Ledger
	if diff := cmp.Diff(p.Tally(f), d.Tally); diff != "" {
		t.Fatalf("the tally is not that of the ledger (-ledger +decision)\n%s", diff)
	}
	again := p.Decide(f, requests, metav1.Time{})
	for i, v := range again.Verdicts {
		if d.Verdicts[i].Allowed && !v.Allowed {
			t.Fatalf("request %d is let through once and refused the second time", i)
		}
	}
}

func TestAfterEveryApprovalEnoughPodsAreLeft(t *testing.T) {
	worlds.Check(t, "a decision", 5000, checkDecision)
}

func TestTheOrderOfPodsAndOfTheLedgerDoesNotMatter(t *testing.T) {
	worlds.Check(t, "another order", 1000, anotherOrder)
}

func anotherOrder(t rapid.TB, h *worlds.History) {
	f, p := someFacts(h), compile(t, budgetOf(h.Pick(allRules...)))
	f.Ledger = p.Decide(f, someRequests(h, len(f.Pods)), metav1.Time{}).Ledger
	requests := someRequests(h, len(f.Pods))
	want := p.Decide(f, requests, metav1.Time{})
	f.Pods, f.Ledger = slices.Clone(f.Pods), slices.Clone(f.Ledger)
	h.Shuffle(len(f.Pods), func(i, j int) { f.Pods[i], f.Pods[j] = f.Pods[j], f.Pods[i] })
	h.Shuffle(len(f.Ledger), func(i, j int) { f.Ledger[i], f.Ledger[j] = f.Ledger[j], f.Ledger[i] })
	got := p.Decide(f, requests, metav1.Time{})
	if diff := cmp.Diff(want.Verdicts, got.Verdicts); diff != "" || !reflect.DeepEqual(want.Tally, got.Tally) {
		t.Fatalf("(-want +got)\n%s", diff)
	}
}

func TestHowManyOfAGroupGoDoesNotDependOnItsOrder(t *testing.T) {
	worlds.Check(t, "a group in another order", 1000, groupInAnotherOrder)
}

func groupInAnotherOrder(t rapid.TB, h *worlds.History) {
	n := 1 + h.Number("more-pods", 12)
	f, p := facts(int32(n), times(n, Available)...), compile(t, budgetOf(h.Pick(allRules...)))
	requests := someRequests(h, n)
	gone := func() int { return len(p.Decide(f, requests, metav1.Time{}).Ledger) }
	want := gone()
	h.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
	if got := gone(); got != want {
		t.Fatalf("%d and %d", want, got)
	}
}

func TestThePublishedMapsFollowTheLedger(t *testing.T) {
	var status v1beta1.PodUnavailableBudgetStatus
	Publish(&status, 7, []v1beta1.LedgerEntry{{UID: "a", Name: "a", Operation: "DELETE"}, {UID: "b", Name: "b", Operation: "RESIZE"}}, Tally{Total: 5, Desired: 4, Available: 3})
	if keys := slices.Collect(maps.Keys(status.DisruptedPods)); !slices.Equal(keys, []string{"a"}) {
		t.Errorf("disrupted %v", keys)
	}
	if keys := slices.Collect(maps.Keys(status.UnavailablePods)); !slices.Equal(keys, []string{"b"}) {
		t.Errorf("unavailable %v", keys)
	}
	if status.ObservedGeneration != 7 || status.TotalReplicas != 5 || status.DesiredAvailable != 4 || status.CurrentAvailable != 3 {
		t.Errorf("%+v", status)
	}
}

func TestNewest(t *testing.T) {
	if got := Newest("", "9", "10"); got != "10" {
		t.Errorf("got %q", got)
	}
	if got := Newest("9", "x"); got != "" {
		t.Errorf("got %q", got)
	}
}

func FuzzDecide(f *testing.F) {
	f.Fuzz(worlds.Fuzz(checkDecision))
}

// foresee says which of the pods could be evicted in this order.
func foresee(policy *Policy, pub *v1beta1.PodUnavailableBudget, pods []Pod) []bool {
	f, answers := policy.Forecast(pub), make([]bool, len(pods))
	for i := range pods {
		if answers[i] = f.may(&pods[i]); answers[i] {
			f.take(&pods[i])
		}
	}
	return answers
}

func TestForecast(t *testing.T) {
	recorded := facts(3, times(3, Available)...)
	recorded.Ledger = []v1beta1.LedgerEntry{{UID: "p1", Name: "p1", Operation: v1beta1.OperationDelete}}
	tests := map[string]struct {
		rule       string
		facts      Facts
		operations string // protected ones, empty for all
		generation int64  // of the status; the budget has 3
		want       []bool
	}{
		"as many go as there is room for, and no more":           {"max 2", facts(4, times(4, Available)...), "", 3, []bool{true, true, false, false}},
		"without room nobody goes":                               {"max 0", facts(2, times(2, Available)...), "", 3, []bool{false, false}},
		"pods that do not serve yet or any more go":              {"max 0", facts(3, Available, Pending, Gone), "", 3, []bool{false, true, true}},
		"what the ledger holds goes, and has taken the room":     {"max 1", recorded, "", 3, []bool{false, true, false}},
		"a status of another generation promises nothing":        {"max 2", facts(2, times(2, Available)...), "", 2, []bool{false, false}},
		"a budget that does not protect from eviction is silent": {"max 0", facts(2, times(2, Available)...), "DELETE", 3, []bool{true, true}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pub := budgetOf(tc.rule)
			pub.Generation = 3
			pub.Annotations = map[string]string{v1beta1.ProtectOperationsAnnotation: tc.operations}
			policy := compile(t, pub)
			Publish(&pub.Status, tc.generation, tc.facts.Ledger, policy.Tally(tc.facts))
			if diff := cmp.Diff(tc.want, foresee(policy, pub, tc.facts.Pods)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatIsForeseenFromAStatusThatIsTrueIsWhatIsDecided(t *testing.T) {
	worlds.Check(t, "what is foreseen", 1000, whatIsForeseen)
}

func whatIsForeseen(t rapid.TB, h *worlds.History) {
	pub := budgetOf(h.Pick("max 0", "max 1", "max 30%", "min 2", "min 81%"))
	policy, f := compile(t, pub), someFacts(h)
	Publish(&pub.Status, pub.Generation, f.Ledger, policy.Tally(f))
	requests := make([]Request, len(f.Pods))
	for i := range f.Pods {
		requests[i] = Request{Name: f.Pods[i].Name, UID: f.Pods[i].UID, Operation: v1beta1.OperationEvict}
	}
	want := make([]bool, len(requests))
	for i, verdict := range policy.Decide(f, requests, metav1.Time{}).Verdicts {
		want[i] = verdict.Allowed
	}
	if diff := cmp.Diff(want, foresee(policy, pub, f.Pods)); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}

func TestALedgerTakesNoMoreThanAStatusCanHold(t *testing.T) {
	pub := budgetOf("max 5000")
	f := facts(6000, times(6000, Available)...)
	var requests []Request
	for i := range f.Pods {
		f.Pods[i].UID = types.UID(fmt.Sprintf("%036d", i))
		requests = append(requests, Request{Name: fmt.Sprintf("%0253d", i), UID: f.Pods[i].UID, Operation: v1beta1.OperationDelete, Generation: 1000, Revision: "18446744073709551615"})
	}
	p := compile(t, pub)
	d := p.Decide(f, requests, metav1.Now())
	if len(d.Ledger) != maxLedger || !d.Verdicts[maxLedger-1].Allowed {
		t.Fatalf("%d entries, want %d", len(d.Ledger), maxLedger)
	}
	if v := d.Verdicts[maxLedger]; v.Allowed || v.Reason != v1beta1.ReasonLedgerFull || !strings.Contains(v.Message, "1000 operations under way") {
		t.Errorf("got %+v of a ledger that is full", v)
	}
	f.Ledger = d.Ledger
	if again := p.Decide(f, requests[:1], metav1.Now()); !again.Verdicts[0].Allowed || len(again.Ledger) != maxLedger {
		t.Errorf("got %+v for a pod that is in the ledger", again.Verdicts)
	}

	// The API server keeps as well who manages which field of which entry, for the webhook and the controller.
	pub.Status.Ledger = d.Ledger
	for i := range d.Ledger {
		d.Ledger[i].Renewals = 1000
	}
	Publish(&pub.Status, 1, d.Ledger, d.Tally)
	managed := map[string]any{}
	byName := map[string]any{}
	for i := range d.Ledger {
		fields := map[string]any{".": struct{}{}}
		for _, name := range []string{"uid", "name", "operation", "generation", "revision", "time", "renewals"} {
			fields["f:"+name] = struct{}{}
		}
		managed[fmt.Sprintf("k:{\"uid\":%q}", d.Ledger[i].UID)] = fields
		byName["f:"+d.Ledger[i].Name] = struct{}{}
	}
	owned, err := json.Marshal(map[string]any{"f:status": map[string]any{"f:ledger": managed, "f:disruptedPods": byName}})
	if err != nil {
		t.Fatal(err)
	}
	pub.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "berth-controller", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: owned}}}
	object, err := json.Marshal(pub)
	if err != nil {
		t.Fatal(err)
	}
	if most := 1536 * 1024; len(object) > most {
		t.Errorf("the budget takes %d bytes, and etcd takes no more than %d", len(object), most)
	}
}
