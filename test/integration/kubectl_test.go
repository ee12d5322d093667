package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/test/harness"
)

// kubectl runs the sandbox's kubectl with the plugin on its PATH, as a user does, and returns what it prints.
func kubectl(t *testing.T, args ...string) (stdout, stderr string, failed bool) {
	t.Helper()
	bin := harness.BinDir()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+the.Sandbox.Kubeconfig(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), log.String(), err != nil
}

func TestKubectlBerthStatus(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadHeader+`
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
`+strings.Replace(twoPools, "%s", "1", 1))
	apply(t, ns, deployment("web", 3, ""))
	expectPlaces(t, ns, "a=1 b=2")

	waitFor(t, "a status with all pods", func(context.Context) (string, error) {
		out, log, failed := kubectl(t, "berth", "status", "-n", ns, "-o", "json")
		var list struct{ Items []report.Report }
		if err := json.Unmarshal([]byte(out), &list); err != nil || failed {
			return "", errors.New(log + out)
		}
		reports := list.Items
		if len(reports) != 1 || len(reports[0].Subsets) != 2 || reports[0].Subsets[1].Pods != 2 {
			return out, nil
		}
		if r := reports[0]; !r.Ready || *r.Subsets[0].Quota != 1 || r.Subsets[1].Quota != nil || !strings.HasPrefix(r.Next, "nothing") {
			t.Errorf("reported %s", out)
		}
		return "", nil
	})
	out, log, failed := kubectl(t, "berth", "status", "web", "-n", ns)
	for _, part := range []string{"Deployment/web", "Ready", "SUBSET", "████████████████████", "next: nothing"} {
		if failed || !strings.Contains(out, part) {
			t.Errorf("printed\n%s%swithout %q", out, log, part)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Errorf("colors without a terminal: %q", out)
	}
	for command, first := range map[string]string{"status": "web\n", "explain": "web-", "wait": "web\n", "eviction": "web-"} {
		if out, log, failed := kubectl(t, "__complete", "berth", command, "-n", ns, ""); failed || !strings.HasPrefix(out, first) {
			t.Errorf("kubectl's completion of %s: %s%s", command, out, log)
		}
	}
}

// berth runs the plugin in a namespace. It fails the test if the command fails or does not print these texts.
func berth(t *testing.T, ns string, args []string, texts ...string) string {
	t.Helper()
	out, log, failed := kubectl(t, append([]string{"berth", "-n", ns}, args...)...)
	for _, text := range texts {
		if failed || !strings.Contains(out, text) {
			t.Errorf("%s printed\n%s%swithout %q", args, out, log, text)
		}
	}
	return out
}

func TestKubectlBerthOnASpread(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	spread := strings.Replace(spreadHeader, "metadata: {", "metadata: {labels: {team: shop}, ", 1) + `
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
` + strings.Replace(twoPools, "%s", "1", 1)
	apply(t, ns, spread)
	if _, log, failed := kubectl(t, "berth", "-n", ns, "wait", "web", "--timeout=10ms"); !failed || !strings.Contains(log, "web is not placed after 10ms: ") {
		t.Errorf("waiting for a workload that does not exist: %q", log)
	}
	apply(t, ns, deployment("web", 3, ""))
	berth(t, ns, []string{"wait", "web", "--timeout=" + harness.Timeout.String()}, "WorkloadSpread web is placed.")
	expectPlaces(t, ns, "a=1 b=2")

	berth(t, ns, []string{"status", "-l", "team=shop"}, "Deployment/web")
	if out, log, failed := kubectl(t, "berth", "-n", ns, "status", "-l", "team!=shop"); failed || out != "" || log != "No resources found in "+ns+" namespace.\n" {
		t.Errorf("nothing found: printed %q and %q", out, log)
	}
	apply(t, ns, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: viewer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: viewer}]
`)
	pods, _, _ := kubectl(t, "-n", ns, "get", "pods", "-l", "berth.dev/subset=a", "-o", "name")
	waitFor(t, "an answer for somebody who may read the namespace alone", func(context.Context) (string, error) {
		out, log, failed := kubectl(t, "berth", "-n", ns, "explain", strings.TrimSpace(pods), "--as", "viewer")
		if failed || !strings.Contains(log, "kubectl berth: without nodes: ") || !strings.Contains(out, "why: a comes first") {
			return out + log, nil
		}
		return "", nil
	})
	if out, log, failed := kubectl(t, "-n", ns, "annotate", "ws/web", "berth.dev/paused=true"); failed {
		t.Errorf("pausing: %s%s", out, log)
	}
	berth(t, ns, []string{"status", "web"}, "paused: the descheduler moves none of its pods")
	berth(t, ns, []string{"version"}, "kubectl-berth", "API server", "no Deployment or CronJob of Berth")

	file := filepath.Join(t.TempDir(), "spread.yaml")
	if err := os.WriteFile(file, []byte(spread), 0o600); err != nil {
		t.Fatal(err)
	}
	berth(t, ns, []string{"lint", "-f", file}, "1 WorkloadSpread and 0 PodUnavailableBudgets: 0 mistakes, 0 warnings")
	if err := os.WriteFile(file, []byte(strings.Replace(spread, "subsets:", "subset:", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, log, failed := kubectl(t, "berth", "lint", "-f", file); !failed || !strings.Contains(out, `unknown field "spec.subset"`) || log != "" {
		t.Errorf("failed: %t, printed\n%s%s", failed, out, log)
	}
}

func TestKubectlBerthSaysWhatToDo(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"an unknown spread": {[]string{"berth", "status", "nobody"}, `there is no WorkloadSpread, UnitedDeployment or FederatedReplicaSet "nobody" in namespace "default"`},
		"no permission":     {[]string{"berth", "status", "--as", "nobody"}, "ask for a role that allows it"},
		"no cluster":        {[]string{"berth", "status", "--server", "https://127.0.0.1:1"}, "no API server answers at https://127.0.0.1:1"},
		"no such context":   {[]string{"berth", "status", "--context", "elsewhere"}, "elsewhere"},
		"a wrong format":    {[]string{"berth", "status", "-o", "xml"}, "allowed formats are: json, jsonpath, name, wide, yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			out, log, failed := kubectl(t, tc.args...)
			if !failed || !strings.Contains(log, tc.want) || strings.Count(log, "\n") != 1 || out != "" {
				t.Errorf("failed: %t, printed %q and %q, want one line with %q", failed, out, log, tc.want)
			}
		})
	}
}
