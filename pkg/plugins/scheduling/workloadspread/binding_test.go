package workloadspread

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/berth-project/berth/pkg/ledger"
)

// harbour is a world in which the pod "p" has found a node. Its bind is about to be sent to an API server.
type harbour struct {
	*world
	pod    *corev1.Pod
	state  fwk.CycleState
	plugin *Spread

	mu sync.Mutex
	// requests are the queries of all bind requests so far.
	requests []string
	// answer writes the answer to one request.
	answer http.HandlerFunc
}

func newHarbour(t *testing.T, timeout time.Duration) *harbour {
	t.Helper()
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
	handle, err := frameworkruntime.NewFramework(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	h.binds, h.handle = newBinds(t.Context(), client, h.book, timeout), handle
	h.plugin = h.Spread
	h.spread(1, twoThenAny)
	h.pod = h.world.pod("p")
	d, _ := h.ask(ledger.PodAsks{Pod: h.pod}, nil)
	h.state.Write(stateKey, d)
	if status := h.plugin.Reserve(t.Context(), h.state, h.pod, "node-a"); !status.IsSuccess() {
		t.Fatal(status)
	}
	return h
}

// bind makes the plugin bind the pod.
func (h *harbour) bind() *fwk.Status {
	h.t.Helper()
	status := h.plugin.Bind(h.t.Context(), h.state, h.pod, "node-a")
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
	if !query(h.book, func(l *ledger.Ledger) time.Time { return l.UncertainUntil(h.pod.UID) }).After(h.book.clock.Now()) {
		h.t.Error("the bind is not in doubt")
	}
	if counts := query(h.book, (*ledger.Ledger).Counts); counts.Uncertain != 1 {
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
	for name, tc := range map[string]struct {
		answer    http.HandlerFunc
		uncertain bool
	}{
		"that succeeds": {answer: answers("", `{"kind": "Status", "apiVersion": "v1", "status": "Success"}`, http.StatusCreated)},
		// The client library would send the request again.
		"that fails on the way": {answer: answers("0", "", http.StatusBadGateway), uncertain: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarbour(t, 5*time.Second)
			h.answer = tc.answer
			if status := h.bind(); tc.uncertain {
				h.expectUncertain(status)
			} else if !status.IsSuccess() {
				t.Error(status)
			}
			h.expectRequests("timeout=5s")
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
