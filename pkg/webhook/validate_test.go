package webhook

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// spreadOf is a valid spread of a Deployment, of an age that grows with minute.
func spreadOf(name, deployment string, minute int) *v1beta1.WorkloadSpread {
	return &v1beta1.WorkloadSpread{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 12, -minute, 0, 0, time.UTC)),
		},
		Spec: v1beta1.WorkloadSpreadSpec{
			TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: deployment},
			Subsets:         []v1beta1.Subset{{Name: "a", MaxReplicas: ptr.To(intstr.FromInt32(3))}, {Name: "b"}},
		},
	}
}

func changed(spread *v1beta1.WorkloadSpread, change func(*v1beta1.WorkloadSpreadSpec)) *v1beta1.WorkloadSpread {
	spread = spread.DeepCopy()
	change(&spread.Spec)
	return spread
}

func spreads(all ...*v1beta1.WorkloadSpread) []v1beta1.WorkloadSpread {
	var list []v1beta1.WorkloadSpread
	for _, spread := range all {
		list = append(list, *spread)
	}
	return list
}

// broken gives a spread three errors that only the model sees.
func broken(spec *v1beta1.WorkloadSpreadSpec) {
	spec.Subsets[0].Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpEqual}}
	spec.Subsets[0].Patch = &runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"main","resources":{"limit":{"cpu":"2"}}}]}}`)}
	spec.Subsets[1].Patch = &runtime.RawExtension{Raw: []byte(`{"metadata":{"labels":{"lane":"not a label!"}}}`)}
}

// patchedBy gives the subsets patches, in order.
func patchedBy(patches ...string) func(*v1beta1.WorkloadSpreadSpec) {
	return func(spec *v1beta1.WorkloadSpreadSpec) {
		for i := range patches {
			spec.Subsets[i].Patch = &runtime.RawExtension{Raw: []byte(patches[i])}
		}
	}
}

func percentages(spec *v1beta1.WorkloadSpreadSpec) {
	spec.Subsets[0].MinReplicas, spec.Subsets[1].MinReplicas = ptr.To(intstr.FromString("50%")), ptr.To(intstr.FromString("50%"))
}

// selecting gives each subset the nodes with a label.
func selecting(labels ...string) func(*v1beta1.WorkloadSpreadSpec) {
	return func(spec *v1beta1.WorkloadSpreadSpec) {
		for i := range labels {
			spec.Subsets[i].RequiredNodeSelector = &corev1.NodeSelectorTerm{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: labels[i], Operator: corev1.NodeSelectorOpExists}},
			}
		}
	}
}

func labelled(name string, labels ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, label := range labels {
		node.Labels[label] = ""
	}
	return node
}

func TestValidateSpread(t *testing.T) {
	web := spreadOf("web", "web", 1)
	older, oldest, younger := spreadOf("older", "web", 2), spreadOf("oldest", "web", 3), spreadOf("younger", "web", 0)
	otherVersion := changed(older, func(spec *v1beta1.WorkloadSpreadSpec) { spec.TargetReference.APIVersion = "apps/v1beta1" })
	otherGroup := changed(older, func(spec *v1beta1.WorkloadSpreadSpec) { spec.TargetReference.APIVersion = "apps.kruise.io/v1" })
	otherKind := changed(older, func(spec *v1beta1.WorkloadSpreadSpec) { spec.TargetReference.Kind = "StatefulSet" })
	before := changed(web, func(spec *v1beta1.WorkloadSpreadSpec) { spec.Subsets = spec.Subsets[:1] })

	tests := map[string]struct {
		spread, old  *v1beta1.WorkloadSpread
		known        knownFacts
		wantWarnings []string
		wantErrors   []string
	}{
		"a good spread passes without a word": {spread: web},
		"all errors are reported at once, each with its path": {
			spread: changed(web, broken),
			wantErrors: []string{
				"spec.subsets[0].tolerations[0].operator: Invalid value",
				"spec.subsets[0].patch.spec.containers[0].resources.limit: Invalid value",
				"spec.subsets[1].patch.metadata.labels[lane]: Invalid value",
			},
		},
		"the warnings of the model are passed on": {
			spread:       changed(web, func(spec *v1beta1.WorkloadSpreadSpec) { spec.Subsets[0].MaxReplicas = nil }),
			wantWarnings: []string{"spec.subsets[0]: has no maxReplicas"},
		},
		"a workload that is not there yet is a warning": {
			spread: web, known: knownFacts{Target: targetFacts{Problem: "there is no Deployment web yet, and the spread waits for it"}},
			wantWarnings: []string{"spec.targetRef: there is no Deployment web yet"},
		},
		"a workload that is not there yet leaves patches untried": {
			spread: changed(web, patchedBy(`{}`, `{"spec":{"hostname":"x"}}`)), known: knownFacts{Target: targetFacts{Problem: "there is no Deployment web yet, and the spread waits for it"}},
			wantWarnings: []string{"spec.targetRef: there is no Deployment web yet, and the spread waits for it, so the patches were not tried on its pods"},
		},
		"a workload that cannot be read is a warning": {
			spread: web, known: knownFacts{Target: targetFacts{Problem: "Deployment web cannot be read: it is away"}},
			wantWarnings: []string{"spec.targetRef: Deployment web cannot be read: it is away"},
		},
		"a workload that cannot be read leaves patches untried": {
			spread: changed(web, patchedBy(`{}`, `{"spec":{"hostname":"x"}}`)), known: knownFacts{Target: targetFacts{Problem: "Deployment web cannot be read: it is away"}},
			wantWarnings: []string{"spec.targetRef: Deployment web cannot be read: it is away, so the patches were not tried on its pods"},
		},
		"a workload without a template leaves patches untried": {
			spread: changed(web, patchedBy(`{}`, `{"spec":{"hostname":"x"}}`)), known: knownFacts{Target: targetFacts{Read: true}},
			wantWarnings: []string{"spec.targetRef: Deployment web has no pod template at spec.template, so the patches were not tried on its pods"},
		},
		"a workload without a template is as good as any for a spread without patches": {spread: web, known: knownFacts{Target: targetFacts{Read: true}}},
		"a child of a UnitedDeployment is divided already": {
			spread: web, known: knownFacts{Target: targetFacts{United: "shop"}},
			wantErrors: []string{"spec.targetRef: Forbidden: Deployment web is a child of UnitedDeployment shop, which divides its pods over subsets already; put the numbers into spec.topology.subsets"},
		},
		"a workload that became a child is a warning": {
			spread: web, old: before, known: knownFacts{Target: targetFacts{United: "shop"}},
			wantWarnings: []string{"spec.targetRef: Deployment web is a child of UnitedDeployment shop"},
		},
		"a UnitedDeployment divides its pods itself": {
			spread:     changed(web, targeting("apps.kruise.io/v1alpha1", "UnitedDeployment", "")),
			wantErrors: []string{"spec.targetRef: Forbidden: a UnitedDeployment divides its pods itself; put the numbers into spec.topology.subsets"},
		},
		"a UnitedDeployment of another group is a workload like any": {spread: changed(web, targeting("example.com/v1", "UnitedDeployment", ""))},
		"percentages are counted at the replicas that there are": {
			spread: changed(web, percentages), known: knownFacts{Target: targetFacts{Replicas: ptr.To[int32](3)}},
			wantWarnings: []string{"spec.subsets: the minimums are 4 pods (a 2, b 2), and the workload has 3 replicas, so the last subsets get less than their minimum"},
		},
		"a rolling update that can never go on is a warning": {
			spread: changed(web, func(s *v1beta1.WorkloadSpreadSpec) {
				s.ScheduleStrategy.QuotaScope, s.ScheduleStrategy.WhenFull = v1beta1.WorkloadQuotaScope, v1beta1.WhenFullWait
				s.Subsets[1].MaxReplicas = ptr.To(intstr.FromInt32(3))
			}), known: knownFacts{Target: targetFacts{Replicas: ptr.To[int32](6), MaxUnavailable: ptr.To[int32](0)}},
			wantWarnings: []string{"spec.scheduleStrategy.quotaScope: a rolling update can never go on: 6 of 6 replicas must stay available, and all revisions together have 6 slots"},
		},
		"percentages of replicas that are not known are not counted": {spread: changed(web, percentages)},
		"subsets are compared with the nodes that there are": {
			spread: changed(web, selecting("disk", "pool")), known: knownFacts{Nodes: []*corev1.Node{labelled("n1", "pool")}},
			wantWarnings: []string{"spec.subsets[0].requiredNodeSelector: no node matches now"},
		},
		"with no node in the cluster there is none for the subsets": {
			spread: changed(web, selecting("disk", "pool")), known: knownFacts{Nodes: []*corev1.Node{}},
			wantWarnings: []string{"spec.subsets[0].requiredNodeSelector: no node matches now", "spec.subsets[1].requiredNodeSelector: no node matches now"},
		},
		"late binding beside a node autoscaler": {
			spread: changed(web, func(s *v1beta1.WorkloadSpreadSpec) { s.ScheduleStrategy.Binding = v1beta1.LateBinding }), known: knownFacts{Autoscaler: "karpenter"},
			wantWarnings: []string{"spec.scheduleStrategy.binding: with Late a node autoscaler (karpenter) takes pods to fit in any of the subsets"},
		},
		"gated binding beside a node autoscaler": {spread: changed(web, func(s *v1beta1.WorkloadSpreadSpec) { s.ScheduleStrategy.Binding = v1beta1.AutoBinding }), known: knownFacts{Autoscaler: "karpenter"}},
		"a gated spread of strategy Adaptive without a limit for waiting": {
			spread: changed(web, func(s *v1beta1.WorkloadSpreadSpec) { s.ScheduleStrategy.Type = v1beta1.AdaptiveScheduleStrategy }), known: knownFacts{Autoscaler: "karpenter"},
			wantWarnings: []string{"spec.scheduleStrategy.adaptive.rescheduleCriticalSeconds: is not set, so pods that no subset has a node for wait in the last subset with room"},
		},
		"a subset of a gated spread that only taints tell from another": {
			spread: changed(web, func(s *v1beta1.WorkloadSpreadSpec) {
				s.ScheduleStrategy.Binding = v1beta1.GatedBinding
				s.Subsets[0].RequiredNodeSelector, s.Subsets[1].Tolerations = nil, []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}}
			}), known: knownFacts{Autoscaler: "karpenter"},
			wantWarnings: []string{"spec.subsets[0]: selects all nodes by their labels, and does not tolerate the taints of other subsets; a node autoscaler (karpenter)"},
		},
		"late binding where there is none":        {spread: changed(web, func(s *v1beta1.WorkloadSpreadSpec) { s.ScheduleStrategy.Binding = v1beta1.LateBinding })},
		"nodes that are not known are not missed": {spread: changed(web, selecting("disk", "pool"))},
		"a second spread for a workload has no effect and is told of the first": {
			spread: web, known: knownFacts{Spreads: spreads(older)},
			wantWarnings: []string{`spec.targetRef: has no effect as long as the older WorkloadSpread "older" divides Deployment web`},
		},
		"of several spreads for the workload the one that divides it is named": {
			spread: web, known: knownFacts{Spreads: spreads(older, oldest)},
			wantWarnings: []string{`older WorkloadSpread "oldest" divides`},
		},
		"a second spread is refused if it sorts before the first of the same second": {
			spread: web, known: knownFacts{Spreads: spreads(spreadOf("xyz", "web", 1))},
			wantErrors: []string{`WorkloadSpread "xyz" already divides`},
		},
		"a second spread is refused for its other errors": {
			spread: changed(web, broken), known: knownFacts{Spreads: spreads(older)},
			wantErrors: []string{"tolerations[0]", "resources.limit", "labels"}, wantWarnings: []string{`"older"`},
		},
		"the version of the target makes no other workload":   {spread: web, known: knownFacts{Spreads: spreads(otherVersion)}, wantWarnings: []string{`"older"`}},
		"a workload of another kind is another workload":      {spread: web, known: knownFacts{Spreads: spreads(otherKind)}},
		"a workload of another group is another workload":     {spread: web, known: knownFacts{Spreads: spreads(otherGroup)}},
		"a workload of another name is another workload":      {spread: web, known: knownFacts{Spreads: spreads(spreadOf("older", "api", 2))}},
		"a spread that is created again is no second spread":  {spread: web, known: knownFacts{Spreads: spreads(spreadOf("web", "web", 5))}},
		"a changed spread is no second spread to itself":      {spread: web, old: before, known: knownFacts{Spreads: spreads(before)}},
		"a spread that divides its workload may change":       {spread: web, old: before, known: knownFacts{Spreads: spreads(before, younger)}},
		"a changed spread is judged like a new one otherwise": {spread: changed(web, broken), old: before, wantErrors: []string{"tolerations[0]", "resources.limit", "labels"}},
		"a spread without effect may change and is told so": {
			spread: web, old: before, known: knownFacts{Spreads: spreads(before, older)},
			wantWarnings: []string{`spec.targetRef: has no effect as long as the older WorkloadSpread "older" divides Deployment web`},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			warnings, errs := validateSpread(tc.spread, tc.old, tc.known)
			var errors []string
			for _, err := range errs {
				errors = append(errors, err.Error())
			}
			expectEachToContain(t, "warnings", tc.wantWarnings, warnings)
			expectEachToContain(t, "errors", tc.wantErrors, errors)
		})
	}
}

// expectEachToContain compares texts one by one, of which the wanted may be a part.
func expectEachToContain(t *testing.T, what string, want, got []string) {
	t.Helper()
	found := make([]string, len(got))
	for i := range got {
		found[i] = got[i]
		if i < len(want) && strings.Contains(got[i], want[i]) {
			found[i] = want[i]
		}
	}
	if len(want) == 0 {
		want = []string{}
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
