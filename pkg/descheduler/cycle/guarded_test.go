package cycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	podevictions "sigs.k8s.io/descheduler/pkg/descheduler/evictions"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"
)

// server answers evictions.
type server struct {
	*httptest.Server
	// code of the answer; 0 never answers. retryAfter in seconds.
	code       int
	retryAfter string
	// overloaded answers without the cause that budgets give to a 429.
	overloaded bool
	requests   atomic.Int32
	last       policyv1.Eviction
	paths      []string
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{code: http.StatusCreated}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		s.paths = append(s.paths, r.Method+" "+r.URL.Path)
		s.last = policyv1.Eviction{}
		if err := json.NewDecoder(r.Body).Decode(&s.last); err != nil {
			t.Error(err)
		}
		if s.code == 0 {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if s.retryAfter != "" {
			w.Header().Set("Retry-After", s.retryAfter)
		}
		w.WriteHeader(s.code)
		status := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Code: int32(s.code), Status: metav1.StatusFailure}
		switch {
		case s.code < 300:
			status.Status = metav1.StatusSuccess
		case s.code == http.StatusTooManyRequests && !s.overloaded:
			status.Reason = metav1.StatusReasonTooManyRequests
			status.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}}
		}
		_ = json.NewEncoder(w).Encode(status) // the client may have gone
	}))
	t.Cleanup(s.Close)
	return s
}

func clientOf(t *testing.T, s *server, options GuardOptions) *Client {
	t.Helper()
	if options.Timeout == 0 {
		options.Timeout = 10 * time.Second
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return NewClient(client, options)
}

// framework is the descheduler framework's handle, which sends an eviction by name through its client and makes a text
// of some errors.
type framework struct {
	frameworktypes.Handle
	client kubernetes.Interface
}

func (f framework) Evictor() frameworktypes.Evictor { return plainEvictor(f) }

type plainEvictor framework

func (plainEvictor) Filter(*corev1.Pod) bool            { return true }
func (plainEvictor) PreEvictionFilter(*corev1.Pod) bool { return true }
func (e plainEvictor) Evict(ctx context.Context, pod *corev1.Pod, _ podevictions.EvictOptions) error {
	if pod.Name == "limited" {
		return podevictions.NewEvictionTotalLimitError()
	}
	err := e.client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}})
	switch {
	case apierrors.IsTooManyRequests(err):
		return fmt.Errorf("error when evicting pod (ignoring) %q: %v", pod.Name, err) //nolint:errorlint // as the framework does
	case apierrors.IsNotFound(err):
		return fmt.Errorf("pod not found when evicting %q: %v", pod.Name, err) //nolint:errorlint // as the framework does
	}
	return err
}

func pod(node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-0", UID: "uid-7", ResourceVersion: "42"}, Spec: corev1.PodSpec{NodeName: node}}
}

func evict(ctx context.Context, c *Client, pod *corev1.Pod) error {
	return c.Handle(framework{client: c}).Evictor().Evict(ctx, pod, podevictions.EvictOptions{})
}

