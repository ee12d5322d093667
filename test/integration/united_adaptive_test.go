package integration

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/internal/sandbox"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// ofOneCPU is a template of Deployments whose pods need a CPU each.
const ofOneCPU = `{deploymentTemplate: {metadata: {labels: {app: web}}, spec: {template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 0,
  containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: 1}}}]}}}}}`

// adaptiveUnited is a UnitedDeployment with strategy Adaptive over pools a and b.
func adaptiveUnited(replicas int, adaptive string) string {
	return strings.Replace(united(replicas, ofOneCPU, "", inPool("a", ""), inPool("b", "")), "topology: {", "topology: {scheduleStrategy: {type: Adaptive, adaptive: {"+adaptive+"}}, ", 1)
}

// podWatch records which bound pods were deleted, and the fewest ready pods since it saw enough of them.
type podWatch struct {
	mu     sync.Mutex
	ready  sets.Set[types.UID]
	fewest int
	enough int
	lost   []string
	// waited are the pods that found no node.
	waited sets.Set[string]
}

// watchPods watches from now on. Call the result to end it.
func watchPods(t *testing.T, ns string, enough int) (end func() *podWatch) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	watch, err := the.Client.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &podWatch{ready: sets.New[types.UID](), waited: sets.New[string](), enough: enough, fewest: -1}
	var watching sync.WaitGroup
	watching.Go(func() {
		for event := range watch.ResultChan() {
			pod, is := event.Object.(*corev1.Pod)
			if !is {
				continue
			}
			p.mu.Lock()
			isReady := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
			if event.Type != "DELETED" && pod.DeletionTimestamp == nil && isReady {
				p.ready.Insert(pod.UID)
			} else {
				p.ready.Delete(pod.UID)
			}
			if event.Type == "DELETED" && pod.Spec.NodeName != "" {
				p.lost = append(p.lost, pod.Name)
			}
			if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }) {
				p.waited.Insert(pod.Name)
			}
			if n := p.ready.Len(); p.fewest >= 0 || n >= enough {
				if p.fewest < 0 {
					p.fewest = n
				}
				p.fewest = min(p.fewest, n)
			}
			p.mu.Unlock()
		}
	})
	end = func() *podWatch {
		stop()
		watching.Wait()
		return p
	}
	t.Cleanup(func() { end() })
	return end
}

// reservedIn are the names of pods with the label of a reservation.
func reservedIn(ctx context.Context, t *testing.T, ns, value string) []string {
	t.Helper()
	pods, err := the.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: unitedv1beta1.ReservedPodLabel + "=" + value})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range pods.Items {
		names = append(names, pods.Items[i].Name)
	}
	return names
}

// awaitUnited waits until the status has this summary.
func awaitUnited(t *testing.T, ns, summary string) *unitedv1beta1.UnitedDeployment {
	t.Helper()
	var ud *unitedv1beta1.UnitedDeployment
	waitFor(t, summary, func(ctx context.Context) (_ string, err error) {
		if ud, err = readUnited(ctx, ns); err != nil || ud.Status.Summary == summary {
			return "", err
		}
		return "summary is " + strconv.Quote(ud.Status.Summary), nil
	})
	return ud
}

func growPool(t *testing.T, name, pool, cpu string) {
	t.Helper()
	node := sandbox.NewNode(name, "zone-"+pool, map[string]string{"pool": pool}, nil, allocatable(cpu, "64Gi", "110"))
	nodes(t, node)
}

func TestAReservationWaitsWhileAnotherSubsetRunsItsPod(t *testing.T) {
	harness.Long(t)
	growPool(t, "reserve-a", "a", "2")
	growPool(t, "reserve-b", "b", "32")
	ns := namespace(t)
	apply(t, ns, adaptiveUnited(4, "rescheduleCriticalSeconds: 1, unschedulableDuration: 600, reserveUnschedulablePods: true"))
	ud := awaitUnited(t, ns, "a 2/4, b 2/2")
	if s := &ud.Status; s.Replicas != 4 || s.ReadyReplicas != 4 || s.ReservedPods != 2 || !strings.HasSuffix(s.LabelSelector, unitedv1beta1.ReservedPodLabel+"=false") {
		t.Errorf("status %+v", s)
	}
	waiting := reservedIn(t.Context(), t, ns, "true")
	if others := reservedIn(t.Context(), t, ns, "false"); len(waiting) != 2 || len(others) != 4 {
		t.Errorf("reserved %v, not reserved %v", waiting, others)
	}
	end := watchPods(t, ns, 4)
	growPool(t, "reserve-a-2", "a", "8")
	awaitUnited(t, ns, "a 4/4, b 0/0")
	waitFor(t, "the labels", func(ctx context.Context) (string, error) {
		return strings.Join(reservedIn(ctx, t, ns, "true"), " "), nil
	})
	now := sets.New(reservedIn(t.Context(), t, ns, "false")...)
	if !now.HasAll(waiting...) {
		t.Errorf("the reserved pods were %v, and now there are %v", waiting, sets.List(now))
	}
	if p := end(); p.fewest < 4 || len(p.lost) != 2 {
		t.Errorf("at least %d pods were ready, and %v were deleted; want 4, and the 2 of subset b", p.fewest, p.lost)
	}
}

