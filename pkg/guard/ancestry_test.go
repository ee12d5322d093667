package guard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// deployed returns a cluster whose ReplicaSet belongs to a Deployment.
func deployed(t *testing.T, pods int, calls interceptor.Funcs, more ...client.Object) client.WithWatch {
	t.Helper()
	c := cluster(t, pods, calls)
	rs := &appsv1.ReplicaSet{}
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, rs); err != nil {
		t.Fatal(err)
	}
	rs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "deployment", Controller: ptr.To(true)}}
	err := c.Update(t.Context(), rs)
	for _, o := range append(more, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "deployment"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To(int32(pods)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
	}}) {
		err = errors.Join(err, c.Create(t.Context(), o))
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// targeting returns a budget that names a workload and has this maxUnavailable.
func targeting(kind, name string, maxUnavailable int32) *v1beta1.PodUnavailableBudget {
	return &v1beta1.PodUnavailableBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: kind + "-" + name, UID: types.UID(kind + "-" + name), Generation: 1},
		Spec: v1beta1.PodUnavailableBudgetSpec{
			TargetReference: &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: kind, Name: name}, MaxUnavailable: ptr.To(intstr.FromInt32(maxUnavailable)),
		},
	}
}

func forbidden(kind string) func(client.Object) error {
	return func(o client.Object) error {
		if gvk := o.GetObjectKind().GroupVersionKind(); gvk.Kind == kind {
			return apierrors.NewForbidden(appsv1.Resource(kind), o.GetName(), errors.New("no rule"))
		}
		return nil
	}
}

func TestABudgetThatCannotBeJudgedHoldsPodsOfItsWorkloadOnly(t *testing.T) {
	unreadable := interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, is := o.(*appsv1.StatefulSet); is {
			return apierrors.NewForbidden(appsv1.Resource("statefulsets"), key.Name, errors.New("no rule"))
		}
		return c.Get(ctx, key, o, opts...)
	}}
	c := deployed(t, 3, unreadable, targeting("StatefulSet", "db", 1))
	g := New(c, c, c, Options{})
	if allowed, reason := decide(t, g, 0); !allowed || reason != v1beta1.ReasonWithinBudget {
		t.Errorf("allowed %t, reason %s", allowed, reason)
	}
	mine := pod(1)
	mine.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "db", Controller: ptr.To(true)}}
	if v, err := g.Decide(t.Context(), Request{Pod: mine, Operation: v1beta1.OperationDelete}); !apierrors.IsForbidden(err) {
		t.Errorf("got %+v, %v; want an error about the workload that it may not read", v, err)
	}
}

// TestABudgetThatCannotBeJudgedHoldsNoOtherPodsWhereItIsAlone runs without any other budget in the namespace.
func TestABudgetThatCannotBeJudgedHoldsNoOtherPodsWhereItIsAlone(t *testing.T) {
	forbidden := apierrors.NewForbidden(appsv1.Resource("statefulsets"), "db", errors.New("no rule"))
	alone := func(p *corev1.Pod) { p.OwnerReferences = nil }
	ofTarget := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "db", Controller: ptr.To(true)}}
	}
	tests := map[string]struct {
		fails  error
		change func(*corev1.Pod)
		held   bool
	}{
		"Berth may not read the workload, and the pod is of another":       {fails: forbidden},
		"Berth may not read the workload, and the pod has no owner":        {fails: forbidden, change: alone},
		"Berth may not read the workload, and the pod is of it":            {fails: forbidden, change: ofTarget, held: true},
		"reading the workload fails, and the pod is of another":            {fails: errors.New("down")},
		"reading the workload fails, and the workload could adopt the pod": {fails: errors.New("down"), change: alone, held: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := deployed(t, 3, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if _, is := o.(*appsv1.StatefulSet); is {
					return tc.fails
				}
				return c.Get(ctx, key, o, opts...)
			}}, targeting("StatefulSet", "db", 1))
			if err := c.Delete(t.Context(), &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}); err != nil {
				t.Fatal(err)
			}
			asked := pod(0)
			if tc.change != nil {
				tc.change(asked)
				if err := c.Update(t.Context(), asked.DeepCopy()); err != nil {
					t.Fatal(err)
				}
			}
			v, err := New(c, c, c, Options{}).Decide(t.Context(), Request{Pod: asked, Operation: v1beta1.OperationEvict})
			if tc.held && err == nil || !tc.held && (err != nil || !v.Allowed) {
				t.Errorf("got %+v, %v; want it held: %t", v, err, tc.held)
			}
		})
	}
}

