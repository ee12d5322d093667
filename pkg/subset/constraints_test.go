package subset

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// pools is a spread over two node pools, of which the second is tainted.
const pools = `
- {name: a, maxReplicas: 3, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
- name: b
  requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}
  tolerations: [{key: spot, operator: Exists, effect: NoSchedule}]`

func podWith(t *testing.T, spec string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestWhatAdmissionAdds(t *testing.T) {
	const (
		poolA      = `{matchExpressions: [{key: pool, operator: In, values: [a]}]}`
		poolB      = `{matchExpressions: [{key: pool, operator: In, values: [b]}]}`
		spot       = `{key: spot, operator: Exists, effect: NoSchedule}`
		required   = `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [%s]}}}`
		unreached  = `{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}`
		allLimited = `[{name: a, maxReplicas: 1, requiredNodeSelector: ` + poolA + `}, {name: b, maxReplicas: 0, tolerations: [` + spot + `], requiredNodeSelector: ` + poolB + `}]`
	)
	either := poolA + ", " + poolB
	tests := map[string]struct {
		subsets, strategy string
		pod               string
		want              string
		record            string
	}{
		"the terms of the subsets are alternatives, and their tolerations a union": {
			subsets: pools,
			want:    "tolerations: [" + spot + "]\n" + fmt.Sprintf(required, either),
			record:  `{tolerations: [` + spot + `], terms: [` + either + `]}`,
		},
		"the pod's own tolerations stay where they are": {
			subsets: pools,
			pod:     "tolerations: [" + unreached + "]",
			want:    "tolerations: [" + unreached + ", " + spot + "]\n" + fmt.Sprintf(required, either),
			record:  `{tolerations: [` + spot + `], terms: [` + either + `]}`,
		},
		"a toleration that the pod has itself is its own": {
			subsets: pools,
			pod:     "tolerations: [" + spot + "]",
			want:    "tolerations: [" + spot + "]\n" + fmt.Sprintf(required, either),
			record:  `{terms: [` + either + `]}`,
		},
		"a toleration without operator is one with Equal": {
			subsets: `[{name: a, tolerations: [{key: k, value: v, operator: Equal}]}]`,
			pod:     "tolerations: [{key: k, value: v}]",
			want:    "tolerations: [{key: k, value: v}]",
		},
		"tolerations that differ in their seconds are two": {
			subsets: `[{name: a, tolerations: [{key: k, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]}, {name: b, tolerations: [{key: k, operator: Exists, effect: NoExecute}]}]`,
			pod:     "tolerations: [{key: k, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]",
			want:    "tolerations: [{key: k, operator: Exists, effect: NoExecute, tolerationSeconds: 5}, {key: k, operator: Exists, effect: NoExecute}]",
			record:  `{tolerations: [{key: k, operator: Exists, effect: NoExecute}]}`,
		},
		"each term of the subsets is joined to each of the pod's own": {
			subsets: pools,
			pod:     fmt.Sprintf(required, `{matchExpressions: [{key: arch, operator: Exists}]}, {matchFields: [{key: metadata.name, operator: In, values: [n]}]}`),
			want: "tolerations: [" + spot + "]\n" + fmt.Sprintf(required, `
				{matchExpressions: [{key: arch, operator: Exists}, {key: pool, operator: In, values: [a]}]},
				{matchExpressions: [{key: arch, operator: Exists}, {key: pool, operator: In, values: [b]}]},
				{matchFields: [{key: metadata.name, operator: In, values: [n]}], matchExpressions: [{key: pool, operator: In, values: [a]}]},
				{matchFields: [{key: metadata.name, operator: In, values: [n]}], matchExpressions: [{key: pool, operator: In, values: [b]}]}`),
			record: `{tolerations: [` + spot + `], terms: [` + either + `], own: [{matchExpressions: [{key: arch, operator: Exists}]}, {matchFields: [{key: metadata.name, operator: In, values: [n]}]}]}`,
		},
		"an own term that is inside a subset already stays as it is": {
			subsets: pools,
			pod:     fmt.Sprintf(required, `{matchExpressions: [{key: arch, operator: Exists}, {key: pool, operator: In, values: [b]}]}`),
			want:    "tolerations: [" + spot + "]\n" + fmt.Sprintf(required, `{matchExpressions: [{key: arch, operator: Exists}, {key: pool, operator: In, values: [b]}]}`),
			record:  `{tolerations: [` + spot + `]}`,
		},
		"an own term without requirements selects no node, and does not begin to": {
			subsets: pools,
			pod:     fmt.Sprintf(required, `{}, {matchExpressions: [{key: arch, operator: Exists}, {key: pool, operator: In, values: [a]}]}, {matchExpressions: [{key: x, operator: Exists}]}`),
			want: "tolerations: [" + spot + "]\n" + fmt.Sprintf(required, `{},
				{matchExpressions: [{key: arch, operator: Exists}, {key: pool, operator: In, values: [a]}]},
				{matchExpressions: [{key: x, operator: Exists}, {key: pool, operator: In, values: [a]}]},
				{matchExpressions: [{key: x, operator: Exists}, {key: pool, operator: In, values: [b]}]}`),
			record: `{tolerations: [` + spot + `], terms: [` + either + `], own: [{}, {matchExpressions: [{key: arch, operator: Exists}, {key: pool, operator: In, values: [a]}]}, {matchExpressions: [{key: x, operator: Exists}]}]}`,
		},
		"a selector that is invalid stays so": {
			subsets: pools,
			pod:     fmt.Sprintf(required, ``),
			want:    "tolerations: [" + spot + "]\n" + fmt.Sprintf(required, ``),
			record:  `{tolerations: [` + spot + `]}`,
		},
		"preferences of the pod stay, and those of a subset are not added": {
			subsets: `[{name: a, requiredNodeSelector: ` + poolA + `, preferredNodeSelector: [{weight: 1, preference: ` + poolB + `}]}]`,
			pod:     `affinity: {podAntiAffinity: {}, nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 5, preference: {}}]}}`,
			want: `affinity: {podAntiAffinity: {}, nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 5, preference: {}}],
				requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [` + poolA + `]}}}`,
			record: `{terms: [` + poolA + `]}`,
		},
		"subsets of the same nodes are one alternative, and a subset inside another is none": {
			subsets: `[{name: a, requiredNodeSelector: ` + poolA + `}, {name: b, requiredNodeSelector: ` + poolA + `},
				{name: c, requiredNodeSelector: {matchExpressions: [{key: disk, operator: Exists}, {key: pool, operator: In, values: [a]}]}}]`,
			want:   fmt.Sprintf(required, poolA),
			record: `{terms: [` + poolA + `]}`,
		},
		"a wider subset takes the place of narrower ones before it": {
			subsets: `[{name: c, requiredNodeSelector: {matchExpressions: [{key: disk, operator: Exists}, {key: pool, operator: In, values: [a]}]}}, {name: a, requiredNodeSelector: ` + poolA + `}]`,
			want:    fmt.Sprintf(required, poolA),
			record:  `{terms: [` + poolA + `]}`,
		},
		"if a subset takes any node, there are no terms": {
			subsets: `[{name: a, maxReplicas: 1, requiredNodeSelector: ` + poolA + `}, {name: b, tolerations: [` + spot + `]}]`,
			want:    "tolerations: [" + spot + "]",
			record:  `{tolerations: [` + spot + `]}`,
		},
		"if pods are let go when all subsets are full, and they can be, there are no terms": {
			subsets: allLimited,
			want:    "tolerations: [" + spot + "]",
			record:  `{tolerations: [` + spot + `]}`,
		},
		"percentages limit a subset too": {
			subsets: `[{name: a, maxReplicas: 50%, requiredNodeSelector: ` + poolA + `}, {name: b, maxReplicas: 50%, requiredNodeSelector: ` + poolB + `}]`,
		},
		"if pods wait when all subsets are full, there are": {
			subsets: allLimited, strategy: "{whenFull: Wait}",
			want:   "tolerations: [" + spot + "]\n" + fmt.Sprintf(required, either),
			record: `{tolerations: [` + spot + `], terms: [` + either + `]}`,
		},
		"a spread without terms and tolerations adds nothing": {
			subsets: `[{name: a}]`,
			pod:     "tolerations: [" + unreached + "]",
			want:    "tolerations: [" + unreached + "]",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			policy := compile(t, "subsets: "+tc.subsets+"\nscheduleStrategy: "+cmpOr(tc.strategy, "{}"))
			got := podWith(t, tc.pod)
			if policy.Constraints.AddTo(got) {
				t.Error("something was left out")
			}
			// A literal block may be indented by tabs, which YAML does not take.
			want := podWith(t, strings.ReplaceAll(tc.want, "\t", ""))
			if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			var wantRecord, gotRecord record
			if err := yaml.UnmarshalStrict([]byte(tc.record), &wantRecord); err != nil {
				t.Fatal(err)
			}
			value, noted := got.Annotations[v1beta1.ConstraintsAnnotation]
			if noted != (tc.record != "") {
				t.Fatalf("noted: %q", value)
			}
			if noted {
				if err := json.Unmarshal([]byte(value), &gotRecord); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(wantRecord, gotRecord); diff != "" {
				t.Errorf("noted (-want +got):\n%s", diff)
			}
		})
	}
}

func cmpOr(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

func TestConstraintsThatAreTooMuchForAPodAreLeftOut(t *testing.T) {
	subsets := func(n int, more string) string {
		var all strings.Builder
		for i := range n {
			fmt.Fprintf(&all, "- {name: s%[1]d, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [p%[1]d]}]}"+more+"}\n", i)
		}
		return "subsets:\n" + all.String()
	}
	ownTerms := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("{matchExpressions: [{key: own, operator: In, values: [o%d]}]}", i))
		}
		return "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" + strings.Join(all, ",") + "]}}}"
	}
	const toleration = ", tolerations: [{key: k%[1]d, operator: Exists}]"
	long := ", tolerations: [{key: k%[1]d, operator: Equal, value: v, effect: NoSchedule}" + strings.Repeat(", {key: "+strings.Repeat("x", 60)+", operator: Exists}", 63) + "]"
	var many strings.Builder
	many.WriteString(", tolerations: [{key: k%[1]d, operator: Exists}")
	for i := range 63 {
		fmt.Fprintf(&many, ", {key: k%d-%s-%%[1]d, operator: Exists}", i, strings.Repeat("x", 40))
	}
	many.WriteString("]")
	tests := map[string]struct {
		subsets, pod          string
		wantTerms             int
		wantTolerations       int
		wantTooMany, ownTerms bool
	}{
		"every subset there may be, for a pod without terms":        {subsets(64, toleration), "", 64, 64, false, false},
		"every subset there may be, for a pod with two terms":       {subsets(64, toleration), ownTerms(2), 128, 64, false, false},
		"more than 128 terms are not made":                          {subsets(43, toleration), ownTerms(3), 3, 43, true, true},
		"one subset makes no more of them than there are":           {subsets(1, toleration), ownTerms(200), 200, 1, false, false},
		"tolerations of all subsets are a set":                      {subsets(64, long), "", 64, 65, false, false},
		"tolerations that an annotation does not hold are left out": {subsets(64, many.String()), "", 0, 0, true, false},
		"terms that an annotation does not hold are left alone":     {strings.ReplaceAll(subsets(64, toleration), "values: [p", "values: ["+strings.Repeat("x, ", 800)+"p"), ownTerms(1), 1, 64, true, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			policy := compile(t, tc.subsets)
			pod := podWith(t, tc.pod)
			before := pod.DeepCopy()
			tooMany := policy.Constraints.AddTo(pod)
			if got := len(requiredTerms(pod)); got != tc.wantTerms {
				t.Errorf("%d terms, want %d", got, tc.wantTerms)
			}
			if got := len(pod.Spec.Tolerations); got != tc.wantTolerations {
				t.Errorf("%d tolerations, want %d", got, tc.wantTolerations)
			}
			if tooMany != tc.wantTooMany {
				t.Errorf("too many: %t", tooMany)
			}
			if tc.ownTerms && !cmp.Equal(before.Spec.Affinity, pod.Spec.Affinity) {
				t.Error("the pod's own terms were changed")
			}
			if size := len(pod.Annotations[v1beta1.ConstraintsAnnotation]); size > maxRecord {
				t.Errorf("the annotation has %d bytes", size)
			}
		})
	}
}

