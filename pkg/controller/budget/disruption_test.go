package budget

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// keeping is a budget that asks for a PodDisruptionBudget.
func keeping(change ...func(*v1beta1.PodUnavailableBudget)) *v1beta1.PodUnavailableBudget {
	pub := budgetWith()
	pub.Spec.KeepPodDisruptionBudget = true
	for _, c := range change {
		c(pub)
	}
	return pub
}

func pdbNamed(name, app string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "users"},
		Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(5)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
}

func (b *bench) disruptionBudgets(t *testing.T) map[string]policyv1.PodDisruptionBudget {
	t.Helper()
	var list policyv1.PodDisruptionBudgetList
	if err := b.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	all := map[string]policyv1.PodDisruptionBudget{}
	for _, pdb := range list.Items {
		all[pdb.Name] = pdb
	}
	return all
}

func TestAPodDisruptionBudgetSaysWhatTheBudgetSays(t *testing.T) {
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	always, ifHealthy := ptr.To(policyv1.AlwaysAllow), ptr.To(policyv1.IfHealthyBudget)
	count := func(n int32) *intstr.IntOrString { return ptr.To(intstr.FromInt32(n)) }
	for name, tc := range map[string]struct {
		change func(*v1beta1.PodUnavailableBudget)
		want   policyv1.PodDisruptionBudgetSpec
	}{
		"maxUnavailable": {func(*v1beta1.PodUnavailableBudget) {}, policyv1.PodDisruptionBudgetSpec{Selector: web, MaxUnavailable: count(1), UnhealthyPodEvictionPolicy: always}},
		"minAvailable in percent": {func(pub *v1beta1.PodUnavailableBudget) {
			pub.Spec.MaxUnavailable, pub.Spec.MinAvailable = nil, ptr.To(intstr.FromString("50%"))
		}, policyv1.PodDisruptionBudgetSpec{Selector: web, MinAvailable: ptr.To(intstr.FromString("50%")), UnhealthyPodEvictionPolicy: always}},
		"both, of which one counts": {func(pub *v1beta1.PodUnavailableBudget) { pub.Spec.MinAvailable = count(2) },
			policyv1.PodDisruptionBudgetSpec{Selector: web, MaxUnavailable: count(1), UnhealthyPodEvictionPolicy: always}},
		"unhealthyPodPolicy": {func(pub *v1beta1.PodUnavailableBudget) { pub.Spec.UnhealthyPodPolicy = v1beta1.IfHealthyBudget },
			policyv1.PodDisruptionBudgetSpec{Selector: web, MaxUnavailable: count(1), UnhealthyPodEvictionPolicy: ifHealthy}},
		"replicas that no workload tells": {func(pub *v1beta1.PodUnavailableBudget) { pub.Spec.ProtectTotalReplicas = ptr.To[int32](7) },
			policyv1.PodDisruptionBudgetSpec{Selector: web, MinAvailable: count(6), UnhealthyPodEvictionPolicy: always}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, interceptor.Funcs{}, objects(keeping(tc.change), pod("a", protected()), pod("b", protected()))...)
			pub := b.reconcile(t)
			pdb, found := b.disruptionBudgets(t)["web"]
			if !found || !metav1.IsControlledBy(&pdb, pub) {
				t.Fatalf("got %+v, want one that goes with the budget", pdb)
			}
			if diff := cmp.Diff(tc.want, pdb.Spec); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if !meta.IsStatusConditionTrue(pub.Status.Conditions, v1beta1.ConditionPodDisruptionBudgetKept) {
				t.Errorf("%+v", pub.Status.Conditions)
			}
		})
	}
}

