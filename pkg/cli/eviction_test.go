package cli

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/cli/console"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestEviction asks about a pod whose budget misses one pod that is not ready and one whose deletion it has allowed.
func TestEviction(t *testing.T) {
	app := map[string]string{"app": "web"}
	pub := &policyv1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec:   policyv1beta1.PodUnavailableBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: app}, MaxUnavailable: ptr.To(intstr.FromInt32(1))},
		Status: policyv1beta1.PodUnavailableBudgetStatus{Ledger: []policyv1beta1.LedgerEntry{{UID: "uid-2", Name: "web-2", Operation: policyv1beta1.OperationDelete, Time: metav1.NewTime(time.Now().Add(-90 * time.Minute))}}}}
	other := pub.DeepCopy()
	other.Name, other.Spec.Selector = "other", &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: app}},
		Status: policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 2, CurrentHealthy: 3, ExpectedPods: 4, DisruptionsAllowed: 1}}
	objects := []client.Object{pub, other, pdb, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "rs"}, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](4), Selector: &metav1.LabelSelector{MatchLabels: app}}}}
	for i := range 4 {
		ready := corev1.ConditionTrue
		if i == 1 {
			ready = corev1.ConditionFalse
		}
		objects = append(objects, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint("uid-", i)),
			Labels:          map[string]string{"app": "web", policyv1beta1.ProtectedLabel: policyv1beta1.ProtectedValue},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: ptr.To(true)}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}})
	}
	counts := `  BUDGET                     NEEDS   AVAILABLE   OF   ALLOWS
  PodUnavailableBudget/web   3       2           4    0
  PodDisruptionBudget/web    2       3           4    1
  MISSING     BUDGET   STATE         WHY
  pod/web-1   web      unavailable   is not ready
  pod/web-2   web      available     DELETE under way, allowed 90m ago
`
	for name, tc := range map[string]struct {
		answer error
		want   string
	}{
		"it may go":       {nil, "pod/web-0   can be evicted now\n" + counts},
		"it is held":      {apierrors.NewTooManyRequests("web needs 3 available pods of 4", 1), "pod/web-0   cannot be evicted now: web needs 3 available pods of 4\n" + counts},
		"nobody may know": {apierrors.NewForbidden(schema.GroupResource{Resource: "pods/eviction"}, "web-0", nil), "pod/web-0   nobody knows whether it can be evicted: pods/eviction \"web-0\" is forbidden: <nil>\n" + counts},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := clusterOf(t, objects...)
			cluster.WithWatch = interceptor.NewClient(cluster.WithWatch, interceptor.Funcs{SubResourceCreate: func(_ context.Context, _ client.Client, resource string, _, eviction client.Object, opts ...client.SubResourceCreateOption) error {
				options := (&client.SubResourceCreateOptions{}).ApplyOptions(opts)
				if asked := eviction.(*policyv1.Eviction); resource != "eviction" || len(options.DryRun) == 0 || asked.DeleteOptions == nil || len(asked.DeleteOptions.DryRun) == 0 {
					t.Errorf("%s of %s is no dry run", resource, asked.Name)
				}
				return tc.answer
			}})
			var out bytes.Buffer
			if err := (&evictionCommand{out: &out}).run(t.Context(), cluster, []string{"pod/web-0"}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
			out.Reset()
			if err := (&evictionCommand{out: &out, output: console.Output{Format: "yaml"}}).run(t.Context(), cluster, []string{"web-0"}); err != nil {
				t.Fatal(err)
			}
			var r evictionReport
			if err := yaml.Unmarshal(out.Bytes(), &r); err != nil || len(r.Budgets) != 2 || len(r.Budgets[0].Missing) != 2 {
				t.Errorf("%v: %+v", err, r)
			}
		})
	}
}
