package budget

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// restartTime is how long a container takes to restart.
const restartTime = 150 * time.Millisecond

// runKubelet does what KWOK does not do. It reports observed generations, and restarts containers whose image or resources have changed.
func runKubelet(ctx context.Context) {
	factory := informers.NewSharedInformerFactory(the.Client, 0)
	var busy sync.Map
	var look func(obj any)
	look = func(obj any) {
		pod, ok := obj.(*corev1.Pod)
		if !ok || pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" || len(pod.Status.ContainerStatuses) == 0 || observed(pod) {
			return
		}
		if _, going := busy.LoadOrStore(pod.UID, true); going {
			return
		}
		go func() {
			restart(ctx, pod)
			busy.Delete(pod.UID)
			// The handler skipped the events that arrived during the restart. So this looks at the pod again.
			if live, err := the.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err == nil && live.UID == pod.UID {
				look(live)
			}
		}()
	}
	_, _ = factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{ // it fails only after the informer has stopped
		AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) },
	})
	factory.Start(ctx.Done())
	<-ctx.Done()
}

// gatesOpen is true if all readiness gates of the pod are true.
func gatesOpen(pod *corev1.Pod) bool {
	for _, gate := range pod.Spec.ReadinessGates {
		if !isTrue(pod, gate.ConditionType) {
			return false
		}
	}
	return true
}

func isTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func setCondition(status *corev1.PodStatus, kind corev1.PodConditionType, is bool) {
	value := map[bool]corev1.ConditionStatus{false: corev1.ConditionFalse, true: corev1.ConditionTrue}[is]
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.Type == kind {
			c.Status = value
			return
		}
	}
	status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: value})
}

func observed(pod *corev1.Pod) bool {
	return pod.Status.ObservedGeneration == pod.Generation && !mustRestart(pod)
}

// mustRestart is true if a container does not run what the spec says.
func mustRestart(pod *corev1.Pod) bool {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		for j := range pod.Status.ContainerStatuses {
			s := &pod.Status.ContainerStatuses[j]
			if s.Name != c.Name {
				continue
			}
			if s.Image != c.Image {
				return true
			}
			for _, p := range c.ResizePolicy {
				if s.Resources != nil && p.RestartPolicy == corev1.RestartContainer && !s.Resources.Requests[p.ResourceName].Equal(c.Resources.Requests[p.ResourceName]) {
					return true
				}
			}
		}
	}
	return false
}

// restart acts as a kubelet. Before the container stops, it reports the spec that it uses, which may not be the latest. Then it reports "not ready",
// and then the new container. An event may be outdated, so restart reads the pod.
func restart(ctx context.Context, seen *corev1.Pod) {
	pod, err := the.Client.CoreV1().Pods(seen.Namespace).Get(ctx, seen.Name, metav1.GetOptions{})
	if err != nil || pod.UID != seen.UID || observed(pod) {
		return // the pod is deleted or up to date, or the next event tries again
	}
	if mustRestart(pod) {
		setStatus(ctx, pod, func(status *corev1.PodStatus, _ *corev1.Pod) { status.ObservedGeneration = pod.Generation })
		setReady(ctx, pod, false)
		select {
		case <-time.After(restartTime):
		case <-ctx.Done():
			return
		}
	}
	setStatus(ctx, pod, func(status *corev1.PodStatus, live *corev1.Pod) {
		status.ObservedGeneration = live.Generation
		for i := range live.Spec.Containers {
			for j := range status.ContainerStatuses {
				if status.ContainerStatuses[j].Name == live.Spec.Containers[i].Name {
					status.ContainerStatuses[j].Image = live.Spec.Containers[i].Image
					status.ContainerStatuses[j].Resources = live.Spec.Containers[i].Resources.DeepCopy()
				}
			}
		}
		if !heldUnready(live) {
			ready(status, corev1.ConditionTrue)
			setCondition(status, corev1.PodReady, gatesOpen(live))
		}
	})
}

// heldUnready is true for a pod that a test keeps unready.
func heldUnready(pod *corev1.Pod) bool { return pod.Annotations["test/unready"] != "" }

func setReady(ctx context.Context, pod *corev1.Pod, is bool) {
	value := corev1.ConditionFalse
	if is {
		value = corev1.ConditionTrue
	}
	setStatus(ctx, pod, func(status *corev1.PodStatus, _ *corev1.Pod) { ready(status, value) })
}

func ready(status *corev1.PodStatus, value corev1.ConditionStatus) {
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
			c.Status = value
		}
	}
}

func setStatus(ctx context.Context, pod *corev1.Pod, change func(*corev1.PodStatus, *corev1.Pod)) {
	_ = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // a deleted pod has no status
		live, err := the.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil || live.UID != pod.UID {
			return err
		}
		before := live.Status.DeepCopy()
		change(&live.Status, live)
		if equality.Semantic.DeepEqual(before, &live.Status) {
			return nil
		}
		_, err = kubelet(live.Spec.NodeName).CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, live, metav1.UpdateOptions{})
		return err
	})
}

var kubeletClients sync.Map

// kubelet returns a client with the user name of the node's kubelet and all rights.
func kubelet(node string) kubernetes.Interface {
	if known, found := kubeletClients.Load(node); found {
		return known.(kubernetes.Interface)
	}
	client, err := the.AsKubelet(node)
	if err != nil {
		panic(err) // the test has reached the cluster before
	}
	kubeletClients.Store(node, client)
	return client
}

