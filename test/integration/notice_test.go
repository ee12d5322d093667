package integration

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/test/harness"
)

var (
	notice = flag.Duration("notice", 12*time.Second, "how long before its end a node announces it")
	starts = flag.Duration("starts", 2*time.Second, "how long a pod takes until it is ready")
	after  = flag.Duration("after-notice", 6*time.Second, "how long to look on after the end of the nodes")
)

const (
	// started is the readiness gate of pods that take long to start.
	started = "test/started"
	// onSpot has %d pods for the subset spot, as many for on-demand, and a gate.
	onSpot = `
apiVersion: apps.kruise.io/v1beta1
kind: WorkloadSpread
metadata: {name: %[1]s}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}
  subsets:
  - {name: spot, maxReplicas: 14, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [%[2]s]}, {key: capacity, operator: In, values: [spot]}]}}
  - {name: on-demand, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [%[2]s]}, {key: capacity, operator: In, values: [on-demand]}]}}
  scheduleStrategy: {type: Adaptive}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: 20
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      readinessGates: [{conditionType: test/started}]
      containers: [{name: main, image: example.com/app, resources: {requests: {cpu: "1"}}}]
---
`
	replacedFirst = `
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: with}
spec: {selector: {matchLabels: {app: with}}, maxUnavailable: 0, replaceFirst: {maxPods: 20}}
`
)

