package autoscaler

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// serving is a client of an API server that answers about these API groups with these codes, and about others with 404
// as text, as the real one does.
func serving(t *testing.T, groups map[string]int) rest.Interface {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, known := groups[strings.TrimPrefix(r.URL.Path, "/apis/")]
		if !known {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(code)
	}))
	t.Cleanup(server.Close)
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client.RESTClient()
}

func TestFind(t *testing.T) {
	status := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cluster-autoscaler-status"}}
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "cluster-autoscaler-status"}}
	forbidden := interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return errors.New("forbidden")
	}}
	for name, tc := range map[string]struct {
		groups  map[string]int
		objects []client.Object
		calls   interceptor.Funcs
		want    Name
		fails   string
	}{
		"none":                      {},
		"Karpenter":                 {groups: map[string]int{"karpenter.sh": http.StatusOK}, want: karpenter},
		"a group of its provider":   {groups: map[string]int{"karpenter.k8s.aws": http.StatusOK}},
		"cluster-autoscaler":        {objects: []client.Object{status}, want: clusterAutoscaler},
		"a ConfigMap of a tenant":   {objects: []client.Object{other}},
		"the group is not known":    {groups: map[string]int{"karpenter.sh": http.StatusForbidden}, fails: "reading API group karpenter.sh: "},
		"the status cannot be read": {calls: forbidden, fails: "reading ConfigMap kube-system/cluster-autoscaler-status: forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			reader := fake.NewClientBuilder().WithObjects(tc.objects...).WithInterceptorFuncs(tc.calls).Build()
			got, err := find(t.Context(), serving(t, tc.groups), reader)
			if said := errorOf(err); got != tc.want || (said == "") != (tc.fails == "") || !strings.HasPrefix(said, tc.fails) {
				t.Errorf("%q and %q, want %q and %q", got, said, tc.want, tc.fails)
			}
		})
	}
}

func errorOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestAnAutoscalerMayComeAndGo: the detector tells of each change once, and a failed look changes nothing.
func TestAnAutoscalerMayComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer Name
		var failure error
		d := &Detector{find: func(context.Context) (Name, error) { return answer, failure }}
		changes := 0
		d.OnChange(func() { changes++ })
		go func() {
			if err := d.Start(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		for i, step := range []struct {
			answer  Name
			failure error
			after   time.Duration
			want    Name
			calls   int
		}{
			{"", nil, 0, "", 0},
			{karpenter, nil, lookEvery, karpenter, 1},
			{"", errors.New("no answer"), lookEvery, karpenter, 1},
			{clusterAutoscaler, nil, lookAgain, clusterAutoscaler, 2},
			{"", nil, lookEvery, "", 3},
		} {
			answer, failure = step.answer, step.failure
			time.Sleep(step.after) // the time of the bubble: it takes none
			synctest.Wait()
			if d.Name() != step.want || changes != step.calls {
				t.Errorf("step %d: %q after %d changes, want %q after %d", i, d.Name(), changes, step.want, step.calls)
			}
			series := testutil.CollectAndCount(found)
			if step.want == "" && series != 0 || step.want != "" && (series != 1 || testutil.ToFloat64(found.WithLabelValues(string(step.want))) != 1) {
				t.Errorf("step %d: %d series of the metric, which do not say %q", i, series, step.want)
			}
		}
	})
}

func TestSettings(t *testing.T) {
	for setting, want := range map[Setting]Name{present: configured, absent: ""} {
		d, err := Setup(t.Context(), nil, setting)
		if err != nil || d.Name() != want {
			t.Errorf("%s: %q, %v, want %q", setting, d.Name(), err, want)
		}
	}
	if _, err := Setup(t.Context(), nil, "maybe"); errorOf(err) != `--node-autoscaler is "maybe": must be auto, present or absent` {
		t.Error(err)
	}
	var none *Detector
	none.OnChange(func() {})
	if name := none.Name(); name != "" {
		t.Errorf("a nil detector knows %q", name)
	}
}