// A node that is announced to go gets no new pods, although the pods there may stay for some seconds.
func TestATolerationForSomeSecondsLetsNoNewPodIn(t *testing.T) {
	node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "interruption", Effect: corev1.TaintEffectNoExecute}}}}
	const text = `subsets: [{name: spot, tolerations: [{key: interruption, operator: Exists, effect: NoExecute%s}]}]`
	own := []corev1.Toleration{{Key: "interruption", Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](3)}}
	for name, tc := range map[string]struct {
		seconds string
		own     []corev1.Toleration
		want    bool
	}{
		"for good":                           {"", nil, true},
		"for some seconds":                   {", tolerationSeconds: 3", nil, false},
		"if the template of the pod says it": {", tolerationSeconds: 3", own, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := compile(t, fmt.Sprintf(text, tc.seconds)).Subsets[0].Tolerates(node, tc.own); got != tc.want {
				t.Errorf("tolerates: %t, want %t", got, tc.want)
			}
		})
	}
}

func TestTolerationsCompareNumbers(t *testing.T) {
	node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "risk", Value: "9", Effect: corev1.TaintEffectNoExecute}}}}
	below := func(limit string) []corev1.Toleration {
		return []corev1.Toleration{{Key: "risk", Operator: corev1.TolerationOpLt, Value: limit}}
	}
	tests := map[string]struct {
		own, subset []corev1.Toleration
		want        bool
	}{
		"of the pod":                   {own: below("10"), want: true},
		"of the subset":                {subset: below("10"), want: true},
		"and not in other ways":        {own: below("9"), subset: below("5")},
		"and refuse what is no number": {own: below("high")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := (&Subset{lasting: tc.subset}).Tolerates(node, tc.own); got != tc.want {
				t.Errorf("tolerates: %t, want %t", got, tc.want)
			}
		})
	}
}