func TestAPodDisruptionBudgetOfATargetHasTheSelectorOfTheWorkload(t *testing.T) {
	ofTarget := func(pub *v1beta1.PodUnavailableBudget) {
		pub.Spec.Selector, pub.Spec.TargetReference = nil, &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}
	}
	all := objects(keeping(ofTarget), pod("a", protected()))
	for _, object := range all {
		if rs, is := object.(*appsv1.ReplicaSet); is {
			rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		}
	}
	b := newBench(t, interceptor.Funcs{}, all...)
	b.reconcile(t)
	want := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	if diff := cmp.Diff(want, b.disruptionBudgets(t)["web"].Spec.Selector); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	stray := pod("stray", protected())
	stray.OwnerReferences[0].Name, stray.OwnerReferences[0].UID = "other", "other"
	if err := b.client.Create(t.Context(), stray); err != nil {
		t.Fatal(err)
	}
	c := meta.FindStatusCondition(b.reconcile(t).Status.Conditions, v1beta1.ConditionPodDisruptionBudgetKept)
	if len(b.disruptionBudgets(t)) > 0 || c == nil || !strings.HasSuffix(c.Message, "the selector of the workload also selects other pods") {
		t.Errorf("beside a pod that is not the workload's: %+v", c)
	}
}

func TestAPodDisruptionBudgetFollowsTheBudget(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, objects(keeping(), pod("a", protected()))...)
	pub := b.reconcile(t)
	pub.Spec.MaxUnavailable = ptr.To(intstr.FromString("30%"))
	if err := b.client.Update(t.Context(), pub); err != nil {
		t.Fatal(err)
	}
	pub = b.reconcile(t)
	if got := b.disruptionBudgets(t)["web"].Spec.MaxUnavailable.String(); got != "30%" {
		t.Errorf("after the budget has changed, maxUnavailable is %s", got)
	}
	pub.Spec.KeepPodDisruptionBudget = false
	if err := b.client.Update(t.Context(), pub); err != nil {
		t.Fatal(err)
	}
	pub = b.reconcile(t)
	if left := b.disruptionBudgets(t); len(left) > 0 || meta.FindStatusCondition(pub.Status.Conditions, v1beta1.ConditionPodDisruptionBudgetKept) != nil {
		t.Errorf("the budget asks for none any more, and there are %v and the conditions %+v", left, pub.Status.Conditions)
	}
}

func TestNoPodDisruptionBudgetIsKeptBesideAnother(t *testing.T) {
	ofAnotherBudget := func(name string) *policyv1.PodDisruptionBudget {
		pdb := pdbNamed(name, "web")
		pdb.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1beta1.GroupVersion.String(), Kind: "PodUnavailableBudget", Name: name, UID: "other", Controller: ptr.To(true)}}
		return pdb
	}
	for name, tc := range map[string]struct {
		other *policyv1.PodDisruptionBudget
		kept  bool
	}{
		"of the same name":                    {other: pdbNamed("web", "db")},
		"for the same pods":                   {other: pdbNamed("mine", "web")},
		"for other pods":                      {other: pdbNamed("mine", "db"), kept: true},
		"of a budget whose name comes before": {other: ofAnotherBudget("a")},
		"of a budget whose name comes after":  {other: ofAnotherBudget("z"), kept: true},
		"for the same pods, that is going": {other: func() *policyv1.PodDisruptionBudget {
			pdb := pdbNamed("mine", "web")
			pdb.Finalizers = []string{"test/keep"}
			return pdb
		}(), kept: true},
	} {
		for _, order := range []string{"it comes first", "it comes later"} {
			t.Run(name+", "+order, func(t *testing.T) {
				b := newBench(t, interceptor.Funcs{}, objects(keeping(), pod("a", protected()))...)
				if order == "it comes later" {
					if tc.other.Name == "web" {
						return // the API server has no second one of a name
					}
					b.reconcile(t)
				}
				other := tc.other.DeepCopy()
				if err := b.client.Create(t.Context(), other); err != nil {
					t.Fatal(err)
				}
				if len(other.Finalizers) > 0 {
					if err := b.client.Delete(t.Context(), other); err != nil {
						t.Fatal(err)
					}
				}
				pub := b.reconcile(t)
				all := b.disruptionBudgets(t)
				if diff := cmp.Diff(tc.other.Spec, all[tc.other.Name].Spec); diff != "" {
					t.Errorf("somebody else's has changed (-want +got)\n%s", diff)
				}
				c := meta.FindStatusCondition(pub.Status.Conditions, v1beta1.ConditionPodDisruptionBudgetKept)
				own := all["web"]
				if isKept := metav1.IsControlledBy(&own, pub); isKept != tc.kept || c == nil || (c.Status == metav1.ConditionTrue) != tc.kept {
					t.Fatalf("kept: %t, want %t; %+v", isKept, tc.kept, c)
				}
				if !tc.kept && (c.Reason != string(v1beta1.ReasonOtherPodDisruptionBudget) || !strings.Contains(c.Message, "beside "+tc.other.Name+",")) {
					t.Errorf("%s: %s", c.Reason, c.Message)
				}
			})
		}
	}
}

