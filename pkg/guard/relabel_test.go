package guard

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestAnUpdateNeedsRoomIfItTakesThePodOut has three pods and a budget for app web without room. The cache has the budget, or lacks
// it if unknown.
func TestAnUpdateNeedsRoomIfItTakesThePodOut(t *testing.T) {
	role := func(p *corev1.Pod) { p.Labels["role"] = "leader" }
	tests := map[string]struct {
		change  func(*corev1.Pod)
		before  func(*corev1.Pod)
		target  bool
		unknown bool
		want    v1beta1.Reason
	}{
		"a label by which no budget selects":                   {change: role, want: v1beta1.ReasonNotProtected},
		"and the cache does not know the budget":               {change: role, unknown: true, want: v1beta1.ReasonNotProtected},
		"nothing changes":                                      {change: func(*corev1.Pod) {}, want: v1beta1.ReasonNotProtected},
		"the pod leaves the budget":                            {change: func(p *corev1.Pod) { p.Labels["app"] = "api" }, want: v1beta1.ReasonBudgetExhausted},
		"the pod leaves a budget that the cache does not know": {change: func(p *corev1.Pod) { p.Labels["app"] = "api" }, unknown: true, want: v1beta1.ReasonBudgetExhausted},
		"the pod loses its protection":                         {change: func(p *corev1.Pod) { delete(p.Labels, v1beta1.ProtectedLabel) }, want: v1beta1.ReasonBudgetExhausted},
		"the pod is exempted":                                  {change: func(p *corev1.Pod) { p.Annotations = map[string]string{v1beta1.NoProtectAnnotation: "true"} }, want: v1beta1.ReasonExempted},
		"an exempt pod leaves":                                 {before: func(p *corev1.Pod) { p.Annotations = map[string]string{v1beta1.NoProtectAnnotation: "true"} }, change: func(p *corev1.Pod) { p.Labels["app"] = "api" }, want: v1beta1.ReasonNotProtected},
		"a label says that the pod does not serve":             {change: func(p *corev1.Pod) { p.Labels[v1beta1.UnavailableLabelPrefix+"x"] = "" }, want: v1beta1.ReasonBudgetExhausted},
		"the pod gets another controller":                      {change: func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" }, want: v1beta1.ReasonBudgetExhausted},
		"its image changes too":                                {change: func(p *corev1.Pod) { role(p); p.Spec.Containers[0].Image = "web:2" }, want: v1beta1.ReasonBudgetExhausted},
		"for the budget of a workload, which has the selector": {change: role, target: true, want: v1beta1.ReasonNotProtected},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 3, interceptor.Funcs{})
			pub := &v1beta1.PodUnavailableBudget{}
			if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, pub); err != nil {
				t.Fatal(err)
			}
			pub.Spec.MaxUnavailable.IntVal = 0
			if tc.target {
				pub.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}
			}
			if err := c.Update(t.Context(), pub); err != nil {
				t.Fatal(err)
			}
			before := pod(0)
			if tc.before != nil {
				tc.before(before)
				live := before.DeepCopy()
				if err := c.Update(t.Context(), live); err != nil {
					t.Fatal(err)
				}
			}
			after := before.DeepCopy()
			tc.change(after)
			cache := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
			if !tc.unknown {
				cache = cache.WithObjects(pub.DeepCopy())
			}
			request := Request{Pod: before, After: after, Operation: v1beta1.OperationUpdate, Restarts: before.Spec.Containers[0].Image != after.Spec.Containers[0].Image}
			v, err := New(c, c, cache.Build(), Options{}).Decide(t.Context(), request)
			if err != nil || v.Reason != tc.want {
				t.Errorf("%+v, %v; want %s", v, err, tc.want)
			}
		})
	}
}
