package census

import (
	"cmp"
	"context"
	"slices"
	"testing"

	diff "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// zoneSet is a StatefulSet of three pods in a zone, with the first of them.
func zoneSet(zone string, pods ...string) []client.Object {
	set := &appsv1.StatefulSet{ObjectMeta: of(zone, nil), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3),
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "zone": zone}}}}
	set.Spec.Template.Labels = map[string]string{"app": "web", "zone": zone}
	all := []client.Object{set}
	for _, name := range pods {
		pod := &corev1.Pod{ObjectMeta: of(name, ownedBy("apps/v1", "StatefulSet", zone, types.UID(zone)))}
		pod.Labels = map[string]string{"app": "web", "zone": zone}
		all = append(all, pod)
	}
	return all
}

func remembered(names ...string) (all []v1beta1.SubsetWorkload) {
	for _, name := range names {
		all = append(all, v1beta1.SubsetWorkload{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name, UID: types.UID(name)})
	}
	return all
}

// remembering is a budget whose status names these workloads.
func remembering(known []v1beta1.SubsetWorkload) *v1beta1.PodUnavailableBudget {
	return &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Status: v1beta1.PodUnavailableBudgetStatus{SubsetWorkloads: known}}
}

func perZone(t *testing.T, spec v1beta1.PodUnavailableBudgetSpec) *budget.Policy {
	t.Helper()
	spec.PerSubset = &v1beta1.PerSubset{Label: "zone", OneAtATime: true}
	pub := &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: spec}
	policy, errs := budget.Compile(pub)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return policy
}

func TestSubsetsOfPods(t *testing.T) {
	left := zoneSet("left")
	left[0].(*appsv1.StatefulSet).Spec.Template.Labels = map[string]string{"app": "other", "zone": "left"}
	shared := []client.Object{
		&appsv1.ReplicaSet{ObjectMeta: of("rs", nil), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](4), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}},
		&corev1.Pod{ObjectMeta: of("s0", ownedBy("apps/v1", "ReplicaSet", "rs", "rs"))}, &corev1.Pod{ObjectMeta: of("s1", ownedBy("apps/v1", "ReplicaSet", "rs", "rs"))},
		&corev1.Pod{ObjectMeta: of("lost", ownedBy("apps/v1", "ReplicaSet", "gone", "gone"))},
	}
	shared[1].SetLabels(map[string]string{"app": "web", "zone": "a"})
	of := func(name, subset string, replicas int32) budget.SubsetWorkload {
		return budget.SubsetWorkload{SubsetWorkload: remembered(name)[0], Subset: subset, Replicas: replicas}
	}
	for name, tc := range map[string]struct {
		objects   []client.Object
		known     []v1beta1.SubsetWorkload
		subsets   []budget.SubsetWorkload
		forgotten []types.UID
		unplaced  int32
		pods      map[string]budget.Pod
	}{
		"workloads in one zone each": {
			objects: slices.Concat(zoneSet("a", "a-0", "a-1"), zoneSet("b", "b-0")), known: remembered("a"),
			subsets: []budget.SubsetWorkload{of("a", "a", 3), of("b", "b", 3)},
			pods:    map[string]budget.Pod{"a-0": {Subset: "a", Declared: true}, "a-1": {Subset: "a", Declared: true}, "b-0": {Subset: "b", Declared: true}},
		},
		"one that has lost all its pods": {
			objects: slices.Concat(zoneSet("a"), zoneSet("b", "b-0")), known: remembered("a", "b"),
			subsets: []budget.SubsetWorkload{of("a", "a", 3), of("b", "b", 3)},
			pods:    map[string]budget.Pod{"b-0": {Subset: "b", Declared: true}},
		},
		"one that is gone, and one whose pods are elsewhere": {
			objects: slices.Concat(left, zoneSet("b", "b-0")), known: remembered("gone", "left"),
			subsets: []budget.SubsetWorkload{of("b", "b", 3)}, forgotten: []types.UID{"gone", "left"},
			pods: map[string]budget.Pod{"b-0": {Subset: "b", Declared: true}},
		},
		"a workload over all zones": {
			objects: shared, unplaced: 2,
			pods: map[string]budget.Pod{"s0": {Subset: "a"}, "s1": {}, "lost": {Unwanted: true}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			count, err := censusOf(t, interceptor.Funcs{}, tc.objects...).Take(t.Context(), remembering(tc.known), perZone(t, bySelector()), "")
			if err != nil {
				t.Fatal(err)
			}
			pods := map[string]budget.Pod{}
			for _, pod := range count.Facts.Pods {
				pods[pod.Name] = budget.Pod{Subset: pod.Subset, Declared: pod.Declared, Unwanted: pod.Unwanted}
			}
			slices.SortFunc(count.Subsets, func(a, b budget.SubsetWorkload) int { return cmp.Compare(a.Name, b.Name) })
			for what, differs := range map[string]string{"subsets": diff.Diff(tc.subsets, count.Subsets), "pods": diff.Diff(tc.pods, pods), "forgotten": diff.Diff(tc.forgotten, count.Forgotten)} {
				if differs != "" {
					t.Errorf("%s (-want +got)\n%s", what, differs)
				}
			}
			if count.Unplaced != tc.unplaced {
				t.Errorf("%d pods are in no subset, want %d", count.Unplaced, tc.unplaced)
			}
			if !count.KnowsSubsetsOf(remembering(tc.known)) {
				t.Error("it has not looked at all that the budget remembers")
			}
			if count.KnowsSubsetsOf(remembering(remembered("later"))) {
				t.Error("it cannot know a workload that the budget came to know later")
			}
		})
	}
}

// TestSubsetsBelowATarget: the workloads below the target say how many pods their subsets need, also one without a pod.
func TestSubsetsBelowATarget(t *testing.T) {
	objects := slices.Concat(zoneSet("a"), zoneSet("b", "b-0"), zoneSet("beside", "beside-0"))
	for _, object := range objects {
		if set, is := object.(*appsv1.StatefulSet); is && set.Name != "beside" {
			set.OwnerReferences = ownedBy("apps/v1", "Deployment", "top", "top")
		}
	}
	objects = append(objects, &appsv1.Deployment{ObjectMeta: of("top", nil), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](6), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}})
	spec := v1beta1.PodUnavailableBudgetSpec{TargetReference: &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "top"}}
	count, err := censusOf(t, interceptor.Funcs{}, objects...).Take(t.Context(), remembering(remembered("a", "beside")), perZone(t, spec), "")
	if err != nil {
		t.Fatal(err)
	}
	names := sets.New[string]()
	for _, w := range count.Subsets {
		names.Insert(w.Subset)
	}
	if !names.Equal(sets.New("a", "b")) || count.Unplaced != 0 || !slices.Equal(count.Forgotten, []types.UID{"beside"}) {
		t.Errorf("subsets %v, %d unplaced, %v forgotten", sets.List(names), count.Unplaced, count.Forgotten)
	}
}

func TestWithoutPerSubsetNothingMoreIsRead(t *testing.T) {
	reads := 0
	calls := interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		reads++
		return c.Get(ctx, key, o, opts...)
	}}
	count, err := censusOf(t, calls, zoneSet("a", "a-0")...).Take(t.Context(), remembering(nil), compiled(t, bySelector()), "")
	if err != nil || reads != 1 || count.Subsets != nil || count.Facts.Pods[0].Subset != "" {
		t.Errorf("%d reads, %+v, %v", reads, count.Subsets, err)
	}
}
