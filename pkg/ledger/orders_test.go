package ledger

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
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

// The scheduler backs off from errors, and a pod that is activated skips that.
// A pod group of any size must not keep other namespaces waiting.