// TestABudgetThatIsPassedOverIsAskedOnceItNamesTheWorkload has a cache in which the budget names another workload than on the API server.
func TestABudgetThatIsPassedOverIsAskedOnceItNamesTheWorkload(t *testing.T) {
	before, now := targeting("StatefulSet", "db", 1), targeting("Deployment", "web", 0)
	now.Name, now.UID, now.Generation = before.Name, before.UID, before.Generation+1
	fail := true
	c := deployed(t, 3, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, is := o.(*v1beta1.PodUnavailableBudget); is && fail {
			fail = false
			return errors.New("down")
		}
		return c.Get(ctx, key, o, opts...)
	}}, now)
	if err := c.Delete(t.Context(), &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}); err != nil {
		t.Fatal(err)
	}
	cache := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, before).Build()
	if allowed, reason := decide(t, New(c, c, cache, Options{}), 0); allowed || reason != v1beta1.ReasonBudgetExhausted {
		t.Errorf("allowed %t, reason %s", allowed, reason)
	}
}

func TestBudgetsOfOtherWorkloadsCostNothing(t *testing.T) {
	for others, want := range map[int]string{0: "1 budgets, 1 pods, 0 metadata", 50: "1 budgets, 1 pods, 2 metadata"} {
		t.Run(fmt.Sprint(others), func(t *testing.T) {
			var budgets, pods, metadata atomic.Int32
			more := func() (all []client.Object) {
				for i := range others {
					all = append(all, targeting("Deployment", fmt.Sprintf("other-%d", i), 1))
				}
				return all
			}
			c := deployed(t, 3, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					switch o := o.(type) {
					case *v1beta1.PodUnavailableBudget:
						budgets.Add(1)
					case *metav1.PartialObjectMetadata:
						if o.Kind != "Node" {
							metadata.Add(1)
						}
					}
					return c.Get(ctx, key, o, opts...)
				},
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					err := c.List(ctx, list, opts...)
					if list, is := list.(*corev1.PodList); is {
						pods.Add(1)
						list.ResourceVersion = "1000"
					}
					return err
				},
			}, more()...)
			judged := pod(0)
			judged.ResourceVersion = "999"
			if _, err := New(c, c, deployed(t, 3, interceptor.Funcs{}, more()...), Options{}).Decide(t.Context(), Request{Pod: judged, Operation: v1beta1.OperationDelete}); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%d budgets, %d pods, %d metadata", budgets.Load(), pods.Load(), metadata.Load()); got != want {
				t.Errorf("read %s, want %s", got, want)
			}
		})
	}
}

// TestTheBudgetOfAPodsWorkloadIsAsked has several budgets. Only the one that names the pod's workload has no room.
func TestTheBudgetOfAPodsWorkloadIsAsked(t *testing.T) {
	strict := targeting("Deployment", "web", 0)
	before := strict.DeepCopy()
	before.Spec.TargetReference.Name = "another"
	strict.Generation++
	for name, cached := range map[string][]client.Object{
		"the cache knows it":                        {strict},
		"the cache does not know it":                nil,
		"it names another workload in the cache":    {before},
		"there are many, and the cache knows a few": {targeting("Deployment", "other", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			c := deployed(t, 3, interceptor.Funcs{}, strict.DeepCopy(), targeting("Deployment", "other", 1))
			pub := &v1beta1.PodUnavailableBudget{}
			if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, pub); err != nil {
				t.Fatal(err)
			}
			cache := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, pub)
			for _, o := range cached {
				cache = cache.WithObjects(o.DeepCopyObject().(client.Object))
			}
			if allowed, reason := decide(t, New(c, c, cache.Build(), Options{}), 0); allowed || reason != v1beta1.ReasonBudgetExhausted {
				t.Errorf("allowed %t, reason %s", allowed, reason)
			}
		})
	}
}