func TestWhatAPodDisruptionBudgetCannotSay(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1beta1.PodUnavailableBudget)
		want   string
	}{
		"only subsets": {func(pub *v1beta1.PodUnavailableBudget) {
			pub.Spec.MaxUnavailable, pub.Spec.PerSubset = nil, &v1beta1.PerSubset{Label: "zone", OneAtATime: true}
		}, "knows no subsets"},
		"no evictions": {func(pub *v1beta1.PodUnavailableBudget) {
			pub.Spec.ProtectOperations = []v1beta1.Operation{v1beta1.OperationDelete}
		}, "it would hold evictions"},
		"ignored pods": {func(pub *v1beta1.PodUnavailableBudget) {
			pub.Spec.IgnoredPodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "batch"}}
		}, "ignoredPodSelector"},
		"a workload that is gone": {func(pub *v1beta1.PodUnavailableBudget) {
			pub.Spec.Selector, pub.Spec.TargetReference = nil, &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "gone"}
		}, "the workload does not exist"},
		"a workload without a selector": {func(pub *v1beta1.PodUnavailableBudget) {
			pub.Spec.Selector, pub.Spec.TargetReference = nil, &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}
		}, "the selector of the workload is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, interceptor.Funcs{}, objects(keeping(tc.change), pod("a", protected()))...)
			pub := b.reconcile(t)
			c := meta.FindStatusCondition(pub.Status.Conditions, v1beta1.ConditionPodDisruptionBudgetKept)
			if all := b.disruptionBudgets(t); len(all) > 0 || c == nil || c.Reason != string(v1beta1.ReasonNotExpressible) || !strings.Contains(c.Message, tc.want) {
				t.Errorf("%d are kept, %+v", len(all), c)
			}
		})
	}
}

func TestAPodDisruptionBudgetThatCannotBeWrittenHoldsNothingElseUp(t *testing.T) {
	calls := interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if _, is := o.(*policyv1.PodDisruptionBudget); is {
			return apierrors.NewForbidden(policyv1.Resource("poddisruptionbudgets"), o.GetName(), errors.New("no rule"))
		}
		return c.Create(ctx, o, opts...)
	}}
	b := newBench(t, calls, objects(keeping(func(pub *v1beta1.PodUnavailableBudget) { pub.Status.Ledger = []v1beta1.LedgerEntry{entry("gone")} }), pod("a", protected()))...)
	result, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: web})
	if err != nil || result.RequeueAfter != labelRetry {
		t.Errorf("got %+v, %v, want it to be tried again after %s", result, err, labelRetry)
	}
	b.clock.SetTime(b.clock.Now().Add(time.Minute))
	pub := b.reconcile(t)
	if expectLedger(t, pub); meta.FindStatusCondition(pub.Status.Conditions, v1beta1.ConditionPodDisruptionBudgetKept) != nil {
		t.Errorf("%+v", pub.Status.Conditions)
	}
}

func TestSomebodyElsesPodDisruptionBudgetConcernsBudgetsThatKeepOne(t *testing.T) {
	quiet := budgetWith()
	quiet.Name, quiet.UID = "quiet", "quiet"
	b := newBench(t, interceptor.Funcs{}, append(objects(keeping(), pod("a", protected())), quiet)...)
	b.reconcile(t)
	if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(quiet)}); err != nil {
		t.Fatal(err)
	}
	if got := b.ofDisruptionBudget(t.Context(), pdbNamed("mine", "web")); len(got) != 1 || got[0] != "web" {
		t.Errorf("it concerns %v", got)
	}
}
