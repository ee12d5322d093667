package rule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	"github.com/berth-project/berth/pkg/lineage"
)

// cluster is a fake API server with a maker. now is the time.
type cluster struct {
	*testing.T
	client.Client
	maker *maker
	clock *testingclock.FakeClock
}

func newCluster(t *testing.T, objects ...client.Object) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	of := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	now := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	w := &world{Reader: of, kinds: lineage.NewKinds(of.RESTMapper(), of, clock.RealClock{}), store: &lineage.Rules{Reader: of}}
	return &cluster{t, of, &maker{world: w, client: of, clock: now, pace: frame.Pace{Interval: frame.StatusInterval}}, now}
}

// reconcile looks at the namespace, and returns when it asks to look again.
func (c *cluster) reconcile() time.Duration {
	c.Helper()
	result, err := c.maker.Reconcile(c.Context(), forNamespace("shop"))
	if err != nil {
		c.Fatal(err)
	}
	return result.RequeueAfter
}

// expect compares the spreads: "web: 30%" of each, by the name of the workload.
func (c *cluster) expect(want ...string) {
	c.Helper()
	var list v1beta1.WorkloadSpreadList
	if err := c.List(c.Context(), &list); err != nil {
		c.Fatal(err)
	}
	var got []string
	for i := range list.Items {
		got = append(got, fmt.Sprintf("%s: %s", list.Items[i].Spec.TargetReference.Name, list.Items[i].Spec.Subsets[0].MaxReplicas))
	}
	slices.Sort(got)
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		c.Errorf("spreads %v, want %v", got, want)
	}
}

func (c *cluster) do(do func(context.Context, client.Object) error, objects ...client.Object) {
	c.Helper()
	for _, object := range objects {
		if err := do(c.Context(), object); err != nil {
			c.Fatal(err)
		}
	}
}

func (c *cluster) create(objects ...client.Object) {
	c.Helper()
	c.do(func(ctx context.Context, o client.Object) error { return c.Create(ctx, o) }, objects...)
}

func (c *cluster) update(objects ...client.Object) {
	c.Helper()
	c.do(func(ctx context.Context, o client.Object) error {
		o.SetGeneration(o.GetGeneration() + 1)
		return c.Update(ctx, o)
	}, objects...)
}

func (c *cluster) remove(objects ...client.Object) {
	c.Helper()
	c.do(func(ctx context.Context, o client.Object) error { return c.Delete(ctx, o) }, objects...)
}

func deployment(name string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid of " + name), Labels: map[string]string{"tier": "web"}}}
}

// ruleFor is a SpreadRule for Deployments whose first subset has a maximum.
func ruleFor(t *testing.T, name, kind, maximum string) *v1alpha1.SpreadRule {
	t.Helper()
	rule := &v1alpha1.SpreadRule{}
	if err := yaml.UnmarshalStrict(fmt.Appendf(nil, `
metadata: {namespace: shop, name: %[1]s, uid: uid of %[1]s, generation: 1}
spec:
  target: {%[2]s, selector: {matchLabels: {tier: web}}}
  spread: {subsets: [{name: a, maxReplicas: %[3]s}, {name: b}]}`, name, kind, maximum), rule); err != nil {
		t.Fatal(err)
	}
	return rule
}

const deployments = "apiVersion: apps/v1, kind: Deployment"

func TestTheMakerFollowsWhatChanges(t *testing.T) {
	rule, web := ruleFor(t, "web", deployments, "30%"), deployment("web")
	c := newCluster(t)
	c.create(rule, web, deployment("api"))
	c.reconcile()
	c.expect("api: 30%", "web: 30%")

	web.Labels = nil
	c.update(web)
	c.reconcile()
	c.expect("api: 30%")

	*rule = *mustRead(c, rule)
	rule.Spec.Spread.Subsets[0].MaxReplicas.StrVal = "50%"
	c.update(rule)
	c.reconcile()
	c.expect("api: 50%")

	// A spread that somebody writes wins, and the one of the rule goes.
	c.create(&v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "mine"}, Spec: v1beta1.WorkloadSpreadSpec{
		TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "api"}, Subsets: []v1beta1.Subset{{Name: "all"}}}})
	c.reconcile()
	c.expect("api: <nil>")
	c.remove(rule)
	c.reconcile()
	c.expect("api: <nil>")
}

