package census

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestALateCacheOfTheAPIServerHoldsNobodyUp: the cache of an API server lags behind the pod of a request. The API server says so, and that the client may ask again in a second. The client would ask ten times, until
// the webhook's time is over.
func TestALateCacheOfTheAPIServerHoldsNobodyUp(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("resourceVersion") != "" {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusGatewayTimeout)
			_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 504, "reason": "Timeout", "message": "Too large resource version: 9, current: 5",
				"details": {"retryAfterSeconds": 1, "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}}`))
			return
		}
		_, _ = w.Write([]byte(`{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "web-0"}}]}`))
	}))
	defer server.Close()
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	live, err := client.New(&rest.Config{Host: server.URL}, client.Options{Scheme: clientgoscheme.Scheme, Mapper: mapper, HTTPClient: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	const answer = 8 * time.Second // as long as a request waits for a verdict
	ctx, cancel := context.WithTimeout(t.Context(), answer)
	defer cancel()
	var list corev1.PodList
	if err := New(live, nil, live, clock.RealClock{}).read(ctx, &list, notOlderThan("9", "shop")); err != nil {
		t.Fatal(err)
	}
	if list.ResourceVersion != "9" || len(list.Items) != 1 {
		t.Errorf("got %d pods of revision %s", len(list.Items), list.ResourceVersion)
	}
}
