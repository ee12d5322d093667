package budget

import (
	"context"
	"errors"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

func TestABudgetThatCannotBeCountedIsNotTriedAgainForEveryPod(t *testing.T) {
	pub := budgetWith()
	pub.Spec.Selector, pub.Spec.TargetReference = nil, &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "secret"}
	stranger := pod("stranger", map[string]string{"app": "other"})
	var b *bench
	meanwhile := []string{"nothing was read"}
	b = newBench(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if key.Name == "secret" {
			meanwhile = b.ofPod(ctx, stranger)
			return apierrors.NewForbidden(schema.GroupResource{Resource: "deployments"}, key.Name, errors.New("no"))
		}
		return c.Get(ctx, key, o, opts...)
	}}, objects(pub, stranger)...)
	if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: web}); !apierrors.IsForbidden(err) {
		t.Fatalf("got %v", err)
	}
	if !slices.Equal(meanwhile, []string{"web"}) {
		t.Errorf("while it was counted a pod affected %q, which may not be in the count", meanwhile)
	}
	if names := b.ofPod(t.Context(), stranger); len(names) > 0 {
		t.Errorf("a pod affects %q", names)
	}
	if names := b.ofWorkload(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "secret"}}); len(names) > 0 {
		t.Errorf("a workload affects %q", names)
	}
}

func TestAWorkloadAffectsTheBudgetsOfItsPods(t *testing.T) {
	workload := func(name string, above types.UID) *appsv1.ReplicaSet {
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
		if above != "" {
			set.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "x", UID: above, Controller: ptr.To(true)}}
		}
		return set
	}
	target := budgetWith()
	target.Spec.Selector, target.Spec.TargetReference = nil, &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "later"}
	for name, tc := range map[string]struct {
		pub    *v1beta1.PodUnavailableBudget
		object *appsv1.ReplicaSet
		want   bool
	}{
		"one that owns pods of the budget": {budgetWith(), workload("rs", ""), true},
		"one below an owner of the pods":   {budgetWith(), workload("next", "rs"), true},
		"one of other pods":                {budgetWith(), workload("other", "x"), false},
		"the target, which was not there":  {target, workload("later", ""), true},
		"another, beside a target":         {target, workload("other", ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, interceptor.Funcs{}, objects(tc.pub, pod("a", protected()))...)
			b.reconcile(t)
			if got := len(b.ofWorkload(t.Context(), tc.object)) > 0; got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestUpdatesOfPods(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"nothing":                 {func(*corev1.Pod) {}, false},
		"an annotation":           {func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, false},
		"the time of a condition": {func(p *corev1.Pod) { p.Status.Conditions[0].LastProbeTime = metav1.Now() }, false},
		"a condition of somebody's": {func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "x", Status: "True"})
		}, false},
		"it becomes unready": {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }, true},
		"it ends":            {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true},
		"it is deleted":      {func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }, true},
		"a label":            {func(p *corev1.Pod) { p.Labels["app"] = "other" }, true},
		"its owner":          {func(p *corev1.Pod) { p.OwnerReferences = nil }, true},
		"its node":           {func(p *corev1.Pod) { p.Spec.NodeName = "other" }, true},
		"it is exempt":       {func(p *corev1.Pod) { p.Annotations = map[string]string{v1beta1.NoProtectAnnotation: "true"} }, true},
		"the keys that its budgets go by": {func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1beta1.SelectorKeysAnnotation: "app"}
		}, true},
		"its spec":      {func(p *corev1.Pod) { p.Generation = 2 }, true},
		"it is another": {func(p *corev1.Pod) { p.UID = "other" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := pod("a", protected())
			before.Generation = 1
			after := before.DeepCopy()
			tc.change(after)
			if got := podMatters.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
	t.Run("what is seen of a changed spec", func(t *testing.T) {
		before := pod("a", protected())
		before.Generation = 2
		if !podMatters.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: before.DeepCopy()}) {
			t.Error("the image that a container runs is not in the cache")
		}
	})
}

func TestUpdatesOfWorkloads(t *testing.T) {
	replicaSet := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "rs", UID: "rs", Generation: 1, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web", Controller: ptr.To(true)}}}}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job", UID: "job", Generation: 1}}
	for name, tc := range map[string]struct {
		of     client.Object
		change func(client.Object)
		want   bool
	}{
		"nothing":                 {replicaSet, func(client.Object) {}, false},
		"an annotation":           {replicaSet, func(o client.Object) { o.SetAnnotations(map[string]string{"a": "b"}) }, false},
		"its spec":                {replicaSet, func(o client.Object) { o.SetGeneration(o.GetGeneration() + 1) }, true},
		"its owner":               {replicaSet, func(o client.Object) { o.SetOwnerReferences(nil) }, true},
		"it is another":           {replicaSet, func(o client.Object) { o.SetUID("other") }, true},
		"a Job, which may end":    {job, func(client.Object) {}, true},
		"the generation of a Job": {job, func(o client.Object) { o.SetGeneration(2) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			after, _ := tc.of.DeepCopyObject().(client.Object)
			tc.change(after)
			if got := workloadMatters.Update(event.UpdateEvent{ObjectOld: tc.of, ObjectNew: after}); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestABudgetThatCannotBeCountedHoldsNoLabelsOfOthers(t *testing.T) {
	broken, gone := budgetWith(), budgetWith()
	broken.Name, broken.UID = "broken", "broken"
	broken.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "broken"}}
	invalid := budgetWith()
	invalid.Name, invalid.UID, invalid.Spec.MaxUnavailable = "invalid", "invalid", nil
	b := newBench(t, interceptor.Funcs{}, append(objects(gone, pod("a", protected()), pod("b", map[string]string{"app": "broken", v1beta1.ProtectedLabel: "true"})), broken, invalid)...)
	if err := b.client.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: web}); err != nil {
		t.Fatal(err)
	}
	if isLabelled(t, b, "a") || !isLabelled(t, b, "b") {
		t.Error("the label is to be on the pods that a budget may cover, and on no others")
	}
}
