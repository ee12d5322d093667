package rules

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/test/harness"
)

var deploymentKind = schema.GroupKind{Group: "apps", Kind: "Deployment"}

func editorOf(ns string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tenant"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "tenant"}},
	}
}

// TestNewWorkloadsAreDividedFromTheirFirstPodOn: nobody writes a spread, and no pod goes past Berth. The namespace is as new as the workloads.
func TestNewWorkloadsAreDividedFromTheirFirstPodOn(t *testing.T) {
	clusterRule(t, "shops", "shop", divided)
	expectStatus(t, "", "shops", v1alpha1.ConditionReady, v1alpha1.ReasonRuleReady)
	ns := namespace(t, "shop")
	apply(t, ns, deployment("web", "web", 10)+"\n---"+deployment("api", "web", 20)+"\n---"+deployment("small", "web", 4)+"\n---"+deployment("batch", "other", 3))
	expectPods(t, ns, "web", map[string]int{"on-demand": 3, "spot": 7})
	expectPods(t, ns, "api", map[string]int{"on-demand": 6, "spot": 14})
	expectPods(t, ns, "small", map[string]int{"on-demand": 2, "spot": 2})
	expectPods(t, ns, "batch", map[string]int{"": 3})
	expectMakers(t, ns, map[string]string{"web": "ClusterSpreadRule shops", "api": "ClusterSpreadRule shops", "small": "ClusterSpreadRule shops"})

	// All of them from the first pod on.
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if berths := pods[i].Spec.SchedulerName == v1beta1.SchedulerName; berths != (pods[i].Labels["app"] != "batch") {
			t.Errorf("pod %s has scheduler %s", pods[i].Name, pods[i].Spec.SchedulerName)
		}
	}
	patch(t, ns, "web", `{"spec": {"replicas": 20}}`)
	expectPods(t, ns, "web", map[string]int{"on-demand": 6, "spot": 14})
	waitFor(t, "the numbers of the rule", func(ctx context.Context) (string, error) {
		status, err := statusOf(ctx, "", "shops")
		if status.Workloads == 3 && status.ReadyWorkloads == 3 && status.Summary == "14/30" {
			return "", err
		}
		return fmt.Sprintf("%+v", status), err
	})
}

// many is how many workloads TestManyWorkloadsAtOnce creates. make bench-scale creates 1,000.
var many = flag.Int("workloads", 60, "how many workloads to create at once")

// TestManyWorkloadsAtOnce are divided from their first pod on too.
func TestManyWorkloadsAtOnce(t *testing.T) {
	harness.Long(t)
	clusterRule(t, "crowds", "crowd", divided)
	expectStatus(t, "", "crowds", v1alpha1.ConditionReady, v1alpha1.ReasonRuleReady)
	ns := namespace(t, "crowd")
	replicas := 5
	if *many > 100 {
		replicas = 0 // the nodes have no room for so many
	}
	var creating errgroup.Group
	creating.SetLimit(8)
	create := func(ns, spread string) {
		before, err := the.CPU()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for i := range *many {
			creating.Go(func() error {
				name := fmt.Sprint("web-", i)
				return the.ApplyYAML(t.Context(), ns, strings.ReplaceAll(spread, "NAME", name)+deployment(name, "web", replicas))
			})
		}
		if err := creating.Wait(); err != nil {
			t.Fatal(err)
		}
		created := time.Since(began)
		waitFor(t, "a ready spread of each workload", func(ctx context.Context) (string, error) {
			list, err := the.Dynamic.Resource(v1beta1.Resource).Namespace(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return "", err
			}
			ready := 0
			for i := range list.Items {
				var spread v1beta1.WorkloadSpread
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &spread); err != nil {
					return "", err
				}
				if meta.IsStatusConditionTrue(spread.Status.Conditions, v1beta1.ConditionReady) {
					ready++
				}
			}
			return map[bool]string{false: fmt.Sprintf("%d ready spreads", ready)}[ready == *many], nil
		})
		took := time.Since(began)
		after, err := the.CPU()
		if err != nil {
			t.Fatal(err)
		}
		used := after.Since(before)
		t.Logf("by name: %t. %d workloads were created in %s, and each had a ready spread after %s. CPU: scheduler %s, controller %s, united %s, API server %s", spread != "", *many,
			created.Round(100*time.Millisecond), took.Round(100*time.Millisecond), used[product.Scheduler], used[product.Controller], used[product.United], used[sandbox.APIServer])
		for i := range *many {
			if replicas > 0 {
				expectPods(t, ns, fmt.Sprint("web-", i), map[string]int{"on-demand": 2, "spot": 3})
			}
		}
		expectAdmitted(t, ns)
	}
	create(ns, "")
	if *many > 100 { // the same work without rules
		create(namespace(t, "by-name"), `
apiVersion: apps.kruise.io/v1beta1
kind: WorkloadSpread
metadata: {name: NAME}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: NAME}
`+strings.TrimPrefix(strings.ReplaceAll(divided, "\n  ", "\n"), "\nspread:")+"---")
	}
}

