package census

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

func ownedBy(apiVersion, kind, name string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: ptr.To(true)}}
}

func of(name string, owners []metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), OwnerReferences: owners, Labels: map[string]string{"app": "web"}}
}

func bySelector() v1beta1.PodUnavailableBudgetSpec {
	return v1beta1.PodUnavailableBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
}

func censusOf(t *testing.T, calls interceptor.Funcs, objects ...client.Object) *Census {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(calls).Build()
	return New(c, c.SubResource("scale"), c, clock.RealClock{})
}

// operated is a census of a Deployment of 3 that an object of somebody's kind owns, with two pods. Reading that object fails. Beside are others.
func operated(t *testing.T, failure error, others ...client.Object) *Census {
	t.Helper()
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	return censusOf(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if o.GetObjectKind().GroupVersionKind().Group == "example.com" {
			return failure
		}
		return c.Get(ctx, key, o, opts...)
	}}, append(others,
		&appsv1.Deployment{ObjectMeta: of("web", ownedBy("example.com/v1", "Site", "site", "site")), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(3)), Selector: selector}},
		&appsv1.ReplicaSet{ObjectMeta: of("rs", ownedBy("apps/v1", "Deployment", "web", "web")), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(3)), Selector: selector}},
		&corev1.Pod{ObjectMeta: of("a", ownedBy("apps/v1", "ReplicaSet", "rs", "rs"))},
		&corev1.Pod{ObjectMeta: of("b", ownedBy("apps/v1", "ReplicaSet", "rs", "rs"))},
	)...)
}

var (
	forbidden = apierrors.NewForbidden(schema.GroupResource{Group: "example.com", Resource: "sites"}, "site", errors.New("no rule"))
	noSuch    = &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "example.com", Kind: "Site"}}
)

func compiled(t *testing.T, spec v1beta1.PodUnavailableBudgetSpec) *budget.Policy {
	t.Helper()
	spec.MaxUnavailable = ptr.To(intstr.FromInt32(1))
	policy, errs := budget.Compile(&v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: spec})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return policy
}

func TestAnOwnerThatCannotBeReadLeavesTheOneBelowIt(t *testing.T) {
	specs := map[string]v1beta1.PodUnavailableBudgetSpec{
		"selector":  bySelector(),
		"targetRef": {TargetReference: &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}},
	}
	for name, spec := range specs {
		for _, failure := range []error{forbidden, noSuch} {
			t.Run(name, func(t *testing.T) {
				count, err := operated(t, failure).Take(t.Context(), remembering(nil), compiled(t, spec), "")
				if err != nil {
					t.Fatal(err)
				}
				if len(count.Pods) != 2 || len(count.Workloads) != 1 || count.Workloads[0].Replicas != 3 {
					t.Errorf("%d pods of %+v, want 2 of the Deployment's 3", len(count.Pods), count.Workloads)
				}
			})
		}
	}
}

func TestATarget(t *testing.T) {
	tests := map[string]struct {
		target v1beta1.TargetReference
		err    error
		gone   bool
	}{
		"that does not exist":         {target: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "none"}, gone: true},
		"of a kind that is not there": {target: v1beta1.TargetReference{APIVersion: "example.com/v1", Kind: "Site", Name: "site"}, err: noSuch, gone: true},
		"that Berth may not read":     {target: v1beta1.TargetReference{APIVersion: "example.com/v1", Kind: "Site", Name: "site"}, err: forbidden},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			count, err := operated(t, tc.err).Take(t.Context(), remembering(nil), compiled(t, v1beta1.PodUnavailableBudgetSpec{TargetReference: &tc.target}), "")
			if !tc.gone {
				if !apierrors.IsForbidden(err) {
					t.Errorf("got %v, want it to be forbidden", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !count.TargetGone || len(count.Pods) != 0 || len(count.Unread) != 0 {
				t.Errorf("%+v, want nothing but that the target is gone", count)
			}
		})
	}
}