func TestOwnTolerations(t *testing.T) {
	toleration := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
	}
	all := func(keys string) (all []corev1.Toleration) {
		for _, key := range strings.Fields(keys) {
			all = append(all, toleration(key))
		}
		return all
	}
	tests := map[string]struct{ pod, record, want string }{
		"without a note all are the pod's own":                    {"a b", "", "a b"},
		"those that were added are not":                           {"a b c", "b c", "a"},
		"what others insert before and behind is the pod's own":   {"x a b y c z", "b c", "x a y z"},
		"what was added and is gone takes no other with it":       {"a c", "b c", "a"},
		"of two equal ones, one was added":                        {"a b b", "b", "a b"},
		"a note that cannot be read was not written by Berth":     {"a b", "{", "a b"},
		"a note of another kind was not written by Berth either":  {"a b", "[1]", "a b"},
		"a pod without tolerations has none, whatever note it is": {"", "a", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			pod.Spec.Tolerations = all(tc.pod)
			switch {
			case strings.ContainsAny(tc.record, "{["):
				pod.Annotations = map[string]string{v1beta1.ConstraintsAnnotation: tc.record}
			case tc.record != "":
				value, _ := encode(&record{Tolerations: all(tc.record)})
				pod.Annotations = map[string]string{v1beta1.ConstraintsAnnotation: value}
			}
			if diff := cmp.Diff(all(tc.want), OwnTolerations(pod), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("own (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOthersMayChangeThePodBetweenTwoCalls(t *testing.T) {
	policy := compile(t, "subsets: "+pools)
	tests := map[string]func(*corev1.Pod){
		"a toleration behind": func(p *corev1.Pod) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "x", Operator: corev1.TolerationOpExists})
		},
		"a toleration before": func(p *corev1.Pod) {
			p.Spec.Tolerations = append([]corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists}}, p.Spec.Tolerations...)
		},
		"a requirement in every term": func(p *corev1.Pod) {
			selector := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			terms := slices.Clone(selector.NodeSelectorTerms)
			for i := range terms {
				terms[i].MatchExpressions = append(slices.Clip(terms[i].MatchExpressions), corev1.NodeSelectorRequirement{Key: "arch", Operator: corev1.NodeSelectorOpExists})
			}
			selector.NodeSelectorTerms = terms
		},
		"all tolerations replaced": func(p *corev1.Pod) { p.Spec.Tolerations = nil },
		"all affinity replaced":    func(p *corev1.Pod) { p.Spec.Affinity = nil },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			policy.Constraints.AddTo(pod)
			change(pod)
			own := OwnTolerations(pod)
			policy.Constraints.AddTo(pod)
			if diff := cmp.Diff(own, OwnTolerations(pod), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("own tolerations (-before +after):\n%s", diff)
			}
			if !hasToleration(pod.Spec.Tolerations, &policy.Constraints.tolerations[0]) {
				t.Errorf("tolerations %v", pod.Spec.Tolerations)
			}
			if terms := requiredTerms(pod); len(terms) != 2 || !implies(&terms[0], &policy.Constraints.terms[0]) || !implies(&terms[1], &policy.Constraints.terms[1]) {
				t.Errorf("terms %v", terms)
			}
			again := pod.DeepCopy()
			policy.Constraints.AddTo(again)
			if diff := cmp.Diff(pod, again); diff != "" {
				t.Errorf("not at rest (-before +after):\n%s", diff)
			}
		})
	}
}

