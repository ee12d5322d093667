package whatif

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/test/testkit"
)

// engineOf is the engine of a cluster with these objects.
func engineOf(t *testing.T, objects ...client.Object) *Engine {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var storage []runtime.Object
	for _, object := range objects {
		switch object.(type) {
		case *storagev1.StorageClass, *corev1.PersistentVolumeClaim, *corev1.PersistentVolume:
			storage = append(storage, object)
		}
	}
	live, clock := ctrlfake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), clocktesting.NewFakeClock(metav1.Now().Time)
	taken, err := lineage.Take(t.Context(), live, clock)
	if err != nil {
		t.Fatal(err)
	}
	typed := fake.NewClientset(storage...)
	factory := informers.NewSharedInformerFactory(typed, 0)
	e, err := NewEngine(t.Context(), taken, live, typed, factory, clock)
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	return e
}

func node(name, pool string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool}},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("10")}},
	}
}

// pod of ReplicaSet web-1, bound to a node in a subset; without a node if that is empty.
func pod(name, cpu, on, in string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web", "pod-template-hash": "1"}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "rs", Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{NodeName: on, SchedulerName: v1beta1.SchedulerName, Containers: []corev1.Container{{Name: "main",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}},
	}
	if on != "" && in != "adopted" {
		p.Annotations[v1beta1.MatchedAnnotation] = fmt.Sprintf(`{"name":"web","subset":%q,"uid":%q}`, in, name)
	}
	return p
}

const byPool = `
subsets:
- {name: a, maxReplicas: 1, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
- {name: b, maxReplicas: 2, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
`

// adaptive is added to a spec.
const adaptive = "\nscheduleStrategy: {type: Adaptive}"

// admittedTo is a pod that admission has picked a subset for.
func admittedTo(in string, p *corev1.Pod) *corev1.Pod {
	p.Annotations[v1beta1.AdmittedAnnotation] = fmt.Sprintf(`{"name":"web","subset":%q,"pick":"m"}`, in)
	return p
}