func TestAJobThatIsSuspendedOrEndsNeedsNoPods(t *testing.T) {
	for name, job := range map[string]*batchv1.Job{
		"suspended": {Spec: batchv1.JobSpec{Suspend: ptr.To(true)}},
		"ending":    {Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue}}}},
	} {
		t.Run(name, func(t *testing.T) {
			job.ObjectMeta, job.Spec.Parallelism = of("job", nil), ptr.To(int32(3))
			policy := compiled(t, bySelector())
			count, err := censusOf(t, interceptor.Funcs{}, job,
				&corev1.Pod{ObjectMeta: of("a", ownedBy("batch/v1", "Job", "job", "job"))},
				&corev1.Pod{ObjectMeta: of("b", ownedBy("batch/v1", "Job", "job", "job"))}).Take(t.Context(), remembering(nil), policy, "")
			if err != nil {
				t.Fatal(err)
			}
			if tally := policy.Tally(count.Facts); len(count.Pods) != 2 || tally.Total != 0 || tally.Desired != 0 {
				t.Errorf("%+v, want none of them to be held", tally)
			}
		})
	}
}

func TestWhatAnOwnerLeavesBehindStaysProtected(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	deployment := &appsv1.Deployment{ObjectMeta: of("web", nil), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(2)), Selector: selector}}
	replicaSet := func(name string, owners []metav1.OwnerReference) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: of(name, owners), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(2)), Selector: selector}}
	}
	ofDeployment, ofReplicaSet, ofNext := ownedBy("apps/v1", "Deployment", "web", "web"), ownedBy("apps/v1", "ReplicaSet", "rs", "rs"), ownedBy("apps/v1", "ReplicaSet", "next", "next")
	byTarget := v1beta1.PodUnavailableBudgetSpec{TargetReference: &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
	tests := map[string]struct {
		spec    v1beta1.PodUnavailableBudgetSpec
		objects []client.Object
		pods    []metav1.OwnerReference
		// when the owner is read for the first time, its children are given to another, or to nobody, and then it goes.
		goes     client.Object
		children []client.Object
		to       []metav1.OwnerReference
		lists    int // of pods
		total    int32
		covered  int
	}{
		"a ReplicaSet of a Deployment": {
			spec: bySelector(), objects: []client.Object{deployment, replicaSet("rs", ofDeployment)}, pods: ofReplicaSet,
			goes: deployment, children: []client.Object{replicaSet("rs", nil)}, lists: 2, total: 2, covered: 2,
		},
		"pods of a ReplicaSet": {
			spec: bySelector(), objects: []client.Object{replicaSet("rs", nil)}, pods: ofReplicaSet,
			goes: replicaSet("rs", nil), children: []client.Object{&corev1.Pod{ObjectMeta: of("a", nil)}, &corev1.Pod{ObjectMeta: of("b", nil)}}, lists: 2, total: 2, covered: 2,
		},
		"pods that another has adopted": {
			spec: byTarget, objects: []client.Object{deployment, replicaSet("rs", ofDeployment), replicaSet("next", ofDeployment)}, pods: ofReplicaSet,
			goes: replicaSet("rs", nil), children: []client.Object{&corev1.Pod{ObjectMeta: of("a", nil)}, &corev1.Pod{ObjectMeta: of("b", nil)}}, to: ofNext, lists: 2, total: 2, covered: 2,
		},
		"not what goes with it": {
			spec: bySelector(), objects: []client.Object{deployment, replicaSet("rs", ofDeployment)}, pods: ofReplicaSet,
			goes: deployment, lists: 2, total: 0, covered: 2,
		},
		"and what has its owner is read once": {
			spec: bySelector(), objects: []client.Object{deployment, replicaSet("rs", ofDeployment)}, pods: ofReplicaSet, lists: 1, total: 2, covered: 2,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			gone, lists := tc.goes == nil, 0
			calls := interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if !gone && key.Name == tc.goes.GetName() && reflect.TypeOf(o) == reflect.TypeOf(tc.goes) {
						gone = true
						for _, child := range tc.children {
							latest := child.DeepCopyObject().(client.Object)
							if err := c.Get(ctx, client.ObjectKeyFromObject(child), latest); err != nil {
								return err
							}
							latest.SetOwnerReferences(tc.to)
							if err := c.Update(ctx, latest); err != nil {
								return err
							}
						}
						if err := c.Delete(ctx, tc.goes); err != nil {
							return err
						}
					}
					return c.Get(ctx, key, o, opts...)
				},
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					lists++
					return c.List(ctx, list, opts...)
				},
			}
			objects := append([]client.Object{&corev1.Pod{ObjectMeta: of("a", tc.pods)}, &corev1.Pod{ObjectMeta: of("b", tc.pods)}}, tc.objects...)
			policy := compiled(t, tc.spec)
			count, err := censusOf(t, calls, objects...).Take(t.Context(), remembering(nil), policy, "1")
			if err != nil {
				t.Fatal(err)
			}
			if total := policy.Tally(count.Facts).Total; total != tc.total || len(count.Pods) != tc.covered {
				t.Errorf("%d of %+v, want %d pods of %d", len(count.Pods), count.Workloads, tc.covered, tc.total)
			}
			if lists != tc.lists {
				t.Errorf("pods were listed %d times, want %d", lists, tc.lists)
			}
		})
	}
}

