package subset

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// parse reads a spec as a user writes it.
func parse(tb testing.TB, text string) *v1beta1.WorkloadSpreadSpec {
	tb.Helper()
	spec := &v1beta1.WorkloadSpreadSpec{TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
	if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
		tb.Fatalf("parsing the spec: %v", err)
	}
	return spec
}

func compile(tb testing.TB, text string) *Policy {
	tb.Helper()
	policy, errs := Compile(&v1beta1.WorkloadSpread{Spec: *parse(tb, text)}, field.NewPath("spec"))
	if len(errs) > 0 {
		tb.Fatalf("compiling: %v", errs.ToAggregate())
	}
	return policy
}

func TestCompileRefuses(t *testing.T) {
	tests := map[string]struct {
		spec string
		want []string // path, and a part of the message
	}{
		"a spec without subsets": {
			spec: `subsets: []`,
			want: []string{"spec.subsets: Required"},
		},
		"a target that names no workload": {
			spec: `{targetRef: {apiVersion: "", kind: "", name: ""}, subsets: [{name: a}]}`,
			want: []string{"spec.targetRef.apiVersion: Invalid", "spec.targetRef.kind: Required", "spec.targetRef.name: Required"},
		},
		"names that are empty, invalid or used twice": {
			spec: `subsets: [{name: a}, {name: a}, {name: ""}, {name: "not a label"}]`,
			want: []string{"spec.subsets[1].name: Duplicate", "spec.subsets[2].name: Required", "spec.subsets[3].name: Invalid"},
		},
		"limits that are neither a count nor a percentage": {
			spec: `subsets: [{name: a, maxReplicas: -1}, {name: b, maxReplicas: "20"}, {name: c, maxReplicas: "101%"}, {name: d, maxReplicas: "-5%"}, {name: e, maxReplicas: "+5%"}]`,
			want: []string{"spec.subsets[0].maxReplicas", "spec.subsets[1].maxReplicas", "spec.subsets[2].maxReplicas", "spec.subsets[3].maxReplicas", "spec.subsets[4].maxReplicas"},
		},
		"counts and percentages in one spread": {
			spec: `subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: "20%"}, {name: c}]`,
			want: []string{"spec.subsets: Invalid value: maxReplicas must be a count in every subset or a percentage in every subset"},
		},
		"percentages above 100": {
			spec: `subsets: [{name: a, maxReplicas: "60%"}, {name: b, maxReplicas: "60%"}, {name: c}]`,
			want: []string{`spec.subsets: Invalid value: "120%": percentages of the subsets must not add up to more`},
		},
		"percentages that leave pods without a subset": {
			spec: `subsets: [{name: a, maxReplicas: "60%"}, {name: b, maxReplicas: "30%"}]`,
			want: []string{`spec.subsets: Invalid value: "90%": percentages of all subsets must add up to 100%`},
		},
		"minimums and weights that are none": {
			spec: `subsets: [{name: a, minReplicas: -1, weight: -1}, {name: b, minReplicas: half, maxReplicas: 3, weight: 1000001}, {name: c, minReplicas: 5, maxReplicas: 4},
				{name: d, minReplicas: "101%"}]`,
			want: []string{
				"spec.subsets[0].minReplicas: Invalid value: -1: must not be negative", "spec.subsets[0].weight: Invalid value: -1: must be in the range 0-1000000",
				`spec.subsets[1].minReplicas: Invalid value: "half": must be a count or a percentage from 0% to 100%`, "spec.subsets[1].weight: Invalid value: 1000001: must be",
				`spec.subsets[2].minReplicas: Invalid value: "5": must not be greater than maxReplicas`,
				`spec.subsets[3].minReplicas: Invalid value: "101%": must be a count or a percentage from 0% to 100%`,
			},
		},
		"minimums and weights that do not go with percentages": {
			spec: `subsets: [{name: a, minReplicas: "60%", maxReplicas: "50%", weight: 1}, {name: b, minReplicas: "41%", maxReplicas: "50%", weight: 0}]`,
			want: []string{
				`spec.subsets[0].minReplicas: Invalid value: "60%": must not be greater than maxReplicas`,
				`spec.subsets[0].weight: Invalid value: 1: weight needs a count in maxReplicas, or no maxReplicas: percentages that add up to 100% are shares already`,
				`spec.subsets: Invalid value: "101%": percentages in minReplicas must not add up to more than 100%`,
			},
		},
		"a required term that selects no node": {
			spec: `subsets: [{name: a, requiredNodeSelector: {}}]`,
			want: []string{"spec.subsets[0].requiredNodeSelector: Required value: an empty term selects no node; leave it out to select every node"},
		},
		"labels of nodes that the API server would refuse in a pod's node affinity": {
			spec: `subsets: [{name: a, requiredNodeSelector: {matchExpressions: [
				{key: "not a key", operator: Exists}, {key: k, operator: In}, {key: k, operator: NotIn, values: []}, {key: k, operator: Exists, values: [v]},
				{key: k, operator: DoesNotExist, values: [v]}, {key: k, operator: Gt, values: ["1", "2"]}, {key: k, operator: Lt, values: [few]},
				{key: k, operator: Among, values: [v]}, {key: k, operator: In, values: [ok, "not a value"]}, {operator: Exists}]}}]`,
			want: []string{
				`matchExpressions[0].key: Invalid value: "not a key"`,
				`matchExpressions[1].values: Invalid value: `,
				`matchExpressions[2].values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty`,
				`matchExpressions[3].values: Invalid value: ["v"]: values set must be empty for exists and does not exist`,
				`matchExpressions[4].values: Invalid value: ["v"]: values set must be empty for exists and does not exist`,
				`matchExpressions[5].values: Invalid value: ["1","2"]: for 'Gt', 'Lt' operators, exactly one value is required`,
				`matchExpressions[6].values[0]: Invalid value: "few": for 'Gt', 'Lt' operators, the value must be an integer`,
				`matchExpressions[7].operator: Unsupported value: "Among"`,
				`matchExpressions[8].values[1][k]: Invalid value: "not a value"`,
				`matchExpressions[9].key: Invalid value: "": name part must be non-empty; name part must consist of`,
			},
		},
		"fields of nodes that the API server would refuse in a pod's node affinity": {
			spec: `subsets: [{name: a, requiredNodeSelector: {matchFields: [
				{key: spec.unschedulable, operator: In, values: ["true"]}, {key: metadata.name, operator: In, values: [a, b]},
				{key: metadata.name, operator: Exists}, {key: metadata.name, operator: NotIn, values: [Not_a_node]}]}}]`,
			want: []string{
				`matchFields[0].key: Unsupported value: "spec.unschedulable": supported values: "metadata.name"`,
				`matchFields[1].values: Invalid value: ["a","b"]: must have one element`,
				`matchFields[2].operator: Unsupported value: "Exists": supported values: "In", "NotIn"`,
				`matchFields[3].values[0]: Invalid value: "Not_a_node"`,
			},
		},
		"preferences that the API server would refuse": {
			spec: `subsets: [{name: a, preferredNodeSelector: [{weight: 0, preference: {matchExpressions: [{key: zone, operator: Exists}]}},
				{weight: 101, preference: {matchExpressions: [{key: zone, operator: In}]}}]}]`,
			want: []string{
				"spec.subsets[0].preferredNodeSelector[0].weight: Invalid value: 0: must be in the range 1-100",
				"spec.subsets[0].preferredNodeSelector[1].weight: Invalid value: 101: must be in the range 1-100",
				"spec.subsets[0].preferredNodeSelector[1].preference.matchExpressions[0].values: Invalid value: ",
			},
		},
		"tolerations that the API server would refuse on a pod": {
			spec: `subsets: [{name: a, tolerations: [{operator: Equal}, {key: "not a key", operator: Exists}, {key: k, operator: Exists, value: v}, {key: k, operator: Near}, {key: k, effect: Never}, {key: k, tolerationSeconds: 5, effect: NoSchedule}]}]`,
			want: []string{"tolerations[0].operator", "tolerations[1].key", "tolerations[2].value", "tolerations[3].operator", "tolerations[4].effect", "tolerations[5].effect"},
		},
		"strategies that do not exist": {
			spec: `{subsets: [{name: a}], scheduleStrategy: {type: Sometimes, binding: Never, quotaScope: Cluster, whenFull: Delete}}`,
			want: []string{"scheduleStrategy.type", "scheduleStrategy.quotaScope", "scheduleStrategy.whenFull", "scheduleStrategy.binding"},
		},
		"adaptive without type Adaptive, and negative times": {
			spec: `{subsets: [{name: a}], scheduleStrategy: {adaptive: {rescheduleCriticalSeconds: -1, unschedulableLastSeconds: -1}}}`,
			want: []string{"scheduleStrategy.adaptive: Forbidden", "adaptive.rescheduleCriticalSeconds", "adaptive.unschedulableLastSeconds"},
		},
		"a replicas path with an empty segment, and a selector with an unknown operator": {
			spec: `{subsets: [{name: a}], targetFilter: {replicasPathList: [spec..replicas], selector: {matchExpressions: [{key: role, operator: Near}]}}}`,
			want: []string{"targetFilter.replicasPathList[0]", "targetFilter.selector"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			policy, errs := Compile(&v1beta1.WorkloadSpread{Spec: *parse(t, tc.spec)}, field.NewPath("spec"))
			if policy != nil {
				t.Errorf("got a policy")
			}
			var got []string
			for _, err := range errs {
				got = append(got, err.Error())
			}
			all := strings.Join(got, "\n")
			for _, want := range tc.want {
				if !strings.Contains(all, want) {
					t.Errorf("no error contains %q in:\n%s", want, all)
				}
			}
			if len(got) != len(tc.want) {
				t.Errorf("got %d errors, want %d:\n%s", len(got), len(tc.want), all)
			}
		})
	}
}

