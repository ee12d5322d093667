package workloadspread

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// ownerRef is the controller of an object.
type ownerRef struct {
	group, version, kind, name string
	uid                        types.UID
}

// longestOwnerChain bounds the walk from a pod to its workload. Real chains have two or three links.
const longestOwnerChain = 8

func controllerOf(object metav1.Object) *ownerRef {
	ref := metav1.GetControllerOfNoCopy(object)
	if ref == nil {
		return nil
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil // the API server has validated it
	}
	return &ownerRef{group: gv.Group, version: gv.Version, kind: ref.Kind, name: ref.Name, uid: ref.UID}
}

func ownerUID(pod *corev1.Pod) types.UID {
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		return ref.UID
	}
	return ""
}

// resolve finds the spread that divides the pod, walking from owner to owner; the nearest owner with a spread counts. It returns nil if
// there is none, and the missing link if the walk ends at an object that has not been seen yet.
func (l *ledger) resolve(pod *corev1.Pod) (s *spread, missing *ownerRef) {
	if l.spreads.perNamespace[pod.Namespace] == 0 {
		return nil, nil
	}
	owner := controllerOf(pod)
	for range longestOwnerChain {
		if owner == nil {
			return nil, nil
		}
		if s := l.spreads.of(workloadKey{pod.Namespace, owner.group, owner.kind, owner.name}); s != nil && s.divides(pod) {
			return s, nil
		}
		parent, seen := l.workloads.parent(pod.Namespace, *owner)
		if !seen {
			return nil, owner
		}
		owner = parent
	}
	return nil, nil
}

// orphan remembers a pod until its owner is seen.
func (l *ledger) orphan(pod *corev1.Pod, owner types.UID) {
	pods := l.orphans[owner]
	if pods == nil {
		pods = map[types.UID]*corev1.Pod{}
		l.orphans[owner] = pods
	}
	pods[pod.UID] = pod
}

// ownerSeen takes in an object that may own pods, directly or through others.
func (l *ledger) ownerSeen(uid types.UID) {
	l.locked(func() {
		pods := l.orphans[uid]
		delete(l.orphans, uid)
		for _, pod := range pods {
			l.observeLocked(pod)
			if pod.Spec.NodeName == "" {
				l.awake[string(pod.UID)] = pod
			}
		}
	})
}

// nodeSeen counts the pods whose node was not known when they were first seen on it.
func (l *ledger) nodeSeen(name string) {
	l.locked(func() {
		for _, e := range l.unclassified {
			if e.pod.Spec.NodeName == name && e.spread.policy != nil {
				l.setSlots(e, l.classify(e), 0)
			}
		}
	})
}

// retryOrphans looks again at every pod whose owner has not been seen.
func (l *ledger) retryOrphans() {
	l.mu.Lock()
	owners := make([]types.UID, 0, len(l.orphans))
	for owner := range l.orphans {
		owners = append(owners, owner)
	}
	l.mu.Unlock()
	for _, owner := range owners {
		l.ownerSeen(owner)
	}
}