// TestAScaleThatSaysNothingSensibleIsNotTakenForNone: the API server cuts the replicas of custom resources to 32 bits, and does not say when they are negative.
func TestAScaleThatSaysNothingSensibleIsNotTakenForNone(t *testing.T) {
	tests := map[string]struct {
		spec      map[string]any
		want      int32
		unmanaged bool
	}{
		"a number":                    {spec: map[string]any{"replicas": int64(5)}, want: 5},
		"the greatest number":         {spec: map[string]any{"replicas": int64(math.MaxInt32)}, want: math.MaxInt32},
		"none, which is left out":     {spec: map[string]any{}, want: 0},
		"nothing":                     {want: 0},
		"a negative number":           {spec: map[string]any{"replicas": int64(-1294967296)}, unmanaged: true},
		"more than there can be":      {spec: map[string]any{"replicas": int64(3000000000)}, unmanaged: true},
		"more than a number can hold": {spec: map[string]any{"replicas": 1e30}, unmanaged: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			site := &corev1.Pod{ObjectMeta: of("a", ownedBy("example.com/v1", "Site", "site", "site"))}
			c := censusOf(t, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if o.GetObjectKind().GroupVersionKind().Group == "example.com" {
						o.SetName(key.Name)
						o.SetUID("site")
						return nil
					}
					return c.Get(ctx, key, o, opts...)
				},
				SubResourceGet: func(_ context.Context, _ client.Client, _ string, _, scale client.Object, _ ...client.SubResourceGetOption) error {
					if object, is := scale.(*unstructured.Unstructured); is && tc.spec != nil {
						object.Object["spec"] = tc.spec
					}
					return nil
				},
			}, site)
			count, err := c.Take(t.Context(), remembering(nil), compiled(t, bySelector()), "")
			if err != nil {
				t.Fatal(err)
			}
			if len(count.Facts.Pods) != 1 || count.Facts.Pods[0].Unmanaged != tc.unmanaged || tc.unmanaged != (len(count.Workloads) == 0) {
				t.Fatalf("%+v", count.Facts)
			}
			if !tc.unmanaged && count.Workloads[0].Replicas != tc.want {
				t.Errorf("got %d, want %d", count.Workloads[0].Replicas, tc.want)
			}
		})
	}
}