func TestEvictionsMeanOnePod(t *testing.T) {
	uid, rv := "uid-7", "42"
	for name, tc := range map[string]struct {
		node   string
		dryRun bool
		want   metav1.DeleteOptions
	}{
		"a running pod by its UID":                    {node: "n", want: metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(uid)}},
		"a pending pod as it was":                     {want: metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: metav1.NewUIDPreconditions(uid).UID, ResourceVersion: &rv}}},
		"in a dry run the API server is asked to try": {node: "n", dryRun: true, want: metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(uid), DryRun: []string{"All"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			if err := evict(t.Context(), clientOf(t, s, GuardOptions{DryRun: tc.dryRun}), pod(tc.node)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tc.want, s.last.DeleteOptions); diff != "" {
				t.Errorf("delete options (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"POST /api/v1/namespaces/ns/pods/web-0/eviction"}, s.paths); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestResultsKeepTheirType(t *testing.T) {
	for code, want := range map[int]evictionResult{
		http.StatusCreated: resultEvicted, http.StatusTooManyRequests: resultRefused, http.StatusForbidden: resultForbidden, http.StatusConflict: resultChanged,
		http.StatusNotFound: resultGone, http.StatusInternalServerError: resultFailed, http.StatusServiceUnavailable: resultFailed, http.StatusGatewayTimeout: resultUnanswered,
	} {
		s := newServer(t)
		s.code = code
		if got := resultOf(evict(t.Context(), clientOf(t, s, GuardOptions{}), pod("n"))); got != want {
			t.Errorf("%d is %s, want %s", code, got, want)
		}
	}
	s := newServer(t)
	s.code, s.retryAfter, s.overloaded = http.StatusTooManyRequests, "1", true
	if got := resultOf(evict(t.Context(), clientOf(t, s, GuardOptions{}), pod("n"))); got != resultFailed || s.requests.Load() != 1 {
		t.Errorf("an API server with too much to do is %s after %d requests", got, s.requests.Load())
	}
	s = newServer(t)
	limited := pod("n")
	limited.Name = "limited"
	var limit *podevictions.EvictionTotalLimitError
	if err := evict(t.Context(), clientOf(t, s, GuardOptions{}), limited); !errors.As(err, &limit) {
		t.Errorf("the framework's limit became %v", err)
	}
}

// Evictions that are sent ahead are under way at the same time, and each is sent once, by its own description; the
// framework hears the result.
func TestEvictionsCanBeSentAhead(t *testing.T) {
	s := newServer(t)
	c := clientOf(t, s, GuardOptions{})
	grace := int64(7)
	c.SendAhead(&grace)
	if err := evict(t.Context(), c, pod("n")); err != nil {
		t.Fatal(err)
	}
	want := metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: metav1.NewUIDPreconditions("uid-7")}
	if diff := cmp.Diff(&want, s.last.DeleteOptions); diff != "" || s.requests.Load() != 1 {
		t.Errorf("%d requests; delete options (-want +got):\n%s", s.requests.Load(), diff)
	}
	s.code = http.StatusTooManyRequests
	if got := resultOf(evict(t.Context(), c, pod("n"))); got != resultRefused || s.requests.Load() != 2 {
		t.Errorf("refused: got %s after %d requests", got, s.requests.Load())
	}
	if diff := cmp.Diff(tally{Attempted: 2, Succeeded: 1}, c.Tally()); diff != "" {
		t.Errorf("tally (-want +got):\n%s", diff)
	}
	if err := c.PolicyV1().Evictions("ns").Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-0"}}); resultOf(err) != resultUnintended {
		t.Errorf("an eviction that nobody means: %v", err)
	}
}

// Case 31: an answer that asks to come back later, as a PodDisruptionBudget that is being processed gives it, does not
// hold the cycle up.
func TestAnEvictionIsSentOnceAndHasADeadline(t *testing.T) {
	s := newServer(t)
	s.code, s.retryAfter = http.StatusTooManyRequests, "10"
	began := time.Now()
	if got := resultOf(evict(t.Context(), clientOf(t, s, GuardOptions{}), pod("n"))); got != resultRefused || s.requests.Load() != 1 || time.Since(began) > 5*time.Second {
		t.Errorf("got %s after %d requests and %s", got, s.requests.Load(), time.Since(began))
	}
	s = newServer(t)
	s.code = 0
	began = time.Now()
	if got := resultOf(evict(t.Context(), clientOf(t, s, GuardOptions{Timeout: 50 * time.Millisecond}), pod("n"))); got != resultUnanswered || time.Since(began) > 5*time.Second {
		t.Errorf("without an answer: got %s after %s", got, time.Since(began))
	}
}

// Case 34: when the API server or a webhook fails or does not answer, the rest of the cycle is left to the next one.
func TestAfterTooManyFailuresNoMoreAreSentInTheCycle(t *testing.T) {
	s := newServer(t)
	c := clientOf(t, s, GuardOptions{TripAfter: 3})
	try := func(code int) evictionResult {
		s.code = code
		return resultOf(evict(t.Context(), c, pod("n")))
	}
	var got []evictionResult
	for _, code := range []int{500, 500, 429, 500, 504, 500, 201, 201} {
		got = append(got, try(code))
	}
	if diff := cmp.Diff([]evictionResult{resultFailed, resultFailed, resultRefused, resultFailed, resultUnanswered, resultFailed, resultTripped, resultTripped}, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(tally{Attempted: 6}, c.Tally()); diff != "" {
		t.Errorf("tally (-want +got):\n%s", diff)
	}
	c.BeginCycle()
	if got := try(201); got != resultEvicted {
		t.Errorf("in the next cycle: %s", got)
	}
	if diff := cmp.Diff(tally{Attempted: 1, Succeeded: 1}, c.Tally()); diff != "" {
		t.Errorf("tally of the next cycle (-want +got):\n%s", diff)
	}
}

// Budgets count evictions of all plugins when they have ended, and not when a plugin asks whether a pod may go.
func TestTheResultOfEachEvictionIsTold(t *testing.T) {
	s := newServer(t)
	var told []string
	c := clientOf(t, s, GuardOptions{Settled: func(_ context.Context, pod *corev1.Pod, result evictionResult) {
		told = append(told, fmt.Sprint(pod.Name, " ", result))
	}})
	for _, s.code = range []int{201, 429} {
		_ = evict(t.Context(), c, pod("n")) // the result is told as well
	}
	if diff := cmp.Diff([]string{"web-0 Evicted", "web-0 Refused"}, told); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}

func TestASilentDryRunSendsNothing(t *testing.T) {
	s := newServer(t)
	c := clientOf(t, s, GuardOptions{DryRun: true, Silent: true})
	if err := evict(t.Context(), c, pod("n")); err != nil || s.requests.Load() != 0 || c.Tally() != (tally{Attempted: 1, Succeeded: 1}) {
		t.Errorf("%d requests, tally %+v: %v", s.requests.Load(), c.Tally(), err)
	}
}

func TestNothingElseEndsAPod(t *testing.T) {
	s := newServer(t)
	c := clientOf(t, s, GuardOptions{})
	ctx, eviction := t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-0"}}
	for name, err := range map[string]error{
		"delete":            c.CoreV1().Pods("ns").Delete(ctx, "web-0", metav1.DeleteOptions{}),
		"delete collection": c.CoreV1().Pods("ns").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		"unintended":        c.PolicyV1().Evictions("ns").Evict(ctx, eviction),
		"through the pod":   c.CoreV1().Pods("ns").EvictV1(ctx, eviction),
		"beta":              c.PolicyV1beta1().Evictions("ns").Evict(ctx, &policyv1beta1.Eviction{}),
		"old":               c.CoreV1().Pods("ns").Evict(ctx, &policyv1beta1.Eviction{}),
		"old beta":          c.CoreV1().Pods("ns").EvictV1beta1(ctx, &policyv1beta1.Eviction{}),
	} {
		if err == nil {
			t.Errorf("%s: done", name)
		}
	}
	if n := s.requests.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	nameless := pod("n")
	nameless.UID = ""
	if got := resultOf(evict(ctx, c, nameless)); got != resultUnintended {
		t.Errorf("without a UID: %s", got)
	}
}

// A budget that has a new pod made first refuses as any, and says so in the cause.
func TestARefusalSaysThatThePodIsReplacedFirst(t *testing.T) {
	for message, want := range map[string]evictionResult{"ReplacedFirst: a new pod is made first": resultReplacedFirst, "BudgetExhausted: ReplacedFirst: no": resultRefused, "": resultRefused} {
		err := apierrors.NewTooManyRequests("no", 0)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: message}}
		if got := classify(err); got != want {
			t.Errorf("%q: got %s, want %s", message, got, want)
		}
	}
	if resultReplacedFirst.attempted() {
		t.Error("a cycle that only has pods replaced first ends as one that could evict none")
	}
}
