package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

func TestAPodWaitsUntilItsOwnerIsSeen(t *testing.T) {
	// withoutOwner creates a pod whose ReplicaSet the ledger has not seen.
	withoutOwner := func(t *testing.T) (*world, *corev1.Pod) {
		t.Helper()
		w := emptyWorld(t)
		w.scale(4)
		w.spread(1, twoThenAny)
		pod := w.pod("p")
		w.expectChoice(pod, "WorkloadNotObserved")
		w.see(pod.DeepCopy()) // the condition that the scheduler has written
		w.expectAwake()
		return w, pod
	}
	nothingIsLeft := func(t *testing.T, w *world) {
		t.Helper()
		if len(w.ledger.unresolved) != 0 {
			t.Errorf("unresolved pods are left: %v", w.ledger.unresolved)
		}
	}
	t.Run("and is woken then", func(t *testing.T) {
		w, pod := withoutOwner(t)
		w.seeReplicaSet("rs-uid")
		w.expectAwake("p")
		w.seeReplicaSet("rs-uid")
		w.see(pod.DeepCopy())
		w.expectAwake()
		w.expectChoice(pod, "a")
		nothingIsLeft(t, w)
	})
	t.Run("or by the end of the last spread of its namespace", func(t *testing.T) {
		w, pod := withoutOwner(t)
		w.spreadGone()
		w.expectAwake("p")
		w.expectChoice(pod, "no spread")
		nothingIsLeft(t, w)
	})
	t.Run("and not by its bind", func(t *testing.T) {
		w, pod := withoutOwner(t)
		w.seeBound(pod, "node-a", "-")
		w.expectAwake()
		nothingIsLeft(t, w)
		w.seeReplicaSet("rs-uid")
		w.expectAwake()
		w.expectKept("a=1 b=0")
	})
	t.Run("or until it is known that owners of its kind cannot be seen", func(t *testing.T) {
		w, pod := withoutOwner(t)
		w.apply(KindEndsChain{Kind: replicaSetKind, Ends: true})
		w.expectAwake("p")
		w.expectChoice(pod, "no spread")
		nothingIsLeft(t, w)
		// This lasts until the ledger can list them again.
		w.apply(KindEndsChain{Kind: replicaSetKind})
		other := podOf("other-uid", "other")
		w.see(other)
		w.seeReplicaSet("rs-uid")
		w.expectChoice(pod, "a")
		w.expectChoice(other, "WorkloadNotObserved")
	})
	t.Run("and the kind of the owner is watched", func(t *testing.T) {
		w, _ := withoutOwner(t)
		if !slices.Contains(w.wanted, replicaSetKind) {
			t.Errorf("wanted %v", w.wanted)
		}
	})
}

func TestAnOwnerOfAnotherNamespaceOwnsNoPod(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	w.spreadOf("other", 1, "Deployment", "other", twoThenAny)
	// Any user can read the UID of a ReplicaSet and write it into a new pod.
	forged := podOf("rs-uid", "forged")
	forged.Namespace = "theirs"
	w.see(onNode(forged, "node-a", "a"))
	w.expectKept("a=0 b=0")
	late := emptyWorld(t)
	late.see(forged)
	late.scale(4)
	late.seeReplicaSet("rs-uid")
	late.spread(1, twoThenAny)
	late.expectChoice(late.pod("p"), "a")
}

