package integration

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

const gatedStrategy = "\n  scheduleStrategy: {binding: Gated}"

// required are the node terms of a pod in a short form: the values of each requirement, and the terms with a bar between.
func required(pod *corev1.Pod) string {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil || pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	var terms []string
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		var values []string
		for _, e := range term.MatchExpressions {
			values = append(values, e.Values...)
		}
		terms = append(terms, strings.Join(values, "+"))
	}
	return strings.Join(terms, "|")
}

// Whoever reads a pod that has lost its gate sees the subset that Berth has given it, whatever terms the pod had before.
func TestAGatedPodRequiresTheNodesOfItsSubsetAlone(t *testing.T) {
	pools(t, "a", "b")
	tests := map[string]struct{ affinity, inA, inB string }{
		"no terms of its own": {"", "a", "b"},
		"two terms of its own": {"      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" +
			"{matchExpressions: [{key: pool, operator: In, values: [a, b]}]}, {matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]}]}}}", "a+b+a|linux+a", "a+b+b|linux+b"},
		"affinity to pods": {"      affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [" +
			"{weight: 1, podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}}]}}", "a", "b"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "2")+gatedStrategy)
			apply(t, ns, deployment("web", 5, tc.affinity))
			expectPlaces(t, ns, "a=2 b=3")
			pods, err := the.Pods(t.Context(), ns)
			if err != nil {
				t.Fatal(err)
			}
			for i := range pods {
				want := tc.inA
				if pods[i].Labels["berth.dev/subset"] == "b" {
					want = tc.inB
				}
				if got := required(&pods[i]); got != want || len(pods[i].Spec.SchedulingGates) > 0 {
					t.Errorf("%s in %s requires %q and has the gates %v, want %q and none", pods[i].Name, pods[i].Labels["berth.dev/subset"], got, pods[i].Spec.SchedulingGates, want)
				}
			}
			expectNoViolation(t)
		})
	}
}

// A pod that waits for a slot keeps its gate, and one that waits for a node says in which subset. Both get what comes free.
func TestAGateStaysClosedUntilThereIsASlot(t *testing.T) {
	pools(t, "a")
	setAllocatable(t, nodeIn(t, "a"), allocatable("1", "4Gi", "0"))
	ns := namespace(t)
	apply(t, ns, spreadHeader+`
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: a, maxReplicas: 2, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}]
  scheduleStrategy: {whenFull: Wait, binding: Gated}
`)
	apply(t, ns, strings.Replace(deployment("web", 3, ""), "pause:3.10}", "pause:3.10, resources: {requests: {cpu: 800m}}}", 1))
	expectReasons(t, ns, map[string]int{"Unschedulable": 1, "SubsetsFull": 1})
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		for _, c := range pods[i].Status.Conditions {
			if gated := len(pods[i].Spec.SchedulingGates) > 0; c.Type == corev1.PodScheduled && gated != (c.Reason == "SubsetsFull") {
				t.Errorf("%s: reason %s, gates %v", pods[i].Name, c.Reason, pods[i].Spec.SchedulingGates)
			}
		}
	}
	room := allocatable("1", "4Gi", "0")
	room[corev1.ResourceCPU] = resource.MustParse("4")
	setAllocatable(t, nodeIn(t, "a"), room)
	expectPlaces(t, ns, "a=2 b=0")
	expectReasons(t, ns, map[string]int{"SubsetsFull": 1})
	expectNoViolation(t)
}

