package subset

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func expectWarnings(t *testing.T, want, got []string) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestWarningsOfASpec(t *testing.T) {
	const (
		poolA  = `requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}`
		both   = `requiredNodeSelector: {matchExpressions: [{key: arch, operator: Exists}, {key: pool, operator: In, values: [a]}]}`
		turned = `requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}, {key: arch, operator: Exists}]}`
		same   = "; pods there that Berth did not bind count in the first of the two"
	)
	tests := map[string]struct {
		spec string
		want []string
	}{
		"subsets that no pod reaches, because one before them has no limit": {
			`subsets: [{name: a, maxReplicas: 1}, {name: b}, {name: c}, {name: d}]`,
			[]string{"spec.subsets[1]: has no maxReplicas, so with type: Fixed no pod reaches the subsets after it"},
		},
		"none of it with type Adaptive, where pods reach them when there is no node": {`{subsets: [{name: a}, {name: b}], scheduleStrategy: {type: Adaptive}}`, nil},
		"none of it for later subsets with a minimum":                                {`subsets: [{name: a, minReplicas: 1}, {name: b, minReplicas: 3}, {name: c, minReplicas: 10%}]`, nil},
		"only for those without": {
			`subsets: [{name: a}, {name: b, minReplicas: 3}, {name: c, minReplicas: 0}]`,
			[]string{"spec.subsets[0]: has no maxReplicas, so with type: Fixed no pod reaches the subsets after it that have no minReplicas"},
		},
		"none of it with weights": {`subsets: [{name: a, weight: 1}, {name: b, weight: 1, maxReplicas: 3}, {name: c, weight: 3}]`, nil},
		"subsets without a weight, unless they have a minimum or are closed": {
			`{subsets: [{name: a, weight: 1}, {name: b, minReplicas: 3}, {name: c, weight: 0}, {name: d, maxReplicas: 0}, {name: e, maxReplicas: 5}], scheduleStrategy: {type: Adaptive}}`,
			[]string{
				"spec.subsets[2]: has neither weight nor minReplicas, and other subsets have a weight, so no pod goes there",
				"spec.subsets[4]: has neither weight nor minReplicas, and other subsets have a weight, so no pod goes there",
			},
		},
		"not for a share of 0 %": {`subsets: [{name: a, maxReplicas: 0%}, {name: b, maxReplicas: 100%}]`, nil},
		"subsets with the same nodes, by the words of their terms in any order": {
			`subsets: [{name: a, maxReplicas: 1, ` + both + `}, {name: b, maxReplicas: 1, ` + poolA + `}, {name: c, ` + turned + `}]`,
			[]string{"spec.subsets[2].requiredNodeSelector: selects the same nodes as spec.subsets[0]" + same},
		},
		"none of it for subsets that take any node": {`subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 1}, {name: c}]`, nil},
		"Adaptive with one subset": {
			`{subsets: [{name: a}], scheduleStrategy: {type: Adaptive}}`,
			[]string{"spec.scheduleStrategy.type: Adaptive goes on to the next subset, and the spread has only one, so it has no effect"},
		},
		"a field without an effect": {
			`{subsets: [{name: a}, {name: b}], scheduleStrategy: {type: Adaptive, adaptive: {disableSimulationSchedule: true}}}`,
			[]string{"spec.scheduleStrategy.adaptive.disableSimulationSchedule: has no effect, as in OpenKruise: a pod goes on when no node of a subset fits"},
		},
		"Adaptive that skips after a wait that there is not": {
			`{subsets: [{name: a}, {name: b}], scheduleStrategy: {type: Adaptive, adaptive: {unschedulableLastSeconds: 60}}}`,
			[]string{"spec.scheduleStrategy.adaptive.unschedulableLastSeconds: a subset is skipped after a wait of rescheduleCriticalSeconds, which is not set, so it has no effect"},
		},
		"nothing about Adaptive as the articles show it": {
			`{subsets: [{name: a}, {name: b}], scheduleStrategy: {type: Adaptive, adaptive: {disableSimulationSchedule: false, rescheduleCriticalSeconds: 30}}}`, nil,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { expectWarnings(t, tc.want, compile(t, tc.spec).Warnings) })
	}
}