// TestANoticeSavesCapacity: three of ten nodes announce their end, one by a condition alone, and vanish. Of two equal Deployments on them one has a budget by
// which its pods are replaced first.
func TestANoticeSavesCapacity(t *testing.T) {
	ns := namespace(t)
	var ending []*corev1.Node
	for i := range 10 {
		capacity := "spot"
		if i >= 7 {
			capacity = "on-demand"
		}
		name := fmt.Sprintf("%s-%d", ns, i)
		node := sandbox.NewNode(name, "zone-a", map[string]string{"pool": ns, "capacity": capacity}, nil, sandbox.Allocatable(resource.MustParse("8"), resource.MustParse("16Gi")))
		if i < 3 { // a node that is gone is not there to be deleted in the end
			ending = append(ending, node)
			if err := the.Sandbox.CreateNodes(t.Context(), []*corev1.Node{node}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		nodes(t, node)
	}
	apply(t, ns, fmt.Sprintf(onSpot, "without", ns)+fmt.Sprintf(onSpot, "with", ns)+replacedFirst)
	s := &street{t: t, namespace: ns, since: map[types.UID]time.Time{}}
	s.until("all pods to be ready", func() bool { return s.missing["with"]+s.missing["without"] == 0 })
	waitFor(t, "the budget to be in force", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		protected := 0
		for i := range pods {
			if _, is := pods[i].Labels["policy.berth.dev/protected"]; is {
				protected++
			}
		}
		return map[bool]string{false: fmt.Sprintf("%d pods are protected", protected)}[protected == 20], err
	})
	defer func() { // before the nodes
		for _, name := range []string{"with", "without"} {
			if err := the.Client.AppsV1().Deployments(ns).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
		// Nobody else ends pods on nodes that are gone, for a minute.
		if err := the.Client.CoreV1().Pods(ns).DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, metav1.ListOptions{LabelSelector: "app=without"}); err != nil {
			t.Error(err)
		}
		expectPods(t, ns, 0)
	}()
	affected := map[string]int{}
	for _, pod := range s.pods {
		if sets.New(ending[0].Name, ending[1].Name, ending[2].Name).Has(pod.Spec.NodeName) {
			affected[pod.Labels["app"]]++
		}
	}
	if affected["with"] < 3 || affected["without"] < 3 {
		t.Fatalf("pods on the nodes that end: %v", affected)
	}

	s.lost = map[string]time.Duration{}
	for _, node := range ending[:2] {
		s.patch(node.Name, "", `{"spec":{"taints":[{"key":"karpenter.sh/disrupted","effect":"NoSchedule"}]}}`)
	}
	s.patch(ending[2].Name, "status", `{"status":{"conditions":[{"type":"PreemptScheduled","status":"True","reason":"Test"}]}}`)
	announced := time.Now()
	s.until("the notice to be over", func() bool { return time.Since(announced) >= *notice })
	for _, node := range ending {
		if err := the.Client.CoreV1().Nodes().Delete(t.Context(), node.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	gone := time.Now()
	s.until("the time after the notice to be over", func() bool { return time.Since(gone) >= *after })

	t.Logf("a notice of %s, %s to start, looked on for %s: %v of pods lost with a replacement first, %v without; pods on these nodes: %v", *notice, *starts, *after, s.lost["with"], s.lost["without"], affected)
	if s.lost["without"] < *after || s.lost["with"] > s.lost["without"]/20 {
		t.Errorf("with a replacement first %v of pods are lost, and %v without", s.lost["with"], s.lost["without"])
	}
	events, err := the.Client.EventsV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=NodeEnds"})
	if err != nil || len(events.Items) == 0 || !strings.Contains(events.Items[0].Note, "announces its end by ") {
		t.Errorf("no event says why: %v, %v", events, err)
	}
}

// street watches the pods of Deployments of 20 pods, and starts them.
type street struct {
	t         *testing.T
	namespace string
	pods      []corev1.Pod
	// since is when each pod was first seen on its node.
	since map[types.UID]time.Time
	// missing pods by app, and for how long they were, together.
	missing map[string]int
	lost    map[string]time.Duration
}

// until looks again and again until the condition is true.
func (s *street) until(what string, done func() bool) {
	s.t.Helper()
	last := time.Now()
	err := wait.PollUntilContextTimeout(s.t.Context(), 100*time.Millisecond, *notice+*starts+*after+harness.Timeout, true, func(ctx context.Context) (bool, error) {
		s.look(ctx)
		now := time.Now()
		for app, n := range s.missing {
			if s.lost != nil {
				s.lost[app] += time.Duration(n) * now.Sub(last)
			}
		}
		last = now
		return done(), nil
	})
	if err != nil {
		s.t.Fatalf("waiting for %s: %v; missing: %v", what, err, s.missing)
	}
}

func (s *street) look(ctx context.Context) {
	s.t.Helper()
	list, err := the.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "pool=" + s.namespace})
	if err != nil {
		s.t.Fatal(err)
	}
	there := sets.New[string]()
	for i := range list.Items {
		there.Insert(list.Items[i].Name)
	}
	if s.pods, err = the.Pods(ctx, s.namespace); err != nil {
		s.t.Fatal(err)
	}
	s.missing = map[string]int{"with": 20, "without": 20}
	for i := range s.pods {
		pod := &s.pods[i]
		if ready, _ := podstate.IsReady(pod); ready && there.Has(pod.Spec.NodeName) && pod.DeletionTimestamp == nil {
			s.missing[pod.Labels["app"]] = max(s.missing[pod.Labels["app"]]-1, 0)
		}
		if pod.Status.Phase != corev1.PodRunning || podstate.Condition(pod, started) != nil {
			continue
		}
		if s.since[pod.UID].IsZero() {
			s.since[pod.UID] = time.Now()
		} else if time.Since(s.since[pod.UID]) >= *starts {
			body, _ := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.PodCondition{{Type: started, Status: corev1.ConditionTrue}}}})
			if _, err := the.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
				s.t.Error(err)
			}
		}
	}
}

func (s *street) patch(node, sub, body string) {
	s.t.Helper()
	var subresources []string
	if sub != "" {
		subresources = append(subresources, sub)
	}
	if _, err := the.Client.CoreV1().Nodes().Patch(s.t.Context(), node, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, subresources...); err != nil {
		s.t.Fatal(err)
	}
}