// TestWhatIsInOtherClustersDoesNotCount: a UnitedDeployment asks for 15 pods in three clusters, and its child here for 5.
func TestWhatIsInOtherClustersDoesNotCount(t *testing.T) {
	const apiVersion, kind = "apps.kruise.io/v1beta1", "UnitedDeployment"
	byTarget := func(apiVersion, kind string) v1beta1.PodUnavailableBudgetSpec {
		return v1beta1.PodUnavailableBudgetSpec{TargetReference: &v1beta1.TargetReference{APIVersion: apiVersion, Kind: kind, Name: "all"}}
	}
	for name, tc := range map[string]struct {
		spec       v1beta1.PodUnavailableBudgetSpec
		finalizers []string
		total      int32
		why        string
	}{
		"selector":                         {spec: bySelector(), finalizers: []string{unitedv1beta1.MembersFinalizer}, total: 5},
		"selector, all in this cluster":    {spec: bySelector(), total: 15},
		"targetRef":                        {spec: byTarget(apiVersion, kind), finalizers: []string{unitedv1beta1.MembersFinalizer}, total: 2, why: "in other clusters too"},
		"targetRef, all in this cluster":   {spec: byTarget(apiVersion, kind), total: 15},
		"targetRef, a FederatedReplicaSet": {spec: byTarget("federation.berth.dev/v1alpha1", "FederatedReplicaSet"), why: "in other clusters too"},
	} {
		t.Run(name, func(t *testing.T) {
			selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
			c := censusOf(t, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if key.Name == "all" {
						o.SetName(key.Name)
						o.SetUID("all")
						o.SetFinalizers(tc.finalizers)
						return nil
					}
					return c.Get(ctx, key, o, opts...)
				},
				SubResourceGet: func(_ context.Context, _ client.Client, _ string, _, scale client.Object, _ ...client.SubResourceGetOption) error {
					if object, is := scale.(*unstructured.Unstructured); is {
						object.Object["spec"] = map[string]any{"replicas": int64(15)}
					}
					return nil
				},
			},
				&appsv1.StatefulSet{ObjectMeta: of("web", ownedBy(apiVersion, kind, "all", "all")), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To(int32(5)), Selector: selector}},
				&corev1.Pod{ObjectMeta: of("a", ownedBy("apps/v1", "StatefulSet", "web", "web"))},
				&corev1.Pod{ObjectMeta: of("b", ownedBy("apps/v1", "StatefulSet", "web", "web"))},
			)
			policy := compiled(t, tc.spec)
			count, err := c.Take(t.Context(), remembering(nil), policy, "")
			if err != nil {
				t.Fatal(err)
			}
			tally := policy.Tally(count.Facts)
			if tally.Total != tc.total || !strings.Contains(tally.Unknown, tc.why) || (tally.Unknown == "") != (tc.why == "") || tc.why != "" && tally.Allowed != 0 {
				t.Errorf("total %d, allowed %d, %q", tally.Total, tally.Allowed, tally.Unknown)
			}
		})
	}
}

// TestAnOwnerThatIsBeingDeletedAsksForNoPods, whether it tells its replicas or not: its finalizers may wait for the end of its pods.
func TestAnOwnerThatIsBeingDeletedAsksForNoPods(t *testing.T) {
	site := &corev1.Pod{ObjectMeta: of("a", ownedBy("example.com/v1", "Site", "site", "site"))}
	c := censusOf(t, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if o.GetObjectKind().GroupVersionKind().Group == "example.com" {
				o.SetName(key.Name)
				o.SetUID("site")
				o.SetDeletionTimestamp(ptr.To(metav1.Now()))
				return nil
			}
			return c.Get(ctx, key, o, opts...)
		},
		SubResourceGet: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceGetOption) error {
			return apierrors.NewNotFound(schema.GroupResource{Group: "example.com", Resource: "sites"}, "site")
		},
	}, site)
	policy := compiled(t, bySelector())
	count, err := c.Take(t.Context(), remembering(nil), policy, "")
	if err != nil {
		t.Fatal(err)
	}
	if tally := policy.Tally(count.Facts); tally.Unknown != "" || tally.Total != 0 || tally.Desired != 0 {
		t.Errorf("%+v with %+v", tally, count.Facts)
	}
}

