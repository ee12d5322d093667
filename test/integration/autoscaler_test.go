package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// wantsNode is the condition on which cluster autoscaler and Karpenter add a node for a pod without one. In cluster autoscaler it is isUnschedulable
// in utils/kubernetes/listers.go. In Karpenter it is FailedToSchedule in pkg/utils/pod/scheduling.go, which does not read the condition's status.
func wantsNode(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if pod.Spec.NodeName == "" && c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
			return true
		}
	}
	return false
}

// watchForAutoscalers watches the pods from now on. It returns the names of the pods for which an autoscaler would have added a node at any event.
func watchForAutoscalers(t *testing.T, ns string) (asked func() []string) {
	t.Helper()
	events, err := the.Client.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(events.Stop)
	var mu sync.Mutex
	var names []string
	go func() {
		for event := range events.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && wantsNode(pod) {
				mu.Lock()
				names = append(names, pod.Name)
				mu.Unlock()
			}
		}
	}()
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return names
	}
}

// expectReasons waits until this number of pods without a node have each reason in condition PodScheduled.
func expectReasons(t *testing.T, ns string, want map[string]int) {
	t.Helper()
	waitFor(t, "the conditions", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		got := map[string]int{}
		for i := range pods {
			for _, c := range pods[i].Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
					got[c.Reason]++
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Sprintf("reasons %v, want %v", got, want), nil
		}
		return "", nil
	})
}

func TestNoNodeIsMadeForAPodThatWaitsForASlot(t *testing.T) {
	pools(t, "a")
	ns := namespace(t)
	asked := watchForAutoscalers(t, ns)
	apply(t, ns, spreadHeader+`
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: a, maxReplicas: 1}]
  scheduleStrategy: {whenFull: Wait}
`)
	apply(t, ns, deployment("web", 4, ""))
	expectReasons(t, ns, map[string]int{"SubsetsFull": 3})
	waitFor(t, "the message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, `SubsetsFull: WorkloadSpread "web": a: 1/1 kept`)
	})
	patch := []byte(`{"spec": {"subsets": [{"name": "a", "maxReplicas": 3}]}}`)
	if _, err := the.Dynamic.Resource(v1beta1.Resource).Namespace(ns).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	expectReasons(t, ns, map[string]int{"SubsetsFull": 1})
	if names := asked(); len(names) > 0 {
		t.Errorf("nodes would be made for %v", names)
	}
	expectNoViolation(t)
}

func TestANodeIsMadeForAPodThatHasASlotAndNoNode(t *testing.T) {
	pools(t, "a")
	setAllocatable(t, nodeIn(t, "a"), allocatable("1", "4Gi", "0"))
	ns := namespace(t)
	asked := watchForAutoscalers(t, ns)
	apply(t, ns, spreadHeader+`
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: a, maxReplicas: 2}]
  scheduleStrategy: {whenFull: Wait}
`)
	apply(t, ns, strings.Replace(deployment("web", 3, ""), "pause:3.10}", "pause:3.10, resources: {requests: {cpu: 800m}}}", 1))
	// One pod has the node. The other pod has the other slot.
	expectReasons(t, ns, map[string]int{"Unschedulable": 1, "SubsetsFull": 1})
	if names := slices.Compact(asked()); len(names) != 1 {
		t.Errorf("nodes would be made for %v, want one pod", names)
	}
	expectNoViolation(t)
}
