package workloadspread

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// resolve finds the spread that divides the pod, walking from owner to owner; the nearest owner with a spread counts. It returns nil if
// there is none, and the missing link if the walk ends at an object that has not been seen yet.
func (l *ledger) resolve(pod *corev1.Pod) (s *spread, missing *workload.Owner) {
	if l.spreads.perNamespace[pod.Namespace] == 0 {
		return nil, nil
	}
	owner := workload.ControllerOf(pod)
	for range workload.LongestOwnerChain {
		if owner == nil {
			return nil, nil
		}
		if s := l.spreads.of(keyOf(pod.Namespace, *owner)); s != nil && s.divides(pod) {
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

// awaitsSpread is true while a pod that no spread divides should wait for one: admission had found one, and it may be that the watch of spreads is behind
// that of pods. It may be gone as well, which nothing tells; so the wait is bounded. The pod is woken when a spread divides it, or when the wait is over.
func (l *ledger) awaitsSpread(pod *corev1.Pod) bool {
	if !subset.WasAdmitted(pod) {
		return false
	}
	now := l.clock.Now()
	until, waits := l.strays[pod.UID]
	if !waits {
		until = now.Add(l.observationTimeout)
		l.strays[pod.UID] = until
		l.clock.AfterFunc(l.observationTimeout, func() {
			l.locked(func() {
				if _, waits := l.strays[pod.UID]; waits && l.entries[pod.UID] == nil {
					l.awake[string(pod.UID)] = pod
				}
			})
		})
	}
	return now.Before(until)
}

// nodeSeen counts the pods whose node was not known when they were first seen on it.
func (l *ledger) nodeSeen(name string) {
	l.locked(func() {
		for _, e := range l.unclassified {
			if e.pod.Spec.NodeName == name && e.spread.policy != nil {
				l.setSlots(e, l.classify(e), 0)
				l.wakeUnplaced(e.spread, e.scope, e.holds())
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