func TestAnAdmittedPodWaitsForItsSpread(t *testing.T) {
	admitted := func(w *world, annotation string) *corev1.Pod {
		pod := podOf("rs-uid", "p")
		pod.Annotations = map[string]string{annotation: "{}"}
		w.see(pod)
		w.expectChoice(pod, "WorkloadNotObserved")
		w.expectAwake()
		return pod
	}
	for _, annotation := range []string{v1beta1.ConstraintsAnnotation, v1beta1.AdmittedAnnotation, v1beta1.AwaitsAnnotation} {
		t.Run(annotation+": until it is seen", func(t *testing.T) {
			w := newWorld(t, 4)
			pod := admitted(w, annotation)
			w.spread(1, twoThenAny)
			w.expectAwake("p")
			w.expectChoice(pod, "a")
			w.step(2 * time.Second)
			w.expectAwake()
		})
	}
	t.Run("not for ever", func(t *testing.T) {
		w := newWorld(t, 4)
		pod := admitted(w, v1beta1.ConstraintsAnnotation)
		w.step(2*time.Second - 1)
		w.expectAwake()
		w.expectChoice(pod, "WorkloadNotObserved")
		w.step(1)
		w.expectAwake("p")
		w.expectChoice(pod, "no spread")
	})
	t.Run("for longer if a rule makes the spread", func(t *testing.T) {
		w := newWorld(t, 4)
		pod := admitted(w, v1beta1.AwaitsAnnotation)
		w.step(ruledWait - 1)
		w.expectAwake()
		w.expectChoice(pod, "WorkloadNotObserved")
		w.step(1)
		w.expectAwake("p")
		w.expectChoice(pod, "no spread")
	})
	t.Run("not after its end", func(t *testing.T) {
		w := newWorld(t, 4)
		pod := admitted(w, v1beta1.ConstraintsAnnotation)
		w.delete(pod)
		w.step(2 * time.Second)
		w.expectAwake()
		if len(w.ledger.unresolved) != 0 {
			t.Errorf("unresolved pods are left: %v", w.ledger.unresolved)
		}
	})
	t.Run("until it is changed so that a spread divides it", func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, `{subsets: [{name: a}], targetFilter: {selector: {matchLabels: {role: worker}}}}`)
		pod := admitted(w, v1beta1.ConstraintsAnnotation)
		w.see(pod.DeepCopy()) // the condition that the scheduler has written
		w.expectAwake()
		pod = pod.DeepCopy()
		pod.Labels["role"] = "worker"
		w.see(pod)
		w.expectAwake("p")
		w.expectChoice(pod, "a")
		w.step(2 * time.Second)
		w.expectAwake()
	})
	t.Run("and others do not wait", func(t *testing.T) {
		w := newWorld(t, 4)
		w.expectChoice(w.pod("p"), "no spread")
	})
}