// randomSpread has subsets of few labels and tolerations, so that they overlap.
func randomSpread(r *rand.Rand) string {
	var b strings.Builder
	b.WriteString("subsets:\n")
	for i := range 1 + r.IntN(4) {
		fmt.Fprintf(&b, "- name: s%d\n", i)
		if r.IntN(3) > 0 {
			fmt.Fprintf(&b, "  maxReplicas: %d\n", r.IntN(3))
		}
		if r.IntN(6) > 0 {
			fmt.Fprintf(&b, "  requiredNodeSelector: %s\n", randomTerm(r))
		}
		if r.IntN(2) > 0 {
			fmt.Fprintf(&b, "  tolerations: %s\n", randomTolerations(r))
		}
	}
	fmt.Fprintf(&b, "scheduleStrategy: {whenFull: %s}\n", []string{"Schedule", "Wait"}[r.IntN(2)])
	return b.String()
}

func randomTerm(r *rand.Rand) string {
	var all []string
	for range 1 + r.IntN(2) {
		all = append(all, fmt.Sprintf("{key: %c, operator: %s, values: [%q]}", 'x'+r.IntN(3), []string{"In", "NotIn"}[r.IntN(2)], fmt.Sprint(r.IntN(2))))
	}
	return "{matchExpressions: [" + strings.Join(all, ", ") + "]}"
}