func TestTheNearestRuleCountsAndASpreadByNameWins(t *testing.T) {
	clusterRule(t, "wide", "near", divided)
	ns := namespace(t, "near")
	apply(t, ns, deployment("web", "web", 10))
	expectMakers(t, ns, map[string]string{"web": "ClusterSpreadRule wide"})
	expectPods(t, ns, "web", map[string]int{"on-demand": 3, "spot": 7})

	apply(t, ns, rule("near", strings.Replace(divided, "30%", "50%", 1)))
	expectMakers(t, ns, map[string]string{"web": "SpreadRule near"})
	patch(t, ns, "web", `{"spec": {"replicas": 20}}`)
	expectPods(t, ns, "web", map[string]int{"on-demand": 10, "spot": 10})

	apply(t, ns, `
apiVersion: apps.kruise.io/v1beta1
kind: WorkloadSpread
metadata: {name: mine}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: spot, requiredNodeSelector: {matchExpressions: [{key: capacity, operator: In, values: [spot]}]}}]
`)
	expectMakers(t, ns, map[string]string{"web": ""})
	patch(t, ns, "web", `{"spec": {"replicas": 24}}`)
	expectPods(t, ns, "web", map[string]int{"on-demand": 10, "spot": 14})
	if status := expectStatus(t, ns, "near", v1alpha1.ConditionReady, v1alpha1.ReasonRuleReady); len(status.Problems) > 0 {
		t.Errorf("problems: %v", status.Problems)
	}

	for resource, name := range map[string]string{"workloadspreads": "mine", "spreadrules": "near"} {
		of := v1beta1.Resource
		if resource == "spreadrules" {
			of = rulesOfNamespace
		}
		if err := the.Dynamic.Resource(of).Namespace(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	expectMakers(t, ns, map[string]string{"web": "ClusterSpreadRule wide"})
}

// TestEqualRulesAreRefused, and if labels make two rules overlap later, the older one counts and both say so.
func TestEqualRulesAreRefused(t *testing.T) {
	ns := namespace(t, "equal")
	apply(t, ns, deployment("web", "web", 2))
	apply(t, ns, rule("first", divided))
	expectMakers(t, ns, map[string]string{"web": "SpreadRule first"})
	err := the.ApplyYAML(t.Context(), ns, rule("second", divided))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "SpreadRule first") || !strings.Contains(err.Error(), "SpreadRule second") || !strings.Contains(err.Error(), ns+"/web") {
		t.Fatalf("the second rule: %v", err)
	}

	apply(t, ns, strings.ReplaceAll(rule("second", divided), "tier: web", "size: large"))
	if status := expectStatus(t, ns, "second", v1alpha1.ConditionPicking, v1alpha1.ReasonPicksNothing); status.Workloads != 0 {
		t.Errorf("%+v", status)
	}
	patch(t, ns, "web", `{"metadata": {"labels": {"size": "large"}}}`)
	for _, name := range []string{"first", "second"} {
		status := expectStatus(t, ns, name, v1alpha1.ConditionReady, v1alpha1.ReasonRulesConflict)
		message := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady).Message
		for _, part := range []string{"SpreadRule first and SpreadRule second pick it", ns + "/web", "SpreadRule first, the oldest, divides it"} {
			if !strings.Contains(message, part) {
				t.Errorf("rule %s: %q lacks %q", name, message, part)
			}
		}
	}
	expectEvent(t, ns, "Deployment", "web", v1alpha1.ReasonRulesConflict)
	expectMakers(t, ns, map[string]string{"web": "SpreadRule first"})
	patch(t, ns, "web", `{"metadata": {"labels": {"tier": null}}}`)
	expectMakers(t, ns, map[string]string{"web": "SpreadRule second"})
	expectStatus(t, ns, "first", v1alpha1.ConditionReady, v1alpha1.ReasonRuleReady)
	expectStatus(t, ns, "second", v1alpha1.ConditionReady, v1alpha1.ReasonRuleReady)
}