func TestPodsOfNoSpreadPass(t *testing.T) {
	w := newWorld(t, 4)
	w.expectChoice(w.pod("before"), "no spread")
	w.spread(1, twoThenAny)
	single := podOf("rs-uid", "single")
	single.OwnerReferences = nil
	w.expectChoice(single, "no spread")
	w.apply(OwnerSeen{Kind: replicaSetKind, Object: &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rs", UID: "other-uid"}}})
	other := podOf("other-uid", "other")
	w.expectChoice(other, "no spread")
}

func TestPercentagesWaitForNewsOfTheWorkload(t *testing.T) {
	t.Run("a pod above the replicas waits until the new number is there", func(t *testing.T) {
		w := newWorld(t, 2)
		w.spread(1, halves)
		pods := w.podsNamed("p", 4) // the Deployment was scaled to 4, and its pods arrived before that
		w.expectChoice(pods[0], "WorkloadNotObserved")
		w.scale(4)
		w.expectAwake("p0")
		for i, want := range []string{"a", "a", "b", "b"} {
			w.expectChoice(pods[i], want)
		}
	})
	t.Run("which is read if no news of it come", func(t *testing.T) {
		w := newWorld(t, 0)
		w.spread(1, halves)
		pods := w.podsNamed("p", 4) // the Deployment was scaled from 0, and the watch is far behind
		for _, pod := range pods {
			w.expectChoice(pod, "WorkloadNotObserved")
		}
		w.step(2 * time.Second)
		w.expectAwake("p0", "p1", "p2", "p3")
		for _, pod := range pods {
			w.expectChoice(pod, "WorkloadNotObserved")
		}
		if len(w.questions) != 1 {
			t.Errorf("%d questions", len(w.questions))
		}
		w.answer(4)
		w.awake = nil
		for i, want := range []string{"a", "a", "b", "b"} {
			w.expectChoice(pods[i], want)
		}
		w.expectChoice(w.pod("surge"), "WorkloadNotObserved")
	})
	t.Run("and pods above what was read are above the quotas", func(t *testing.T) {
		w := newWorld(t, 2)
		w.spread(1, halves)
		pods := w.podsNamed("p", 4)
		w.expectChoice(pods[0], "WorkloadNotObserved")
		w.step(2 * time.Second)
		w.expectChoice(pods[0], "WorkloadNotObserved")
		w.awake = nil
		w.answer(2)
		w.expectAwake("p0")
		for i, want := range []string{"a", "b", "b"} {
			w.expectChoice(pods[i], want)
		}
		w.delete(pods[0])
		later := w.pod("later") // of a scale-up that the watch may not have shown
		w.expectChoice(later, "WorkloadNotObserved")
	})
	t.Run("an answer says nothing of pods that came after the question", func(t *testing.T) {
		w := newWorld(t, 2)
		w.spread(1, halves)
		pods := w.podsNamed("p", 3)
		w.expectChoice(pods[0], "WorkloadNotObserved")
		w.step(2 * time.Second)
		w.expectChoice(pods[0], "WorkloadNotObserved")
		w.delete(pods[2])
		later := w.pod("later")
		w.answer(2)
		w.expectChoice(later, "WorkloadNotObserved")
		w.step(2 * time.Second)
		w.expectChoice(later, "WorkloadNotObserved")
		w.answer(3)
		w.expectChoice(later, "a")
	})
	t.Run("a watch that is behind what was read changes nothing", func(t *testing.T) {
		w := newWorld(t, 0)
		w.spread(1, halves)
		pods := w.podsNamed("p", 4)
		w.step(2 * time.Second)
		read, behind := deployment(4), deployment(2)
		read.Generation, behind.Generation = 3, 2
		w.apply(OwnerRead{Kind: deploymentKind, Object: read})
		w.apply(OwnerSeen{Kind: deploymentKind, Object: behind})
		for i, want := range []string{"a", "a", "b", "b"} {
			w.expectChoice(pods[i], want)
		}
		w.apply(OwnerSeen{Kind: deploymentKind, Object: read})
		w.apply(OwnerSeen{Kind: deploymentKind, Object: behind}) // an etcd that was restored
		w.expectChoice(pods[0], "WorkloadNotObserved")
	})
	t.Run("what is read of a workload that is gone does not bring it back", func(t *testing.T) {
		w := newWorld(t, 2)
		w.spread(1, halves)
		w.apply(OwnerGone{Kind: deploymentKind, Object: deployment(2)})
		w.apply(OwnerRead{Kind: deploymentKind, Object: deployment(2)})
		w.expectChoice(w.pod("p"), "WorkloadNotObserved")
	})
	t.Run("a workload that is not known holds its pods", func(t *testing.T) {
		w := newWorld(t, 2)
		w.apply(OwnerGone{Kind: deploymentKind, Object: deployment(2)})
		w.spread(1, halves)
		pod := w.pod("p")
		w.expectChoice(pod, "WorkloadNotObserved")
		w.scale(2)
		w.expectAwake("p")
		w.expectChoice(pod, "a")
	})
	t.Run("a held pod that somebody else has bound is not woken", func(t *testing.T) {
		w := newWorld(t, 2)
		w.apply(OwnerGone{Kind: deploymentKind, Object: deployment(2)})
		w.spread(1, halves)
		pod := w.pod("p")
		w.expectChoice(pod, "WorkloadNotObserved")
		w.seeBound(pod, "node-a", "-")
		w.awake = nil
		w.scale(2)
		w.expectAwake() // the pod would never have the cycle for which the ledger keeps a free slot
	})
	t.Run("a scale-up wakes as many as there are new slots", func(t *testing.T) {
		w := newWorld(t, 2)
		w.spread(1, `{subsets: [{name: a, maxReplicas: "50%"}, {name: b, maxReplicas: "50%"}], scheduleStrategy: {whenFull: Wait, quotaScope: Workload}}`)
		old := w.podsNamed("old", 2)
		for i, node := range []string{"a", "b"} {
			w.seeBound(old[i], "node-"+node, node)
		}
		w.seeReplicaSet("new-uid")
		for i := range 2 { // the surge of a rolling update, under another ReplicaSet
			pod := podOf("new-uid", fmt.Sprintf("new%d", i))
			w.see(pod)
			w.expectChoice(pod, "SubsetsFull")
		}
		w.scale(3) // 2 and 2
		w.expectAwake("new0", "new1")
	})
}

// TestPodsOfBeforeAScaleDownRaiseNoQuota: a budget refuses the deletion of pods that are too many, so the ReplicaSet still has them while others are evicted and replaced.
func TestPodsOfBeforeAScaleDownRaiseNoQuota(t *testing.T) {
	w := newWorld(t, 8)
	w.spread(1, `{subsets: [{name: a, maxReplicas: "50%"}, {name: b, maxReplicas: "50%"}]}`)
	for i, pod := range w.podsNamed("old", 6) {
		in := []string{"a", "b"}[i%2]
		w.seeBound(pod, "node-"+in, in)
	}
	w.scale(4)
	waits := w.pod("new")
	w.expectChoice(waits, "WorkloadNotObserved")
	w.step(2 * time.Second)
	w.expectChoice(waits, "WorkloadNotObserved")
	w.answer(4)
	w.expectChoice(waits, "-")
}

func TestAnInvalidSpreadHoldsItsPodsUntilItIsCorrected(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `subsets: [{name: a, maxReplicas: -1}]`)
	pod := w.pod("p")
	w.expectChoice(pod, "InvalidSpread")
	w.spread(2, twoThenAny)
	w.expectAwake("p")
	w.expectChoice(pod, "a")
	w.expectKept("a=1 b=0")
}

// After a restart, the kind between the ReplicaSets and the workload of the spread is watched on demand. A pod that runs below another object of that kind counts
// from the moment that the new pod is divided.
func TestSiblingsBelowCustomOwnersAreKnownTogether(t *testing.T) {
	w := emptyWorld(t)
	w.spreadOf("web", 1, "Fleet", "web", `{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {quotaScope: Workload, whenFull: Wait}}`)
	own := func(kind, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(name), Controller: ptr.To(true)}}
	}
	meta := func(name, kind, owner string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), OwnerReferences: own(kind, owner)}
	}
	for _, n := range []string{"1", "2"} { // the informers that a take-over waits for
		w.apply(OwnerSeen{Kind: replicaSetKind, Object: &appsv1.ReplicaSet{ObjectMeta: meta("rs"+n, "Rollout", "ro"+n)}})
	}
	w.see(onNode(&corev1.Pod{ObjectMeta: meta("running", "ReplicaSet", "rs1")}, "node-a", "a"))
	next := &corev1.Pod{ObjectMeta: meta("next", "ReplicaSet", "rs2")}
	w.see(next)
	w.expectChoice(next, string(v1beta1.ReasonWorkloadNotObserved))
	rollouts := schema.GroupKind{Group: "apps", Kind: "Rollout"}
	w.apply(OwnersListed{Kind: rollouts, Objects: []metav1.Object{
		&metav1.PartialObjectMetadata{ObjectMeta: meta("ro2", "Fleet", "web")}, &metav1.PartialObjectMetadata{ObjectMeta: meta("ro1", "Fleet", "web")}}})
	w.expectChoice(next, string(v1beta1.ReasonSubsetsFull))
}
