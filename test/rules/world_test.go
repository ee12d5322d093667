package rules

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

// the is the cluster that all tests share. watcher counts pods over their quotas.
var (
	the     *harness.Cluster
	watcher *checker.Checker
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "berth-rules-")
	if err != nil {
		return 1, err
	}
	defer func() {
		if code == 0 {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	the, err = harness.Start(ctx, sandbox.Config{Name: "rules", Dir: dir}, product.Options{SpreadRules: true, Replicas: map[string]int{product.United: 2}})
	if err != nil {
		return 1, err
	}
	defer the.Sandbox.Stop()
	var nodes []*corev1.Node
	for i := range 6 {
		nodes = append(nodes, sandbox.NewNode(fmt.Sprint("node-", i), "zone-a", map[string]string{"capacity": []string{"on-demand", "spot"}[i%2]}, nil, nil))
	}
	if err := the.Sandbox.CreateNodes(ctx, nodes); err != nil {
		return 1, err
	}
	if watcher, err = checker.Start(ctx, the.Dynamic); err != nil {
		return 1, err
	}
	code = m.Run()
	cancel() // ends the checker's watches before the API server
	return code, nil
}

var (
	rulesOfNamespace = v1alpha1.GroupVersion.WithResource("spreadrules")
	rulesOfCluster   = v1alpha1.GroupVersion.WithResource("clusterspreadrules")
)

// namespace makes a namespace with a label for the test.
func namespace(t *testing.T, label string) string {
	t.Helper()
	object, err := the.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "rules-", Labels: map[string]string{"team": label}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, violation := range watcher.Violations() {
			t.Error(violation)
		}
		if err := the.DeleteNamespace(context.Background(), object.Name); err != nil {
			t.Error(err)
		}
	})
	return object.Name
}

// divided is how a third of the pods go to nodes on demand, and at least 2.
const divided = `
  spread:
    subsets:
    - {name: on-demand, minReplicas: 2, maxReplicas: 30%, requiredNodeSelector: {matchExpressions: [{key: capacity, operator: In, values: [on-demand]}]}}
    - {name: spot, requiredNodeSelector: {matchExpressions: [{key: capacity, operator: In, values: [spot]}]}, patch: {metadata: {labels: {cheap: "true"}}}}
`

// rule is a SpreadRule for the Deployments with label tier: web.
func rule(name, spread string) string {
	return fmt.Sprintf(`
apiVersion: rules.berth.dev/v1alpha1
kind: SpreadRule
metadata: {name: %s}
spec:
  target: {apiVersion: apps/v1, kind: Deployment, selector: {matchLabels: {tier: web}}}
%s`, name, spread)
}

// clusterRule is a ClusterSpreadRule for the Deployments with label tier: web in the namespaces of a team. It is deleted after the test.
func clusterRule(t *testing.T, name, team, spread string) {
	t.Helper()
	t.Cleanup(func() {
		if err := the.Dynamic.Resource(rulesOfCluster).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	apply(t, "", fmt.Sprintf(`
apiVersion: rules.berth.dev/v1alpha1
kind: ClusterSpreadRule
metadata: {name: %s}
spec:
  namespaceSelector: {matchLabels: {team: %s}}
  target: {apiVersion: apps/v1, kind: Deployment, selector: {matchLabels: {tier: web}}}
%s`, name, team, spread))
}

// deployment does not name a scheduler, so that admission has to find the spread of its pods.
func deployment(name, tier string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, labels: {tier: %[2]s}}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: 1m}}}]
`, name, tier, replicas)
}

func apply(t *testing.T, namespace, text string) {
	t.Helper()
	if err := the.ApplyYAML(t.Context(), namespace, text); err != nil {
		t.Fatal(err)
	}
}

func patch(t *testing.T, namespace, name, patch string) {
	t.Helper()
	if _, err := the.Client.AppsV1().Deployments(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, what string, condition func(context.Context) (missing string, err error)) {
	t.Helper()
	if err := the.WaitFor(t.Context(), what, condition); err != nil {
		t.Fatal(err)
	}
}

// expectPods waits until the active pods of an app are bound, this many in each subset. "" is none.
func expectPods(t *testing.T, namespace, app string, want map[string]int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%s in %v", app, want), func(ctx context.Context) (string, error) {
		list, err := the.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return "", err
		}
		got := map[string]int{}
		for i := range list.Items {
			if pod := &list.Items[i]; pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" {
				got[pod.Labels[v1beta1.SubsetLabel]]++
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Sprint(got), nil
		}
		return "", nil
	})
}

// expectAdmitted fails unless Berth bound every pod of the namespace.
func expectAdmitted(t *testing.T, namespace string) {
	t.Helper()
	pods, err := the.Pods(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if pods[i].Spec.SchedulerName != v1beta1.SchedulerName {
			t.Errorf("pod %s is of %s", pods[i].Name, pods[i].Spec.SchedulerName)
		}
	}
}

// spreadsOf are the spreads of a namespace, with the rule that has made each: "web of SpreadRule x".
func spreadsOf(ctx context.Context, namespace string) (all map[string]string, _ error) {
	list, err := the.Dynamic.Resource(v1beta1.Resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all = map[string]string{}
	for i := range list.Items {
		var spread v1beta1.WorkloadSpread
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &spread); err != nil {
			return nil, err
		}
		maker := ""
		switch {
		case spread.Labels[v1beta1.RuleLabel] != "":
			maker = "SpreadRule " + spread.Labels[v1beta1.RuleLabel]
		case spread.Labels[v1beta1.ClusterRuleLabel] != "":
			maker = "ClusterSpreadRule " + spread.Labels[v1beta1.ClusterRuleLabel]
		}
		if other, has := all[spread.Spec.TargetReference.Name]; has {
			maker = other + " and " + maker
		}
		all[spread.Spec.TargetReference.Name] = maker
	}
	return all, nil
}

// expectMakers waits until the workloads have spreads of these rules, and no others.
func expectMakers(t *testing.T, namespace string, want map[string]string) {
	t.Helper()
	waitFor(t, fmt.Sprintf("the spreads %v", want), func(ctx context.Context) (string, error) {
		got, err := spreadsOf(ctx, namespace)
		if err == nil && fmt.Sprint(got) == fmt.Sprint(want) {
			return "", nil
		}
		return fmt.Sprint(got), err
	})
}

// statusOf reads the status of a SpreadRule, or of a ClusterSpreadRule if the namespace is empty.
func statusOf(ctx context.Context, namespace, name string) (status v1alpha1.RuleStatus, _ error) {
	get := the.Dynamic.Resource(rulesOfCluster).Get
	if namespace != "" {
		get = the.Dynamic.Resource(rulesOfNamespace).Namespace(namespace).Get
	}
	object, err := get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return status, err
	}
	content, _, err := unstructured.NestedMap(object.Object, "status")
	if err != nil {
		return status, err
	}
	return status, runtime.DefaultUnstructuredConverter.FromUnstructured(content, &status)
}

// expectStatus waits until a condition of a rule has the reason, and returns its status then.
func expectStatus(t *testing.T, namespace, name, condition string, reason v1alpha1.Reason) (status v1alpha1.RuleStatus) {
	t.Helper()
	waitFor(t, fmt.Sprintf("rule %s to say %s", name, reason), func(ctx context.Context) (_ string, err error) {
		status, err = statusOf(ctx, namespace, name)
		if has := meta.FindStatusCondition(status.Conditions, condition); has != nil && has.Reason == string(reason) {
			return "", err
		}
		return fmt.Sprintf("%+v", status), err
	})
	return status
}