// The scheduler's right to patch pods is for gates alone.
func TestTheSchedulerMayOpenGatesAndChangeNothingElse(t *testing.T) {
	ns := namespace(t)
	scheduler := as(t, "system:serviceaccount:berth-system:berth-scheduler")
	for name, gates := range map[string][]corev1.PodSchedulingGate{"gated": {{Name: "berth.dev/subset"}, {Name: "example.com/other"}}, "open": nil} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{SchedulingGates: gates, SchedulerName: "nobody",
			Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}}}
		if _, err := the.Client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const (
		gate  = `"schedulingGates":[{"$patch":"delete","name":"berth.dev/subset"}]`
		terms = `"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"pool","operator":"In","values":["a"]}]}]}}}`
	)
	for _, refused := range []struct{ pod, patch string }{
		{"open", `{"spec":{"containers":[{"name":"main","image":"evil"}]}}`},
		{"open", `{"metadata":{"annotations":{"berth.dev/admitted-subset":"{}"}}}`},
		{"open", `{"metadata":{"labels":{"app":"web"}}}`},
		{"open", `{"spec":{"activeDeadlineSeconds":1}}`},
		{"gated", `{"spec":{` + terms + `}}`},
		{"gated", `{"spec":{` + gate + `,"containers":[{"name":"main","image":"evil"}]}}`},
		{"gated", `{"spec":{` + gate + `,"nodeSelector":{"a":"b"}}}`},
		{"gated", `{"spec":{"schedulingGates":[{"$patch":"delete","name":"example.com/other"}]}}`},
		{"gated", `{"metadata":{"annotations":{"a":"c"}},"spec":{` + gate + `}}`},
		{"gated", `{"metadata":{"annotations":{"x":"y"}},"spec":{` + gate + `}}`},
		{"gated", `{"metadata":{"annotations":{"a":null}},"spec":{` + gate + `}}`},
		{"gated", `{"metadata":{"finalizers":["x.example.com/y"]},"spec":{` + gate + `}}`},
	} {
		_, err := scheduler.CoreV1().Pods(ns).Patch(t.Context(), refused.pod, types.StrategicMergePatchType, []byte(refused.patch), metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "berth-scheduler") {
			t.Errorf("%s %s: %v, want that the policy refuses it", refused.pod, refused.patch, err)
		}
	}
	allowed := `{"metadata":{"annotations":{"berth.dev/admitted-subset":"{}","berth.dev/constraints":"{}"}},"spec":{` + gate + `,` + terms + `}}`
	for range 2 { // the second one changes nothing
		if _, err := scheduler.CoreV1().Pods(ns).Patch(t.Context(), "gated", types.StrategicMergePatchType, []byte(allowed), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// The next leader keeps the picks of the one that was killed in the middle of a burst: each pod ends where its terms say, and none is replaced.
func TestTheNextLeaderKeepsThePicks(t *testing.T) {
	const pods, a = 300, 100
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "picks", Dir: t.TempDir()}, product.Options{Replicas: map[string]int{product.Scheduler: 2}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	var nodes []*corev1.Node
	for i := range 8 {
		pool := string("ab"[i%2])
		nodes = append(nodes, sandbox.NewNode(fmt.Sprintf("node-%d-%s", i, pool), "zone-"+pool, map[string]string{"pool": pool}, nil, nil))
	}
	if err := cluster.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	ns, err := cluster.CreateNamespace(t.Context(), "burst")
	if err != nil {
		t.Fatal(err)
	}
	leader, err := leaderOf(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	before, err := reservedBy(t.Context(), cluster, leader)
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.ApplyYAML(t.Context(), ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, fmt.Sprint(a))+gatedStrategy+
		"\n---"+deployment("web", pods, "")); err != nil {
		t.Fatal(err)
	}
	if err := cluster.WaitFor(t.Context(), "the burst to be under way", func(ctx context.Context) (string, error) {
		reserved, err := reservedBy(ctx, cluster, leader)
		if err != nil || reserved >= before+50 {
			return "", err
		}
		return fmt.Sprintf("%v slots are reserved", reserved-before), nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Sandbox.Signal(product.Scheduler, leader, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	made := map[types.UID]bool{}
	if err := cluster.WaitFor(t.Context(), "all pods in place", func(ctx context.Context) (string, error) {
		list, err := cluster.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		kept := map[string]int{}
		for i := range list {
			made[list[i].UID] = true
			if list[i].Spec.NodeName != "" {
				kept[required(&list[i])+" in "+list[i].Labels["berth.dev/subset"]]++
			}
		}
		if want := map[string]int{"a in a": a, "b in b": pods - a}; fmt.Sprint(kept) != fmt.Sprint(want) {
			return fmt.Sprint(kept), nil
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(made) != pods {
		t.Errorf("%d pods were made, want %d: some were replaced", len(made), pods)
	}
}
