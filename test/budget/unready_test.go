package budget

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-project/berth/test/harness"
)

const gate corev1.PodConditionType = "InPlaceUpdateReady"

// manager is a client that updates pods in place, as OpenKruise's manager does.
var manager = sync.OnceValue(func() kubernetes.Interface {
	return as("system:serviceaccount:kruise-system:kruise-manager", "system:serviceaccounts", "system:serviceaccounts:kruise-system", "system:masters")
})

// gated creates web with pods that have the readiness gate of an updater.
func gated(t *testing.T, replicas int, rule string) (namespace string) {
	t.Helper()
	namespace = newNamespace(t)
	template := strings.Replace(fmt.Sprintf(deployment, replicas), "      containers:", "      readinessGates: [{conditionType: InPlaceUpdateReady}]\n      containers:", 1)
	apply(t, namespace, template+"---"+fmt.Sprintf(pub, rule))
	waitFor(t, "all pods to have passed the gate", func(ctx context.Context) (string, error) {
		all, passed := pods(t, namespace), 0
		for i := range all {
			switch pod := &all[i]; {
			case pod.Status.Phase != corev1.PodRunning:
			case isTrue(pod, gate):
				passed++
			default:
				if err := changeStatus(manager(), turnOn)(ctx, pod); err != nil && !apierrors.IsConflict(err) {
					return "", err
				}
			}
		}
		return map[bool]string{false: fmt.Sprint(passed)}[passed == replicas], nil
	})
	inForce(t, namespace, replicas)
	return namespace
}

// changeStatus writes the whole status with the resourceVersion that was read, as updaters do.
func changeStatus(by kubernetes.Interface, change func(*corev1.PodStatus)) operation {
	return func(ctx context.Context, pod *corev1.Pod) error {
		changed := pod.DeepCopy()
		change(&changed.Status)
		_, err := by.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		return err
	}
}

// turnOff is the first step of an update in place: it turns the gate off and sets the pod to not ready.
func turnOff(status *corev1.PodStatus) {
	setCondition(status, gate, false)
	setCondition(status, corev1.PodReady, false)
}

// turnOn is the last step of an update in place. Then the kubelet sets the pod to ready.
func turnOn(status *corev1.PodStatus) { setCondition(status, gate, true) }

// updateInPlace does the next step of an update in place. The steps are: make the pod unready, change the image, turn the gate on when the image
// runs.
func updateInPlace(ctx context.Context, seen *corev1.Pod) error {
	pod, err := the.Client.CoreV1().Pods(seen.Namespace).Get(ctx, seen.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return err
	case pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning:
		return nil
	case isTrue(pod, gate):
		return changeStatus(manager(), turnOff)(ctx, pod)
	case rand.N(4) == 0:
		return patchImage(ctx, pod)
	case observed(pod):
		return changeStatus(manager(), turnOn)(ctx, pod)
	}
	return nil
}

// TestUpdatesInPlaceTakeTheirTurns has an updater make all pods unready at once. As many become unready as the budget allows. The next follows when
// an updated pod is available again.
func TestUpdatesInPlaceTakeTheirTurns(t *testing.T) {
	harness.Long(t)
	for _, policy := range []string{"AlwaysAllow", "IfHealthyBudget"} {
		t.Run(policy, func(t *testing.T) {
			namespace := gated(t, 4, "maxUnavailable: 1\n  unhealthyPodPolicy: "+policy)
			watch(t, namespace, 3)
			updated := map[string]bool{}
			for round := range 4 {
				var under *corev1.Pod
				for _, pod := range pods(t, namespace) {
					switch {
					case under == nil && !updated[pod.Name]:
						under = &pod
						expectAllowed(t, fmt.Sprintf("the first of round %d", round), changeStatus(manager(), turnOff)(t.Context(), &pod))
					case !updated[pod.Name]:
						expectRefused(t, "one more at the same time", changeStatus(manager(), turnOff)(t.Context(), &pod))
					case under != nil:
						expectRefused(t, "a deletion meanwhile", remove(t.Context(), &pod))
					}
				}
				if under == nil {
					t.Fatal("no pod is left to update")
				}
				expectAllowed(t, "its image", patchImage(t.Context(), podNamed(t, namespace, under.Name)))
				waitFor(t, "the new image to run", func(context.Context) (string, error) {
					return map[bool]string{false: "it does not"}[observed(podNamed(t, namespace, under.Name))], nil
				})
				expectAllowed(t, "turning it on", changeStatus(manager(), turnOn)(t.Context(), podNamed(t, namespace, under.Name)))
				inForce(t, namespace, 4)
				updated[under.Name] = true
			}
		})
	}
}

