package guard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

func TestWhatPasses(t *testing.T) {
	pods := corev1.Resource("pods")
	stored := func(message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: message}}
	}
	unanswered := func(err error) error { return &url.Error{Op: "Get", URL: "https://10.0.0.1/", Err: err} }
	generic := func(code int) error { return apierrors.NewGenericServerResponse(code, "get", pods, "web", "", 0, true) }
	tests := map[string]struct {
		err   error
		after time.Duration // 0 if the error needs a person
	}{
		"too many requests":                          {apierrors.NewTooManyRequests("busy", 0), time.Second},
		"too many requests, with a delay":            {apierrors.NewTooManyRequests("busy", 3), 3 * time.Second},
		"too many requests, with a long delay":       {apierrors.NewTooManyRequests("busy", 3600), longestRetryAfter},
		"the API server starts":                      {apierrors.NewServiceUnavailable("starting"), time.Second},
		"the store does not answer":                  {apierrors.NewServerTimeout(pods, "get", 2), 2 * time.Second},
		"a timeout of the API server":                {apierrors.NewTimeoutError("slow", 0), time.Second},
		"a revision that is yet to come":             {apierrors.NewTimeoutError("Too large resource version: 9, current: 5", 1), time.Second},
		"a revision that is too old":                 {apierrors.NewResourceExpired("too old resource version"), time.Second},
		"a conflict":                                 {apierrors.NewConflict(pods, "web", errors.New("changed")), time.Second},
		"a budget that has changed":                  {fmt.Errorf("reading: %w", apierrors.NewConflict(pods, "web", errors.New("changed"))), time.Second},
		"a gateway without an API server":            {generic(http.StatusBadGateway), time.Second},
		"a gateway whose API server does not answer": {generic(http.StatusGatewayTimeout), time.Second},
		"another leader of the store":                {stored("etcdserver: leader changed"), time.Second},
		"no leader of the store":                     {stored("etcdserver: request timed out, possibly due to previous leader failure"), time.Second},
		"the store cannot be reached":                {stored(`rpc error: code = Unavailable desc = transport is closing`), time.Second},
		"an API server that goes down":               {apierrors.NewInternalError(errors.New("apiserver is shutting down")), time.Second},
		"nobody listens":                             {unanswered(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), time.Second},
		"the connection breaks":                      {unanswered(syscall.ECONNRESET), time.Second},
		"the connection ends":                        {unanswered(io.EOF), time.Second},
		"the answer breaks off":                      {fmt.Errorf("unexpected error when reading response body. Please retry. Original error: %w", io.ErrUnexpectedEOF), time.Second},
		"no answer in time":                          {fmt.Errorf("listing: %w", context.DeadlineExceeded), time.Second},
		"the client's own limit":                     {errors.New("client rate limiter Wait returned an error: rate: Wait(n=1) would exceed context deadline"), time.Second},
		"kinds that cannot be looked up now":         {&apiutil.ErrResourceDiscoveryFailed{schema.GroupVersion{Group: "a", Version: "v1"}: apierrors.NewServiceUnavailable("starting")}, time.Second},
		"a right that is missing":                    {err: apierrors.NewForbidden(pods, "web", errors.New("no rule"))},
		"credentials that are wrong":                 {err: apierrors.NewUnauthorized("no")},
		"an object that cannot be decoded":           {err: stored("unable to decode an event from the watch stream")},
		"a store that is full":                       {err: stored("etcdserver: mvcc: database space exceeded")},
		"an object that is too large":                {err: apierrors.NewRequestEntityTooLargeError("limit is 3145728")},
		"a status that is invalid":                   {err: apierrors.NewInvalid(schema.GroupKind{Kind: "PodUnavailableBudget"}, "web", nil)},
		"an authority that is not known":             {err: unanswered(&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}})},
		"a fault of Berth":                           {err: errors.New("nil map")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, err := range []error{tc.err, fmt.Errorf("asking PodUnavailableBudget web: %w", tc.err)} {
				if after, passing := passes(err); after != tc.after || passing != (tc.after > 0) {
					t.Errorf("%v: got %v, %t; want %v", err, after, passing, tc.after)
				}
			}
		})
	}
}

// removal returns the review of a deletion of a pod.
func removal(t *testing.T, i int) admission.Request {
	t.Helper()
	raw, err := json.Marshal(pod(i))
	if err != nil {
		t.Fatal(err)
	}
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "1", Operation: admissionv1.Delete, Namespace: "ns", Name: pod(i).Name,
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, OldObject: runtime.RawExtension{Raw: raw}}}
}