func mustRead(c *cluster, rule *v1alpha1.SpreadRule) *v1alpha1.SpreadRule {
	c.Helper()
	read := &v1alpha1.SpreadRule{}
	if err := c.Get(c.Context(), client.ObjectKeyFromObject(rule), read); err != nil {
		c.Fatal(err)
	}
	return read
}

// TestWhatTheMakerCannotJudgeStays: nothing that a rule has divided is divided by nobody because a rule is invalid, or because workloads cannot be read, as after a start.
func TestWhatTheMakerCannotJudgeStays(t *testing.T) {
	t.Run("an invalid rule", func(t *testing.T) {
		rule := ruleFor(t, "web", deployments, "30%")
		c := newCluster(t)
		c.create(rule, deployment("web"))
		c.reconcile()
		rule.Spec.Spread.Subsets[0].MaxReplicas.StrVal = "130%"
		c.update(rule)
		c.reconcile()
		c.expect("web: 30%")
		rule.Spec.Spread.Subsets[0].MaxReplicas.StrVal = "40%"
		c.update(rule)
		c.reconcile()
		c.clock.Step(time.Second)
		c.reconcile()
		c.expect("web: 40%")
	})
	t.Run("a kind that cannot be read", func(t *testing.T) {
		rule := ruleFor(t, "web", "apiVersion: example.com/v1, kind: Machine", "30%")
		compiled, errs := lineage.CompileRule(rule)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		c := newCluster(t, rule, compiled.SpreadFor(&metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}))
		if again := c.reconcile(); again != lineage.RetryInterval {
			t.Errorf("looks again after %s, want %s", again, lineage.RetryInterval)
		}
		c.expect("web: 30%")
	})
}

// TestTheMakerDoesNotFight with another program that writes the spread too: it writes it back once a second.
func TestTheMakerDoesNotFight(t *testing.T) {
	c := newCluster(t)
	c.create(ruleFor(t, "web", deployments, "30%"), deployment("web"))
	c.reconcile()
	other := func() {
		var list v1beta1.WorkloadSpreadList
		if err := c.List(c.Context(), &list); err != nil {
			t.Fatal(err)
		}
		list.Items[0].Spec.Subsets[0].MaxReplicas.StrVal = "90%"
		c.update(&list.Items[0])
	}
	other()
	if again := c.reconcile(); again != 0 {
		t.Errorf("looks again after %s", again)
	}
	c.expect("web: 30%")
	other()
	if again := c.reconcile(); again <= 0 || again > time.Second {
		t.Errorf("looks again after %s, want at most a second", again)
	}
	c.expect("web: 90%")
	c.clock.Step(time.Second)
	c.reconcile()
	c.expect("web: 30%")
}

// TestARefusedSpread keeps no other workload waiting, is tried again, and is said at the rule.
func TestARefusedSpread(t *testing.T) {
	c := newCluster(t)
	c.create(ruleFor(t, "web", deployments, "30%"), deployment("web"), deployment("api"))
	refusing := true
	c.maker.client = interceptor.NewClient(c.Client.(client.WithWatch), interceptor.Funcs{Create: func(ctx context.Context, to client.WithWatch, object client.Object, opts ...client.CreateOption) error {
		if refusing && object.(*v1beta1.WorkloadSpread).Spec.TargetReference.Name == "web" {
			return apierrors.NewForbidden(v1beta1.Resource.GroupResource(), object.GetName(), errors.New("the patch does not fit"))
		}
		return to.Create(ctx, object, opts...)
	}})
	if again := c.reconcile(); again != lineage.RetryInterval {
		t.Errorf("looks again after %s", again)
	}
	c.expect("api: 30%")
	why := func() string {
		rule := mustRead(c, ruleFor(t, "web", deployments, "30%"))
		known, err := (&reporter{world: c.maker.world}).gather(t.Context(), rule)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, p := range known.problems {
			all = append(all, fmt.Sprint(p.Name, " ", p.Reason))
		}
		return fmt.Sprint(all, " missing ", known.missing)
	}
	if got := why(); got != "[api PercentageOfOnePod web SpreadRefused] missing 1" {
		t.Error(got)
	}
	// A spread that is to be written back in a second does not wait for the refused one.
	var again time.Duration
	for range 2 {
		var list v1beta1.WorkloadSpreadList
		if err := c.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		list.Items[0].Spec.Subsets[0].MaxReplicas.StrVal = "90%"
		c.update(&list.Items[0])
		again = c.reconcile()
	}
	if again <= 0 || again > time.Second {
		t.Errorf("looks again after %s, want at most a second", again)
	}
	c.clock.Step(time.Second)
	refusing = false
	c.reconcile()
	c.expect("api: 30%", "web: 30%")
	if got := why(); got != "[api PercentageOfOnePod web PercentageOfOnePod] missing 0" {
		t.Error(got)
	}
}