// TestNoStormOfUpdatesInPlaceTakesMoreThanTheBudget runs updaters and all other clients on the same pods.
func TestNoStormOfUpdatesInPlaceTakesMoreThanTheBudget(t *testing.T) {
	for name, tc := range map[string]struct {
		rule  string
		floor int
	}{
		"maxUnavailable 1":                  {"maxUnavailable: 1", 11},
		"maxUnavailable 25%":                {"maxUnavailable: 25%", 9},
		"minAvailable 10, unhealthy held":   {"minAvailable: 10\n  unhealthyPodPolicy: IfHealthyBudget", 10},
		"maxUnavailable 1, unhealthy held":  {"maxUnavailable: 1\n  unhealthyPodPolicy: IfHealthyBudget", 11},
		"maxUnavailable 30%, unhealthy may": {"maxUnavailable: 30%\n  unhealthyPodPolicy: AlwaysAllow", 8},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := gated(t, 12, tc.rule)
			w := watch(t, namespace, tc.floor)
			var turnedOff atomic.Int64
			inPlace := func(ctx context.Context, pod *corev1.Pod) error {
				was := isTrue(pod, gate)
				err := updateInPlace(ctx, pod)
				if was && err == nil {
					turnedOff.Add(1)
				}
				return err
			}
			gateAlone := changeStatus(manager(), func(status *corev1.PodStatus) { setCondition(status, gate, false) })
			operations := []operation{inPlace, inPlace, inPlace, inPlace, gateAlone, patchImage, remove, evict}
			for i := range operations {
				operations[i] = patient(t.Context(), operations[i])
			}
			allowed, refused := stormUntil(t, func(_, refused int64) bool { return refused > 0 }, namespace, operations...)
			t.Logf("%d allowed, %d of them updates in place, %d refused, lowest %d of %d", allowed, turnedOff.Load(), refused, w.seen(), tc.floor)
			if refused == 0 {
				t.Error("nothing was refused")
			}
			// Updaters that retry continue when there is room.
			before := turnedOff.Load()
			poll(t, time.Duration(*slack)*time.Minute, "another update in place", func(ctx context.Context) (string, error) {
				for _, pod := range pods(t, namespace) {
					if err := inPlace(ctx, &pod); err != nil && !isRefused(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
						return "", err
					}
				}
				return map[bool]string{false: "all are refused"}[turnedOff.Load() > before], nil
			})
		})
	}
}

