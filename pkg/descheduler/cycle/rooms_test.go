package cycle

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	typedfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/test/testkit"
)

// A pod keeps the volumes that it has, and its replacement gets new ones where it had its own.
func TestRoomForPodsWithVolumes(t *testing.T) {
	const early = `subsets:
- name: a
  requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}
  patch: {spec: {containers: [{name: main, env: [{name: POOL, value: a}]}]}}
- name: b
  requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}
  patch: {spec: {containers: [{name: main, env: [{name: POOL, value: b}]}]}}
`
	storage := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	bound := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data-db-0", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: "disk", StorageClassName: ptr.To("late"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
	disk := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{Capacity: storage, StorageClassName: "late",
		ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "data-db-0"},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}}}}}}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "csi.example.com", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "set"}}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main"}}
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
	node := func(name, pool string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourcePods: resource.MustParse("10")}}}
	}
	nodes := []*corev1.Node{node("node-a", "a"), node("node-b", "b"), node("node-b2", "b")}
	policy := testkit.Policy(t, early)
	client := typedfake.NewClientset(bound, disk, class)
	factory := informers.NewSharedInformerFactory(client, 0)
	filters, err := fit.NewFilters(t.Context(), client, factory, podstate.DefaultNotices())
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	for name, tc := range map[string]struct {
		volume corev1.VolumeSource
		in     int
		want   moves.Room
	}{
		"a volume that subset a cannot reach":      {corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"}}, 0, moves.NoRoom},
		"a volume that subset b can reach":         {corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"}}, 1, moves.HasRoom},
		"an ephemeral volume, which is made again": {corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("late"), Resources: corev1.VolumeResourceRequirements{Requests: storage}}}}}, 0, moves.HasRoom},
	} {
		t.Run(name, func(t *testing.T) {
			victim, err := policy.BindEarly(&corev1.Pod{Spec: *set.Spec.Template.Spec.DeepCopy()}, 1, v1beta1.AdmittedSubset{Name: "web", Subset: "b"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			victim.Namespace, victim.Name, victim.UID, victim.Spec.NodeName = "ns", "db-0", "victim", "node-b"
			victim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set", Controller: ptr.To(true)}}
			victim.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: tc.volume}}
			rooms, err := filters.Take([]*corev1.Pod{victim}, nodes)
			if err != nil {
				t.Fatal(err)
			}
			c := &cluster{Cycle: &Cycle{Now: noon, snapshot: looking(t, set), rooms: rooms}, ctx: t.Context(), strategy: &Strategy{},
				spread: &spread{facts: moves.Facts{Name: "web", Policy: policy}, pods: map[types.UID]*corev1.Pod{victim.UID: victim}, refused: map[string]bool{}}}
			if got := c.Room(&moves.Pod{Pod: subset.Observe(victim, nil)}, tc.in); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}