func TestErrorsThatPassAreAnsweredSoThatDrainsGoOn(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		code int32
	}{
		"a transient one":         {apierrors.NewServiceUnavailable("starting"), http.StatusTooManyRequests},
		"one that needs a person": {apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no rule")), http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 3, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, is := list.(*corev1.PodList); is {
					return tc.err
				}
				return c.List(ctx, list, opts...)
			}})
			g := New(c, c, c, Options{})
			h := &podHandler{guard: g, decoder: admission.NewDecoder(scheme(t))}
			response := h.Handle(t.Context(), removal(t, 0))
			if response.Allowed || response.Result.Code != tc.code {
				t.Fatalf("got %+v, want %d", response, tc.code)
			}
			if tc.code == http.StatusTooManyRequests && (response.Result.Details.RetryAfterSeconds != 1 || len(response.Result.Details.Causes) > 0) {
				t.Errorf("got %+v, want a second and no cause, because no budget has refused it", response.Result.Details)
			}
		})
	}
}

// TestANamespaceThatListsTooMuchIsRefused: with a reason of its own, because an alert goes by ServerUnavailable, and a tenant causes this as often as it likes.
func TestANamespaceThatListsTooMuchIsRefused(t *testing.T) {
	tooMuch := apierrors.NewTooManyRequests("the namespace lists too much", 0)
	tooMuch.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: census.TooMuch}}
	for _, of := range []client.ObjectList{&corev1.PodList{}, &v1beta1.PodUnavailableBudgetList{}} {
		c := cluster(t, 3, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if reflect.TypeOf(list) == reflect.TypeOf(of) {
				return tooMuch
			}
			return c.List(ctx, list, opts...)
		}})
		fine := cluster(t, 3, interceptor.Funcs{})
		g := New(c, c, fine, Options{})
		h := &podHandler{guard: g, decoder: admission.NewDecoder(scheme(t))}
		if result := h.Handle(t.Context(), removal(t, 0)).Result; result.Code != http.StatusTooManyRequests || !strings.HasPrefix(result.Details.Causes[0].Message, "Contended: ") ||
			!strings.Contains(result.Message, "lists too much") {
			t.Errorf("%T: got %+v", of, result)
		}
	}
}

// TestAnAPIServerThatDoesNotAnswerIsNotWaitedFor: a review without an answer ends after 10 seconds, with a code on which drains give up.
func TestAnAPIServerThatDoesNotAnswerIsNotWaitedFor(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, calls := range map[string]interceptor.Funcs{
		"about the pod of an eviction": {Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, is := o.(*corev1.Pod); is {
				return hang(ctx)
			}
			return c.Get(ctx, key, o, opts...)
		}},
		"about pods": {List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, is := list.(*corev1.PodList); is {
				return hang(ctx)
			}
			return c.List(ctx, list, opts...)
		}},
		"about anything": {
			Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
				return hang(ctx)
			},
		},
		"about namespaces": {Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, is := o.(*corev1.Namespace); is {
				return hang(ctx)
			}
			return c.Get(ctx, key, o, opts...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := cluster(t, 3, calls)
				g := New(c, c, c, Options{})
				h := &podHandler{guard: g, decoder: admission.NewDecoder(scheme(t))}
				h.Handle(t.Context(), removal(t, 0)) // takes the room of the budget, if it can
				asked := removal(t, 1)
				if strings.HasSuffix(name, "eviction") {
					asked.Operation, asked.SubResource, asked.OldObject = admissionv1.Create, "eviction", runtime.RawExtension{}
					asked.Object = runtime.RawExtension{Raw: []byte(`{"apiVersion":"policy/v1","kind":"Eviction"}`)}
				}
				start := time.Now()
				response := h.Handle(t.Context(), asked)
				if took := time.Since(start); response.Allowed || response.Result.Code != http.StatusTooManyRequests || took >= 10*time.Second {
					t.Errorf("got %+v after %v, want 429 in less than 10s", response.Result, took)
				}
				time.Sleep(2 * readTimeout) // by the bubble's clock, so that all reads end
			})
		})
	}
}

// TestAnEvictionIsMarkedInTime: a policy refuses an eviction without a mark, with a code on which drains give up.
func TestAnEvictionIsMarkedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 1, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		m := &evictionMarker{guard: New(c, c, c, Options{})}
		start := time.Now()
		response := m.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Namespace: "ns", Name: "web-0", Operation: admissionv1.Create, SubResource: "eviction",
			Object: runtime.RawExtension{Raw: []byte(`{"apiVersion":"policy/v1","kind":"Eviction"}`)},
		}})
		if took := time.Since(start); !response.Allowed || len(response.Patches) == 0 || took >= 5*time.Second {
			t.Errorf("got %+v after %v, want a mark in less than 5s", response, took)
		}
	})
}
