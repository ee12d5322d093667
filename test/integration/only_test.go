package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/test/harness"
)

// onlyScheduler is the deployed configuration with a profile for all other pods, as in docs/install.md.
func onlyScheduler(t *testing.T) []byte {
	t.Helper()
	const profiles = "\nprofiles:\n"
	before, after, found := strings.Cut(string(manifests.SchedulerConfig), profiles)
	if !found {
		t.Fatal("the deployed configuration has no profiles")
	}
	return []byte(before + profiles + "- schedulerName: default-scheduler\n" + after)
}

// rivals are pods of a spread, pods without one, and pods without one that preempt others.
const rivals = spreadHeader + `
  targetRef: {apiVersion: apps/v1, kind: ReplicaSet, name: spread}
  scheduleStrategy: {type: Adaptive}
  subsets: [{name: a, maxReplicas: 12}, {name: b}]
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: spread}
spec:
  replicas: 30
  selector: {matchLabels: {app: spread}}
  template:
    metadata: {labels: {app: spread}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: "1"}}}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: plain}
spec:
  replicas: 30
  selector: {matchLabels: {app: plain}}
  template:
    metadata: {labels: {app: plain}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: "1"}}}]}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: rivals-first}
value: 1000
`

const urgentRivals = `
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: urgent}
spec:
  replicas: 20
  selector: {matchLabels: {app: urgent}}
  template:
    metadata: {labels: {app: urgent}}
    spec: {priorityClassName: rivals-first, containers: [{name: main, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: "1"}}}]}
`

// TestTheOnlySchedulerFillsNoNodeTwice: with both profiles in one process, pods of spreads and others compete for 40 places, and then others preempt. No node has
// more pods than it has room for at any revision, also while victims end. A second scheduler cannot promise that: docs/faq.md.
func TestTheOnlySchedulerFillsNoNodeTwice(t *testing.T) {
	t.Parallel() // it has a cluster of its own
	const nodes, places = 20, 2
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "only", Dir: t.TempDir(), Without: []string{product.DefaultScheduler}}, product.Options{SchedulerConfig: onlyScheduler(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	var all []*corev1.Node
	for i := range nodes {
		all = append(all, sandbox.NewNode(fmt.Sprint("node-", i), "zone-a", nil, nil, sandbox.Allocatable(resource.MustParse(fmt.Sprint(places)), resource.MustParse(sandbox.DefaultNodeMemory))))
	}
	if err := cluster.Sandbox.CreateNodes(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	ns, err := cluster.CreateNamespace(t.Context(), "only")
	if err != nil {
		t.Fatal(err)
	}
	overfull := countOverfull(t, cluster, ns, places)
	for _, step := range []struct{ text, want string }{
		{rivals, "40 of 60 run"},
		{urgentRivals, "40 of 80 run, 20 urgent"},
	} {
		if err := cluster.ApplyYAML(t.Context(), ns, step.text); err != nil {
			t.Fatal(err)
		}
		if err := cluster.WaitFor(t.Context(), step.want, func(ctx context.Context) (string, error) {
			pods, err := cluster.Pods(ctx, ns)
			run, urgent, live := 0, 0, 0
			for i := range pods {
				if pods[i].DeletionTimestamp != nil {
					continue
				}
				live++
				if pods[i].Spec.NodeName != "" {
					run++
					if pods[i].Labels["app"] == "urgent" {
						urgent++
					}
				}
			}
			got := fmt.Sprintf("%d of %d run", run, live)
			if urgent > 0 {
				got += fmt.Sprintf(", %d urgent", urgent)
			}
			return map[bool]string{false: got}[got == step.want], err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if found := overfull(); len(found) > 0 {
		t.Errorf("%d times a node had too many pods, first %s", len(found), found[0])
	}
}

// countOverfull watches the pods of a namespace. It returns a function that ends the watch and returns each time at which a bind gave a node more pods than places.
func countOverfull(t *testing.T, cluster *harness.Cluster, ns string, places int) (end func() []string) {
	t.Helper()
	w, err := cluster.Client.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found, done := []string{}, make(chan struct{})
	go func() {
		defer close(done)
		on := map[string]map[string]bool{}
		for event := range w.ResultChan() {
			pod, is := event.Object.(*corev1.Pod)
			if !is || pod.Spec.NodeName == "" {
				continue
			}
			there := on[pod.Spec.NodeName]
			if there == nil {
				there = map[string]bool{}
				on[pod.Spec.NodeName] = there
			}
			if event.Type == watch.Deleted || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
				delete(there, pod.Name)
				continue
			}
			if there[pod.Name] {
				continue
			}
			if there[pod.Name] = true; len(there) > places {
				found = append(found, fmt.Sprintf("%s with %d pods", pod.Spec.NodeName, len(there)))
			}
		}
	}()
	return func() []string {
		w.Stop()
		<-done
		return found
	}
}
