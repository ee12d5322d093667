package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// unitedOf is a UnitedDeployment with two zones, and two of its three pods.
func unitedOf(t *testing.T) []client.Object {
	t.Helper()
	ud := &v1beta1.UnitedDeployment{}
	if err := yaml.UnmarshalStrict([]byte(`
metadata: {name: shop, namespace: shop, uid: u, generation: 3}
spec:
  replicas: 3
  selector: {matchLabels: {app: shop}}
  template: {deploymentTemplate: {spec: {template: {metadata: {labels: {app: shop}}, spec: {containers: [{name: main, image: shop}]}}}}}
  topology:
    scheduleStrategy: {type: Adaptive}
    subsets: [{name: zone-a}, {name: zone-b}]
status:
  observedGeneration: 3
  replicas: 3
  readyReplicas: 1
  updatedReplicas: 3
  conditions: [{type: Ready, status: "True", reason: Ready}]
  subsetStatuses:
  - {name: zone-a, replicas: 2, readyReplicas: 1, conditions: [{type: Schedulable, status: "False", reason: Reschedule, message: 1 pod found no node}]}
  - {name: zone-b, replicas: 1}
`), ud); err != nil {
		t.Fatal(err)
	}
	since := metav1.NewTime(now())
	ud.CreationTimestamp, ud.Status.SubsetStatuses[0].Conditions[0].LastTransitionTime = since, since
	owned := func(name, group, kind, owner string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), CreationTimestamp: since, Labels: map[string]string{v1beta1.SubsetNameLabel: "zone-a"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: group, Kind: kind, Name: owner, UID: types.UID(owner), Controller: ptr.To(true)}}}
	}
	child := &appsv1.Deployment{ObjectMeta: owned("shop-zone-a-1", v1beta1.GroupVersion.String(), "UnitedDeployment", "shop")}
	child.OwnerReferences[0].UID = "u"
	return []client.Object{
		ud, child, &appsv1.ReplicaSet{ObjectMeta: owned("shop-zone-a-1-x", "apps/v1", "Deployment", "shop-zone-a-1")},
		&corev1.Pod{ObjectMeta: owned("pod-1", "apps/v1", "ReplicaSet", "shop-zone-a-1-x"), Spec: corev1.PodSpec{NodeName: "n-1"},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}},
		&corev1.Pod{ObjectMeta: owned("pod-2", "apps/v1", "ReplicaSet", "shop-zone-a-1-x")},
		&corev1.Pod{ObjectMeta: owned("elsewhere", "apps/v1", "ReplicaSet", "other")},
	}
}

func squeezed(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}

func TestStatusShowsTheClustersOfSubsets(t *testing.T) {
	objects := unitedOf(t)
	objects[0].(*v1beta1.UnitedDeployment).Status.SubsetStatuses[1].Cluster = "member-1"
	var out bytes.Buffer
	if err := (&statusCommand{out: &out, output: console.AsTable}).run(t.Context(), clusterOf(t, objects...), []string{"shop"}); err != nil {
		t.Fatal(err)
	}
	want := `SUBSET READY REPLICAS RESERVED PARTITION SCHEDULABLE CLUSTER
zone-a 1 2 0 0 no -
zone-b 0 1 0 0 yes member-1`
	if got := squeezed(out.String()); !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestStatusAndTreeKnowUnitedDeployments(t *testing.T) {
	cluster := clusterOf(t, unitedOf(t)...)
	var out bytes.Buffer
	if err := (&statusCommand{out: &out, output: console.AsTable}).run(t.Context(), cluster, []string{"shop"}); err != nil {
		t.Fatal(err)
	}
	want := `shop UnitedDeployment Adaptive 3 pods asked for Ready
SUBSET READY REPLICAS RESERVED PARTITION SCHEDULABLE
zone-a 1 2 0 0 no
zone-b 0 1 0 0 yes
next: zone-a gets replicas again in 5m: 1 pod found no node`
	if diff := cmp.Diff(want, regexp.MustCompile(`in [0-9ms]+:`).ReplaceAllString(squeezed(out.String()), "in 5m:")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	out.Reset()
	if err := (&treeCommand{out: &out, output: console.AsTable}).run(t.Context(), cluster, []string{"shop"}); err != nil {
		t.Fatal(err)
	}
	want = `NAME KEPT QUOTA NODE STATE AGE
UnitedDeployment/shop Ready AGE
├─ subset zone-a 1 2
│ └─ Deployment/shop-zone-a-1 AGE
│ └─ ReplicaSet/shop-zone-a-1-x AGE
│ ├─ Pod/pod-1 n-1 Ready AGE
│ └─ Pod/pod-2 Pending AGE
└─ subset zone-b 0 1`
	if diff := cmp.Diff(want, regexp.MustCompile(`\d+s(\n|$)`).ReplaceAllString(squeezed(out.String()), "AGE$1")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