func randomTolerations(r *rand.Rand) string {
	var all []string
	for range r.IntN(3) {
		all = append(all, fmt.Sprintf("{key: t%d, operator: Exists, effect: %s}", r.IntN(3), []string{"NoSchedule", "NoExecute"}[r.IntN(2)]))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

func randomPod(r *rand.Rand) string {
	spec := "tolerations: " + randomTolerations(r) + "\n"
	if terms := r.IntN(4); terms > 0 {
		var all []string
		for range terms {
			all = append(all, randomTerm(r))
		}
		spec += "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" + strings.Join(all, ", ") + "]}}}\n"
	}
	return spec
}

// allNodes are all combinations of labels and taints that random pods and spreads speak of.
func allNodes() []*corev1.Node {
	var all []*corev1.Node
	for combination := range 64 {
		node := &corev1.Node{}
		node.Labels = map[string]string{}
		for i, key := range []string{"x", "y", "z"} {
			node.Labels[key] = fmt.Sprint(combination >> i & 1)
		}
		for i := range 3 {
			if combination>>(3+i)&1 == 1 {
				node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: fmt.Sprintf("t%d", i), Effect: corev1.TaintEffectNoSchedule})
			}
		}
		all = append(all, node)
	}
	return all
}

func TestConstraintsOfRandomSpreadsAndPods(t *testing.T) {
	nodes := allNodes()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 4))
		policy, before := compile(t, randomSpread(r)), compile(t, randomSpread(r))
		own := podWith(t, randomPod(r))

		pod := own.DeepCopy()
		policy.Constraints.AddTo(pod)
		fail := func(rule string, args ...any) {
			t.Helper()
			t.Fatalf("seed %d: %s\nown %+v\nadded to %+v\n%s", seed, rule, own.Spec, pod.Spec, fmt.Sprint(args...))
		}
		if diff := cmp.Diff(own.Spec.Tolerations, OwnTolerations(pod), cmpopts.EquateEmpty()); diff != "" {
			fail("the pod's own tolerations can be told exactly", diff)
		}
		again := pod.DeepCopy()
		policy.Constraints.AddTo(again)
		if diff := cmp.Diff(pod, again); diff != "" {
			fail("adding twice is adding once", diff)
		}
		changed := own.DeepCopy()
		before.Constraints.AddTo(changed)
		policy.Constraints.AddTo(changed)
		if diff := cmp.Diff(pod, changed, cmpopts.EquateEmpty()); diff != "" {
			fail("what another spread added leaves no trace", diff)
		}
		(&Constraints{}).AddTo(changed)
		if diff := cmp.Diff(own, changed, cmpopts.EquateEmpty()); diff != "" {
			fail("adding nothing takes back what was added", diff)
		}

		ownAffinity, affinity := nodeaffinity.GetRequiredNodeAffinity(own), nodeaffinity.GetRequiredNodeAffinity(pod)
		anyTolerates := func(node *corev1.Node, tolerations []corev1.Toleration) bool {
			return (&Subset{}).Tolerates(node, tolerations)
		}
		for _, node := range nodes {
			wants, err := ownAffinity.Match(node)
			if err != nil {
				t.Fatal(err)
			}
			matches, err := affinity.Match(node)
			if err != nil {
				t.Fatal(err)
			}
			held := false
			for i := range policy.Subsets {
				s := &policy.Subsets[i]
				held = held || s.Holds(node)
				if wants && s.Fits(node, own.Spec.Tolerations) == v1beta1.ReasonAdmitted && (!matches || !anyTolerates(node, pod.Spec.Tolerations)) {
					fail("a node that a subset gives the pod is never excluded", node.Labels, node.Spec.Taints, s.Name)
				}
			}
			if narrowed := policy.Constraints.terms != nil; narrowed && matches != (wants && held) {
				fail("with terms, the pod may use the nodes that it wants and some subset holds, and no other", node.Labels)
			} else if !narrowed && matches != wants {
				fail("without terms, the pod may use the nodes that it wants", node.Labels)
			}
		}
	}
}