// expectEvent waits for a warning about an object.
func expectEvent(t *testing.T, ns, kind, name string, reason v1alpha1.Reason) {
	t.Helper()
	waitFor(t, fmt.Sprintf("event %s on %s %s", reason, kind, name), func(ctx context.Context) (string, error) {
		events, err := the.Client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == string(reason) && e.Type == corev1.EventTypeWarning
		}) {
			return "", nil
		}
		return fmt.Sprintf("%d other events", len(events.Items)), nil
	})
}

// TestAWorkloadThatLeavesKeepsItsPods where they are, also if the rule goes.
func TestAWorkloadThatLeavesKeepsItsPods(t *testing.T) {
	ns := namespace(t, "leaving")
	apply(t, ns, rule("web", divided))
	apply(t, ns, deployment("web", "web", 6)+"\n---"+deployment("api", "web", 6))
	for _, app := range []string{"web", "api"} {
		expectPods(t, ns, app, map[string]int{"on-demand": 2, "spot": 4})
	}
	before := places(t, ns)
	patch(t, ns, "web", `{"metadata": {"labels": {"tier": "other"}}}`)
	expectMakers(t, ns, map[string]string{"api": "SpreadRule web"})
	if err := the.Dynamic.Resource(rulesOfNamespace).Namespace(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expectMakers(t, ns, map[string]string{})
	if after := places(t, ns); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("pods before %v\nand after %v", before, after)
	}
	patch(t, ns, "web", `{"spec": {"replicas": 7}}`)
	expectPods(t, ns, "web", map[string]int{"on-demand": 2, "spot": 4, "": 1})
}

// places are the nodes of the pods, by UID.
func places(t *testing.T, ns string) map[types.UID]string {
	t.Helper()
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	all := map[types.UID]string{}
	for i := range pods {
		all[pods[i].UID] = pods[i].Spec.NodeName
	}
	return all
}

// TestRulesThatCannotWork are refused, or say what they lack.
func TestRulesThatCannotWork(t *testing.T) {
	ns := namespace(t, "invalid")
	apply(t, ns, rule("web", divided))
	apply(t, ns, deployment("web", "web", 4))
	expectPods(t, ns, "web", map[string]int{"on-demand": 2, "spot": 2})
	if err := the.ApplyYAML(t.Context(), ns, rule("web", divided+"    scheduleStrategy: {type: Fixed, adaptive: {rescheduleCriticalSeconds: 30}}")); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.spread.scheduleStrategy.adaptive") {
		t.Fatalf("an invalid rule: %v", err)
	}
	unserved := strings.ReplaceAll(rule("web", divided), "apiVersion: apps/v1, kind: Deployment", "apiVersion: example.com/v1, kind: Machine")
	apply(t, ns, unserved)
	status := expectStatus(t, ns, "web", v1alpha1.ConditionReady, v1alpha1.ReasonKindUnreadable)
	if message := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady).Message; !strings.Contains(message, "the API server has no such kind; install it, or correct the target") {
		t.Error(message)
	}
	expectMakers(t, ns, map[string]string{})
	apply(t, ns, rule("web", divided))
	expectMakers(t, ns, map[string]string{"web": "SpreadRule web"})
}

