package workloadspread

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	apicache "k8s.io/kubernetes/pkg/scheduler/backend/api_cache"
	apidispatcher "k8s.io/kubernetes/pkg/scheduler/backend/api_dispatcher"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	apicalls "k8s.io/kubernetes/pkg/scheduler/framework/api_calls"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
)

// harbour is a world in which the pod "p" has found a node. Its bind is about to be sent to an API server.
type harbour struct {
	*world
	pod        *corev1.Pod
	state      fwk.CycleState
	plugin     *Spread
	dispatcher *apidispatcher.APIDispatcher // does not run yet

	mu sync.Mutex
	// requests are the queries of all bind requests so far.
	requests []string
	// answer writes the answer to one request.
	answer http.HandlerFunc
}

func newHarbour(t *testing.T, async bool, timeout time.Duration, relevances fwk.APICallRelevances) *harbour {
	t.Helper()
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.SchedulerAsyncAPICalls, async)
	schedulermetrics.Register()
	h := &harbour{world: newWorld(t, 1), state: framework.NewCycleState()}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/binding") {
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.requests = append(h.requests, r.URL.RawQuery)
		h.answer(w, r)
	}))
	t.Cleanup(server.Close)
	client := kubernetes.NewForConfigOrDie(&restclient.Config{Host: server.URL})
	var options []frameworkruntime.Option
	if async {
		h.dispatcher = apidispatcher.New(client, 1, relevances)
		t.Cleanup(h.dispatcher.Close)
		options = append(options, frameworkruntime.WithAPIDispatcher(h.dispatcher))
	}
	handle, err := frameworkruntime.NewFramework(t.Context(), nil, nil, options...)
	if err != nil {
		t.Fatal(err)
	}
	if async {
		handle.SetAPICacher(apicache.New(nil, newSchedulerCache(t.Context(), h.dispatcher)))
	}
	h.binds, h.handle = newBinds(t.Context(), client, h.book, timeout), handle
	h.plugin = h.Spread
	h.spread(1, twoThenAny)
	h.pod = h.world.pod("p")
	d, _ := h.ask(h.pod, nil)
	h.state.Write(stateKey, d)
	if status := h.plugin.Reserve(t.Context(), h.state, h.pod, "node-a"); !status.IsSuccess() {
		t.Fatal(status)
	}
	return h
}

// bind makes the plugin bind the pod. If meanwhile is not nil, it is called repeatedly during the bind.
func (h *harbour) bind(meanwhile func()) *fwk.Status {
	h.t.Helper()
	result := make(chan *fwk.Status, 1)
	go func() { result <- h.plugin.Bind(h.t.Context(), h.state, h.pod, "node-a") }()
	for meanwhile != nil && len(result) == 0 {
		meanwhile()
	}
	status := <-result
	if !status.IsSuccess() {
		h.plugin.Unreserve(h.t.Context(), h.state, h.pod, "node-a")
	}
	return status
}

// expectUncertain checks a bind with an unknown result: it was no success, and its slot stays taken.
func (h *harbour) expectUncertain(status *fwk.Status) {
	h.t.Helper()
	if status.Code() != fwk.Error {
		h.t.Errorf("Bind returned %v, want an error", status)
	}
	if h.book.uncertainFor(h.pod.UID) <= 0 {
		h.t.Error("the bind is not in doubt")
	}
	if counts := h.book.counts(); counts.Uncertain != 1 {
		h.t.Errorf("counts %+v, want a slot in doubt", counts)
	}
}

func (h *harbour) expectRequests(want ...string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.requests, want) {
		h.t.Errorf("requests %q, want %q", h.requests, want)
	}
}

func TestABindIsSentOnceWithADeadlineThatTheAPIServerKeeps(t *testing.T) {
	for _, async := range []bool{false, true} {
		t.Run(fmt.Sprintf("SchedulerAsyncAPICalls=%t", async), func(t *testing.T) {
			for name, tc := range map[string]struct {
				answer    http.HandlerFunc
				requests  int
				uncertain bool
			}{
				"that succeeds": {answer: answers("", `{"kind": "Status", "apiVersion": "v1", "status": "Success"}`, http.StatusCreated), requests: 1},
				// The client library would send the request again.
				"that fails on the way": {answer: answers("0", "", http.StatusBadGateway), requests: 1, uncertain: true},
			} {
				t.Run(name, func(t *testing.T) {
					h := newHarbour(t, async, 5*time.Second, apicalls.Relevances)
					h.answer = tc.answer
					if async {
						h.dispatcher.Run(klog.Background())
					}
					if status := h.bind(nil); tc.uncertain {
						h.expectUncertain(status)
					} else if !status.IsSuccess() {
						t.Error(status)
					}
					h.expectRequests(slices.Repeat([]string{"timeout=5s"}, tc.requests)...)
				})
			}
		})
	}
}

func answers(retryAfter, body string, code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

func TestABindThatTheDispatcherDoesNotSendIsUncertain(t *testing.T) {
	t.Run("because another bind of the pod takes its place", func(t *testing.T) {
		h := newHarbour(t, true, time.Minute, apicalls.Relevances)
		call := apicalls.NewPodBindingCall(&corev1.Binding{ObjectMeta: h.pod.ObjectMeta})
		h.expectUncertain(h.bind(func() {
			if err := h.dispatcher.Add(call, fwk.APICallOptions{}); err != nil {
				t.Error(err)
			}
		}))
	})
	t.Run("because another call of the pod is more important", func(t *testing.T) {
		h := newHarbour(t, true, time.Minute, fwk.APICallRelevances{apicalls.PodBinding: 0, "more important": 1})
		if err := h.dispatcher.Add(important{h.pod}, fwk.APICallOptions{}); err != nil {
			t.Fatal(err)
		}
		h.expectUncertain(h.bind(nil))
	})
	t.Run("before the deadline, and never after", func(t *testing.T) {
		h := newHarbour(t, true, 10*time.Millisecond, apicalls.Relevances)
		h.expectUncertain(h.bind(nil))
		// The same with a dispatcher that executes the call late.
		late := &lateDispatcher{}
		if err := h.plugin.binds.send(t.Context(), late, &corev1.Binding{ObjectMeta: h.pod.ObjectMeta}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a deadline exceeded", err)
		}
		if err := late.call.Execute(t.Context(), nil); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("executed with the result %v, want nothing to be sent", err)
		}
		h.expectRequests()
	})
}

type lateDispatcher struct {
	fwk.APIDispatcher
	call fwk.APICall
}

func (d *lateDispatcher) Add(call fwk.APICall, _ fwk.APICallOptions) error {
	d.call = call
	return nil
}

// important is an API call that does nothing.
type important struct{ *corev1.Pod }

func (important) CallType() fwk.APICallType                           { return "more important" }
func (i important) UID() types.UID                                    { return i.Pod.UID }
func (important) Execute(context.Context, kubernetes.Interface) error { return nil }
func (important) Merge(fwk.APICall) error                             { return nil }
func (important) Sync(object metav1.Object) (metav1.Object, error)    { return object, nil }
func (important) IsNoOp() bool                                        { return false }
