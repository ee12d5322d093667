package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/helper"
)

// begun starts a scheduler and an API server with the shape's objects. It waits until the scheduler has bound all pods.
func begun(t *testing.T, s shape) *measurement {
	t.Helper()
	klog.SetLogger(logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	m, err := start(ctx, s, options{BindTimeout: time.Second, Limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		m.server.stop()
	})
	if err := m.begin(ctx); err != nil {
		t.Fatal(err)
	}
	return m
}

// asMain is an environment variable. If it is set, the test binary runs the command.
const asMain = "BERTH_SCALE_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
		return
	}
	m.Run()
}

// measured runs the command for a shape and returns the result. It uses a new process, so that the heap contains nothing of other tests.
func measured(t *testing.T, name string) *result {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), program, "-only", name, "-json", "-spreads", "100", "-pods", "20", "-nodes", "20", "-churn", "0")
	command.Env = append(os.Environ(), asMain+"=1")
	command.Stderr = os.Stderr
	text, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	r := &result{}
	if err := json.Unmarshal(text, r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestAPodOfASpreadIsInMemoryOnce: the ledger uses the pods of the scheduler's cache. It keeps no copies of pods that a take-over reads. A pod takes
// 9 KiB here.
func TestAPodOfASpreadIsInMemoryOnce(t *testing.T) {
	stock, berth := measured(t, "stock"), measured(t, "one")
	if stock.Heap == 0 || berth.Heap == 0 {
		t.Fatalf("the heap was not measured: %d bytes without the plugins, %d with them", stock.Heap, berth.Heap)
	}
	more := (int64(berth.Heap) - int64(stock.Heap)) / int64(berth.Pods)
	t.Logf("%d bytes for each pod", more)
	if more > 4<<10 {
		t.Errorf("the plugins take %d bytes for each pod of a spread, want no more than %d", more, 4<<10)
	}
}

// TestTheCachesOfWorkloadsLackTheirTemplates, but contain what the plugin and the filters of kube-scheduler read.
func TestTheCachesOfWorkloadsLackTheirTemplates(t *testing.T) {
	m := begun(t, shape{Spreads: 1, Pods: 2, Namespaces: 1, Nodes: 2})
	namespace, name := m.shape.namespaceOf(0), workloadName(0)
	deployment, err := m.process.informers.Apps().V1().Deployments().Lister().Deployments(namespace).Get(name)
	if err != nil {
		t.Fatal(err)
	}
	if len(deployment.Spec.Template.Spec.Containers)+len(deployment.Annotations)+len(deployment.ManagedFields)+len(deployment.Status.Conditions) > 0 {
		t.Errorf("the whole Deployment is in memory: %v", deployment)
	}
	replicaSets := m.process.informers.Apps().V1().ReplicaSets().Lister()
	replicaSet, err := replicaSets.ReplicaSets(namespace).Get(name + "-" + hash)
	if err != nil {
		t.Fatal(err)
	}
	if len(replicaSet.Spec.Template.Spec.Containers)+len(replicaSet.Annotations)+len(replicaSet.ManagedFields) > 0 {
		t.Errorf("the whole ReplicaSet is in memory: %v", replicaSet)
	}

	core, apps := m.process.informers.Core().V1(), m.process.informers.Apps().V1()
	selector := helper.DefaultSelector(pod(namespace, name, "any"), core.Services().Lister(), core.ReplicationControllers().Lister(), replicaSets, apps.StatefulSets().Lister())
	if want := "app=" + name + "," + appsv1.DefaultDeploymentUniqueLabelKey + "=" + hash; selector.String() != want {
		t.Errorf("the default constraints of PodTopologySpread count pods by %q, want %q", selector, want)
	}
}
