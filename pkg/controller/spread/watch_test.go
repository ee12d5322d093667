package spread

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/workload"
)

func namesOf(requests sets.Set[reconcile.Request]) string {
	var names []string
	for request := range requests {
		names = append(names, request.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestAffectedSpreads(t *testing.T) {
	ofReplicaSet := makeSpread(t, threeThenAny)
	ofReplicaSet.Name, ofReplicaSet.Spec.TargetReference.Kind, ofReplicaSet.Spec.TargetReference.Name = "nearer", "ReplicaSet", "r1"
	second := makeSpread(t, threeThenAny)
	second.Name = "second"
	other := makeSpread(t, threeThenAny)
	other.Name, other.Spec.TargetReference.Name = "other", "db"

	onNode := pod("p1", "r2", "a")
	stranger := pod("stranger", "r9", "")
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bare"}}
	elsewhere := pod("p9", "r1", "a")
	elsewhere.Namespace = "elsewhere"
	f := newFixture(t, makeSpread(t, threeThenAny), second, ofReplicaSet, other, deployment(1), replicaSet("r1"), replicaSet("r2"), onNode, bare)

	tests := map[string]struct {
		affected affectedSpreads
		object   client.Object
		want     string
	}{
		"a pod is news for the spreads of every workload above it":     {f.family.ofPod, pod("p", "r1", ""), "nearer second web"},
		"a pod whose owner is not seen yet is news for nobody":         {f.family.ofPod, stranger, ""},
		"a pod without owner is news for nobody":                       {f.family.ofPod, bare, ""},
		"a pod in a namespace without spreads is news for nobody":      {f.family.ofPod, elsewhere, ""},
		"a ReplicaSet is news for its own spread and those above":      {f.family.ofWorkload(lineage.ReplicaSet), replicaSet("r1"), "nearer second web"},
		"a Deployment is news for its spreads":                         {f.family.ofWorkload(schema.GroupKind{Group: "apps", Kind: "Deployment"}), deployment(3), "second web"},
		"an object of another kind with the name of a workload is not": {f.family.ofWorkload(schema.GroupKind{Group: "apps", Kind: "StatefulSet"}), deployment(3), ""},
		"a spread is news for others of its workload":                  {f.family.ofSpread, second, "second web"},
		"a spread is news for those above it, whose pods it takes":     {f.family.ofSpread, ofReplicaSet, "nearer second web"},
		"a spread whose workload does not exist is news for itself":    {f.family.ofSpread, other, "other"},
		"a node is news for the spreads of its pods":                   {f.family.ofNode, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "some-node"}}, "second web"},
		"a node without pods is news for nobody":                       {f.family.ofNode, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "empty"}}, ""},
		"a ReplicaSet that is gone is news for those above":            {f.family.ofWorkload(lineage.ReplicaSet), replicaSet("gone"), "second web"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := namesOf(tc.affected(t.Context(), tc.object)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}

	t.Run("kinds of owners with no workload above them are not looked at", func(t *testing.T) {
		p := pod("daemon", "r1", "")
		setController(p, "apps/v1", "DaemonSet", "d", "d")
		if got := namesOf(f.family.ofPod(t.Context(), p)); got != "" {
			t.Errorf("got %q, want none", got)
		}
	})
}

func TestWhatMatters(t *testing.T) {
	update := func(before, after client.Object) event.UpdateEvent {
		return event.UpdateEvent{ObjectOld: before, ObjectNew: after}
	}
	t.Run("of a pod", func(t *testing.T) {
		tests := map[string]struct {
			change func(*corev1.Pod)
			want   bool
		}{
			"its address does not matter":      {func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }, false},
			"a new resourceVersion does not":   {func(p *corev1.Pod) { p.ResourceVersion = "2" }, false},
			"starting to run does not":         {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, false},
			"an annotation of others does not": {func(p *corev1.Pod) { p.Annotations["other"] = "x" }, false},
			"becoming ready matters":           {func(p *corev1.Pod) { addCondition(p, corev1.PodReady, corev1.ConditionTrue, "") }, true},
			"ending matters":                   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true},
			"terminating matters":              {func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(noon) }, true},
			"its record matters":               {func(p *corev1.Pod) { p.Annotations[v1beta1.MatchedAnnotation] = "" }, true},
			"its labels matter, to selectors":  {func(p *corev1.Pod) { p.Labels["role"] = "worker" }, true},
			"its owner matters":                {func(p *corev1.Pod) { p.OwnerReferences = nil }, true},
			"its node matters":                 {func(p *corev1.Pod) { p.Spec.NodeName = "other" }, true},
			"finding no node on a node does not": {func(p *corev1.Pod) {
				addCondition(p, corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable)
			}, false},
		}
		for name, tc := range tests {
			t.Run(name, func(t *testing.T) {
				after := pod("p", "r1", "a")
				tc.change(after)
				if got := podMatters.Update(update(pod("p", "r1", "a"), after)); got != tc.want {
					t.Errorf("got %t", got)
				}
			})
		}
		t.Run("finding no node matters", func(t *testing.T) {
			after := pod("p", "r1", "")
			addCondition(after, corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable)
			if !podMatters.Update(update(pod("p", "r1", ""), after)) {
				t.Error("got false")
			}
		})
	})
	t.Run("of a workload its spec and owner matter, not its status", func(t *testing.T) {
		status, spec, owner := deployment(1), deployment(2), deployment(1)
		status.Status.ReadyReplicas, spec.Generation = 1, 2
		setController(owner, "example.com/v1", "Widget", "w", "w")
		got := []bool{}
		for _, after := range []*appsv1.Deployment{status, spec, owner} {
			got = append(got, workloadMatters.Update(update(deployment(1), after)))
		}
		if diff := cmp.Diff([]bool{false, true, true}, got); diff != "" {
			t.Errorf("status, spec, owner (-want +got):\n%s", diff)
		}
	})
	t.Run("of a node its labels matter, not its heartbeat", func(t *testing.T) {
		node := func(version, zone string) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: version, Labels: map[string]string{"zone": zone}}}
		}
		if nodeMatters.Update(update(node("1", "a"), node("2", "a"))) || !nodeMatters.Update(update(node("1", "a"), node("2", "b"))) {
			t.Error("want the labels alone")
		}
	})
	t.Run("of a spread its spec and status matter, not its metadata", func(t *testing.T) {
		before, metadata, spec, status := makeSpread(t, threeThenAny), makeSpread(t, threeThenAny), makeSpread(t, threeThenAny), makeSpread(t, threeThenAny)
		metadata.Labels, spec.Generation, status.Status.Summary = map[string]string{"x": "y"}, 8, "changed"
		got := []bool{}
		for _, after := range []*v1beta1.WorkloadSpread{metadata, spec, status} {
			got = append(got, spreadMatters.Update(update(before, after)))
		}
		if diff := cmp.Diff([]bool{false, true, true}, got); diff != "" {
			t.Errorf("metadata, spec, status (-want +got):\n%s", diff)
		}
	})
}

func addCondition(p *corev1.Pod, conditionType corev1.PodConditionType, status corev1.ConditionStatus, reason string) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: conditionType, Status: status, Reason: reason})
}

func TestCacheKeeps(t *testing.T) {
	t.Run("what the model and the predicates read of a pod", func(t *testing.T) {
		p := pod("p", "r1", "a")
		addCondition(p, corev1.PodReady, corev1.ConditionTrue, "")
		addCondition(p, corev1.PodScheduled, corev1.ConditionTrue, "")
		p.Status.Phase, p.Spec.SchedulerName = corev1.PodRunning, "volcano"
		want := p.DeepCopy()

		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
		p.Annotations["other"] = "x"
		p.Spec.Containers = []corev1.Container{{Name: "c"}}
		addCondition(p, corev1.PodInitialized, corev1.ConditionTrue, "")
		got, err := frame.KeepOfPod(p)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
	})
	t.Run("the replicas and the owner of a workload, and not its template", func(t *testing.T) {
		rs := replicaSet("r1")
		rs.Spec.Replicas = ptr.To[int32](3)
		want := rs.DeepCopy()
		rs.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "long"}
		rs.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c"}}
		rs.Status.ReadyReplicas = 3
		got, err := workload.Keep(rs)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
	})
}
