package guard

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

func TestWhoseRequestHasAPodReplacedFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		request Request
		want    v1beta1.Reason
	}{
		"an eviction":               {Request{Operation: v1beta1.OperationEvict}, v1beta1.ReasonReplacedFirst},
		"a deletion":                {Request{Operation: v1beta1.OperationDelete}, v1beta1.ReasonReplacedFirst},
		"a deletion by a workload":  {Request{Operation: v1beta1.OperationDelete, ByWorkload: true}, v1beta1.ReasonBudgetExhausted},
		"a dry run":                 {Request{Operation: v1beta1.OperationEvict, DryRun: true}, v1beta1.ReasonBudgetExhausted},
		"an update that restarts":   {Request{Operation: v1beta1.OperationUpdate, Restarts: true}, v1beta1.ReasonBudgetExhausted},
		"a resize that restarts":    {Request{Operation: v1beta1.OperationResize, Restarts: true}, v1beta1.ReasonBudgetExhausted},
		"an update of other fields": {Request{Operation: v1beta1.OperationUpdate}, v1beta1.ReasonNotProtected},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 2, interceptor.Funcs{})
			pub, stored := &v1beta1.PodUnavailableBudget{}, &corev1.Pod{}
			key := types.NamespacedName{Namespace: "ns", Name: "web"}
			if err := c.Get(t.Context(), key, pub); err != nil {
				t.Fatal(err)
			}
			pub.Spec.MaxUnavailable, pub.Spec.ReplaceFirst = ptr.To(intstr.FromInt32(0)), &v1beta1.ReplaceFirst{}
			if err := c.Update(t.Context(), pub); err != nil {
				t.Fatal(err)
			}
			if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web-0"}, stored); err != nil {
				t.Fatal(err)
			}
			stored.Labels["pod-template-hash"] = "x"
			if err := c.Update(t.Context(), stored); err != nil {
				t.Fatal(err)
			}
			tc.request.Pod = stored
			if tc.request.Operation == v1beta1.OperationUpdate || tc.request.Operation == v1beta1.OperationResize {
				tc.request.After = stored.DeepCopy()
			}
			g := New(c, c, c, Options{})
			for range 2 {
				v, err := g.Decide(t.Context(), tc.request)
				if err != nil || v.Reason != tc.want {
					t.Errorf("got %+v, %v; want %s", v, err, tc.want)
				}
			}
			if err := c.Get(t.Context(), key, pub); err != nil {
				t.Fatal(err)
			}
			if noted := len(pub.Status.Replacing) == 1 && pub.Status.Replacing[0].Name == "web-0"; noted != (tc.want == v1beta1.ReasonReplacedFirst) || len(pub.Status.Ledger) > 0 {
				t.Errorf("%+v", pub.Status)
			}
		})
	}
}

func TestWhoIsAWorkloadsController(t *testing.T) {
	for name, want := range map[string]bool{
		"system:serviceaccount:kube-system:replicaset-controller":     true,
		"system:serviceaccount:kube-system:taint-eviction-controller": false,
		"system:kube-controller-manager":                              true,
		"system:kube-scheduler":                                       false,
		"system:serviceaccount:default:replicaset-controller":         false,
		"jane": false,
	} {
		if got := isWorkloadController(name); got != want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
