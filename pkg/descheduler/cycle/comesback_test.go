package cycle

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// TestPodsThatComeBack are those of the only node of their subset, if the subset is due for the next pod.
func TestPodsThatComeBack(t *testing.T) {
	node := func(name, pool string, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool}}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	tainted := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	tests := map[string]struct {
		nodes []*corev1.Node
		quota int
		// bound are the nodes of the pods, and want are the pods that come back.
		bound []string
		want  string
	}{
		"the only node of subset a":          {[]*corev1.Node{node("a1", "a"), node("b1", "b"), node("b2", "b")}, 2, []string{"a1", "a1", "b1"}, "[pod-0 pod-1]"},
		"the others cannot be used":          {[]*corev1.Node{node("a1", "a"), node("a2", "a", tainted), node("b1", "b")}, 2, []string{"a1", "a1", "b1"}, "[pod-0 pod-1 pod-2]"},
		"the node itself is to be left":      {[]*corev1.Node{node("a1", "a", tainted), node("b1", "b"), node("b2", "b")}, 2, []string{"a1", "a1", "b1"}, "[]"},
		"the pods of a go to b":              {[]*corev1.Node{node("a1", "a"), node("b1", "b"), node("b2", "b")}, 1, []string{"a1", "a1", "b1"}, "[]"},
		"the pod of b goes to a":             {[]*corev1.Node{node("a1", "a"), node("b1", "b")}, 3, []string{"a1", "a1", "b1"}, "[pod-0 pod-1]"},
		"the pod of no subset has no answer": {[]*corev1.Node{node("a1", "a"), node("c1", "c")}, 1, []string{"a1", "c1"}, "[pod-0]"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			spread := spreadNamed("shop", "web", "apps/v1", "ReplicaSet")
			spread.Spec.Subsets = []v1beta1.Subset{{Name: "a", MaxReplicas: ptr.To(intstr.FromInt(tc.quota))}, {Name: "b"}}
			for i := range spread.Spec.Subsets {
				spread.Spec.Subsets[i].RequiredNodeSelector = &corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{spread.Spec.Subsets[i].Name}}}}
			}
			replicas := int32(len(tc.bound))
			objects := []client.Object{spread, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "rs"}, Spec: appsv1.ReplicaSetSpec{Replicas: &replicas}}}
			for _, n := range tc.nodes {
				objects = append(objects, n)
			}
			var pods []*corev1.Pod
			for i, on := range tc.bound {
				pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("pod-", i), UID: types.UID(fmt.Sprint(i)),
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: ptr.To(true)}}},
					Spec: corev1.PodSpec{NodeName: on}, Status: corev1.PodStatus{Phase: corev1.PodRunning}})
				objects = append(objects, pods[i])
			}
			c := begun(t, nil, objects...)
			if err := c.gather(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := []string{}
			for _, pod := range pods {
				if c.ComesBack(pod) {
					got = append(got, pod.Name)
				}
			}
			if fmt.Sprint(got) != tc.want {
				t.Errorf("got %v, want %s", got, tc.want)
			}
		})
	}
}
