package whatif

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/subset"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// engineWith is the engine of a cluster with these objects.
func engineWith(tb testing.TB, objects ...client.Object) *Engine {
	tb.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			tb.Fatal(err)
		}
	}
	var storage []runtime.Object
	mapper := apimeta.NewDefaultRESTMapper([]schema.GroupVersion{v1beta1.GroupVersion})
	for _, object := range objects {
		switch object.(type) {
		case *unstructured.Unstructured:
			kind := object.GetObjectKind().GroupVersionKind()
			scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
			scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), &unstructured.UnstructuredList{})
			mapper.Add(kind, apimeta.RESTScopeNamespace)
		case *storagev1.StorageClass, *corev1.PersistentVolumeClaim, *corev1.PersistentVolume:
			storage = append(storage, object)
		}
	}
	live, clock := ctrlfake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(objects...).Build(), clocktesting.NewFakePassiveClock(noon)
	taken, err := lineage.Take(tb.Context(), live, clocktesting.NewFakeClock(noon))
	if err != nil {
		tb.Fatal(err)
	}
	typed := fake.NewClientset(storage...)
	factory := informers.NewSharedInformerFactory(typed, 0)
	e, err := NewEngine(tb.Context(), taken, live, typed, factory, clock)
	if err != nil {
		tb.Fatal(err)
	}
	factory.Start(tb.Context().Done())
	factory.WaitForCacheSync(tb.Context().Done())
	return e
}

func nodeIn(name, pool string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool, corev1.LabelTopologyZone: "zone-" + pool}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("110")}}}
}

// template of pods of one CPU.
func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}}}
}

func metaOf() metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"} }

func statefulSet(change func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	set := &appsv1.StatefulSet{ObjectMeta: metaOf(), Spec: appsv1.StatefulSetSpec{Template: template(), PodManagementPolicy: appsv1.ParallelPodManagement}}
	change(set)
	return set
}

// running is a ready pod of a workload of this kind, in a subset.
func running(kind, name, on, in string, age time.Duration) *corev1.Pod {
	version := "apps/v1"
	if kind == "Job" {
		version = "batch/v1"
	}
	record, _ := json.Marshal(v1beta1.MatchedSubset{Name: "web", Subset: in, UID: name})
	born := metav1.NewTime(noon.Add(-age))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}, CreationTimestamp: born,
			Annotations:     map[string]string{v1beta1.MatchedAnnotation: string(record)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: "web", UID: "web", Controller: ptr.To(true)}}},
		Spec:   corev1.PodSpec{NodeName: on, SchedulerName: v1beta1.SchedulerName, Containers: template().Spec.Containers},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: born}}},
	}
}

func spreadOf(tb testing.TB, kind, spec string) *v1beta1.WorkloadSpread {
	tb.Helper()
	version := "apps/v1"
	if kind == "Job" {
		version = "batch/v1"
	}
	spread := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "spread", Generation: 1}}
	if err := yaml.UnmarshalStrict([]byte(spec), &spread.Spec); err != nil {
		tb.Fatal(err)
	}
	spread.Spec.TargetReference = v1beta1.TargetReference{APIVersion: version, Kind: kind, Name: "web"}
	return spread
}

func simulate(tb testing.TB, e *Engine, spread *v1beta1.WorkloadSpread, replicas int32) *placement {
	tb.Helper()
	e.Suppose(spread)
	d, err := e.Divide(tb.Context(), spread, e.Lineage.Compiled(spread))
	if err != nil {
		tb.Fatal(err)
	}
	placed, err := e.Simulate(tb.Context(), d, replicas)
	if err != nil {
		tb.Fatal(err)
	}
	return placed
}

// placedInAWord is "kept: web-0 web-1; a 1, b 2; waiting 1". Only subsets with new pods are in it.
func placedInAWord(placed *placement) string {
	var kept, parts []string
	for _, pod := range placed.Kept {
		kept = append(kept, pod.Name)
	}
	counts := map[string]int{}
	for _, pod := range placed.Bound {
		counts[subset.RecordOf(pod).Subset]++
	}
	if len(kept) > 0 {
		parts = append(parts, "kept "+strings.Join(kept, " "))
	}
	for _, in := range []string{"a", "b", ""} {
		if counts[in] > 0 {
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s %d", in, counts[in])))
		}
	}
	if placed.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("waiting %d", placed.Waiting))
	}
	return strings.Join(parts, "; ")
}

