package workloadspread

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// EventsToRegister names the events after which a pod that the plugin rejected may find a node. Slots, spreads and workloads have no event
// here: the ledger wakes exactly as many pods as there are slots, after it has counted, which a hint cannot do.
func (s *Spread) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	events := []fwk.ClusterEventWithHint{
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAllocatable | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint},
			QueueingHintFn: s.isSchedulableAfterNodeChange,
		},
		// The other filters register this for the subset that the pod tried last. Room may come free in an earlier one.
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete | fwk.UpdatePodScaleDown | fwk.UpdatePodToleration},
			QueueingHintFn: s.isSchedulableAfterPodChange,
		},
		{
			Event:          fwk.ClusterEvent{Resource: fwk.VolumeAttachment, ActionType: fwk.Delete},
			QueueingHintFn: s.isSchedulableAfterVolumeChange,
		},
	}
	// So do the filters of volumes and devices, but a pod that has tried all of its subsets is refused in PreFilter, by this plugin alone.
	for _, resource := range []fwk.EventResource{
		fwk.PersistentVolume, fwk.PersistentVolumeClaim, fwk.StorageClass, fwk.CSINode, fwk.CSIDriver, fwk.CSIStorageCapacity,
	} {
		events = append(events, fwk.ClusterEventWithHint{
			Event: fwk.ClusterEvent{Resource: resource, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: s.isSchedulableAfterVolumeChange,
		})
	}
	for _, resource := range []fwk.EventResource{fwk.ResourceSlice, fwk.ResourceClaim, fwk.DeviceClass} {
		events = append(events, fwk.ClusterEventWithHint{
			Event: fwk.ClusterEvent{Resource: resource, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: s.isSchedulableAfterDeviceChange,
		})
	}
	return events, nil
}

// isSchedulableAfterNodeChange: the node has become one that the pod's subset may use, or there is more room on it.
func (s *Spread) isSchedulableAfterNodeChange(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := schedutil.As[*corev1.Node](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if s.ledger.mayRetry(pod, after, is) {
		return fwk.Queue, nil
	}
	claimed, own := s.ledger.claimOf(pod)
	if claimed == nil {
		return fwk.QueueSkip, nil
	}
	fits := func(node *corev1.Node) bool {
		return claimed.Fits(node, own) == v1alpha1.ReasonAdmitted
	}
	if fits(is) && (was == nil || !fits(was)) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// isSchedulableAfterPodChange: a pod has left a node of one of the subsets or needs less of it, or the pod itself has changed.
func (s *Spread) isSchedulableAfterPodChange(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := schedutil.As[*corev1.Pod](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if is != nil && is.UID == pod.UID {
		return fwk.Queue, nil
	}
	if was.Spec.NodeName != "" && s.ledger.mayRetry(pod, before, s.ledger.nodes(was.Spec.NodeName)) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// isSchedulableAfterVolumeChange: the pod's volumes may be within reach of nodes from which they were not.
func (s *Spread) isSchedulableAfterVolumeChange(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	of, only := after.(*corev1.PersistentVolumeClaim)
	uses := slices.ContainsFunc(pod.Spec.Volumes, func(volume corev1.Volume) bool {
		switch {
		case volume.PersistentVolumeClaim != nil:
			return !only || of.Namespace == pod.Namespace && of.Name == volume.PersistentVolumeClaim.ClaimName
		case volume.Ephemeral != nil:
			return !only || metav1.IsControlledBy(of, pod)
		default:
			return false
		}
	})
	if uses && s.ledger.mayRetryFilters(pod, cmp.Or(after, before)) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// isSchedulableAfterDeviceChange: there are more devices, or fewer that are taken, or the pod's own claim has changed.
func (s *Spread) isSchedulableAfterDeviceChange(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	if len(pod.Spec.ResourceClaims) == 0 {
		return fwk.QueueSkip, nil
	}
	if claim, ok := after.(*resourcev1.ResourceClaim); ok && !claims(pod, claim) {
		was, _ := before.(*resourcev1.ResourceClaim) // nil if the claim is new
		if was == nil || was.Status.Allocation == nil || claim.Status.Allocation != nil {
			return fwk.QueueSkip, nil
		}
	}
	if s.ledger.mayRetryFilters(pod, after) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// claims is true if the claim is one of the pod's, by its own name or made for the pod.
func claims(pod *corev1.Pod, claim *resourcev1.ResourceClaim) bool {
	return metav1.IsControlledBy(claim, pod) || claim.Namespace == pod.Namespace &&
		slices.ContainsFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
			return c.ResourceClaimName != nil && *c.ResourceClaimName == claim.Name
		})
}

// mayRetry is true for one exhausted pod of each kind for each event on a node that one of its spread's subsets selects. If that pod finds room,
// the next is woken. Nil is a node that is gone.
func (l *ledger) mayRetry(pod *corev1.Pod, event any, node *corev1.Node) bool {
	return node != nil && l.oneForEach(event, pod, func(e *entry) bool {
		return slices.ContainsFunc(e.spread.policy.Subsets, func(in subset.Subset) bool { return in.Fits(node, e.own) == v1alpha1.ReasonAdmitted })
	})
}

// mayRetryFilters is the same for an event that is on no node, and concerns pods that were refused by more than their nodes.
func (l *ledger) mayRetryFilters(pod *corev1.Pod, event any) bool {
	return l.oneForEach(event, pod, func(e *entry) bool { return e.tried != 0 })
}

func (l *ledger) oneForEach(event any, pod *corev1.Pod, concerns func(*entry) bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[pod.UID]
	if e == nil || !e.exhausted || e.spread.policy == nil {
		return false
	}
	if l.event != event {
		l.event = event
		clear(l.served)
	}
	list := e.place.list // nil if it is to be tried anyway
	if l.served[list] || !concerns(e) {
		return false
	}
	if list != nil {
		l.served[list] = true
		l.leave(e) // until its cycle, like one that is woken
	}
	e.retry = 0 // what comes in the middle of the round leaves no trace, so it is tried again soon
	return true
}

// claimOf is the subset that a pod without a node looks for one in, or nil, and the tolerations of its own.
func (l *ledger) claimOf(pod *corev1.Pod) (*subset.Subset, []corev1.Toleration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[pod.UID]
	if e == nil || e.subset == subset.None || e.state == bound {
		return nil, nil
	}
	return &e.spread.policy.Subsets[e.subset], e.own
}

// SignPod separates pods of different spreads and revisions: they may be in different subsets, so what was computed for one says nothing of
// the other.
func (s *Spread) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: Name, Value: s.ledger.signature(pod)}}, nil
}

func (l *ledger) signature(pod *corev1.Pod) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[pod.UID]; e != nil {
		return fmt.Sprintf("%s/%s", e.spread.object.UID, e.scope)
	}
	return ""
}
