package main

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/helper"
)

// begun starts a scheduler beside an API server with the shape's objects, and waits until it has scheduled all pods.
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

// TestAPodOfASpreadIsInMemoryOnce: the ledger holds the pods of the scheduler's cache, and no copies of those that a take-over reads. A pod takes 9 KiB here.
func TestAPodOfASpreadIsInMemoryOnce(t *testing.T) {
	s := shape{Spreads: 100, Pods: 20, Namespaces: 1, Nodes: 20}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stock, err := start(ctx, s, options{Stock: true, Limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer stock.server.stop()
	if err := stock.begin(ctx); err != nil {
		t.Fatal(err)
	}
	berth := begun(t, s)
	more := (int64(berth.result.Heap) - int64(stock.result.Heap)) / int64(berth.result.Pods)
	t.Logf("%d bytes for each pod", more)
	if more > 4<<10 {
		t.Errorf("the plugins take %d bytes for each pod of a spread, want no more than %d", more, 4<<10)
	}
}

// TestTheCachesOfWorkloadsLackTheirTemplates, and have what the plugin and the filters of kube-scheduler read.
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
