package ledger

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// ownedBy returns the pod with another ReplicaSet as its owner.
func ownedBy(pod *corev1.Pod, name string, uid types.UID) *corev1.Pod {
	moved := pod.DeepCopy()
	moved.OwnerReferences[0].Name, moved.OwnerReferences[0].UID = name, uid
	return moved
}

func TestAPodThatGetsAnotherOwnerIsTriedAgain(t *testing.T) {
	alone := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "alone", UID: "alone-uid"}}
	t.Run("when it waited for the first to be seen", func(t *testing.T) {
		w := emptyWorld(t)
		w.scale(4)
		w.spread(1, twoThenAny)
		w.apply(OwnerSeen{Kind: replicaSetKind, Object: alone})
		pod := w.pod("p")
		w.expectChoice(pod, "WorkloadNotObserved")
		moved := ownedBy(pod, "alone", "alone-uid")
		w.see(moved)
		w.expectAwake("p")
		w.expectChoice(moved, "no spread")
	})
	t.Run("when it waited for a slot", func(t *testing.T) {
		w := newWorld(t, 4)
		w.spread(1, `{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
		w.apply(OwnerSeen{Kind: replicaSetKind, Object: alone})
		w.schedule(w.pod("first"))
		pod := w.pod("p")
		w.expectChoice(pod, "SubsetsFull")
		w.awake = nil
		w.see(ownedBy(pod, "alone", "alone-uid"))
		w.expectAwake("p")
	})
}

// A read may show a pod on its node before the watch of owners and the scheduler's queue know about the bind.
func TestABoundPodMayAskBeforeItsOwnerIsSeen(t *testing.T) {
	for name, annotations := range map[string]map[string]string{"": nil, " and its spread": {v1beta1.AdmittedAnnotation: `{"name":"web","subset":"a","pick":"p"}`}} {
		t.Run("before its owner"+name, func(t *testing.T) {
			w := emptyWorld(t)
			if annotations == nil {
				w.spread(1, twoThenAny)
			}
			pod := podOf("rs-uid", "p")
			pod.Annotations = annotations
			bound := pod.DeepCopy()
			bound.Spec.NodeName = "node-a"
			w.apply(PodListed{Pod: bound})
			if answer := w.ask(pod); answer.Decision != nil {
				t.Errorf("got %+v", answer)
			}
			if len(w.ledger.unresolved) != 0 {
				t.Errorf("unresolved: %v", w.ledger.unresolved)
			}
		})
	}
}

func TestAPodThatStaysForItsNominationIsNotWokenForASlotThatItDoesNotTake(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, `subsets:
- {name: a, maxReplicas: 1, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, maxReplicas: 2, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}`)
	first := w.pod("first")
	w.schedule(first)
	var pods []*corev1.Pod
	for _, name := range []string{"p", "q"} {
		pod := w.pod(name)
		w.expectChoice(pod, "b")
		pod = pod.DeepCopy()
		pod.Status.NominatedNodeName = "node-b"
		w.see(pod)
		pods = append(pods, pod)
		w.expectChoice(pod, "b")
	}
	let := w.pod("let-go")
	w.expectChoice(let, "-")
	w.awake = nil
	w.delete(first)
	// Every woken pod has a cycle, until no pod is woken.
	for cycles := 0; len(w.awake) > 0; cycles++ {
		if cycles > 10 {
			t.Fatalf("%v is woken again and again", w.awake)
		}
		name := w.awake[0]
		w.awake = w.awake[1:]
		for _, pod := range append(pods, let) {
			if pod.Name == name {
				w.ask(pod)
			}
		}
	}
	w.expectChoice(let, "a")
}

func TestOwnersThatOwnEachOtherAreForgotten(t *testing.T) {
	set := func(name, owner string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: ptr.To(true)}}}}
	}
	w := newWorld(t, 4)
	before := len(w.ledger.owners.byID)
	for _, owners := range [][]*metav1.PartialObjectMetadata{{set("self", "self")}, {set("x", "y"), set("y", "x")}, {set("x", "y"), set("y", "z"), set("z", "y")}} {
		for _, o := range owners {
			w.apply(OwnerSeen{Kind: replicaSetKind, Object: o})
		}
		pod := ownedBy(podOf("", "p"), owners[0].Name, owners[0].UID)
		w.see(pod)
		for _, o := range owners {
			w.apply(OwnerGone{Kind: replicaSetKind, Object: o})
		}
		w.spread(1, twoThenAny)
		w.expectChoice(pod, "no spread")
		w.delete(pod)
		w.spreadGone()
		if after := len(w.ledger.owners.byID); after != before {
			t.Errorf("%d owners are left of %s", after-before, owners[0].Name)
		}
	}
}

func TestAReservationComesBeforeClaimsThatGiveWay(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, halves)
	first, second := w.pod("first"), w.pod("second")
	w.expectChoice(first, "a")
	w.expectChoice(second, "a")
	w.refuse(second)
	w.scale(2)
	w.schedule(first) // its bind was not sent while the second pod kept its claim, however often the first tried
	w.expectChoice(second, "b")
}