func TestAncestry(t *testing.T) {
	rs := func(change func(*appsv1.ReplicaSet)) *appsv1.ReplicaSet {
		r := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "rs", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "deployment", Controller: ptr.To(true)},
		}}}
		if change != nil {
			change(r)
		}
		return r
	}
	deployment := func(finalizers ...string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "deployment", Finalizers: finalizers}}
		if len(finalizers) > 0 {
			d.DeletionTimestamp = ptr.To(metav1.Now())
		}
		return d
	}
	alone := func(p *corev1.Pod) *corev1.Pod { p.OwnerReferences = nil; return p }
	tests := map[string]struct {
		pod     *corev1.Pod // as the request has it
		objects []client.Object
		fails   func(client.Object) error
		mine    bool // its Deployment may own it
		others  bool // another Deployment may own it
	}{
		"a pod of a Deployment belongs to no other workload":                {objects: []client.Object{pod(0), rs(nil), deployment()}, mine: true},
		"a pod without an owner may be adopted":                             {pod: alone(pod(0)), objects: []client.Object{alone(pod(0))}, mine: true, others: true},
		"a ReplicaSet without an owner may be adopted":                      {objects: []client.Object{pod(0), rs(func(r *appsv1.ReplicaSet) { r.OwnerReferences = nil })}, mine: true, others: true},
		"a pod that is deleted with its ReplicaSet is not adopted":          {objects: []client.Object{pod(0)}},
		"a ReplicaSet that is deleted with its Deployment is not adopted":   {objects: []client.Object{pod(0), rs(nil)}, mine: true},
		"a ReplicaSet that is deleted before its Deployment is not adopted": {objects: []client.Object{pod(0), rs(nil), deployment(metav1.FinalizerDeleteDependents)}, mine: true},
		"a ReplicaSet that is being orphaned may be adopted":                {objects: []client.Object{pod(0), rs(nil), deployment(metav1.FinalizerOrphanDependents)}, mine: true, others: true},
		"a pod that was orphaned may have been adopted":                     {objects: []client.Object{alone(pod(0))}, mine: true, others: true},
		"a pod that is gone proves nothing":                                 {mine: true, others: true},
		"an owner with another UID is another owner":                        {objects: []client.Object{pod(0), rs(func(r *appsv1.ReplicaSet) { r.UID = "later" })}},
		"an owner that Berth may not read ends the chain, as in a census":   {objects: []client.Object{pod(0), rs(nil), deployment()}, fails: forbidden("Deployment"), mine: true},
		"an owner that cannot be read leaves the chain open":                {objects: []client.Object{pod(0), rs(nil), deployment()}, fails: func(o client.Object) error { return errors.New("down") }, mine: true, others: true},
		"owners that own each other leave the chain open":                   {objects: []client.Object{pod(0), rs(func(r *appsv1.ReplicaSet) { r.OwnerReferences = pod(0).OwnerReferences })}, mine: true, others: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(tc.objects...).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if tc.fails != nil {
						if err := tc.fails(o); err != nil {
							return err
						}
					}
					return c.Get(ctx, key, o, opts...)
				},
			}).Build()
			if tc.pod == nil {
				tc.pod = pod(0)
			}
			above := ancestryOf(t.Context(), newObjects(c), tc.pod)
			mine := above.mayBeOf(&v1beta1.TargetReference{APIVersion: "apps/v1beta1", Kind: "Deployment", Name: "web"})
			others := above.mayBeOf(&v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "other"})
			if mine != tc.mine || others != tc.others {
				t.Errorf("%+v: of its Deployment %t, of another %t; want %t and %t", above, mine, others, tc.mine, tc.others)
			}
		})
	}
}
