package workloadspread

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

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
			takeover := newTakeover(&lease{}, client, w.book, &listeners{})
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

func TestATakeOverWaitsUnlessTheLeaseProvesThatItNeedNot(t *testing.T) {
	tests := map[string]struct {
		// lead has the process begin to lead; nil is without leader election.
		lead func(*lease)
		// before is how long before the first pod.
		before time.Duration
		// bound: Berth has bound a pod.
		bound bool
		want  time.Duration
	}{
		"without leader election":                           {want: testDoubt},
		"of one that was killed":                            {lead: func(l *lease) { l.lead("killed", false) }, want: testDoubt},
		"of one that was killed some time ago":              {lead: func(l *lease) { l.lead("killed", false) }, before: testDoubt - time.Second, want: time.Second},
		"of one that was killed long ago":                   {lead: func(l *lease) { l.lead("killed", false) }, before: time.Hour},
		"of one that gave its lease up":                     {lead: func(l *lease) { l.lead("", false) }, want: testDoubt},
		"of one that stopped":                               {lead: func(l *lease) { l.lead("stopped"+stoppedSuffix, false) }, bound: true},
		"if there was no lease":                             {lead: func(l *lease) { l.lead("", true) }},
		"if there was no lease, but a pod that Berth bound": {lead: func(l *lease) { l.lead("", true) }, bound: true, want: testDoubt},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 4)
				w.spread(1, twoThenAny)
				client := fake.NewClientset(onNode(podOf("rs-uid", "somebody's"), "node-a", "-"))
				if tc.bound {
					if err := client.Tracker().Add(onNode(podOf("rs-uid", "ours"), "node-a", "a")); err != nil {
						t.Fatal(err)
					}
				}
				l := &lease{doubt: doubtAfter(5 * time.Second)}
				if tc.lead != nil {
					tc.lead(l)
				}
				time.Sleep(tc.before)
				began := time.Now()
				takeover := newTakeover(l, client, w.book, &listeners{})
				if err := takeover.complete(t.Context()); err != nil || !takeover.done {
					t.Fatalf("take-over done is %t, error %v", takeover.done, err)
				}
				if waited := time.Since(began); waited != tc.want {
					t.Errorf("waited %s, want %s", waited, tc.want)
				}
				w.expectStages(map[ledger.Stage]int{ledger.Bound: map[bool]int{false: 1, true: 2}[tc.bound]})
				if rest := l.doubtful(); rest > 0 {
					t.Errorf("its binds are in doubt for %s after it has waited", rest)
				}
			})
		})
	}
}

// handle is what Bind needs of the scheduler.
type handle struct{ fwk.Handle }

func (handle) APIDispatcher() fwk.APIDispatcher { return nil }

func TestABindIsNotBrokenOffWhenTheProcessIsToldToEnd(t *testing.T) {
	arrived, answer := make(chan struct{}, 9), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-answer
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"apiVersion": "v1", "kind": "Status", "status": "Success"}`)) // the test fails without an answer
	}))
	defer server.Close()
	client := kubernetes.NewForConfigOrDie(&restclient.Config{Host: server.URL})
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	l := &lease{doubt: testDoubt}
	s := &Spread{core: &core{book: w.book, lease: l, binds: newBinds(t.Context(), client, w.book, time.Minute)}, handle: handle{}}
	bind := func(ctx context.Context, name string) *fwk.Status {
		pod, state := w.pod(name), framework.NewCycleState()
		d, _ := w.ask(pod, nil)
		if !w.book.apply(ledger.NodeFound{UID: pod.UID, Decision: d.Decision}).OK {
			t.Fatal("not reserved")
		}
		state.Write(stateKey, d)
		return s.Bind(ctx, state, pod, "node-a")
	}
	ctx, terminate := context.WithCancel(t.Context())
	status := make(chan *fwk.Status)
	go func() { status <- bind(ctx, "p") }()
	<-arrived
	terminate()
	settled := make(chan bool)
	go func() { settled <- l.stop(t.Context()) }()
	close(answer)
	if got := <-status; !got.IsSuccess() {
		t.Errorf("the bind ended with %v", got)
	}
	if !<-settled {
		t.Error("its outcome is not certain")
	}
	if got := bind(t.Context(), "q"); got.IsSuccess() || len(arrived) != 0 {
		t.Errorf("a bind was sent after the lease was given up: %v", got)
	}
}