// TestAWorkloadThatIsMadeAgain gets the spread as its own: it would go with the one that is gone.
func TestAWorkloadThatIsMadeAgain(t *testing.T) {
	web := deployment("web")
	c := newCluster(t)
	c.create(ruleFor(t, "web", deployments, "30%"), web)
	c.reconcile()
	c.remove(web)
	web = deployment("web")
	web.UID = "another"
	c.create(web)
	c.reconcile()
	var list v1beta1.WorkloadSpreadList
	if err := c.List(c.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].OwnerReferences[0].UID != "another" {
		t.Errorf("%+v", list.Items)
	}
}

func TestOneKindAndNoOther(t *testing.T) {
	c := newCluster(t)
	c.create(ruleFor(t, "jobs", "apiVersion: batch/v1, kind: Job", "30%"), deployment("web"),
		&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "job", Labels: map[string]string{"tier": "web"}}})
	c.reconcile()
	c.expect("job: 30%")
}

func TestDescribe(t *testing.T) {
	now := metav1.NewTime(time.Unix(1_000_000, 0))
	yesterday := metav1.NewTime(now.Add(-tooLong))
	reasonsOf := func(status v1alpha1.RuleStatus) string {
		var all []string
		for _, c := range status.Conditions {
			all = append(all, c.Reason)
		}
		return strings.Join(all, " ")
	}
	nothing := v1alpha1.RuleStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionPicking, Status: metav1.ConditionFalse, Reason: string(v1alpha1.ReasonPicksNothing), LastTransitionTime: yesterday}}}
	for name, tc := range map[string]struct {
		facts  facts
		before v1alpha1.RuleStatus
		want   string
		again  time.Duration
	}{
		"it picks":                {facts{picked: 2}, v1alpha1.RuleStatus{}, "RuleReady Picks", 0},
		"it picks nothing":        {facts{}, v1alpha1.RuleStatus{}, "RuleReady PicksNothing", tooLong},
		"for a day":               {facts{}, nothing, "PicksNothingForADay RuleReady", 0},
		"it picks again":          {facts{picked: 1}, nothing, "Picks RuleReady", 0},
		"it is invalid":           {facts{errs: field.ErrorList{field.Required(field.NewPath("spec"), "why")}}, nothing, "InvalidRule", 0},
		"the kind is not served":  {facts{unreadable: &lineage.Unwatchable{Why: lineage.NotServed}}, nothing, "KindUnreadable", lineage.RetryInterval},
		"two rules pick the same": {facts{picked: 1, problems: []v1alpha1.Problem{{Reason: v1alpha1.ReasonRulesConflict}}}, v1alpha1.RuleStatus{}, "RulesConflict Picks", 0},
		"one problem":             {facts{picked: 1, problems: []v1alpha1.Problem{{Reason: v1alpha1.ReasonNameTaken}}}, v1alpha1.RuleStatus{}, "RuleReady Picks", 0},
	} {
		t.Run(name, func(t *testing.T) {
			status := describe(&tc.facts, &tc.before, now)
			if got := reasonsOf(status); got != tc.want {
				t.Errorf("reasons %s, want %s", got, tc.want)
			}
			if again := againAfter(&tc.facts, &status, now.Time); again != tc.again {
				t.Errorf("looks again after %s, want %s", again, tc.again)
			}
			if picking := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionPicking); name == "for a day" && !picking.LastTransitionTime.Equal(&yesterday) {
				t.Error("the time of the last transition is lost")
			}
		})
	}
	many := facts{picked: 20, problems: make([]v1alpha1.Problem, 20)}
	if status := describe(&many, &v1alpha1.RuleStatus{}, now); len(status.Problems) != mostProblems {
		t.Errorf("%d problems", len(status.Problems))
	}
}