// machines are of a kind that Berth may not read until somebody grants it.
const machines = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: machines.rules.example.com}
spec:
  group: rules.example.com
  scope: Namespaced
  names: {kind: Machine, plural: machines, singular: machine}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
`

func TestAKindThatMayNotBeRead(t *testing.T) {
	ns := namespace(t, "machines")
	apply(t, "", machines)
	waitFor(t, "the kind", func(ctx context.Context) (string, error) {
		err := the.ApplyYAML(ctx, ns, "{apiVersion: rules.example.com/v1, kind: Machine, metadata: {name: big, labels: {tier: web}}, spec: {size: 4}}")
		return map[bool]string{false: fmt.Sprint(err)}[err == nil], nil
	})
	apply(t, ns, strings.ReplaceAll(rule("web", divided), "apiVersion: apps/v1, kind: Deployment", "apiVersion: rules.example.com/v1, kind: Machine"))
	status := expectStatus(t, ns, "web", v1alpha1.ConditionReady, v1alpha1.ReasonKindUnreadable)
	if message := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady).Message; !strings.Contains(message, `Berth may not list machines.rules.example.com; create a ClusterRole with get, list and watch on it and the label rbac.berth.dev/aggregate-to-workload-reader: "true"`) {
		t.Error(message)
	}
	apply(t, "", `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: machine-reader, labels: {rbac.berth.dev/aggregate-to-workload-reader: "true"}}
rules: [{apiGroups: [rules.example.com], resources: [machines], verbs: [get, list, watch]}]
`)
	expectMakers(t, ns, map[string]string{"big": "SpreadRule web"})
}

// TestARuleSaysWhatItCannotDo for workloads that it picks.
func TestARuleSaysWhatItCannotDo(t *testing.T) {
	ns := namespace(t, "saying")
	apply(t, ns, rule("web", divided))
	expectStatus(t, ns, "web", v1alpha1.ConditionPicking, v1alpha1.ReasonPicksNothing)
	apply(t, ns, deployment("one", "web", 1))
	expectEvent(t, ns, "Deployment", "one", v1alpha1.ReasonPercentageOfOnePod)
	name := lineage.SpreadName(deploymentKind, "web")
	apply(t, ns, fmt.Sprintf(`
apiVersion: apps.kruise.io/v1beta1
kind: WorkloadSpread
metadata: {name: %s}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: another}
  subsets: [{name: spot}]
