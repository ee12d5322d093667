package federation

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/test/harness"
)

// TestAReportKeepsPodsFromWaiting: in the third member Berth's scheduler says what there is room for, so that nothing is asked of it that would wait for a node. The others report nothing.
func TestAReportKeepsPodsFromWaiting(t *testing.T) {
	harness.Long(t)
	w := startWorld(t, func(name string, member sandbox.Config) sandbox.Config {
		if name == "member-3" {
			return product.Reporting(member)
		}
		return member
	})
	const ns = "room"
	w.room(t, ns, [memberCount]int{lots, lots, 5})
	w.apply(t, ns, 6, evenly)
	w.expect(t, ns, "2 2 2", false)
	w.awaitReport(t, ns, 5)
	waited := w.watchWaiting(t, ns, 2)
	w.apply(t, ns, 30, evenly)
	w.expect(t, ns, "12 13 5", true)
	// The room grows, and replicas come home without a trial.
	node := sandbox.NewNode("node-more", "zone-a", map[string]string{"of": ns}, nil, sandbox.Allocatable(resource.MustParse("32"), resource.MustParse("64Gi")))
	if err := w.Members()[2].CreateNodes(t.Context(), []*corev1.Node{node}); err != nil {
		t.Fatal(err)
	}
	w.expect(t, ns, "10 10 10", false)
	if names := waited(); len(names) > 0 {
		t.Errorf("%v found no node", names)
	}
}

// awaitReport waits until the status says that the third member has reported room for so many replicas.
func (w *world) awaitReport(t *testing.T, ns string, replicas int32) {
	t.Helper()
	var frs *v1alpha1.FederatedReplicaSet
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(context.Context) (bool, error) {
		frs = w.frs(t, ns)
		at := slices.IndexFunc(frs.Status.Clusters, func(c v1alpha1.ClusterStatus) bool { return c.Name == "member-3" })
		if at < 0 {
			return false, nil
		}
		c := frs.Status.Clusters[at].Capacity
		return c != nil && c.Source == v1alpha1.CapacityReported && c.Replicas == replicas, nil
	})
	if err != nil {
		t.Fatalf("%v: %+v", err, frs.Status)
	}
}

// watchWaiting watches the pods of a namespace in a member. The function that it returns gives the names of those that found no node so far.
func (w *world) watchWaiting(t *testing.T, ns string, member int) func() []string {
	t.Helper()
	clients, err := kubernetes.NewForConfig(w.Members()[member].RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := clients.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waiting, ended := sets.New[string](), make(chan struct{})
	go func() {
		defer close(ended)
		for event := range watcher.ResultChan() {
			pod, is := event.Object.(*corev1.Pod)
			if is && event.Type != watch.Deleted && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }) {
				waiting.Insert(pod.Name)
			}
		}
	}()
	return func() []string {
		watcher.Stop()
		<-ended
		return sets.List(waiting)
	}
}
