package lineage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	"github.com/berth-project/berth/pkg/workload"
)

var deployments = schema.GroupKind{Group: "apps", Kind: "Deployment"}

func ruleOf(t *testing.T, text string) *v1alpha1.SpreadRule {
	t.Helper()
	rule := &v1alpha1.SpreadRule{}
	if err := yaml.UnmarshalStrict([]byte(text), rule); err != nil {
		t.Fatal(err)
	}
	return rule
}

const valid = `
metadata: {namespace: shop, name: web}
spec:
  target: {apiVersion: apps/v1, kind: Deployment, selector: {matchLabels: {tier: web}}}
  spread: {subsets: [{name: a, maxReplicas: 30%}, {name: b}]}
`

func TestCompileSaysWhatIsWrong(t *testing.T) {
	for name, tc := range map[string]struct{ change, to, want string }{
		"nothing":               {"", "", ""},
		"every workload":        {"{matchLabels: {tier: web}}", "{}", ""},
		"no subsets":            {"subsets: [{name: a, maxReplicas: 30%}, {name: b}]", "subsets: []", "spec.spread.subsets"},
		"a percentage too high": {"30%", "130%", "spec.spread.subsets[0].maxReplicas"},
		"a selector":            {"matchLabels: {tier: web}", "matchExpressions: [{key: tier, operator: Like}]", "spec.target.selector"},
		"a version":             {"apps/v1", "apps/v1/x", "spec.target.apiVersion"},
		"no kind":               {"kind: Deployment", `kind: ""`, "spec.target.kind"},
		"a kind without spread": {"kind: Deployment", "kind: DaemonSet", "spec.target.kind"},
		"a UnitedDeployment":    {"apiVersion: apps/v1, kind: Deployment", "apiVersion: apps.kruise.io/v1beta1, kind: UnitedDeployment", "spec.target.kind"},
		"a large selector":      {"matchLabels: {tier: web}", "matchExpressions: [{key: tier, operator: In, values: [" + strings.TrimSuffix(strings.Repeat("a, ", maxSelector), ", ") + "]}]", "spec.target.selector"},
		"a long name":           {"name: web}", "name: " + strings.Repeat("w", 64) + "}", "metadata.name"},
	} {
		t.Run(name, func(t *testing.T) {
			rule, errs := CompileRule(ruleOf(t, strings.Replace(valid, tc.change, tc.to, 1)))
			if (rule == nil) != (len(errs) > 0) {
				t.Fatalf("rule %v, errors %v", rule, errs)
			}
			var fields []string
			for _, err := range errs {
				fields = append(fields, err.Field)
			}
			if got := strings.Join(slices.Compact(fields), " "); got != tc.want {
				t.Errorf("errors at %q, want %q: %v", got, tc.want, errs)
			}
		})
	}
}

// TestARandomRuleCountsWhichTheDocumentsSay: the nearest scope, then the oldest, then the name that sorts first. All of that scope that pick the workload are in conflict.
func TestARandomRuleCountsWhichTheDocumentsSay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	label := func() labels.Set {
		return labels.Set{"tier": []string{"web", "api"}[random.IntN(2)]}
	}
	for range 2_000 {
		var all []*Rule
		for i := range random.IntN(6) {
			r := &Rule{NamespacedName: types.NamespacedName{Name: fmt.Sprint("rule-", i)}, Kind: deployments, workloads: labels.SelectorFromSet(label()), created: metav1.Unix(random.Int64N(3), 0)}
			if random.IntN(4) == 0 {
				r.workloads = labels.Everything()
			}
			if random.IntN(2) == 0 {
				r.Namespace = "shop"
			}
			all = append(all, r)
		}
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		object := &metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: label()}
		verdict := PickRule(all, deployments, object)

		var want *Rule
		equal := 0
		for _, r := range all {
			if !r.workloads.Matches(labels.Set(object.Labels)) {
				continue
			}
			switch {
			case want == nil || want.Namespace == "" && r.Namespace != "":
				want, equal = r, 0
			case want.Namespace != r.Namespace:
			default:
				equal++
				if r.created.Before(&want.created) || r.created.Equal(&want.created) && r.Name < want.Name {
					want = r
				}
			}
		}
		if verdict.Rule != want || len(verdict.Equals) != equal {
			t.Fatalf("%v counts beside %v, want %v beside %d, of %v", verdict.Rule, verdict.Equals, want, equal, all)
		}
		if other := (schema.GroupKind{Group: "batch", Kind: "Job"}); PickRule(all, other, object).Rule != nil {
			t.Fatalf("a rule of Deployments picks a Job")
		}
		object.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps.kruise.io/v1beta1", Kind: "UnitedDeployment", Name: "all", Controller: ptr.To(true)}}
		if PickRule(all, deployments, object).Rule != nil {
			t.Fatal("a rule picks what another object controls")
		}
	}
}

func TestNoClusterWideRulePicksTheClustersOwnNamespaces(t *testing.T) {
	wide := &Rule{namespaces: labels.Everything()}
	for namespace, want := range map[string]bool{"shop": true, "default": true, "kube-system": false, "kube-public": false, "kube-node-lease": false, "berth-system": false} {
		if got := wide.AppliesIn(namespace, nil); got != want {
			t.Errorf("%s: %v", namespace, got)
		}
	}
	own := &Rule{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}, namespaces: labels.Everything()}
	if own.AppliesIn("other", nil) {
		t.Error("a SpreadRule picks workloads of another namespace")
	}
}

func TestTheSpreadOfARule(t *testing.T) {
	rule, errs := CompileRule(ruleOf(t, valid))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	object := &metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1", CreationTimestamp: metav1.NewTime(time.Unix(1, 0))}
	spread := rule.SpreadFor(object)
	if maker, made := workload.MakerOf(spread); !made || maker != rule.NamespacedName {
		t.Errorf("made by %v", maker)
	}
	if len(spread.OwnerReferences) != 1 || spread.OwnerReferences[0].UID != "1" || spread.OwnerReferences[0].Controller != nil {
		t.Errorf("owners %v: the spread goes with the workload, which does not control it", spread.OwnerReferences)
	}
	if !rule.UsesPercent {
		t.Error("the rule has a percentage")
	}
	names := map[string]bool{}
	for _, name := range []string{"web", strings.Repeat("w", 253), strings.Repeat("w", 252) + "x"} {
		for _, kind := range []schema.GroupKind{deployments, {Group: "apps", Kind: "StatefulSet"}, {Group: "apps.kruise.io", Kind: "StatefulSet"}} {
			made := SpreadName(kind, name)
			if names[made] || len(validation.IsDNS1123Subdomain(made)) > 0 {
				t.Errorf("name %q", made)
			}
			names[made] = true
		}
	}
}