const openEnded = `
subsets:
- {name: a, maxReplicas: 3, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
`

func TestSimulate(t *testing.T) {
	late := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "in-b"}, Provisioner: "csi.example.com", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: []string{"zone-b"}}}}}}
	ofSet := func(name, on, in string) *corev1.Pod { return running("StatefulSet", name, on, in, time.Hour) }
	plain := statefulSet(func(*appsv1.StatefulSet) {})
	const adaptive = "scheduleStrategy: {type: Adaptive}\n"
	job := &batchv1.Job{ObjectMeta: metaOf(), Spec: batchv1.JobSpec{Template: template(), Parallelism: ptr.To[int32](3)}}
	for name, tc := range map[string]struct {
		kind     string
		spec     string
		objects  []client.Object
		replicas int32
		want     string
	}{
		"a waiting pod of strategy Fixed keeps its slot": {"StatefulSet", openEnded, []client.Object{plain}, 5, "a 2; b 2; waiting 1"},
		"a StatefulSet deletes the highest ordinal":      {"StatefulSet", openEnded, []client.Object{plain, ofSet("web-0", "b0", "b"), ofSet("web-1", "a0", "a"), ofSet("web-10", "a0", "a")}, 2, "kept web-0 web-1"},
		"a StatefulSet fills its gaps":                   {"StatefulSet", openEnded, []client.Object{plain, ofSet("web-1", "a0", "a")}, 3, "kept web-1; a 1; b 0; waiting 1"},
		"a StatefulSet in order stops at a pod that waits": {"StatefulSet", openEnded, []client.Object{statefulSet(func(s *appsv1.StatefulSet) {
			s.Spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
		})}, 5, "a 2; waiting 3"},
		"claims of a StatefulSet are made with its pods": {"StatefulSet", openEnded + adaptive, []client.Object{late, statefulSet(func(s *appsv1.StatefulSet) {
			s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("in-b")}}}
		})}, 3, "b 2; waiting 1"},
		"a Job deletes its youngest pods, whatever their costs": {"Job", openEnded, []client.Object{job,
			running("Job", "old", "b0", "b", 3*time.Hour), running("Job", "young", "a0", "a", time.Hour), running("Job", "middle", "a0", "a", 2*time.Hour)}, 2, "kept old middle"},
		"admission picks a subset for pods that bind early": {"StatefulSet", openEnded + "scheduleStrategy: {binding: Early}\n", []client.Object{plain}, 4, "a 2; b 1; waiting 1"},
		"a patch may make a pod small": {"StatefulSet", strings.Replace(openEnded, "name: b,", "name: b, patch: {spec: {containers: [{name: main, resources: {requests: {cpu: 100m}}}]}},", 1),
			[]client.Object{plain}, 10, "a 2; b 7; waiting 1"},
	} {
		t.Run(name, func(t *testing.T) {
			e := engineWith(t, append(tc.objects, nodeIn("a0", "a"), nodeIn("b0", "b"))...)
			if got := placedInAWord(simulate(t, e, spreadOf(t, tc.kind, tc.spec), tc.replicas)); got != strings.Replace(tc.want, "b 0; ", "", 1) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// An advanced StatefulSet deletes its highest ordinals and those that are reserved, and makes none of them.
func TestSimulateAnAdvancedStatefulSet(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "apps.kruise.io", Version: "v1beta1", Kind: "StatefulSet"}
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(ptr.To(template()))
	if err != nil {
		t.Fatal(err)
	}
	ofSet := func(name, on, in string) *corev1.Pod {
		pod := running("StatefulSet", name, on, in, time.Hour)
		pod.OwnerReferences[0].APIVersion = "apps.kruise.io/v1beta1"
		return pod
	}
	for name, tc := range map[string]struct {
		replicas int32
		reserved []any
		want     string
		made     []string
	}{
		"it shrinks":                     {2, []any{"1-3"}, "kept web-0 web-4", nil},
		"it grows":                       {4, []any{"1-3", int64(6)}, "kept web-0 web-4 web-5; b 1", []string{"web-7"}},
		"an ordinal with a pod":          {3, []any{"0-3", int64(6)}, "kept web-4 web-5; b 1", []string{"web-7"}},
		"nobody can read what it means":  {3, []any{"1-"}, "kept web-0 web-4 web-5", nil},
		"none of its pods is left":       {1, []any{"0-5"}, "a 1", []string{"web-6"}},
		"it reserves every last ordinal": {3, []any{"0-2147483647"}, "a 2; b 1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			set := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"namespace": "shop", "name": "web", "uid": "web"},
				"spec": map[string]any{"replicas": int64(3), "template": template, "reserveOrdinals": tc.reserved}}}
			set.SetGroupVersionKind(kind)
			e := engineWith(t, set, ofSet("web-0", "a0", "a"), ofSet("web-4", "a0", "a"), ofSet("web-5", "b0", "b"), nodeIn("a0", "a"), nodeIn("b0", "b"))
			if unwatchable, err := e.Lineage.Watch(t.Context(), kind.GroupKind()); unwatchable != nil || err != nil {
				t.Fatal(unwatchable, err)
			}
			spread := spreadOf(t, "StatefulSet", strings.Replace(openEnded, "maxReplicas: 3", "maxReplicas: 2", 1))
			spread.Spec.TargetReference.APIVersion = "apps.kruise.io/v1beta1"
			spread.Spec.TargetFilter = &v1beta1.TargetFilter{ReplicasPathList: []string{"spec.replicas"}}
			placed := simulate(t, e, spread, tc.replicas)
			if got := placedInAWord(placed); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			for i, name := range tc.made {
				if got := placed.Bound[i].Name; got != name {
					t.Errorf("made %s, want %s", got, name)
				}
			}
		})
	}
}