`, name))
	apply(t, ns, deployment("web", "web", 3))
	expectEvent(t, ns, "Deployment", "web", v1alpha1.ReasonNameTaken)
	// The patch of the rule would change the label by which this one selects its pods.
	apply(t, ns, strings.ReplaceAll(deployment("refused", "web", 2), "app: refused", `cheap: "no"`))
	expectEvent(t, ns, "Deployment", "refused", v1alpha1.ReasonSpreadRefused)
	status, err := statusOf(t.Context(), ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, problem := range status.Problems {
		said = append(said, problem.Name+" "+string(problem.Reason))
	}
	if want := "[web NameTaken one PercentageOfOnePod refused SpreadRefused]"; fmt.Sprint(said) != want {
		t.Errorf("problems %v, want %s", said, want)
	}
}

// TestATenantCannotChangeWhatAPlatformTeamSays: whoever has the role edit in a namespace may write rules and spreads there, and cannot write a cluster-wide rule, or change what it makes.
func TestATenantCannotChangeWhatAPlatformTeamSays(t *testing.T) {
	clusterRule(t, "platform", "tenant", divided)
	ns := namespace(t, "tenant")
	apply(t, ns, deployment("web", "web", 4))
	expectPods(t, ns, "web", map[string]int{"on-demand": 2, "spot": 2})
	if _, err := the.Client.RbacV1().RoleBindings(ns).Create(t.Context(), editorOf(ns), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(the.Sandbox.RESTConfig())
	config.Impersonate = rest.ImpersonationConfig{UserName: "tenant", Groups: []string{"system:authenticated"}}
	tenant, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	spreads, name := tenant.Resource(v1beta1.Resource).Namespace(ns), lineage.SpreadName(deploymentKind, "web")
	waitFor(t, "the tenant's rights", func(ctx context.Context) (string, error) {
		if _, err := tenant.Resource(rulesOfNamespace).Namespace(ns).List(ctx, metav1.ListOptions{}); apierrors.IsForbidden(err) {
			return err.Error(), nil
		} else if err != nil {
			return "", err
		}
		return "", nil
	})
	if _, err := tenant.Resource(rulesOfCluster).Patch(t.Context(), "platform", types.MergePatchType, []byte(`{"spec": {"namespaceSelector": {}}}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("changing the cluster-wide rule: %v", err)
	}
	if _, err := tenant.Resource(rulesOfCluster).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("reading cluster-wide rules: %v", err)
	}
	// It may write the spread, as any other in its namespace. Berth writes it back.
	before, err := spreads.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := spreads.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata": {"annotations": {"mine": "yes"}}, "spec": {"subsets": [{"name": "spot"}]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the spread as the rule says", func(ctx context.Context) (string, error) {
		now, err := spreads.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if now.GetAnnotations()["mine"] != "yes" {
			t.Errorf("the tenant's own annotation is gone")
		}
		if fmt.Sprint(now.Object["spec"]) != fmt.Sprint(before.Object["spec"]) {
			return fmt.Sprint(now.Object["spec"]), nil
		}
		return "", nil
	})
	if err := spreads.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expectMakers(t, ns, map[string]string{"web": "ClusterSpreadRule platform"})
	// A label by which a spread looks as if a rule had made it lets it lose, and be deleted.
	apply(t, ns, fmt.Sprintf(`
apiVersion: apps.kruise.io/v1beta1
kind: WorkloadSpread
metadata: {name: zz-forged, labels: {%s: platform}}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: spot}]
`, v1beta1.ClusterRuleLabel))
	expectMakers(t, ns, map[string]string{"web": "ClusterSpreadRule platform"})
}

// TestNothingIsWrittenAtRest: a rule whose spreads are as they should be writes nothing, also with a patch, whose JSON the API server may store in another order.
func TestNothingIsWrittenAtRest(t *testing.T) {
	ns := namespace(t, "rest")
	apply(t, ns, rule("web", divided))
	apply(t, ns, deployment("web", "web", 4)+"\n---"+deployment("api", "web", 4))
	for _, app := range []string{"web", "api"} {
		expectPods(t, ns, app, map[string]int{"on-demand": 2, "spot": 2})
	}
	waitFor(t, "the numbers of the rule", func(ctx context.Context) (string, error) {
		status, err := statusOf(ctx, ns, "web")
		return map[bool]string{false: fmt.Sprintf("%+v", status)}[status.ReadyWorkloads == 2 && status.Summary == "4/4"], err
	})
	generations := func() (all []string) {
		list, err := the.Dynamic.Resource(v1beta1.Resource).Namespace(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			all = append(all, fmt.Sprint(list.Items[i].GetName(), " ", list.Items[i].GetGeneration()))
		}
		return all
	}
	before := generations()
	// Events of the workloads make the controller look at every spread again.
	for i := range 3 {
		patch(t, ns, "api", fmt.Sprintf(`{"metadata": {"labels": {"look": "%d"}}}`, i))
		expectPods(t, ns, "api", map[string]int{"on-demand": 2, "spot": 2})
	}
	patch(t, ns, "api", `{"metadata": {"labels": {"tier": "other"}}}`)
	expectMakers(t, ns, map[string]string{"web": "SpreadRule web"})
	patch(t, ns, "api", `{"metadata": {"labels": {"tier": "web"}}}`)
	expectMakers(t, ns, map[string]string{"web": "SpreadRule web", "api": "SpreadRule web"})
	if after := generations(); fmt.Sprint(after) != fmt.Sprint(before) || !strings.HasSuffix(after[0], " 1") {
		t.Errorf("spreads before %v, after %v", before, after)
	}
}
