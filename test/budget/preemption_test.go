package budget

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/internal/sandbox"
)

const (
	// onPrio makes pods run only on the node of the test.
	onPrio = `      nodeSelector: {prio: %q}
      tolerations: [{key: prio, operator: Exists}]
      containers:`
	urgent = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
---
apiVersion: v1
kind: Pod
metadata: {name: urgent, labels: {app: urgent}}
spec:
  schedulerName: %s
  priorityClassName: urgent
  nodeSelector: {prio: %q}
  tolerations: [{key: prio, operator: Exists}]
  containers: [{name: main, image: urgent:1, resources: {requests: {cpu: 500m}}}]
`
)

// fullNode creates a node for the test with two pods of the budget web. A pod like urgent must preempt one of them.
func fullNode(t *testing.T, rule string) (namespace, node string) {
	t.Helper()
	name := fmt.Sprintf("prio-%x", rand.Uint64())
	object := sandbox.NewNode(name, "zone-a", map[string]string{"prio": name}, []corev1.Taint{{Key: "prio", Effect: corev1.TaintEffectNoSchedule}},
		sandbox.Allocatable(resource.MustParse("1"), resource.MustParse("4Gi")))
	if err := the.Sandbox.CreateNodes(t.Context(), []*corev1.Node{object}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := the.DeleteNodes(context.Background(), []*corev1.Node{object}); err != nil {
			t.Error(err)
		}
	})
	namespace = newNamespace(t) // cleanup deletes its pods before the node
	template := strings.Replace(fmt.Sprintf(deployment, 2), "      containers:", fmt.Sprintf(onPrio, name), 1)
	apply(t, namespace, strings.Replace(template, "cpu: 10m", "cpu: 400m", 1)+"---"+fmt.Sprintf(pub, rule))
	inForce(t, namespace, 2)
	return namespace, name
}

// scheduled returns the node of the pod urgent, or the reason why it has none.
func scheduled(ctx context.Context, t *testing.T, namespace string) (node, why string) {
	t.Helper()
	pod, err := the.Client.CoreV1().Pods(namespace).Get(ctx, "urgent", metav1.GetOptions{})
	if err != nil {
		return "", err.Error()
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			why = c.Message
		}
	}
	return pod.Spec.NodeName, why
}

func expectPlaced(t *testing.T, namespace string) {
	t.Helper()
	waitFor(t, "the urgent pod to have a node", func(ctx context.Context) (string, error) {
		if on, why := scheduled(ctx, t, namespace); on == "" {
			return "it has none: " + why, nil
		}
		return "", nil
	})
}

// marked returns the names of the pods whose condition DisruptionTarget is true.
func marked(t *testing.T, namespace string) (names []string) {
	t.Helper()
	for _, pod := range pods(t, namespace) {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
				names = append(names, pod.Name)
			}
		}
	}
	return names
}

// TestPreemptionSparesPodsWithoutRoomAndTakesThemWhenThereIsSome: case 16, Berth's scheduler.
func TestPreemptionSparesPodsWithoutRoomAndTakesThemWhenThereIsSome(t *testing.T) {
	namespace, node := fullNode(t, "minAvailable: 2")
	w := watch(t, namespace, 2)
	asked := reviews(t, namespace, anyone)
	apply(t, namespace, fmt.Sprintf(urgent, "berth-scheduler", node))
	waitFor(t, "the urgent pod to be told whom it cannot have", func(ctx context.Context) (string, error) {
		if on, why := scheduled(ctx, t, namespace); on != "" || !strings.Contains(why, "PodUnavailableBudget") {
			return fmt.Sprintf("it is on node %q, and was told %q", on, why), nil
		}
		return "", nil
	})
	if n := asked.Load(); n != 2 {
		t.Errorf("the API server was asked %d times about two victims, want once about each", n)
	}
	if names := marked(t, namespace); len(names) > 0 {
		t.Errorf("%v were told that they are being preempted", names)
	}
	w.setFloor(1)
	apply(t, namespace, fmt.Sprintf(pub, "minAvailable: 1"))
	expectPlaced(t, namespace)
	if n := w.seen(); n != 1 {
		t.Errorf("%d pods were left at the least, want 1", n)
	}
}

// TestPreemptionTriesARefusedVictimOnlyOnce: case 16, Berth's scheduler, when the budget's status shows more room than there is. Here another webhook
// refuses the deletion.
func TestPreemptionTriesARefusedVictimOnlyOnce(t *testing.T) {
	namespace, node := fullNode(t, "minAvailable: 1")
	watch(t, namespace, 1)
	var attempts, real atomic.Int64
	var yield atomic.Bool
	otherWebhook(t, namespace, func(r *admissionv1.AdmissionRequest) bool {
		if r.UserInfo.Username == "system:serviceaccount:berth-system:berth-scheduler" {
			attempts.Add(1)
			if r.DryRun == nil || !*r.DryRun {
				real.Add(1)
			}
		}
		return yield.Load()
	})
	apply(t, namespace, fmt.Sprintf(urgent, "berth-scheduler", node))
	waitFor(t, "the urgent pod to give up on both", func(ctx context.Context) (string, error) {
		if on, why := scheduled(ctx, t, namespace); on != "" || !strings.Contains(why, "PodUnavailableBudget") {
			return fmt.Sprintf("it is on node %q, and was told %q", on, why), nil
		}
		return "", nil
	})
	if attempts.Load() > 2 || real.Load() > 0 {
		t.Errorf("two victims were tried %d times, %d of them for good", attempts.Load(), real.Load())
	}
	if names := marked(t, namespace); len(names) > 0 {
		t.Errorf("%v were told that they are being preempted", names)
	}
	yield.Store(true)
	expectPlaced(t, namespace)
}

// TestTheDefaultSchedulerCannotPreemptWithoutRoom: case 16, a scheduler that does not know budgets. It continues with other pods meanwhile. The
// condition that it has written on its victim is removed again.
func TestTheDefaultSchedulerCannotPreemptWithoutRoom(t *testing.T) {
	namespace, node := fullNode(t, "minAvailable: 2")
	w := watch(t, namespace, 2)
	refused := reviews(t, namespace, refusedToKubernetes)
	apply(t, namespace, fmt.Sprintf(urgent, "default-scheduler", node))
	waitFor(t, "the preemption to be refused", func(ctx context.Context) (string, error) {
		return map[bool]string{false: "it is not"}[refused.Load() > 0], nil
	})
	other := newNamespace(t)
	apply(t, other, fmt.Sprintf(deployment, 3))
	waitFor(t, "other pods to be scheduled meanwhile", func(context.Context) (string, error) {
		n := 0
		for _, pod := range pods(t, other) {
			if pod.Spec.NodeName != "" {
				n++
			}
		}
		return map[bool]string{false: fmt.Sprint(n)}[n == 3], nil
	})
	if *long { // a controller removes the condition after two minutes
		expectAllowed(t, "deleting the urgent pod", remove(t.Context(), podNamed(t, namespace, "urgent")))
		poll(t, 4*time.Minute, "what the victims were told to be taken back", func(context.Context) (string, error) {
			return strings.Join(marked(t, namespace), " "), nil
		})
		return
	}
	w.setFloor(1)
	apply(t, namespace, fmt.Sprintf(pub, "minAvailable: 1"))
	expectPlaced(t, namespace)
}