func TestCompileDefaults(t *testing.T) {
	policy := compile(t, `subsets: [{name: a}]`)
	got := []string{string(policy.Strategy), string(policy.Scope), string(policy.WhenFull), string(policy.Binding)}
	if diff := cmp.Diff([]string{"Fixed", "Revision", "Schedule", "Auto"}, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

// TestQuotasOfWorkloadsThatUpdateInPlace count all revisions, unless the spread says otherwise: no bind counts a pod
// that changes its revision in place.
func TestQuotasOfWorkloadsThatUpdateInPlace(t *testing.T) {
	for target, want := range map[string]v1beta1.QuotaScope{
		"apps/v1, kind: Deployment":                 v1beta1.RevisionQuotaScope,
		"apps/v1, kind: StatefulSet":                v1beta1.RevisionQuotaScope,
		"argoproj.io/v1alpha1, kind: Rollout":       v1beta1.RevisionQuotaScope,
		"apps.kruise.io/v1alpha1, kind: CloneSet":   v1beta1.WorkloadQuotaScope,
		"apps.kruise.io/v1beta1, kind: StatefulSet": v1beta1.WorkloadQuotaScope,
		"example.com/v1, kind: Deployment":          v1beta1.WorkloadQuotaScope,
	} {
		reference := "targetRef: {apiVersion: " + target + ", name: web}\nsubsets: [{name: a}]\n"
		if got := compile(t, reference).Scope; got != want {
			t.Errorf("%s: got %s, want %s", target, got, want)
		}
		if got := compile(t, reference+"scheduleStrategy: {quotaScope: Revision}").Scope; got != v1beta1.RevisionQuotaScope {
			t.Errorf("%s: the spread says Revision, got %s", target, got)
		}
	}
}

func TestQuotaRoundsPercentagesUp(t *testing.T) {
	tests := []struct {
		percent, replicas, want int32
	}{
		{20, 5, 1}, {20, 6, 2}, {60, 5, 3}, {60, 6, 4}, {33, 10, 4}, {0, 100, 0}, {100, 7, 7}, {1, 1, 1}, {50, 0, 0}, {20, -3, 0}, {100, 1<<31 - 1, 1<<31 - 1},
	}
	for _, tc := range tests {
		if got := (Limit{kind: percent, value: tc.percent}).Quota(tc.replicas); got != tc.want {
			t.Errorf("%d%% of %d = %d, want %d", tc.percent, tc.replicas, got, tc.want)
		}
	}
}

func TestFits(t *testing.T) {
	const zoneA = `requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}`
	policy := compile(t, `subsets: [{name: a, `+zoneA+`, tolerations: [{key: spot, operator: Exists}]}, {name: b}]`)
	node := func(zone string, taints ...corev1.Taint) *corev1.Node {
		n := &corev1.Node{}
		n.Name, n.Labels, n.Spec.Taints = "n", map[string]string{"zone": zone}, taints
		return n
	}
	spot := corev1.Taint{Key: "spot", Effect: corev1.TaintEffectNoSchedule}
	own := []corev1.Toleration{{Key: "own", Operator: corev1.TolerationOpExists}}
	tests := map[string]struct {
		subset int
		node   *corev1.Node
		want   v1beta1.Reason
	}{
		"a node with the labels fits":                                  {0, node("a"), v1beta1.ReasonAdmitted},
		"a node without them does not":                                 {0, node("b"), v1beta1.ReasonNodeOutsideSubset},
		"the subset's tolerations count":                               {0, node("a", spot), v1beta1.ReasonAdmitted},
		"the pod's own tolerations count":                              {0, node("a", corev1.Taint{Key: "own", Effect: corev1.TaintEffectNoExecute}), v1beta1.ReasonAdmitted},
		"the tolerations of another subset do not":                     {1, node("a", spot), v1beta1.ReasonTaintNotTolerated},
		"a taint that only asks to be avoided keeps nobody away":       {1, node("a", corev1.Taint{Key: "x", Effect: corev1.TaintEffectPreferNoSchedule}), v1beta1.ReasonAdmitted},
		"a subset without a selector takes every node":                 {1, node("z"), v1beta1.ReasonAdmitted},
		"both kinds of tolerations together must cover every taint":    {0, node("a", spot, corev1.Taint{Key: "own", Effect: corev1.TaintEffectNoSchedule}), v1beta1.ReasonAdmitted},
		"one taint that nobody tolerates is enough to keep a pod away": {0, node("a", spot, corev1.Taint{Key: "x", Effect: corev1.TaintEffectNoSchedule}), v1beta1.ReasonTaintNotTolerated},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := policy.Subsets[tc.subset].Fits(tc.node, own); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestPreference(t *testing.T) {
	policy := compile(t, `subsets: [{name: a, preferredNodeSelector: [{weight: 30, preference: {matchExpressions: [{key: disk, operator: In, values: [ssd]}]}}, {weight: 5, preference: {matchExpressions: [{key: zone, operator: Exists}]}}]}]`)
	node := &corev1.Node{}
	node.Labels = map[string]string{"disk": "ssd", "zone": "a"}
	if got := policy.Subsets[0].Preference(node); got != 35 {
		t.Errorf("preference = %d, want the sum of both weights, 35", got)
	}
}

// FuzzCompile: no spec makes Compile panic, and what it accepts can be planned and admitted without surprise.
func FuzzCompile(f *testing.F) {
	f.Add(`{"targetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"},"subsets":[{"name":"a","maxReplicas":3},{"name":"b"}]}`, int32(5))
	f.Add(`{"subsets":[{"name":"a","maxReplicas":"20%","patch":{"metadata":{"labels":{"x":"y"}}}},{"name":"b","maxReplicas":"80%"}]}`, int32(7))
	f.Add(`{"subsets":[{"name":"a","requiredNodeSelector":{"matchExpressions":[{"key":"z","operator":"Gt","values":["1"]}]},"tolerations":[{"operator":"Exists"}]}],"scheduleStrategy":{"type":"Adaptive","adaptive":{}}}`, int32(-1))
	f.Add(`{"subsets":[{"patch":{"spec":{"containers":[null,{"$patch":"delete"}]}}}]}`, int32(0))
	f.Fuzz(func(t *testing.T, text string, replicas int32) {
		spec := &v1beta1.WorkloadSpreadSpec{}
		if err := yaml.Unmarshal([]byte(text), spec); err != nil {
			return
		}
		policy, errs := Compile(&v1beta1.WorkloadSpread{Spec: *spec}, field.NewPath("spec"))
		if (policy == nil) == (len(errs) == 0) {
			t.Fatalf("policy %v with errors %v", policy, errs)
		}
		if policy == nil {
			return
		}
		plan := policy.Plan(replicas)
		checkPlan(t, policy, &plan)
		policy.Admit(&plan, nil, Candidate{})
		for i := range policy.Subsets {
			policy.Subsets[i].Fits(&corev1.Node{}, nil)
		}
	})
}

// TestTheAnnotationOverridesTheInstallation: and a change of either is a change of the policy, although neither changes
// the generation.
func TestTheAnnotationOverridesTheInstallation(t *testing.T) {
	for _, tc := range []struct {
		installation v1beta1.Compatibility
		annotation   string // "-" for none
		binding      v1beta1.BindingMode
		kruise       bool
		early        bool
	}{
		{"", "-", "", false, false},
		{"", "kruise", "", true, true},
		{"", "none", "", false, false},
		{"kruise", "-", "", true, true},
		{"kruise", "none", "", false, false},
		{"kruise", "kruise", "", true, true},
		{"kruise", "-", "Late", true, false},
		{"", "none", "Early", false, true},
	} {
		spread := &v1beta1.WorkloadSpread{Spec: *parse(t, `{targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, subsets: [{name: a, maxReplicas: 3}]}`)}
		spread.Spec.ScheduleStrategy.Binding = tc.binding
		plain := spread.DeepCopy()
		if tc.annotation != "-" {
			spread.Annotations = map[string]string{v1beta1.CompatibilityAnnotation: tc.annotation}
		}
		seen := In(tc.installation, spread)
		policy, errs := Compile(seen, field.NewPath("spec"))
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		if policy.Kruise != tc.kruise || policy.BindsEarly() != tc.early {
			t.Errorf("installation %q, annotation %q: kruise %v, early %v; want %v, %v", tc.installation, tc.annotation, policy.Kruise, policy.BindsEarly(), tc.kruise, tc.early)
		}
		if got := SamePolicy(plain, seen); got == tc.kruise {
			t.Errorf("installation %q, annotation %q: the same policy as without: %v", tc.installation, tc.annotation, got)
		}
	}
	for _, tc := range []struct {
		annotation, own string // empty for none
		want            []string
	}{
		{"kruise", "", []string{"spec.listed"}},
		{"kruise", "spec.own", []string{"spec.own"}},
		{"none", "", nil},
		{"none", "spec.own", []string{"spec.own"}},
	} {
		spread := &v1beta1.WorkloadSpread{Spec: *parse(t, `{targetRef: {apiVersion: example.com/v1, kind: Custom, name: web}, targetFilter: {selector: {matchLabels: {role: worker}}}, subsets: [{name: a}]}`)}
		spread.Annotations = map[string]string{v1beta1.CompatibilityAnnotation: tc.annotation}
		if tc.own != "" {
			spread.Spec.TargetFilter.ReplicasPathList = []string{tc.own}
		}
		unlisted := spread.DeepCopy()
		spread.Status.ReplicasPathList = []string{"spec.listed"}
		policy, errs := Compile(spread, field.NewPath("spec"))
		if got := ReplicaPaths(spread); len(errs) > 0 || !slices.Equal(got, tc.want) || policy.IsPart != (tc.want == nil) {
			t.Errorf("%+v: got %v, %v", tc, got, errs)
		}
		if got, want := SamePolicy(unlisted, spread), tc.own != "" || tc.annotation == "none"; got != want {
			t.Errorf("%+v: the same policy as without the list: %v", tc, got)
		}
	}
	broken := &v1beta1.WorkloadSpread{Spec: *parse(t, `{targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, subsets: [{name: a}]}`)}
	broken.Annotations = map[string]string{v1beta1.CompatibilityAnnotation: "Kruise"}
	_, errs := Compile(broken, field.NewPath("spec"))
	want := `metadata.annotations[berth.dev/compatibility]: Unsupported value: "Kruise": supported values: "kruise", "none"`
	if len(errs) != 1 || errs[0].Error() != want {
		t.Errorf("got %v, want %s", errs, want)
	}
}
