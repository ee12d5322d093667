package lineage

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

func take(t *testing.T, objects ...client.Object) *Snapshot {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Take(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func spreadOver(kind, name string) *v1beta1.WorkloadSpread {
	return &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web"}, Spec: v1beta1.WorkloadSpreadSpec{
		TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: kind, Name: name}, Subsets: []v1beta1.Subset{{Name: "a"}}}}
}

func rs1() *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", UID: "rs"}}
	rs.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main"}}
	return rs
}

func podOf(rs string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: rs, UID: "rs", Controller: ptr.To(true)}}}}
}

func TestASnapshotAnswersALineage(t *testing.T) {
	spread := spreadOver("ReplicaSet", "web-1")
	s := take(t, rs1(), spread)
	var rs appsv1.ReplicaSet
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "web-1"}, &rs); err != nil || rs.UID != "rs" {
		t.Errorf("got %s, %v", rs.UID, err)
	}
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "other"}, &rs); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("what is not there: %v", err)
	}
	for namespace, want := range map[string]int{"ns": 1, "elsewhere": 0} {
		var list v1beta1.WorkloadSpreadList
		err := s.List(t.Context(), &list, client.InNamespace(namespace), client.MatchingFields{TargetField: TargetKeyOf(spread)[0]})
		if err != nil || len(list.Items) != want {
			t.Errorf("in %s: %d spreads, %v", namespace, len(list.Items), err)
		}
	}
	if err := s.List(t.Context(), &corev1.PodList{}); err == nil {
		t.Error("a list that is not there was answered")
	}
}

func TestSpreadOf(t *testing.T) {
	s := take(t, rs1())
	expect := func(rs, want string) {
		t.Helper()
		found, err := s.SpreadOf(t.Context(), podOf(rs))
		if err != nil {
			t.Fatal(err)
		}
		if got := found != nil; got != (want != "") || got && found.Name != want {
			t.Errorf("a pod of %s: got %+v, want %q", rs, found, want)
		}
	}
	expect("web-1", "")
	s.Suppose(spreadOver("ReplicaSet", "web-1"))
	expect("web-1", "web")
	expect("gone", "")
	s.Spreads[0].Status = v1beta1.WorkloadSpreadStatus{ObservedGeneration: 1, Compatibility: v1beta1.CompatibleWithKruise, ReplicasPathList: []string{"spec.workers"}}
	again, custom := spreadOver("ReplicaSet", "web-1"), spreadOver("Custom", "web-1")
	again.Name, custom.Name = "again", "custom"
	if s.Suppose(again); again.Status.Compatibility != v1beta1.CompatibleWithKruise || len(again.Status.ReplicasPathList) != 1 {
		t.Errorf("a spread in a compatible installation has status %+v", again.Status)
	}
	if s.Suppose(custom); custom.Status.Compatibility != v1beta1.CompatibleWithKruise || custom.Status.ReplicasPathList != nil {
		t.Errorf("a spread of another kind has status %+v", custom.Status)
	}
	s.Spreads = s.Spreads[:1]
	s.Suppose(spreadOver("ReplicaSet", "other"))
	if expect("web-1", ""); len(s.Spreads) != 1 {
		t.Errorf("%d spreads of one name", len(s.Spreads))
	}
}

// TestAPodMayOwnPods, as the driver of a Spark application owns its executors.
func TestAPodMayOwnPods(t *testing.T) {
	driver, alone := podOf("web-1"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "alone", UID: "alone"}}
	driver.UID = "driver"
	s := take(t, rs1(), driver, alone)
	s.Suppose(spreadOver("ReplicaSet", "web-1"))
	for owner, divided := range map[*corev1.Pod]bool{driver: true, alone: false, {ObjectMeta: metav1.ObjectMeta{Name: "gone", UID: "gone"}}: false} {
		executor := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "executor", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Pod", Name: owner.Name, UID: owner.UID, Controller: ptr.To(true)}}}}
		if found, err := s.SpreadOf(t.Context(), executor); err != nil || (found != nil) != divided {
			t.Errorf("a pod of pod %s: got %v, %v", owner.Name, found, err)
		}
	}
}

func TestNewPod(t *testing.T) {
	widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"namespace": "ns", "name": "w"},
		"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "w"}}, "spec": map[string]any{"priorityClassName": "high"}}}}}
	ofWidget := spreadOver("Widget", "w")
	ofWidget.Spec.TargetReference.APIVersion = "example.com/v1"
	s := take(t, rs1(), widget)
	made, err := s.NewPod(t.Context(), spreadOver("ReplicaSet", "web-1"))
	if err != nil || made.Namespace != "ns" || made.Spec.Containers[0].Name != "main" {
		t.Errorf("of a ReplicaSet: %+v, %v", made, err)
	}
	made, err = s.NewPod(t.Context(), ofWidget)
	if err != nil || made.Labels["app"] != "w" || made.Spec.PriorityClassName != "high" {
		t.Errorf("of another kind: %+v, %v", made, err)
	}
	if _, err := s.NewPod(t.Context(), spreadOver("Deployment", "gone")); err == nil {
		t.Error("a workload that is not there makes a pod")
	}
}

// A program that watches pods and nodes anyway holds them once.
func TestASnapshotTakesPodsAndNodesOfInformers(t *testing.T) {
	pod, node := podOf("web-1"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	watched := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	for object, informer := range map[client.Object]cache.SharedIndexInformer{pod: watched.Core().V1().Pods().Informer(), node: watched.Core().V1().Nodes().Informer()} {
		if err := informer.GetStore().Add(object); err != nil {
			t.Fatal(err)
		}
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	s, err := TakeWith(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(podOf("other")).Build(), clock.RealClock{}, watched)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Pods) != 1 || s.Pods[0] != pod || len(s.Nodes) != 1 || s.Node("n") != node {
		t.Errorf("it has pods %v and nodes %v", s.Pods, s.Nodes)
	}
}