func TestExplain(t *testing.T) {
	workloads := func() []client.Object {
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d"}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)}}
		replicaSet := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "rs",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: ptr.To(true)}}}}
		return []client.Object{deployment, replicaSet, node("node-a", "a"), node("node-b", "b"), node("node-c", "c")}
	}
	gated := pod("p", "1", "", "")
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "quota"}}
	others := pod("p", "1", "", "")
	others.Spec.SchedulerName = corev1.DefaultSchedulerName
	said := pod("p", "3", "", "")
	said.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no room at all"}}
	stranger := pod("p", "1", "", "")
	stranger.OwnerReferences = nil
	minimum := strings.Replace(byPool, "maxReplicas: 2", "minReplicas: 1", 1)
	byShare := strings.NewReplacer("maxReplicas: 1", "weight: 1", "maxReplicas: 2", "weight: 2").Replace(byPool)
	const patching = byPool + `scheduleStrategy: {binding: Early}`
	late := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "csi.example.com", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}
	claim := corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("late"), Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}
	scratch := pod("p", "1", "", "")
	scratch.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claim}}}}}
	tried := pod("p", "3", "", "")
	subset.Gate(tried)
	tests := map[string]struct {
		spec  string
		there []client.Object
		pod   *corev1.Pod
		why   string
		// tiers are verdicts with kept and fitting nodes.
		tiers string
	}{
		"in the first subset":             {byPool, nil, pod("p", "1", "node-a", "a"), "a comes first", "a Holds 1 1/1; b Open 0 1/1"},
		"in the second":                   {byPool, []client.Object{pod("x", "1", "node-a", "a")}, pod("p", "1", "node-b", "b"), "a had no quota left when it was bound", "a Full 1 1/1; b Holds 1 1/1"},
		"Adaptive, and the first is open": {byPool + adaptive, nil, pod("p", "1", "node-b", "b"), "a had no quota left or no node for it when it was bound; a is open now, and the descheduler's RebalanceToPreferredSubset would move the pod back", "a Open 0 1/1; b Holds 1 1/1"},
		"adopted":                         {byPool, nil, pod("p", "1", "node-b", "adopted"), "it was not bound for a subset of this spread; its node belongs to b", "a Open 0 1/1; b Holds 1 1/1"},
		"of no subset":                    {byPool, nil, pod("p", "1", "node-c", "adopted"), "it was not bound for a subset of this spread, and its node belongs to none", "a Open 0 1/1; b Open 0 1/1"},
		"let go":                          {byPool, nil, pod("p", "1", "node-c", ""), "every subset was full", "a Open 0 1/1; b Open 0 1/1"},
		"Fixed waits":                     {byPool, nil, pod("p", "3", "", ""), "a is the subset for it, and has no node for it", "a NoNodeFits 0 0/1; b NoNodeFits 0 0/1"},
		"Adaptive has tried all":          {byPool + adaptive, nil, said, "no subset with quota left has a node for it", "a NoNodeFits 0 0/1; b NoNodeFits 0 0/1"},
		"full": {strings.Replace(byPool, "maxReplicas: 2", "maxReplicas: 0", 1) + "scheduleStrategy: {whenFull: Wait}", []client.Object{pod("x", "1", "node-a", "a")}, pod("p", "1", "", ""),
			"every subset is full", "a Full 1 1/1; b Full 0 1/1"},
		"by shares": {byShare, []client.Object{pod("x", "1", "node-b", "b")}, pod("p", "1", "node-b", "b"),
			"b was due for the next pod when it was bound: pods go to the subset that is furthest below its share; it has 2 pods now, and its target is 2", "a Open 0 1/1; b Holds 2 1/1"},
		"above the target": {byShare, []client.Object{pod("x", "1", "node-a", "a"), pod("y", "1", "node-a", "a")}, pod("p", "1", "node-a", "a"),
			"a was due for the next pod when it was bound: pods go to the subset that is furthest below its share; it has 3 pods now, and its target is 1; b is below its target and open, and the descheduler's RebalanceToPreferredSubset would move a pod there",
			"a Holds 3 0/1; b Open 0 1/1"},
		"for a minimum": {minimum + adaptive, nil, pod("p", "1", "node-b", "b"),
			"b was due for the next pod, of the subsets with a node for it, when it was bound: minimums come first, and above them pods go to the first subset that is not full; it has 1 pod now, and its target is 2",
			"a Open 0 1/1; b Holds 1 1/1"},
		"on its way":              {byPool, nil, pod("p", "1", "", ""), "a has quota left and a node for it", "a Open 0 1/1; b Open 0 1/1"},
		"behind a pod that waits": {byPool, []client.Object{pod("older", "3", "", "")}, pod("p", "1", "", ""), "b has quota left and a node for it", "a Open 0 1/1; b Open 0 1/1"},
		"with a patch that finds no node": {patching, []client.Object{pod("x", "2", "node-b", "b")}, admittedTo("b", pod("p", "1", "", "")),
			"b is the subset for it, and has no node for it", "a Open 0 1/1; b NoNodeFits 1 0/1"},
		"with a patch of a full subset": {patching, []client.Object{pod("x", "1", "node-a", "a")}, admittedTo("a", pod("p", "1", "", "")),
			"the only subset that it can use is full now; berth-controller replaces the pod", "a Full 1 1/1; b Open 0 1/1"},
		"with an ephemeral volume":  {byPool, []client.Object{late}, scratch, "a has quota left and a node for it", "a Open 0 1/1; b Open 0 1/1"},
		"with a gate":               {byPool, nil, gated, "it has the scheduling gate quota", "a Open 0 1/1; b Open 0 1/1"},
		"with Berth's gate":         {byPool, nil, tried, "a is the subset for it, and has no node for it", "a NoNodeFits 0 0/1; b NoNodeFits 0 0/1"},
		"with another scheduler":    {byPool, nil, others, "it names scheduler default-scheduler", "a Open 0 1/1; b Open 0 1/1"},
		"of nobody":                 {byPool, nil, stranger, "no WorkloadSpread divides it", ""},
		"of a spread that is wrong": {"subsets: [{name: a, maxReplicas: -1}]", nil, pod("p", "1", "", ""), "WorkloadSpread web is invalid", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			report, err := explainPod(t.Context(), engineOf(t, append(append(workloads(), testkit.Spread(t, tc.spec, "{}"), tc.pod), tc.there...)...), tc.pod)
			if err != nil {
				t.Fatal(err)
			}
			var tiers []string
			for _, tier := range report.Tiers {
				tiers = append(tiers, fmt.Sprintf("%s %s %d %d/%d", tier.Subset, tier.Verdict, tier.Kept, tier.Fit, tier.Nodes))
			}
			if !strings.HasPrefix(report.Why, tc.why) || strings.Join(tiers, "; ") != tc.tiers {
				t.Errorf("why %q with %q, want %q with %q", report.Why, strings.Join(tiers, "; "), tc.why, tc.tiers)
			}
		})
	}
	t.Run("of a StatefulSet", func(t *testing.T) {
		const toDB = `targetRef: {apiVersion: apps/v1, kind: StatefulSet, name: db}` + "\n"
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "db"}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](4)}}
		db := func(name, on, in string) *corev1.Pod {
			p := pod(name, "1", on, in)
			p.OwnerReferences[0] = metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "db", Controller: ptr.To(true)}
			return p
		}
		for _, tc := range []struct {
			pod  *corev1.Pod
			want string
		}{
			{db("db-0", "node-a", "a"), "a is the subset of its ordinal"},
			{db("db-1", "node-b", "b"), "b is the subset of its ordinal"},
			{db("db-2", "node-a", "a"), "b is the subset of its ordinal; when the pod was bound, b had no quota left or no node for it, or the ordinal belonged elsewhere; b is open now"},
			{db("db-3", "node-c", ""), "its ordinal is above all quotas, and the spread lets such pods go anywhere"},
			{db("db-3", "node-b", "b"), "its ordinal is above all quotas by now; b had a free slot when it was bound"},
			{db("db-1", "", ""), "b has quota left and a node for it"},
			{db("db-3", "", ""), "every quota that counts for it is used up, and the spread lets such pods go anywhere (whenFull: Schedule); the scheduler should bind it soon"},
		} {
			report, err := explainPod(t.Context(), engineOf(t, append(workloads(), set, testkit.Spread(t, toDB+byPool, "{}"), tc.pod)...), tc.pod)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(report.Why, tc.want) {
				t.Errorf("%s: why %q, want %q", tc.pod.Name, report.Why, tc.want)
			}
		}
	})
	t.Run("printed", func(t *testing.T) {
		report, err := explainPod(t.Context(), engineOf(t, append(workloads(), testkit.Spread(t, byPool+adaptive, "{}"), said)...), said)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := (&explainCommand{out: &out}).print(report); err != nil {
			t.Fatal(err)
		}
		want := `pod/p   web   node -   subset -
  SUBSET   KEPT   QUOTA   NODES THAT FIT NOW        VERDICT
  a        0      1       0/1: 1 Insufficient cpu   NoNodeFits
  b        0      2       0/1: 1 Insufficient cpu   NoNodeFits
  why: no subset with quota left has a node for it
  next: no pod is placed until that is corrected: the spec is invalid
  the scheduler said: no room at all
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("printed (-want +got):\n%s", diff)
		}
	})
	t.Run("a name that is none", func(t *testing.T) {
		err := (&explainCommand{out: &bytes.Buffer{}}).run(context.Background(), nil, []string{"node/web-1"})
		if err == nil || !strings.Contains(err.Error(), "TYPE is a pod") {
			t.Errorf("got %v", err)
		}
	})
}

// A pod that waits for a slot which no rolling update frees says so.
func TestExplainInARolloutThatCannotGoOn(t *testing.T) {
	const status = `{conditions: [{type: Ready, status: "False", reason: RolloutBlocked, message: "Deployment shop/web: a rolling update can never go on: 2 slots"}]}`
	spread := testkit.Spread(t, strings.Replace(byPool, "maxReplicas: 2", "maxReplicas: 0", 1)+"scheduleStrategy: {whenFull: Wait, quotaScope: Workload}", status)
	waiting := pod("p", "1", "", "")
	e := engineOf(t, spread, waiting, pod("x", "1", "node-a", "a"), node("node-a", "a"), node("node-b", "b"),
		&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "rs",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: ptr.To(true)}}}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d"}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)}})
	report, err := explainPod(t.Context(), e, waiting)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(report.Why, "(whenFull: Wait); Deployment shop/web: a rolling update can never go on: 2 slots") {
		t.Error(report.Why)
	}
}
