package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

// The nodes of the two subsets.
var own, elastic = sandbox.KubeletNode(0), sandbox.KubeletNode(1)

// spread has so many pods on own nodes, and the others on elastic ones.
func spread(kind string, most int) string {
	return fmt.Sprintf(`apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: %s, name: web}
  subsets:
  - name: own
    maxReplicas: %d
    requiredNodeSelectorTerm: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}
  - name: elastic
    requiredNodeSelectorTerm: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}
---
`, kind, most, own, elastic)
}

// on is how many pods are on the node and do not terminate.
func (w world) on(node string) (count int) {
	w.Helper()
	for _, pod := range w.pods() {
		if pod.Spec.NodeName == node && pod.DeletionTimestamp == nil {
			count++
		}
	}
	return count
}

// TestOwnPodsStayInEveryScale: the first subset has two pods of any number, and they are the same ones all the time. The pods of the scale before still end.
func TestOwnPodsStayInEveryScale(t *testing.T) {
	for _, kind := range []string{"ReplicaSet", "StatefulSet"} {
		t.Run(kind, func(t *testing.T) {
			yaml := func(replicas int) string {
				load := workload{replicas: replicas, pool: kept, grace: 10, args: []string{"--end-after=3s"}}.yaml()
				if kind == "StatefulSet" {
					load = strings.NewReplacer("kind: ReplicaSet", "kind: StatefulSet", "spec:\n  replicas", "spec:\n  podManagementPolicy: Parallel\n  replicas").Replace(load)
				}
				return load
			}
			w := newWorld(t, spread(kind, 2)+yaml(6))
			owned := map[types.UID]bool{}
			for _, replicas := range []int{6, 3, 8, 2} {
				w.apply(yaml(replicas))
				w.waitFor(soon, fmt.Sprintf("%d ready pods", replicas), func() string {
					ready, all := 0, 0
					for _, pod := range w.pods() {
						if pod.DeletionTimestamp != nil {
							continue
						}
						all++
						if isReady(&pod) {
							ready++
						}
					}
					if ready == replicas && all == replicas {
						return ""
					}
					return fmt.Sprintf("%d of %d pods are", ready, all)
				})
				onOwn := 0
				for _, pod := range w.pods() {
					if pod.Spec.NodeName == own {
						onOwn++
						owned[pod.UID] = true
					}
				}
				if onOwn != 2 || len(owned) != 2 {
					t.Errorf("with %d replicas %d pods are on own nodes, and %d have been there, want the same 2", replicas, onOwn, len(owned))
				}
			}
			w.ready(2)
		})
	}
}

// TestPodsComeHomeWhileTheirContainersEndSlowly: the descheduler keeps the budget, and the containers answer all the time.
func TestPodsComeHomeWhileTheirContainersEndSlowly(t *testing.T) {
	load := workload{replicas: 4, pool: kept, grace: 10, args: []string{"--ready-after=2s", "--end-after=3s"}}
	w := newWorld(t, budget+spread("ReplicaSet", 1)+load.yaml())
	w.ready(4)
	w.counts(soon, 4, 1)
	w.apply(spread("ReplicaSet", 3))
	stopReady, stopAnswers := w.readyPods(), w.answers()

	dir := t.TempDir()
	kubeconfig, policy := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "policy.yaml")
	if err := errors.Join(the.WriteKubeconfigAs("system:serviceaccount:berth-system:berth-descheduler", kubeconfig), os.WriteFile(policy, fmt.Appendf(nil, `apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: home
  pluginConfig:
  - {name: DefaultEvictor, args: {}}
  - {name: SubsetEvictor, args: {}}
  - {name: RebalanceToPreferredSubset, args: {namespaces: {include: [%s]}, stabilizationWindow: 0s, minResidence: 0s, cooldown: 0s, backoff: {base: 1s, longest: 2s}}}
  plugins:
    filter: {enabled: [SubsetEvictor]}
    preEvictionFilter: {enabled: [SubsetEvictor]}
    balance: {enabled: [RebalanceToPreferredSubset]}
`, w.namespace), 0o600)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	descheduler := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "berth-descheduler"), "--kubeconfig="+kubeconfig, "--policy-config-file="+policy,
		"--secure-port=0", "--cert-dir="+dir, "--descheduling-interval=1s")
	var output bytes.Buffer
	descheduler.Stdout, descheduler.Stderr = &output, &output
	if err := descheduler.Start(); err != nil {
		t.Fatal(err)
	}
	w.waitFor(2*soon, "three pods at home", func() string {
		if at := w.on(own); at != 3 {
			return fmt.Sprintf("%d are", at)
		}
		return ""
	})
	w.ready(4)
	cancel()
	_ = descheduler.Wait() // it was killed
	if least := stopReady(); least < 3 {
		t.Errorf("%d pods were ready, want 3:\n%s", least, output.String())
	}
	if least, _ := stopAnswers(); least < 3 {
		t.Errorf("%d containers answered, want 3", least)
	}
}

// TestASubsetOfAUnitedDeploymentIsUpdatedWhenTheOneBeforeIsReady: by containers that take seconds to be ready and to end.
func TestASubsetOfAUnitedDeploymentIsUpdatedWhenTheOneBeforeIsReady(t *testing.T) {
	yaml := func(image string) string {
		return fmt.Sprintf(`apiVersion: apps.kruise.io/v1beta1
kind: UnitedDeployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    deploymentTemplate:
      metadata: {labels: {app: web}}
      spec:
        template:
          metadata: {labels: {app: web}}
          spec:
            terminationGracePeriodSeconds: 10
            containers:
            - name: web
              image: %s
              args: [serve, --ready-after=2s, --end-after=2s]
              readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}
  topology:
    subsets:
    - {name: own, nodeSelectorTerm: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}}
    - {name: elastic, nodeSelectorTerm: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}}
  updateStrategy: {order: InOrder}
`, image, own, elastic)
	}
	w := newWorld(t, yaml(sandbox.ServerImage))
	w.ready(4)
	if at := w.on(own); at != 2 {
		t.Fatalf("%d pods are on the nodes of the first subset, want 2", at)
	}
	stop := w.readyPods()
	w.apply(yaml(sandbox.NextServerImage))
	w.waitFor(2*soon, "the next version in both subsets", func() string {
		updated := map[string]int{}
		next := false
		for _, pod := range w.pods() {
			isNext := pod.Spec.Containers[0].Image == sandbox.NextServerImage
			next = next || isNext && pod.Spec.NodeName == elastic
			if isNext && isReady(&pod) {
				updated[pod.Spec.NodeName]++
			}
		}
		if next && updated[own] < 2 {
			t.Fatalf("a pod of the second subset has the next version, and %d ready pods of the first", updated[own])
		}
		if updated[own] == 2 && updated[elastic] == 2 {
			return ""
		}
		return fmt.Sprint(updated)
	})
	w.ready(4)
	if least := stop(); least < 4 {
		t.Errorf("%d pods were ready, want 4", least)
	}
}
