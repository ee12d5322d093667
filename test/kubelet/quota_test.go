package kubelet

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

// quota is a spread with two slots for all revisions of the ReplicaSet or Deployment web. Other pods wait.
func quota(policy string) string {
	return fmt.Sprintf(`apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: ReplicaSet, name: web}
  scheduleStrategy: {quotaScope: Workload, whenFull: Wait, podReplacementPolicy: %s}
  subsets:
  - {name: licensed, maxReplicas: 2}
---
`, policy)
}

// bound is empty if so many pods are on a node and others wait, which do not terminate.
func (w world) bound(want, wantWaiting int) string {
	bound, waiting := 0, 0
	for _, pod := range w.pods() {
		if pod.Spec.NodeName != "" {
			bound++
		} else if pod.DeletionTimestamp == nil {
			waiting++
		}
	}
	if bound == want && waiting == wantWaiting {
		return ""
	}
	return fmt.Sprintf("%d pods are on nodes and %d wait", bound, waiting)
}

// TestATerminatingPodHoldsItsSlotUntilItsContainerHasEnded: what a licence server would see. With the other policy the next container starts beside the old one.
func TestATerminatingPodHoldsItsSlotUntilItsContainerHasEnded(t *testing.T) {
	for policy, wantMost := range map[string]int{"TerminationComplete": 2, "TerminationStarted": 4} {
		t.Run(policy, func(t *testing.T) {
			yaml := strings.NewReplacer("kind: ReplicaSet, name: web", "kind: Deployment, name: web").Replace(quota(policy)) + fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  strategy: {rollingUpdate: {maxUnavailable: 2, maxSurge: 0}}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 30
      containers:
      - name: web
        image: %s
        args: [serve, --end-after=8s]
        readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}
      nodeSelector: {pool: kept}
`, sandbox.ServerImage)
			w := newWorld(t, yaml)
			w.ready(2)
			stop := w.answers()
			began := time.Now()
			if got := w.kubectl(w.ctx, "rollout", "restart", "deployment/web"); !strings.Contains(got, "restarted") {
				t.Fatal(got)
			}
			if got := w.kubectl(w.ctx, "rollout", "status", "deployment/web", "--timeout=90s"); !strings.Contains(got, "successfully rolled out") {
				t.Fatal(got)
			}
			t.Logf("the rollout took %s", time.Since(began).Round(time.Second))
			w.ready(2)
			if _, most := stop(); most != wantMost {
				t.Errorf("%d containers answered at a time, want %d", most, wantMost)
			}
		})
	}
}

// TestAPodThatANodeHasNoRoomForCountsNowhereAndIsTold: another scheduler has given away the room. The pod has failed when its controller makes the next one.
// It asks for storage, as no pod of another test does: until the kubelet has refused it, it refuses others that ask for the same.
func TestAPodThatANodeHasNoRoomForCountsNowhereAndIsTold(t *testing.T) {
	w := newWorld(t, budget+strings.ReplaceAll(workload{replicas: 2, pool: kept, grace: 1}.yaml(), "app: web}", "app: web, of: replicaset}"))
	w.ready(2)
	w.counts(soon, 2, 1)
	w.apply(fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: late, labels: {app: web}}\nspec:\n  nodeName: %s\n  containers: [{name: web, image: %q, resources: {requests: {ephemeral-storage: 1P}}}]\n", own, sandbox.ServerImage))
	w.waitFor(soon, "a refusal by the kubelet", func() string {
		if now := w.pod("late").Status; now.Phase != corev1.PodFailed || now.Reason != "OutOfephemeral-storage" {
			return fmt.Sprint(now.Phase, now.Reason)
		}
		return ""
	})
	w.counts(soon, 2, 1)
	w.waitFor(soon, "the doctor to name the node", func() string {
		output, _ := exec.CommandContext(w.ctx, filepath.Join(harness.BinDir(), "kubectl-berth"), "doctor", "--kubeconfig="+the.Sandbox.Kubeconfig()).CombinedOutput() // it may find more
		if strings.Contains(string(output), "kubelets refused 1 pod for lack of room ("+own+")") {
			return ""
		}
		return string(output)
	})
}
