package ledger

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

// ownedBy is the pod under another ReplicaSet.
func ownedBy(pod *corev1.Pod, name string, uid types.UID) *corev1.Pod {
	moved := pod.DeepCopy()
	moved.OwnerReferences[0].Name, moved.OwnerReferences[0].UID = name, uid
	return moved
}

// inGroup is the pod with another pod group; empty for none.
func inGroup(pod *corev1.Pod, group string) *corev1.Pod {
	moved := pod.DeepCopy()
	moved.Labels[v1alpha1.PodGroupLabel] = group
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

// A read may show a pod on its node before the watch of owners, and the queue of the scheduler, know of it.
func TestABoundPodMayAskBeforeItsOwnerIsSeen(t *testing.T) {
	for name, annotations := range map[string]map[string]string{"": nil, " and its spread": {v1alpha1.AdmittedAnnotation: `{"name":"web","subset":"a","pick":"p"}`}} {
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
			if len(w.ledger.undecided) != 0 {
				t.Errorf("undecided: %v", w.ledger.undecided)
			}
		})
	}
}

func TestAPodThatWaitsForNewsIsWokenHoweverEarlyItIsWokenForAnythingElse(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, `subsets: [{name: a, maxReplicas: "100%"}, {name: b}]
scheduleStrategy: {type: Adaptive, adaptive: {disableSimulationSchedule: true, rescheduleCriticalSeconds: 1}}`)
	pod := w.pod("p")
	if step := w.refuse(pod); step != Stay {
		t.Fatalf("got step %d", step)
	}
	w.pod("q") // more than the replicas
	w.expectChoice(pod, "WorkloadNotObserved")
	w.awake = nil
	w.step(time.Second) // what it waited for in the subset
	w.expectAwake("p")
	w.expectChoice(pod, "WorkloadNotObserved")
	w.awake = nil
	w.step(time.Second)
	w.expectAwake("p")
	w.expectChoice(pod, "a")
}

// The scheduler backs off from errors, and a pod that is activated skips that.
// A pod group of any size must not keep other namespaces waiting.