// as returns a client with this user name and these groups.
func as(user string, groups ...string) kubernetes.Interface {
	client, err := the.As(user, groups...)
	if err != nil {
		panic(err) // the test has reached the cluster before
	}
	return client
}

// watcher looks at every revision of the pods of a namespace, and at nothing else. A pod is available if it is ready, does not terminate, is not
// exempted, and runs what its spec says.
type watcher struct {
	mu         sync.Mutex
	pods       map[types.UID]*corev1.Pod
	floor      int
	lowest     int
	violations []string
	// history contains the events of pods and budgets up to the first violation, newest last. It helps to find the cause.
	history []string
}

// told is how many lines of the history a violation includes.
const told = 120

// tell adds a line to the history.
func (w *watcher) tell(line string) {
	if len(w.violations) > 0 {
		return
	}
	if len(w.history) > 10*told {
		w.history = append(w.history[:0], w.history[len(w.history)-told:]...)
	}
	w.history = append(w.history, line)
}

func describe(pod *corev1.Pod) string {
	runs := "nothing"
	for _, status := range pod.Status.ContainerStatuses {
		runs = status.Image
		if status.Resources != nil {
			runs += " " + status.Resources.Requests.Memory().String()
		}
	}
	spec := &pod.Spec.Containers[0]
	return fmt.Sprintf("%s at revision %s: available %t, generation %d, observed %d, protected %q, terminates %t, %s, asks for %s %s, runs %s", pod.Name,
		pod.ResourceVersion, isAvailable(pod), pod.Generation, pod.Status.ObservedGeneration, pod.Labels["policy.berth.dev/protected"], pod.DeletionTimestamp != nil,
		pod.Status.Phase, spec.Image, spec.Resources.Requests.Memory(), runs)
}

func describeBudget(b *v1beta1.PodUnavailableBudget) string {
	line := fmt.Sprintf("budget at revision %s: %d of %d, at least %d, pods of %s; under way", b.ResourceVersion, b.Status.CurrentAvailable, b.Status.TotalReplicas,
		b.Status.DesiredAvailable, b.Status.LedgerRevision)
	for i := range b.Status.Ledger {
		e := &b.Status.Ledger[i]
		line += fmt.Sprintf(" %s %s %d", e.Operation, e.Name, e.Generation)
	}
	return line
}

func (w *watcher) available() int {
	n := 0
	for _, pod := range w.pods {
		if isAvailable(pod) {
			n++
		}
	}
	return n
}

func isAvailable(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning || pod.Annotations["pub.kruise.io/no-protect"] == "true" || mustRestart(pod) {
		return false
	}
	for key := range pod.Labels {
		if strings.HasPrefix(key, "unavailable-pod.kruise.io/") {
			return false
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// watch starts a watcher. At the end of the test it reports every revision at which fewer pods than the floor were available.
func watch(t *testing.T, namespace string, floor int) *watcher {
	t.Helper()
	w := &watcher{pods: map[types.UID]*corev1.Pod{}, floor: floor, lowest: 1 << 30}
	options := metav1.ListOptions{LabelSelector: "app=web"}
	list, err := the.Client.CoreV1().Pods(namespace).List(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		w.pods[list.Items[i].UID] = &list.Items[i]
	}
	w.check("the start")
	options.ResourceVersion = list.ResourceVersion
	ctx, cancel := context.WithCancel(context.Background())
	events, err := the.Client.CoreV1().Pods(namespace).Watch(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	budgets, err := berth.client().Watch(ctx, &v1beta1.PodUnavailableBudgetList{}, client.InNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		for e := range budgets.ResultChan() {
			if b, ok := e.Object.(*v1beta1.PodUnavailableBudget); ok {
				w.mu.Lock()
				w.tell(describeBudget(b))
				w.mu.Unlock()
			}
		}
	})
	watching.Go(func() {
		for e := range events.ResultChan() {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			w.mu.Lock()
			w.tell(string(e.Type) + " " + describe(pod))
			if e.Type == apiwatch.Deleted {
				delete(w.pods, pod.UID)
			} else {
				w.pods[pod.UID] = pod
			}
			w.check(string(e.Type) + " " + pod.Name + " at revision " + pod.ResourceVersion)
			w.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		cancel()
		watching.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, violation := range w.violations {
			if i == 5 {
				t.Errorf("and %d more", len(w.violations)-i)
				break
			}
			t.Error(violation)
		}
		if len(w.violations) > 0 {
			t.Logf("before the first of them:\n%s", strings.Join(w.history[max(0, len(w.history)-told):], "\n"))
		}
	})
	return w
}

func (w *watcher) check(when string) {
	n := w.available()
	w.lowest = min(w.lowest, n)
	if n < w.floor {
		missing := ""
		for _, pod := range w.pods {
			if !isAvailable(pod) {
				missing += "\n  " + describe(pod)
			}
		}
		w.violations = append(w.violations, fmt.Sprintf("%d pods are available and %d must be: after %s; without %s", n, w.floor, when, missing))
	}
}

// setFloor changes the required minimum from now on.
func (w *watcher) setFloor(floor int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.floor = floor
}

// seen returns the lowest number of available pods so far.
func (w *watcher) seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lowest
}