// TestWhichPodsMakeTheReplicasUnknown has a pod of a kind that cannot be read beside a Deployment of 3.
func TestWhichPodsMakeTheReplicasUnknown(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*corev1.Pod)
		unknown bool
	}{
		"one that serves": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, true},
		"one that terminates": {func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.Now()), []string{"example.com/hold"}
		}, true},
		"one on a node that is gone":     {func(p *corev1.Pod) { p.Spec.NodeName = "gone" }, true},
		"one that has ended":             {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"one that is in no budget":       {func(p *corev1.Pod) { p.Annotations = map[string]string{v1beta1.NoProtectAnnotation: "true"} }, false},
		"one without a controller":       {func(p *corev1.Pod) { p.OwnerReferences = nil }, false},
		"a static one of a node":         {func(p *corev1.Pod) { p.OwnerReferences = ownedBy("v1", "Node", "node", "node") }, false},
		"one whose owner the kind tells": {func(p *corev1.Pod) { p.OwnerReferences = ownedBy("apps/v1", "ReplicaSet", "rs", "rs") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			site := &corev1.Pod{ObjectMeta: of("site", ownedBy("example.com/v1", "Site", "site", "site"))}
			tc.change(site)
			policy := compiled(t, bySelector())
			count, err := operated(t, forbidden, site, &corev1.Node{ObjectMeta: of("node", nil)}).Take(t.Context(), remembering(nil), policy, "")
			if err != nil {
				t.Fatal(err)
			}
			if unknown := policy.Tally(count.Facts).Unknown != ""; unknown != tc.unknown {
				t.Errorf("got %t with %v unread", unknown, count.Unread)
			}
		})
	}
}

// TestAReferenceWithTheUIDOfAnotherOwner has a pod whose controller reference carries the UID of the others' ReplicaSet or Deployment, and names another
// object. Anybody who may create pods can create such a pod. It must not change how many pods the workload asks for, nor which pods are its own.
func TestAReferenceWithTheUIDOfAnotherOwner(t *testing.T) {
	deployment := v1beta1.PodUnavailableBudgetSpec{TargetReference: &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
	replicaSet := v1beta1.PodUnavailableBudgetSpec{TargetReference: &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs"}}
	for subject, tc := range map[string]struct {
		spec v1beta1.PodUnavailableBudgetSpec
		pods int
	}{
		"selector":   {bySelector(), 3},
		"Deployment": {deployment, 2},
		"ReplicaSet": {replicaSet, 2},
	} {
		for what, forged := range map[string][]metav1.OwnerReference{
			"the ReplicaSet, by another name": ownedBy("apps/v1", "ReplicaSet", "none", "rs"),
			"the ReplicaSet, as another kind": ownedBy("v1", "ConfigMap", "rs", "rs"),
			"the Deployment, by another name": ownedBy("apps/v1", "Deployment", "none", "web"),
		} {
			for _, name := range []string{"0", "z"} { // the first and the last of the pods
				t.Run(subject+", "+what+", pod "+name, func(t *testing.T) {
					selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
					c := censusOf(t, interceptor.Funcs{},
						&appsv1.Deployment{ObjectMeta: of("web", nil), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(3)), Selector: selector}},
						&appsv1.ReplicaSet{ObjectMeta: of("rs", ownedBy("apps/v1", "Deployment", "web", "web")), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(3)), Selector: selector}},
						&corev1.Pod{ObjectMeta: of("a", ownedBy("apps/v1", "ReplicaSet", "rs", "rs"))},
						&corev1.Pod{ObjectMeta: of("b", ownedBy("apps/v1", "ReplicaSet", "rs", "rs"))},
						&corev1.Pod{ObjectMeta: of(name, forged)},
					)
					policy := compiled(t, tc.spec)
					for range 2 { // the second count begins with the owners that the first one found
						count, err := c.Take(t.Context(), remembering(nil), policy, "")
						if err != nil {
							t.Fatal(err)
						}
						if tally := policy.Tally(count.Facts); tally.Total != 3 || tally.Unmanaged != 0 || len(count.Pods) != tc.pods || !count.Covers("a") {
							t.Fatalf("got %+v of %+v with %d pods, want a total of 3 with %d pods", tally, count.Workloads, len(count.Pods), tc.pods)
						}
					}
				})
			}
		}
	}
}