func TestWarningsAtANumberOfReplicas(t *testing.T) {
	const thirds = `subsets: [{name: a, maxReplicas: 33%}, {name: b, maxReplicas: 33%}, {name: c, maxReplicas: 34%}]`
	const rest = `subsets: [{name: a, maxReplicas: 50%}, {name: b, maxReplicas: 40%}, {name: c}]`
	tests := map[string]struct {
		spec     string
		replicas int32
		want     []string
	}{
		"not for shares, which are never more": {thirds, 10, nil},
		"percentages that round up to more than there are": {
			`subsets: [{name: a, maxReplicas: 33%}, {name: b, maxReplicas: 33%}, {name: c, maxReplicas: 33%}, {name: d}]`, 10,
			[]string{"spec.subsets: of 10 replicas the percentages, each rounded up, are 12 pods (a 4, b 4, c 4, d -), so the last subsets hold fewer"},
		},
		"also if they leave nothing for a subset without one": {
			rest, 1, []string{"spec.subsets: of 1 replicas the percentages, each rounded up, are 2 pods (a 1, b 1, c -), so the last subsets hold fewer"},
		},
		"not if they are exact":           {`subsets: [{name: a, maxReplicas: 33%}, {name: b, maxReplicas: 66%}, {name: c}]`, 100, nil},
		"not for percentages in minimums": {`subsets: [{name: a, maxReplicas: 20, minReplicas: 10%}, {name: b}]`, 10, nil},
		"minimums that are more than there are": {
			`subsets: [{name: a, minReplicas: 3}, {name: b, minReplicas: 3, weight: 1}, {name: c, minReplicas: 10%}]`, 6,
			[]string{"spec.subsets: the minimums are 7 pods (a 3, b 3, c 1), and the workload has 6 replicas, so the last subsets get less than their minimum"},
		},
		"not if they are as many":     {`subsets: [{name: a, minReplicas: 3}, {name: b, minReplicas: 3}]`, 6, nil},
		"not for minimums of no pods": {`subsets: [{name: a, minReplicas: 3}, {name: b, minReplicas: 3}]`, 0, nil},
		"both for percentages": {
			`subsets: [{name: a, minReplicas: 50%, maxReplicas: 50%}, {name: b, minReplicas: 50%, maxReplicas: 50%}, {name: c}]`, 1,
			[]string{
				"spec.subsets: of 1 replicas the percentages, each rounded up, are 2 pods (a 1, b 1, c -), so the last subsets hold fewer",
				"spec.subsets: the minimums are 2 pods (a 1, b 1, c 0), and the workload has 1 replicas, so the last subsets get less than their minimum",
			},
		},
		"not if rounding up leaves some over":  {rest, 11, nil},
		"not without replicas":                 {thirds, 0, nil},
		"not for counts, which do not follow":  {`subsets: [{name: a, maxReplicas: 20}, {name: b, maxReplicas: 5}]`, 10, nil},
		"not for so many that a sum overflows": {`subsets: [{name: a, maxReplicas: 100%}, {name: b}]`, 1<<31 - 1, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			expectWarnings(t, tc.want, compile(t, tc.spec).WarningsAt(tc.replicas, nil, field.NewPath("spec")))
		})
	}
}