func TestAPodThatRunsIsNotDeletedToFindRoom(t *testing.T) {
	harness.Long(t)
	growPool(t, "trial-a", "a", "2")
	growPool(t, "trial-b", "b", "32")
	ns := namespace(t)
	auditChildren(t, ns, 1)
	apply(t, ns, adaptiveUnited(4, "rescheduleCriticalSeconds: 1, unschedulableDuration: 3"))
	first := awaitUnited(t, ns, "a 2/2, b 2/2")
	end := watchPods(t, ns, 4)
	// A trial fails: the subset is unschedulable again, from a later time on.
	since := first.Status.SubsetStatuses[0].Conditions[0].LastTransitionTime
	waitFor(t, "a second trial", func(ctx context.Context) (string, error) {
		ud, err := readUnited(ctx, ns)
		if err != nil {
			return "", err
		}
		if is := ud.Status.SubsetStatuses[0].Conditions[0]; is.Status != corev1.ConditionFalse || !is.LastTransitionTime.After(since.Time) {
			return fmt.Sprintf("%+v", is), nil
		}
		return "", nil
	})
	awaitUnited(t, ns, "a 2/2, b 2/2")
	if p := end(); p.fewest < 4 || len(p.lost) != 0 {
		t.Errorf("at least %d pods were ready, and %v were deleted; want 4, and none with a node", p.fewest, p.lost)
	}
	end = watchPods(t, ns, 4)
	growPool(t, "trial-a-2", "a", "8")
	awaitUnited(t, ns, "a 4/4, b 0/0")
	if p := end(); p.fewest < 4 || len(p.lost) != 2 {
		t.Errorf("at least %d pods were ready, and %v were deleted; want 4, and the 2 of subset b", p.fewest, p.lost)
	}
}

func TestTheKindOfTheTemplateIsSwitchedWithoutAGap(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	auditChildren(t, ns, 2)
	apply(t, ns, united(6, ofDeployments("one"), "", inPool("a", ""), inPool("b", "")))
	expectUnited(t, ns, "a=3 b=3")
	end := watchPods(t, ns, 6)
	patchUnited(t, ns, `{"spec": {"template": {"deploymentTemplate": null}}}`)
	expectUnitedReason(t, ns, unitedv1beta1.ReadyCondition, unitedv1beta1.ReasonNoTemplate)
	apply(t, ns, united(6, ofStatefulSets("one"), "", inPool("a", ""), inPool("b", "")))
	waitFor(t, "StatefulSets alone", func(ctx context.Context) (string, error) {
		all, err := childrenIn(ctx, ns)
		if err != nil {
			return "", err
		}
		var kinds []string
		for i := range all {
			kinds = append(kinds, fmt.Sprintf("%s %d", all[i].GetKind(), replicasIn(&all[i])))
		}
		if got := strings.Join(kinds, ", "); got != "StatefulSet 3, StatefulSet 3" {
			return got, nil
		}
		return "", nil
	})
	expectUnited(t, ns, "a=3 b=3")
	if p := end(); p.fewest < 6 {
		t.Errorf("only %d pods were ready", p.fewest)
	}
}

func TestARolloutInOrderWaitsForEarlierSubsets(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b", "c")
	ns := namespace(t)
	subsets := []string{inPool("a", ""), inPool("b", ""), inPool("c", "")}
	const inOrder = "  updateStrategy: {order: InOrder}"
	apply(t, ns, united(6, ofDeployments("one"), inOrder, subsets...))
	before := expectUnited(t, ns, "a=2 b=2 c=2")
	ctx, stop := context.WithCancel(t.Context())
	watch, err := the.Client.AppsV1().Deployments(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	type change struct {
		at    string
		child appsv1.Deployment
	}
	var changes []change
	var watching sync.WaitGroup
	watching.Go(func() {
		for event := range watch.ResultChan() {
			if child, is := event.Object.(*appsv1.Deployment); is {
				changes = append(changes, change{child.ResourceVersion, *child})
			}
		}
	})
	apply(t, ns, united(6, ofDeployments("two"), inOrder, subsets...))
	after := expectUpdated(t, ns)
	stop()
	watching.Wait()
	if before.Status.UpdatedRevision == after.Status.UpdatedRevision {
		t.Fatal("the template has not changed")
	}
	done, began := map[string]bool{}, []string{}
	for _, c := range changes {
		in, s := c.child.Labels[unitedv1beta1.SubsetNameLabel], &c.child.Status
		if c.child.Labels[unitedv1beta1.RevisionLabel] != after.Status.UpdatedRevision {
			continue
		}
		if !slices.Contains(began, in) {
			began = append(began, in)
			for _, earlier := range []string{"a", "b", "c"} {
				if cmp.Compare(earlier, in) < 0 && !done[earlier] {
					t.Errorf("subset %s was updated before %s was ready", in, earlier)
				}
			}
		}
		if s.ObservedGeneration == c.child.Generation && s.UpdatedReplicas == 2 && s.ReadyReplicas == 2 && s.Replicas == 2 {
			done[in] = true
		}
	}
	if !slices.Equal(began, []string{"a", "b", "c"}) {
		t.Errorf("updated in the order %v", began)
	}
}
