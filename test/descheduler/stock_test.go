package descheduler

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/test/harness"
)

// stock starts the descheduler of kubernetes-sigs with Berth's plugins, once with no interval. The end of the test kills it.
func stock(t *testing.T, binary, policy string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	output := &bytes.Buffer{}
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"--kubeconfig=" + kubeconfigAs(t, serviceAccount), "--policy-config-file=" + writePolicy(t, policy),
		"--client-connection-qps=100", "--client-connection-burst=100", "--secure-port=0", "--cert-dir=" + t.TempDir(), "--v=1"}, args...)...)
	cmd.Stdout, cmd.Stderr = output, output
	return cmd, output
}

// The plugins work in a descheduler that knows nothing of Berth, beside a strategy of the framework: in its dry run, once, and in its loop.
func TestThePluginsWorkInAStockDescheduler(t *testing.T) {
	harness.Long(t)
	binary := filepath.Join(t.TempDir(), "descheduler")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./stock").CombinedOutput(); err != nil {
		t.Fatalf("building it: %v\n%s", err, output)
	}
	ns := newNamespace(t)
	nodes := pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=4 b=-")+"---"+workload("ReplicaSet", 4, "100m")+"---"+
		strings.NewReplacer("web", "old", "containers:", "nodeName: "+nodes[0].Name+"\n      containers:").Replace(workload("ReplicaSet", 1, "100m")))
	expectLayout(t, ns, "a=4 none=1")
	setQuota(t, ns, 2)
	oldEnough(t, ns)
	once := strings.NewReplacer("  plugins:\n", "  - {name: PodLifeTime, args: {maxPodLifeTimeSeconds: 1, namespaces: {include: ["+ns+"]}, labelSelector: {matchLabels: {app: old}}}}\n  plugins:\n",
		"enabled: ["+enforce, "enabled: [PodLifeTime, "+enforce).Replace(policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 100%"))
	watch := watchDisruptions(t, ns, 0)

	// The framework's dry run goes by a copy of the cluster and does not wait for it, so it may see nothing of the cluster, or a part.
	waitFor(t, "a dry run of three evictions", func(context.Context) (string, error) {
		cmd, output := stock(t, binary, once, "--dry-run")
		if err := cmd.Run(); err != nil || strings.Count(output.String(), "Evicted pod in dry run mode") != 3 {
			return fmt.Sprintf("%v\n%s", err, output), nil
		}
		return "", nil
	})
	watch.expect(t, 0)
	if status := spreadStatus(t, ns); status.Moves != nil {
		t.Errorf("the dry run has written %+v", status.Moves)
	}

	cmd, output := stock(t, binary, once)
	if cmd.Run() != nil {
		t.Fatalf("%s", output)
	}
	expectLayout(t, ns, "a=2 b=2 none=1")
	watch.expect(t, 3)
	if status := spreadStatus(t, ns); len(status.Moves) != 1 || status.Moves[0].From != "a" || status.Moves[0].To != "b" {
		t.Errorf("the status remembers %+v\n%s", status.Moves, output)
	}
	events, err := the.Client.EventsV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=OverQuota,reportingController=berth-descheduler"})
	if err != nil || len(events.Items) != 2 {
		t.Errorf("%d events on the spread, want 2: %v", len(events.Items), err)
	}

	cmd, output = stock(t, binary, policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 100%"), "--descheduling-interval=1s")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(output)
		}
	})
	for quota := 1; quota >= 0; quota-- {
		want := fmt.Sprintf("%d pods in a", quota)
		setQuota(t, ns, quota)
		waitFor(t, want, func(ctx context.Context) (string, error) {
			pods, err := live(ctx, ns)
			if in := len(names(pods, "a")); in != quota || len(names(pods, "b")) != 4-quota {
				return fmt.Sprintf("%d are", in), err
			}
			return "", err
		})
	}
	watch.expect(t, 5)
}
