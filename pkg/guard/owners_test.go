package guard

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestTakingAPodFromItsWorkloadNeedsRoom has a Deployment with 3 replicas and a ReplicaSet that selects by app and hash. Their budget has room for one.
func TestTakingAPodFromItsWorkloadNeedsRoom(t *testing.T) {
	hashed := func(i int) *corev1.Pod {
		p := pod(i)
		p.Labels["hash"] = "1"
		return p
	}
	orphaned := func(p *corev1.Pod) { p.OwnerReferences = nil }
	ownedBy := func(name string, uid types.UID) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: uid, Controller: ptr.To(true)}}
		}
	}
	tests := map[string]struct {
		target  string // Deployment if empty; "none" for a budget with a selector
		before  func(*corev1.Pod)
		change  func(*corev1.Pod)
		orphans bool // the ReplicaSet is being deleted and orphans its pods
		// replicas is the total number of pods that the budget names.
		replicas string
		counts   bool
	}{
		"its controller reference is removed":                 {change: orphaned, counts: true},
		"for a budget of the ReplicaSet as well":              {target: "ReplicaSet", change: orphaned, counts: true},
		"it gets a controller that does not exist":            {change: ownedBy("none", "none"), counts: true},
		"it gets a controller of another workload":            {change: ownedBy("other", "other"), counts: true},
		"its controller is one among its owners":              {change: func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, counts: true},
		"its controller gets another name":                    {change: ownedBy("none", "rs"), counts: true},
		"its controller gets another kind":                    {change: func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "StatefulSet" }, counts: true},
		"its controller gets another version":                 {change: func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "apps/v1beta2" }},
		"it gets a label that its controller does not select": {change: func(p *corev1.Pod) { p.Labels["hash"] = "debug" }, counts: true},
		"it gets another owner beside its controller": {change: func(p *corev1.Pod) {
			p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{Kind: "Site", UID: "site"})
		}},
		"its controller does not block owner deletions": {change: func(p *corev1.Pod) { p.OwnerReferences[0].BlockOwnerDeletion = ptr.To(false) }},
		"its controller releases it": {
			before: func(p *corev1.Pod) { p.Labels["hash"] = "debug" },
			change: func(p *corev1.Pod) { p.Labels["hash"], p.OwnerReferences = "debug", nil },
		},
		"its controller is deleted and orphans it":                             {change: orphaned, orphans: true},
		"the same for a budget of the ReplicaSet":                              {target: "ReplicaSet", change: orphaned, orphans: true},
		"a controller adopts a pod without an owner":                           {before: orphaned, change: func(*corev1.Pod) {}},
		"with a selector, its controller reference is removed":                 {target: "none", change: orphaned, counts: true},
		"with a selector, it gets a controller that does not exist":            {target: "none", change: ownedBy("none", "none"), counts: true},
		"with a selector, its controller gets another name":                    {target: "none", change: ownedBy("none", "rs"), counts: true},
		"with a selector, it gets one without pods of the budget":              {target: "none", change: ownedBy("other", "other"), counts: true},
		"with a selector, it gets a label that its controller does not select": {target: "none", change: func(p *corev1.Pod) { p.Labels["hash"] = "debug" }},
		"with a selector, its controller releases it": {
			target: "none",
			before: func(p *corev1.Pod) { p.Labels["hash"] = "debug" },
			change: func(p *corev1.Pod) { p.Labels["hash"], p.OwnerReferences = "debug", nil },
		},
		"with a selector, its controller is deleted and orphans it":             {target: "none", change: orphaned, orphans: true},
		"with a selector, a controller adopts a pod without an owner":           {target: "none", before: orphaned, change: func(*corev1.Pod) {}},
		"with a selector and a number of pods, it gets one that does not exist": {target: "none", replicas: "3", change: ownedBy("none", "none"), counts: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.target == "" {
				tc.target = "Deployment"
			}
			c := deployed(t, 3, interceptor.Funcs{}, targeting(tc.target, "web", 1),
				&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other", UID: "other"}, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](0)}})
			name := types.NamespacedName{Namespace: "ns", Name: tc.target + "-web"}
			pub := &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
			if tc.target == "none" {
				name.Name = "web"
				pub = targeting("none", "web", 1)
			}
			if err := c.Delete(t.Context(), pub); err != nil {
				t.Fatal(err)
			}
			pub = &v1beta1.PodUnavailableBudget{}
			if err := c.Get(t.Context(), name, pub); err != nil {
				t.Fatal(err)
			}
			if tc.replicas != "" {
				pub.Annotations = map[string]string{v1beta1.ProtectTotalReplicasAnnotation: tc.replicas}
				if err := c.Update(t.Context(), pub); err != nil {
					t.Fatal(err)
				}
			}
			rs := &appsv1.ReplicaSet{}
			if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, rs); err != nil {
				t.Fatal(err)
			}
			rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "hash": "1"}}
			before := make([]*corev1.Pod, 3)
			for i := range before {
				before[i] = hashed(i)
				if tc.before != nil && i < 2 {
					tc.before(before[i])
				}
				live := before[i].DeepCopy()
				if err := c.Update(t.Context(), live); err != nil {
					t.Fatal(err)
				}
			}
			if tc.orphans {
				rs.Finalizers = []string{metav1.FinalizerOrphanDependents}
			}
			if err := c.Update(t.Context(), rs); err != nil {
				t.Fatal(err)
			}
			if tc.orphans {
				if err := c.Delete(t.Context(), rs); err != nil { // the finalizer keeps the object
					t.Fatal(err)
				}
			}
			g := New(c, c, c, Options{})
			ask := func(i int) v1beta1.Reason {
				t.Helper()
				after := hashed(i)
				tc.change(after)
				v, err := g.Decide(t.Context(), Request{Pod: before[i], After: after, Operation: v1beta1.OperationUpdate})
				if err != nil {
					t.Fatal(err)
				}
				return v.Reason
			}
			first, second := ask(0), ask(1)
			if tc.counts && (first != v1beta1.ReasonWithinBudget || second != v1beta1.ReasonBudgetExhausted) {
				t.Errorf("got %s and %s, want the second to have no room", first, second)
			}
			if !tc.counts && (first != v1beta1.ReasonNotProtected || second != v1beta1.ReasonNotProtected) {
				t.Errorf("got %s and %s, want it to be nothing to the budget", first, second)
			}
			if err := c.Get(t.Context(), name, pub); err != nil {
				t.Fatal(err)
			}
			if tc.counts != (len(pub.Status.Ledger) == 1 && pub.Status.Ledger[0].Operation == v1beta1.OperationLeave) {
				t.Errorf("the ledger is %+v", pub.Status.Ledger)
			}
		})
	}
}