// The API server is asked what admission makes of a pod. If it does not say, the answer says so.
func TestPodsAreMadeAsAdmissionMakesThem(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(client.Object) error
		want   string
		note   string
	}{
		"a sidecar takes room": {func(object client.Object) error {
			pod := object.(*corev1.Pod)
			if len(pod.OwnerReferences) > 0 {
				t.Error("Berth's webhook would divide the pod that is asked about")
			}
			sidecar := template().Spec.Containers[0]
			sidecar.Name = "sidecar"
			pod.Spec.Containers = append(pod.Spec.Containers, sidecar)
			return nil
		}, "a 1; b 1; waiting 2", ""},
		"without the right to create pods": {func(object client.Object) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, object.GetName(), errors.New("no"))
		}, "a 2; b 1; waiting 1", "pods are made from the workload's template"},
	} {
		t.Run(name, func(t *testing.T) {
			e := engineWith(t, statefulSet(func(*appsv1.StatefulSet) {}), nodeIn("a0", "a"), nodeIn("b0", "b"))
			e.live = interceptor.NewClient(e.live.(client.WithWatch), interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, object client.Object, opts ...client.CreateOption) error {
					if created := (&client.CreateOptions{}).ApplyOptions(opts); len(created.DryRun) == 0 {
						t.Error("a pod was created")
					}
					return tc.answer(object)
				}})
			placed := simulate(t, e, spreadOf(t, "StatefulSet", openEnded), 4)
			if got := placedInAWord(placed); got != tc.want || !strings.HasPrefix(placed.Note, tc.note) || (placed.Note == "") != (tc.note == "") {
				t.Errorf("got %q with note %q, want %q with %q", got, placed.Note, tc.want, tc.note)
			}
		})
	}
}

// BenchmarkSimulate is a what-if for 1,000 pods on 500 nodes, where 500 pods run.
func BenchmarkSimulate(b *testing.B) {
	var objects []client.Object
	for i := range 500 {
		n := nodeIn(fmt.Sprintf("node-%d", i), []string{"a", "b"}[i%2])
		n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("4")
		objects = append(objects, n)
		other := running("StatefulSet", fmt.Sprintf("other-%d", i), n.Name, "", time.Hour)
		other.OwnerReferences = nil
		objects = append(objects, other)
	}
	e := engineWith(b, append(objects, statefulSet(func(*appsv1.StatefulSet) {}))...)
	spread := spreadOf(b, "StatefulSet", strings.Replace(openEnded, "maxReplicas: 3", "maxReplicas: 300", 1)+"scheduleStrategy: {type: Adaptive}\n")
	b.ResetTimer()
	for b.Loop() {
		if placed := simulate(b, e, spread, 1000); len(placed.Bound) != 1000 {
			b.Fatalf("%d pods were bound", len(placed.Bound))
		}
	}
}
