package lookahead

import (
	"fmt"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/united"
)

const looking = `
metadata: {namespace: ns, name: web, uid: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    deploymentTemplate:
      metadata: {labels: {app: web}}
      spec:
        template:
          metadata: {labels: {app: web}}
          spec: {containers: [{name: main, image: i, resources: {requests: {cpu: "1"}}}]}
  topology:
    scheduleStrategy: {type: Adaptive, adaptive: {lookAhead: true}}
    subsets: [{name: a}, {name: b}]
`

// TestAnswersAndReportsAreMadeAtTheSameTime in a cluster that is a member of a federation and has a UnitedDeployment that looks ahead.
func TestAnswersAndReportsAreMadeAtTheSameTime(t *testing.T) {
	var nodes []runtime.Object
	for i := range 60 {
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("10"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("110")}}})
	}
	client := fake.NewClientset(nodes...)
	factory := informers.NewSharedInformerFactory(client, 0)
	a, r, err := newWorkers(t.Context(), dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), client, factory, func() bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())

	ud := &v1beta1.UnitedDeployment{}
	if err := yaml.Unmarshal([]byte(looking), ud); err != nil {
		t.Fatal(err)
	}
	policy, errs := united.Compile(ud, field.NewPath("spec"))
	if policy == nil {
		t.Fatal(errs)
	}
	set := appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rs", UID: "rs", Annotations: map[string]string{v1alpha1.ShapeAnnotation: "s"}}}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	answer := func() string {
		capacity, err := a.capacityOf(t.Context(), ud, policy)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(capacity.Subsets)
	}
	report := func() string {
		room, err := r.roomFor(t.Context(), []appsv1.ReplicaSet{set})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(room.Seats)
	}
	alone := [2]string{answer(), report()}
	var working sync.WaitGroup
	for i, work := range []func() string{answer, report} {
		working.Go(func() {
			for range 200 {
				if together := work(); together != alone[i] {
					t.Errorf("together %s, alone %s", together, alone[i])
					return
				}
			}
		})
	}
	working.Wait()
}