// TestWhoMayWriteThatAPodIsNotReady has a budget without room.
func TestWhoMayWriteThatAPodIsNotReady(t *testing.T) {
	namespace := gated(t, 4, "maxUnavailable: 0")
	pod := &pods(t, namespace)[0]
	asked := reviews(t, namespace, anyone)
	set := func(kind corev1.PodConditionType, is bool) func(*corev1.PodStatus) {
		return func(status *corev1.PodStatus) { setCondition(status, kind, is) }
	}
	expect := func(what string, by kubernetes.Interface, change func(*corev1.PodStatus), refused bool) {
		t.Helper()
		before := asked.Load()
		changed := podNamed(t, namespace, pod.Name)
		change(&changed.Status)
		_, err := by.CoreV1().Pods(namespace).UpdateStatus(t.Context(), changed, metav1.UpdateOptions{DryRun: dryRun})
		if refused {
			expectRefused(t, what, err)
			return
		}
		expectAllowed(t, what, err)
		if n := asked.Load() - before; n > 0 {
			t.Errorf("%s: the webhook was asked", what)
		}
	}
	expect("an updater's first step", manager(), turnOff, true)
	expect("a gate", manager(), set(gate, false), true)
	expect("a gate that is dropped", manager(), func(status *corev1.PodStatus) {
		status.Conditions = slices.DeleteFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == gate })
	}, true)
	expect("readiness alone", manager(), set(corev1.PodReady, false), true)
	expect("readiness that is said twice", manager(), func(status *corev1.PodStatus) {
		status.Conditions = append([]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}, status.Conditions...)
	}, true)
	expect("the end", manager(), func(status *corev1.PodStatus) { status.Phase = corev1.PodFailed }, true)
	expect("an administrator", the.Client, set(corev1.PodReady, false), true)

	expect("the kubelet", kubelet(pod.Spec.NodeName), turnOff, false)
	expect("who has lost the node", as("system:serviceaccount:kube-system:node-controller", "system:masters"), set(corev1.PodReady, false), false)
	expect("a controller manager without accounts", as("system:kube-controller-manager", "system:masters"), set(corev1.PodReady, false), false)
	expect("who runs a virtual node", as("system:serviceaccount:virtual:kubelet", "system:masters"), func(status *corev1.PodStatus) {
		status.ContainerStatuses[0].Ready = false
		set(corev1.ContainersReady, false)(status)
		set(corev1.PodReady, false)(status)
	}, false)
	expect("a scheduler", as("system:kube-scheduler", "system:masters"), func(status *corev1.PodStatus) {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler"})
	}, false)
	expect("a message", manager(), func(status *corev1.PodStatus) { status.Message = "x" }, false)
	expect("a condition that is no gate", manager(), func(status *corev1.PodStatus) {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: "Other", Status: corev1.ConditionFalse})
	}, false)
	if entries := ledger(t, namespace); len(entries) > 0 {
		t.Errorf("ledger %+v", entries)
	}

	berth.set(func(i *installation) { i.down = true })
	defer berth.set(func(i *installation) { i.down = false })
	if err := changeStatus(manager(), turnOff)(t.Context(), podNamed(t, namespace, pod.Name)); err == nil || isRefused(err) {
		t.Errorf("an updater while the webhook is down: got %v, want a failure", err)
	}
	expect("the kubelet while the webhook is down", kubelet(pod.Spec.NodeName), turnOff, false)
	expectAllowed(t, "who has lost the node, while the webhook is down",
		changeStatus(as("system:serviceaccount:kube-system:node-controller", "system:masters"), set(corev1.PodReady, false))(t.Context(), podNamed(t, namespace, pod.Name)))
}

// TestAPodOfALostNodeCountsAsUnavailable, although nobody asked the webhook.
func TestAPodOfALostNodeCountsAsUnavailable(t *testing.T) {
	namespace := web(t, 4, "maxUnavailable: 1")
	all := pods(t, namespace)
	lost := changeStatus(as("system:serviceaccount:kube-system:node-controller", "system:masters"), func(status *corev1.PodStatus) { setCondition(status, corev1.PodReady, false) })
	expectAllowed(t, "the node is lost", lost(t.Context(), &all[0]))
	expectRefused(t, "another pod", remove(t.Context(), &all[1]))
	expectRefused(t, "another pod that is made unready", changeStatus(manager(), func(status *corev1.PodStatus) { setCondition(status, corev1.PodReady, false) })(t.Context(), podNamed(t, namespace, all[2].Name)))
	inForce(t, namespace, 3)
}

// TestALabelTakesAPodOutOfService, with the label that users of OpenKruise know.
func TestALabelTakesAPodOutOfService(t *testing.T) {
	namespace := web(t, 4, "maxUnavailable: 1")
	watch(t, namespace, 3)
	all := pods(t, namespace)
	label := func(pod *corev1.Pod, value string) error {
		_, err := manager().CoreV1().Pods(namespace).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"unavailable-pod.kruise.io/x":`+value+`}}}`), metav1.PatchOptions{})
		return err
	}
	expectAllowed(t, "the first", label(&all[0], `""`))
	expectRefused(t, "the second", label(&all[1], `""`))
	expectRefused(t, "a deletion of the second", remove(t.Context(), &all[1]))
	expectAllowed(t, "another value", label(&all[0], `"y"`))
	expectAllowed(t, "taking it off", label(&all[0], `null`))
	inForce(t, namespace, 4)
	expectAllowed(t, "the second, later", label(&all[1], `""`))
}
