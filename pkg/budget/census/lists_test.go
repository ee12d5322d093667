package census

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// served answers each request with a body of so many bytes.
type served struct {
	contentType string
	size        int
	calls       int
}

// RoundTrip answers at once.
func (s *served) RoundTrip(*http.Request) (*http.Response, error) {
	s.calls++
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {s.contentType}}, Body: io.NopCloser(strings.NewReader(strings.Repeat("x", s.size)))}, nil
}

const longestTest = 2 * time.Second

// get is the code of the answer to a GET, and how long it took.
func get(t *testing.T, l *lists, path string) (int, time.Duration) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	response, err := l.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, time.Since(began)
}

const (
	pods    = "/api/v1/namespaces/a/pods"
	budgets = "/apis/policy.kruise.io/v1beta1/namespaces/a/podunavailablebudgets"
)

// TestWhatListsOfANamespaceCostIsBounded lists pods and budgets in turn as often as it can for a minute.
func TestWhatListsOfANamespaceCostIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		contentType string
		cost        int
	}{
		"protobuf": {"application/vnd.kubernetes.protobuf", 1},
		"JSON":     {"application/json", costOfJSON},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &served{contentType: tc.contentType, size: 4 << 20}
				l := newLists(server, longestTest)
				for began := time.Now(); time.Since(began) < time.Minute; {
					for _, path := range []string{pods, budgets} {
						if code, took := get(t, l, path); code != http.StatusOK || took > longestTest {
							t.Fatalf("%d after %s", code, took)
						}
					}
				}
				got, most := server.calls*server.size*tc.cost, 60*(ownRate+sharedRate)+2*burst
				if got > most+4*server.size*tc.cost || got < most/2 {
					t.Errorf("the lists of a minute cost %d MiB, want about %d", got>>20, most>>20)
				}
			})
		})
	}
}

// TestANamespaceListsWhateverOthersDo: one namespace lists all day, and its lists are refused or wait. Those of another one never do, nor do reads of single objects.
func TestANamespaceListsWhateverOthersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &served{contentType: "application/json", size: 20 << 20}
		l := newLists(server, longestTest)
		ctx, stop := context.WithCancel(t.Context())
		var listing sync.WaitGroup
		for range 32 {
			listing.Go(func() {
				for ctx.Err() == nil {
					if code, took := get(t, l, pods); took > longestTest {
						t.Errorf("%d after %s", code, took)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		other := newLists(&served{contentType: "application/json", size: 100 << 10}, longestTest)
		other.allowances, other.shared = l.allowances, l.shared
		refused := 0
		for range 300 {
			if code, _ := get(t, l, pods); code == http.StatusTooManyRequests {
				refused++
			}
			for _, path := range []string{"/api/v1/namespaces/b/pods", "/api/v1/namespaces/a/pods/one", "/api/v1/namespaces/a", "/api/v1/pods"} {
				if code, took := get(t, other, path); code != http.StatusOK || took > 0 {
					t.Fatalf("%s: %d after %s", path, code, took)
				}
			}
			time.Sleep(200 * time.Millisecond)
		}
		if refused == 0 {
			t.Error("no list was refused")
		}
		stop()
		listing.Wait()
	})
}

// TestARefusedListSaysSo: the client makes an error of the answer that tells the cause.
func TestARefusedListSaysSo(t *testing.T) {
	l := newLists(&served{contentType: "application/json", size: 1}, time.Millisecond)
	spend(l.of("a").own, 10*burst)
	spend(l.shared, 10*burst)
	scheme, mapper := runtime.NewScheme(), meta.NewDefaultRESTMapper(nil)
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper.Add(v1beta1.Kind, meta.RESTScopeNamespace)
	c, err := client.New(&rest.Config{Host: "https://server", Transport: l}, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	err = c.List(t.Context(), &v1beta1.PodUnavailableBudgetList{}, client.InNamespace("a"))
	if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, TooMuch) || !strings.Contains(err.Error(), "namespace a") || strings.Contains(err.Error(), "https") {
		t.Errorf("got %v", err)
	}
}

// TestABudgetWithoutWorkloadListsNoPods: an API server that answers from its memory takes no limit, and the namespace may have thousands of pods.
func TestABudgetWithoutWorkloadListsNoPods(t *testing.T) {
	listed := 0
	c := censusOf(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		err := c.List(ctx, list, opts...)
		listed += meta.LenList(list)
		return err
	}}, &corev1.Pod{ObjectMeta: of("web-0", nil)})
	policy, errs := budget.Compile(&v1beta1.PodUnavailableBudget{Spec: v1beta1.PodUnavailableBudgetSpec{
		TargetReference: &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "missing"}, MaxUnavailable: ptr.To(intstr.FromInt32(1)),
	}})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if _, err := c.Take(t.Context(), remembering(nil), policy, ""); err != nil || listed > 0 {
		t.Errorf("%d pods were listed, %v", listed, err)
	}
}