func TestAPodIsNarrowedToTheNodesOfItsSubset(t *testing.T) {
	nodes := allNodes()
	unchanged := 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 5))
		policy := compile(t, randomSpread(r))
		pod := podWith(t, randomPod(r))
		stale := false
		switch r.IntN(4) {
		case 0: // the webhook was down
		case 1:
			before := compile(t, randomSpread(r))
			before.Constraints.AddTo(pod)
			stale = true
		case 2:
			policy.Subsets[0].Constraints.AddTo(pod)
		default:
			policy.Constraints.AddTo(pod)
		}
		before, own := pod.DeepCopy(), OwnTolerations(pod)
		for i := range policy.Subsets {
			s := &policy.Subsets[i]
			narrow := s.Narrow(pod, own)
			if narrow == pod {
				unchanged++
			}
			for _, node := range nodes {
				wide, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
				if err != nil {
					t.Fatal(err)
				}
				matches, err := nodeaffinity.GetRequiredNodeAffinity(narrow).Match(node)
				if err != nil {
					t.Fatal(err)
				}
				if want := wide && s.Holds(node); matches != want {
					t.Fatalf("seed %d: narrowed to %s it may use node %v: %t, want %t\n%+v\n%+v", seed, s.Name, node.Labels, matches, want, pod.Spec, narrow.Spec)
				}
				var any Subset
				tolerates, want := any.Tolerates(node, narrow.Spec.Tolerations), any.Tolerates(node, pod.Spec.Tolerations) && s.Tolerates(node, own)
				if tolerates && !want || tolerates != want && !stale {
					t.Fatalf("seed %d: narrowed to %s it tolerates %v: %t, want %t\n%+v\n%+v", seed, s.Name, node.Spec.Taints, tolerates, want, pod.Spec, narrow.Spec)
				}
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Fatalf("seed %d: the pod itself has changed:\n%s", seed, diff)
			}
		}
	}
	if unchanged < 100 {
		t.Errorf("%d pods need no narrowing", unchanged)
	}
}