// Somebody says how many pods there should be. That holds as long as anybody is there to make them.
func TestTotalReplicasHoldAsLongAsThereIsAWorkload(t *testing.T) {
	deployment := func() *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: of("web", nil), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(2))}}
	}
	replicaSet := func() *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: of("rs", ownedBy("apps/v1", "Deployment", "web", "web"))}
	}
	owned := func(name string) client.Object {
		return &corev1.Pod{ObjectMeta: of(name, ownedBy("apps/v1", "ReplicaSet", "rs", "rs"))}
	}
	ofSite := func(name string) client.Object {
		return &corev1.Pod{ObjectMeta: of(name, ownedBy("example.com/v1", "Site", "site", "site"))}
	}
	broken := apierrors.NewServiceUnavailable("the API of sites is down")
	for name, tc := range map[string]struct {
		objects []client.Object
		site    error
		want    int32
	}{
		"that is there":                               {objects: []client.Object{deployment(), replicaSet(), owned("a"), owned("b")}, want: 5},
		"that is gone":                                {objects: []client.Object{replicaSet(), owned("a"), owned("b")}, want: 0},
		"that is gone with what is below it":          {objects: []client.Object{owned("a"), owned("b")}, want: 0},
		"that is gone, beside a pod of nobody":        {objects: []client.Object{owned("a"), &corev1.Pod{ObjectMeta: of("bare", nil)}}, want: 5},
		"that is gone, beside another":                {objects: []client.Object{owned("a"), ofSite("b")}, want: 5},
		"without pods":                                {objects: []client.Object{deployment(), replicaSet()}, want: 5},
		"that Berth may not read":                     {objects: []client.Object{ofSite("a")}, site: forbidden, want: 5},
		"of a kind that is not there":                 {objects: []client.Object{ofSite("a")}, site: noSuch, want: 5},
		"that cannot be read just now":                {objects: []client.Object{ofSite("a")}, site: broken, want: 5},
		"of somebody's kind, which is gone":           {objects: []client.Object{ofSite("a")}, site: apierrors.NewNotFound(schema.GroupResource{Resource: "sites"}, "site"), want: 0},
		"of somebody's kind, which tells no replicas": {objects: []client.Object{ofSite("a")}, want: 5},
	} {
		t.Run(name, func(t *testing.T) {
			scales := 0
			c := censusOf(t, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if o.GetObjectKind().GroupVersionKind().Group != "example.com" {
						return c.Get(ctx, key, o, opts...)
					}
					o.SetUID("site")
					return tc.site
				},
				SubResourceGet: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceGetOption) error {
					scales++
					return broken
				},
			}, tc.objects...)
			pub := &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Annotations: map[string]string{v1beta1.ProtectTotalReplicasAnnotation: "5"}}, Spec: bySelector()}
			pub.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(1))
			policy, errs := budget.Compile(pub)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			count, err := c.Take(t.Context(), remembering(nil), policy, "")
			if err != nil {
				t.Fatal(err)
			}
			if tally := policy.Tally(count.Facts); tally.Total != tc.want || tally.Unmanaged != 0 && tc.want == 5 {
				t.Errorf("got %+v of %+v, want a total of %d", tally, count.Workloads, tc.want)
			}
			if scales > 0 {
				t.Error("the scale was read, which nobody needs")
			}
		})
	}
}

func TestWhatIsReadOfOwners(t *testing.T) {
	tests := map[string]struct {
		spec v1beta1.PodUnavailableBudgetSpec
		want int
	}{
		"for pods of a selector, each above them once":           {spec: bySelector(), want: 2},
		"for a workload, also if it is known from the last time": {spec: v1beta1.PodUnavailableBudgetSpec{TargetReference: &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}, want: 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
			var reads atomic.Int32
			c := censusOf(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				reads.Add(1)
				return c.Get(ctx, key, o, opts...)
			}},
				&appsv1.Deployment{ObjectMeta: of("web", nil), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(3)), Selector: selector}},
				&appsv1.ReplicaSet{ObjectMeta: of("rs", ownedBy("apps/v1", "Deployment", "web", "web")), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(3)), Selector: selector}},
				&corev1.Pod{ObjectMeta: of("a", ownedBy("apps/v1", "ReplicaSet", "rs", "rs"))},
				&corev1.Pod{ObjectMeta: of("b", ownedBy("apps/v1", "ReplicaSet", "rs", "rs"))},
			)
			for time := range 2 {
				reads.Store(0)
				count, err := c.Take(t.Context(), remembering(nil), compiled(t, tc.spec), "")
				if err != nil || len(count.Pods) != 2 || int(reads.Load()) != tc.want {
					t.Errorf("time %d: %d pods, %v after %d reads, want %d", time, len(count.Pods), err, reads.Load(), tc.want)
				}
			}
		})
	}
}