func TestWarningsAmongNodes(t *testing.T) {
	term := func(key, value string) string {
		return `requiredNodeSelector: {matchExpressions: [{key: ` + key + `, operator: In, values: [` + value + `]}]}`
	}
	node := func(name string, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	nodes := []*corev1.Node{node("n1", map[string]string{"pool": "a"}), node("n2", map[string]string{"pool": "b"})}
	tests := map[string]struct {
		spec string
		want []string
	}{
		"every subset has nodes of its own": {`subsets: [{name: a, maxReplicas: 1, ` + term("pool", "a") + `}, {name: b, ` + term("pool", "b") + `}]`, nil},
		"a subset that no node matches": {
			`subsets: [{name: a, maxReplicas: 1, ` + term("pool", "a") + `}, {name: b, ` + term("pool", "c") + `}]`,
			[]string{"spec.subsets[1].requiredNodeSelector: no node matches now"},
		},
		"a subset that takes any node": {`subsets: [{name: a, maxReplicas: 1, ` + term("pool", "a") + `}, {name: b}]`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			expectWarnings(t, tc.want, compile(t, tc.spec).WarningsAmong(nodes, field.NewPath("spec")))
		})
	}
}

func TestASubsetHasANodeForAPod(t *testing.T) {
	policy := compile(t, `subsets: [{name: a, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}]`)
	nodes := []*corev1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"pool": "a", "arch": "x86"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{"pool": "b", "arch": "arm"}}},
	}
	tests := map[string]struct {
		pod  string
		want bool
	}{
		"that requires nothing itself":                    {`{}`, true},
		"that selects it":                                 {`{spec: {nodeSelector: {arch: x86}}}`, true},
		"but not for one that selects another's nodes":    {`{spec: {nodeSelector: {arch: arm}}}`, false},
		"and not for one that requires another's by term": {`{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: arch, operator: In, values: [arm]}]}]}}}}}`, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := policy.Subsets[0].HasNodeFor(podOf(t, tc.pod), nodes); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestBlockedRollout(t *testing.T) {
	const full = `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 4}], scheduleStrategy: {quotaScope: Workload, whenFull: Wait}}`
	tests := map[string]struct {
		spec           string
		replicas       int32
		maxUnavailable *int32
		blocked        bool
	}{
		"no slot for a surge pod":                       {full, 6, ptr.To[int32](0), true},
		"fewer slots than replicas":                     {full, 8, ptr.To[int32](2), true},
		"not if more may go than lack slots":            {full, 8, ptr.To[int32](3), false},
		"percentages that add up to 100":                {`{subsets: [{name: a, maxReplicas: 50%}, {name: b, maxReplicas: 50%}], scheduleStrategy: {quotaScope: Workload, whenFull: Wait}}`, 6, ptr.To[int32](0), true},
		"not if rounding up leaves a slot":              {`{subsets: [{name: a, maxReplicas: 50%}, {name: b, maxReplicas: 50%}], scheduleStrategy: {quotaScope: Workload, whenFull: Wait}}`, 5, ptr.To[int32](0), false},
		"not with a slot for a surge pod":               {full, 5, ptr.To[int32](0), false},
		"not if a pod may go first":                     {full, 6, ptr.To[int32](1), false},
		"not for a workload that deletes first":         {full, 6, nil, false},
		"not without replicas":                          {full, 0, ptr.To[int32](0), false},
		"not if pods go anywhere when subsets are full": {`{subsets: [{name: a, maxReplicas: 6}], scheduleStrategy: {quotaScope: Workload}}`, 6, ptr.To[int32](0), false},
		"not with quotas for each revision":             {`{subsets: [{name: a, maxReplicas: 6}], scheduleStrategy: {whenFull: Wait}}`, 6, ptr.To[int32](0), false},
		"not with a subset without limit":               {`{subsets: [{name: a, maxReplicas: 6}, {name: b}], scheduleStrategy: {quotaScope: Workload, whenFull: Wait}}`, 6, ptr.To[int32](0), false},
		"not if the spread divides only some of the pods": {
			`{targetFilter: {selector: {matchLabels: {tier: web}}}, subsets: [{name: a, maxReplicas: 6}], scheduleStrategy: {quotaScope: Workload, whenFull: Wait}}`, 6, ptr.To[int32](0), false,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			blocked := compile(t, tc.spec).BlockedRollout(tc.replicas, tc.maxUnavailable)
			if (blocked != "") != tc.blocked || tc.blocked && !strings.Contains(blocked, "use quotaScope: Revision") {
				t.Errorf("got %q", blocked)
			}
		})
	}
}
