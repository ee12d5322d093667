package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/pkg/descheduler/guarded"
	"github.com/berth-project/berth/test/harness"
)

// atOnce is a policy without waiting times.
const atOnce = `
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: test
  pluginConfig:
  - {name: DefaultEvictor, args: {}}
  - {name: EnforceSubsetMaxReplicas, args: {settleTime: 0s, maxUnavailable: 100%}}
  plugins: {deschedule: {enabled: [EnforceSubsetMaxReplicas]}}
`

// planOf runs "kubectl berth rebalance --dry-run". It returns the plan and the other output.
func planOf(t *testing.T, args ...string) ([]cycle.Line, string) {
	t.Helper()
	out, log, failed := kubectl(t, append([]string{"berth", "rebalance", "--dry-run", "-o", "json"}, args...)...)
	var report cycle.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || failed {
		t.Fatalf("%v\n%s%s", err, out, log)
	}
	return report.Lines, log
}

func TestKubectlBerthRebalanceShowsWhatWouldMove(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	spread := spreadHeader + `
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
` + twoPools
	apply(t, ns, strings.Replace(spread, "%s", "3", 1))
	apply(t, ns, deployment("web", 3, ""))
	expectPlaces(t, ns, "a=3 b=0")
	before, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the pods to be ready", func(ctx context.Context) (string, error) {
		deployment, err := the.Client.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil || deployment.Status.ReadyReplicas == 3 {
			return "", err
		}
		return fmt.Sprint(deployment.Status), nil
	})
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(atOnce), 0o600); err != nil {
		t.Fatal(err)
	}
	policy := "--policy-config-file=" + file

	out, log, failed := kubectl(t, "berth", "rebalance", "--dry-run", "-n", ns, policy)
	if failed || log != "" || !strings.HasPrefix(out, "Nothing to move") {
		t.Errorf("with every pod in its place it printed\n%s%s", out, log)
	}

	apply(t, ns, strings.Replace(spread, "%s", "1", 1))
	waitFor(t, "a plan of two moves", func(context.Context) (string, error) {
		lines, _ := planOf(t, "web", "-n", ns, policy)
		if len(lines) != 2 {
			return fmt.Sprintf("%+v", lines), nil
		}
		for _, line := range lines {
			if line.Verdict != cycle.Moved || line.Reason != v1beta1.ReasonOverQuota || line.From != "a" || line.To != "b" || line.Node != nodeIn(t, "a") || line.Result != guarded.WouldEvict {
				t.Errorf("planned %+v", line)
			}
		}
		return "", nil
	})
	out, log, failed = kubectl(t, "berth", "rebalance", "--dry-run", "-n", ns, "-o", "wide", policy)
	if rows := strings.Split(strings.TrimSpace(out), "\n"); failed || log != "" || len(rows) != 3 || !strings.HasSuffix(rows[0], "NODE") || !strings.HasSuffix(rows[1], nodeIn(t, "a")) {
		t.Errorf("wide it printed\n%s%s", out, log)
	}
	if lines, _ := planOf(t, "-n", "default", policy); len(lines) != 0 {
		t.Errorf("in another namespace it planned %+v", lines)
	}
	if lines, _ := planOf(t, "-A", policy); !slices.ContainsFunc(lines, func(line cycle.Line) bool { return line.Namespace == ns }) {
		t.Errorf("in all namespaces it planned %+v", lines)
	}

	// The cluster's policy requires that pods have been above the quota for a minute. Only a dry run, which writes nothing, can have seen them.
	lines, log := planOf(t, "web", "-n", ns)
	if len(lines) != 1 || lines[0].Reason != v1beta1.ReasonSettling || !strings.Contains(log, "uses the policy that is deployed with Berth") {
		t.Errorf("without a policy in the cluster it planned %+v, and said %q", lines, log)
	}
	apply(t, "berth-system", strings.ReplaceAll(string(manifests.DeschedulerPolicy), "settleTime: 1m", "settleTime: 0s"))
	deleteAfter(t, the.Client.CoreV1().ConfigMaps("berth-system").Delete, "berth-descheduler-policy")
	if lines, log := planOf(t, "web", "-n", ns); len(lines) != 2 || log != "" || lines[0].Verdict != cycle.Moved && lines[1].Verdict != cycle.Moved {
		t.Errorf("by the policy in the cluster it planned %+v, and said %q", lines, log)
	}

	// The command asks the API server, which may refuse. A user without the right to ask gets a message about it.
	refuse(t, ns, "eviction", func(ctx context.Context) error {
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: before[0].Name}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
		return the.Client.PolicyV1().Evictions(ns).Evict(ctx, eviction)
	})
	if lines, _ := planOf(t, "web", "-n", ns, policy); len(lines) != 2 || lines[0].Result != guarded.Forbidden {
		t.Errorf("with evictions refused it planned %+v", lines)
	}
	viewer := viewer(t)
	if lines, log := planOf(t, "web", "-n", ns, policy, "--as", viewer); len(lines) != 2 || lines[0].Result != guarded.WouldEvict || !strings.Contains(log, "you may not evict pods in namespace "+ns) {
		t.Errorf("for a user who may only read it planned %+v, and printed %q", lines, log)
	}

	after, err := the.Pods(t.Context(), ns)
	if err != nil || len(after) != len(before) {
		t.Fatalf("there were %d pods and are %d: %v", len(before), len(after), err)
	}
	for i := range before {
		if after[i].UID != before[i].UID || after[i].DeletionTimestamp != nil {
			t.Errorf("%s was evicted", before[i].Name)
		}
	}
	if object, err := the.Spread(t.Context(), ns, "web"); err != nil || len(object.Status.Moves) > 0 || object.Status.Misplaced != nil {
		t.Errorf("the status remembers %+v: %v", object.Status, err)
	}
}

// viewer creates a user who may only read, but everything.
func viewer(t *testing.T) string {
	t.Helper()
	name := nodeIn(t, "viewer")
	apply(t, "", fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]
`, name))
	deleteAfter(t, the.Client.RbacV1().ClusterRoles().Delete, name)
	deleteAfter(t, the.Client.RbacV1().ClusterRoleBindings().Delete, name)
	return name
}

func TestKubectlBerthRebalanceSaysWhatToDo(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"without a dry run": {nil, "kubectl -n berth-system create job --from=cronjob/berth-descheduler"},
		"an unknown spread": {[]string{"--dry-run", "nobody"}, `there is no WorkloadSpread "nobody" in namespace "default"`},
		"no permission":     {[]string{"--dry-run", "--as", "nobody"}, "ask for a role that allows it"},
		"no cluster":        {[]string{"--dry-run", "--server", "https://127.0.0.1:1"}, "no API server answers at https://127.0.0.1:1"},
		"no policy":         {[]string{"--dry-run", "--policy-config-file=nowhere.yaml"}, "nowhere.yaml"},
		"no such format":    {[]string{"--dry-run", "-o", "xml"}, "allowed formats are: json, jsonpath, name, wide, yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			out, log, failed := kubectl(t, append([]string{"berth", "rebalance"}, tc.args...)...)
			if !failed || !strings.Contains(log, tc.want) || strings.Count(log, "\n") != 1 || out != "" {
				t.Errorf("failed: %t, printed %q and %q, want one line with %q", failed, out, log, tc.want)
			}
		})
	}
}
