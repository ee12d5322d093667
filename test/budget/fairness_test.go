package budget

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestBrokenBudgetsOfOneNamespaceDelayNoOther has many budgets whose workload Berth may not read. A pod beside them is created and deleted
// ten times a second. The test measures how long new pods of another namespace wait for their label.
func TestBrokenBudgetsOfOneNamespaceDelayNoOther(t *testing.T) {
	const samples = 100
	hostile, quiet := namespace(t), namespace(t)
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	t.Cleanup(working.Wait)
	t.Cleanup(cancel)
	create := make(chan int)
	for range 8 {
		working.Go(func() {
			for i := range create {
				one := &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: hostile, Name: fmt.Sprintf("broken-%d", i)}, Spec: v1beta1.PodUnavailableBudgetSpec{
					TargetReference: &v1beta1.TargetReference{APIVersion: "v1", Kind: "Secret", Name: fmt.Sprintf("secret-%d", i)}, MaxUnavailable: ptr.To(intstr.FromInt32(1)),
				}}
				// The webhook compares each new budget with all others of the namespace. On a slow machine that may take too long for the API server.
				for err := berth.client().Create(ctx, one); err != nil; err = berth.client().Create(ctx, one) {
					if !apierrors.IsInternalError(err) {
						t.Error(err)
						break
					}
				}
			}
		})
	}
	for i := range *broken {
		create <- i
	}
	close(create)
	apply(t, quiet, fmt.Sprintf(pub, "maxUnavailable: 1"))
	apply(t, hostile, `{apiVersion: v1, kind: Pod, metadata: {name: flapping, labels: {app: web}}, spec: {containers: [{name: main, image: web:1}]}}`)
	var flapping *corev1.Pod
	waitFor(t, "the pod to run", func(ctx context.Context) (_ string, err error) {
		flapping, err = the.Client.CoreV1().Pods(hostile).Get(ctx, "flapping", metav1.GetOptions{})
		return map[bool]string{true: "it does not"}[err == nil && !budget.IsReady(flapping)], err
	})
	working.Go(func() {
		for ready := false; ctx.Err() == nil; ready = !ready {
			setReady(ctx, flapping, ready)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	latencies := make([]time.Duration, samples)
	for i := range latencies {
		name := fmt.Sprintf("pod-%d", i)
		start := time.Now()
		apply(t, quiet, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: web}}, spec: {schedulerName: nobody, containers: [{name: main, image: web:1}]}}`, name))
		w, err := the.Client.CoreV1().Pods(quiet).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, TimeoutSeconds: ptr.To[int64](60)})
		if err != nil {
			t.Fatal(err)
		}
		for event := range w.ResultChan() {
			if pod, is := event.Object.(*corev1.Pod); is && pod.Labels[v1beta1.ProtectedLabel] != "" {
				latencies[i] = time.Since(start)
				break
			}
		}
		w.Stop()
		if latencies[i] == 0 {
			t.Fatalf("pod %s is not protected after a minute", name)
		}
	}
	slices.Sort(latencies)
	p99 := latencies[samples*99/100]
	t.Logf("%d broken budgets: a new pod of another namespace has its label after %s (p50), %s (p99), %s (max)", *broken, latencies[samples/2], p99, latencies[samples-1])
	if limit := time.Duration(*slack) * time.Second; p99 > limit {
		t.Errorf("p99 is %s, want at most %s", p99, limit)
	}
}
