package guard

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestASubsetThatLosesAllItsPodsHoldsTheOthers: the status remembers the workload of the subset, and came to know it after the guard first saw the budget.
func TestASubsetThatLosesAllItsPodsHoldsTheOthers(t *testing.T) {
	pub := &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "pub", Generation: 1}, Spec: v1beta1.PodUnavailableBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, PerSubset: &v1beta1.PerSubset{Label: "zone", OneAtATime: true},
	}}
	objects := []client.Object{pub, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}}
	for _, zone := range []string{"a", "b"} {
		objects = append(objects, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: zone, UID: types.UID(zone)}, Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "zone": zone}},
		}})
	}
	pods := map[string][]*corev1.Pod{}
	for i, zone := range []string{"a", "a", "b", "b"} {
		one := pod(i)
		one.Labels["zone"], one.OwnerReferences = zone, []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: zone, UID: types.UID(zone), Controller: ptr.To(true)}}
		pods[zone], objects = append(pods[zone], one), append(objects, one)
	}
	c := fake.NewClientBuilder().WithScheme(scheme(t)).WithStatusSubresource(&v1beta1.PodUnavailableBudget{}).WithObjects(objects...).Build()
	g := New(c, c, c, Options{})
	ask := func() v1beta1.Reason {
		v, err := g.Decide(t.Context(), Request{Pod: pods["b"][0], Operation: v1beta1.OperationEvict, DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		return v.Reason
	}
	if reason := ask(); reason == v1beta1.ReasonHeldBySubset {
		t.Fatalf("all pods serve, and got %s", reason)
	}
	for _, one := range pods["a"] {
		if err := c.Delete(t.Context(), one); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pub), pub); err != nil {
		t.Fatal(err)
	}
	pub.Status.SubsetWorkloads = []v1beta1.SubsetWorkload{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "a", UID: "a"}}
	if err := c.Status().Update(t.Context(), pub); err != nil {
		t.Fatal(err)
	}
	if reason := ask(); reason != v1beta1.ReasonHeldBySubset {
		t.Errorf("subset a has none of its 2 pods, and got %s for one of subset b", reason)
	}
}