// FuzzConstraints: no note and no pod make AddTo panic, it is at rest after one call, and never takes a toleration that
// is not noted.
func FuzzConstraints(f *testing.F) {
	f.Add(`{"tolerations":[{"key":"spot","operator":"Exists"}],"terms":[{"matchExpressions":[{"key":"pool","operator":"Exists"}]}]}`,
		`{"tolerations":[{"key":"spot","operator":"Exists"}],"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"pool","operator":"Exists"}]}]}}}}`,
		`[{"name":"a","requiredNodeSelector":{"matchExpressions":[{"key":"pool","operator":"In","values":["a"]}]},"tolerations":[{"operator":"Exists"}]}]`)
	f.Add(`{"own":[{}],"terms":[{}]}`, `{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{}}}}`, `[{"name":"a"}]`)
	f.Add(`null`, `{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{},{}]}}}}`, `[]`)
	f.Fuzz(func(t *testing.T, note, spec, subsets string) {
		spread := &v1beta1.WorkloadSpreadSpec{TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
		pod := &corev1.Pod{}
		if json.Unmarshal([]byte(spec), &pod.Spec) != nil || json.Unmarshal([]byte(subsets), &spread.Subsets) != nil {
			return
		}
		policy, _ := Compile(&v1beta1.WorkloadSpread{Spec: *spread}, field.NewPath("spec"))
		if policy == nil {
			return
		}
		if note != "" {
			pod.Annotations = map[string]string{v1beta1.ConstraintsAnnotation: note}
		}
		own := OwnTolerations(pod)
		policy.Constraints.AddTo(pod)
		if got := OwnTolerations(pod); len(got) < len(own) {
			t.Errorf("own tolerations were %v and are %v", own, got)
		}
		again := pod.DeepCopy()
		policy.Constraints.AddTo(again)
		if diff := cmp.Diff(pod, again); diff != "" {
			t.Errorf("not at rest (-once +twice):\n%s", diff)
		}
	})
}

func BenchmarkAddTo(b *testing.B) {
	spec := &v1beta1.WorkloadSpreadSpec{}
	if err := yaml.Unmarshal([]byte("targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\nsubsets: "+pools), spec); err != nil {
		b.Fatal(err)
	}
	policy, errs := Compile(&v1beta1.WorkloadSpread{Spec: *spec}, field.NewPath("spec"))
	if policy == nil {
		b.Fatal(errs)
	}
	for b.Loop() {
		policy.Constraints.AddTo(&corev1.Pod{})
	}
}
