package workloadspread

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/ledger"
)

func TestAPodThatEndsWhileItIsBeingReadHoldsNoSlot(t *testing.T) {
	// Both reads show the pod as it was before its end was reported, and no event of it will come any more.
	tests := map[string]struct {
		verb string
		read func(*testing.T, *world, kubernetes.Interface, *corev1.Pod)
	}{
		"by the list of a take-over": {"list", func(t *testing.T, w *world, client kubernetes.Interface, _ *corev1.Pod) {
			t.Helper()
			takeover := &takeover{clock: clock.RealClock{}, client: client, book: w.book, listeners: &listeners{}}
			if err := takeover.complete(t.Context()); err != nil || !takeover.done {
				t.Fatalf("take-over done is %t, error %v", takeover.done, err)
			}
		}},
		"to settle its bind": {"get", func(t *testing.T, w *world, client kubernetes.Interface, pod *corev1.Pod) {
			t.Helper()
			binds := &binds{client: client, book: w.book}
			if err := binds.settle(t.Context(), podKey{pod.Namespace, pod.Name, pod.UID}); err != nil {
				t.Fatal(err)
			}
		}},
	}
	ends := map[string]func(*world, *corev1.Pod){
		"deleted":     func(w *world, pod *corev1.Pod) { w.delete(pod) },
		"terminating": func(w *world, pod *corev1.Pod) { w.see(terminating(pod)) },
	}
	for name, tc := range tests {
		for how, end := range ends {
			t.Run(name+", "+how, func(t *testing.T) {
				w := newWorld(t, 4)
				w.spread(1, twoThenAny)
				ended, stays := w.pod("ended"), onNode(podOf("rs-uid", "stays"), "node-b", "b")
				w.schedule(ended)
				before := onNode(ended, "node-a", "a")
				client := fake.NewClientset()
				client.PrependReactor(tc.verb, "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
					w.see(onNode(ended, "node-a", "a"))
					end(w, before)
					if tc.verb == "get" {
						return true, before, nil
					}
					return true, &corev1.PodList{Items: []corev1.Pod{*before, *stays}}, nil
				})
				tc.read(t, w, client, ended)
				if tc.verb == "get" {
					w.expectStages(map[ledger.Stage]int{})
				} else {
					w.expectStages(map[ledger.Stage]int{ledger.Bound: 1})
				}
			})
		}
	}
}

func TestATakeOverWaitsForBindsOfThePredecessorAsLongAsForItsOwn(t *testing.T) {
	const bindTimeout = 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, twoThenAny)
		began := time.Now()
		takeover := newTakeover(clock.RealClock{}, bindTimeout, fake.NewClientset(), w.book, &listeners{})
		if err := takeover.complete(t.Context()); err != nil || !takeover.done {
			t.Fatalf("take-over done is %t, error %v", takeover.done, err)
		}
		if waited := time.Since(began); waited != doubtAfter(bindTimeout) || waited != 10*time.Second {
			t.Errorf("waited %s", waited)
		}
	})
}
