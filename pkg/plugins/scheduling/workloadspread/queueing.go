package workloadspread

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/workload"
)

// EventsToRegister returns the events after which a rejected pod may find a node. Slots, spreads and workloads have no event here: the ledger wakes
// as many pods as there are slots, after it has counted them. A queueing hint cannot do that.
func (s *Spread) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	events := []fwk.ClusterEventWithHint{
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAllocatable | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint | fwk.UpdateNodeCondition},
			QueueingHintFn: s.isSchedulableAfterNodeChange,
		},
		// The other filters register this for the subset that the pod tried last. There may be room in an earlier one.
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete | fwk.UpdatePodScaleDown | fwk.UpdatePodToleration},
			QueueingHintFn: s.isSchedulableAfterPodChange,
		},
		// The filters of pod affinity and topology spread register these too. But a pod that has tried all of its subsets is refused in PreFilter, by this
		// plugin alone.
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Add | fwk.UpdatePodLabel},
			QueueingHintFn: s.isSchedulableAfterNeighbourChange,
		},
		{
			Event:          fwk.ClusterEvent{Resource: fwk.VolumeAttachment, ActionType: fwk.Delete},
			QueueingHintFn: s.isSchedulableAfterVolumeChange,
		},
	}
	// The filters of volumes and devices register these too. But a pod that has tried all of its subsets is refused in PreFilter, by this plugin
	// alone.
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

// isSchedulableAfterNodeChange: the pod may use the node now, in its subset or without one, and could not before; or the node has more room.
func (s *Spread) isSchedulableAfterNodeChange(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := schedutil.As[*corev1.Node](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	return hint(s.mayRetry(ledger.ClusterChanged{UID: pod.UID, Change: after, Node: is, OnNode: true}) ||
		query(s.book, func(l *ledger.Ledger) bool { return s.mayUse(l, pod, is) && (was == nil || !s.mayUse(l, pod, was)) }))
}

func (s *Spread) mayUse(l *ledger.Ledger, pod *corev1.Pod, node *corev1.Node) bool {
	return l.MayUse(pod.UID, node) && s.settings.notices.Of(node) == ""
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
	at := cmp.Or(was.Spec.NodeName, was.Status.NominatedNodeName)
	return hint(at != "" && s.mayRetry(ledger.ClusterChanged{UID: pod.UID, Change: before, Node: s.node(at), OnNode: true}))
}

// isSchedulableAfterNeighbourChange: another pod is on a node, or its labels have changed, and this pod may only run beside such pods, or apart from them.
func (s *Spread) isSchedulableAfterNeighbourChange(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := schedutil.As[*corev1.Pod](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if is == nil || is.Spec.NodeName == "" {
		return fwk.QueueSkip, nil
	}
	concerned, err := isPlacedBy(pod, is)
	if err == nil && !concerned && was != nil {
		concerned, err = isPlacedBy(pod, was)
	}
	if err != nil {
		return fwk.Queue, err
	}
	return hint(concerned && s.mayRetry(ledger.ClusterChanged{UID: pod.UID, Change: after, Filters: true}))
}

// isPlacedBy is true if a required term of the pod's affinity, or one of its topology spread constraints, selects the other pod.
func isPlacedBy(pod, other *corev1.Pod) (bool, error) {
	if affinity := pod.Spec.Affinity; affinity != nil && (affinity.PodAffinity != nil || affinity.PodAntiAffinity != nil) {
		terms, err := fwk.GetAffinityTerms(pod, append(slices.Clone(fwk.GetPodAffinityTerms(affinity)), fwk.GetPodAntiAffinityTerms(affinity)...))
		if err != nil {
			return false, err
		}
		for i := range terms {
			if terms[i].Selector.Matches(labels.Set(other.Labels)) { // the namespaces are not looked at: a needless cycle harms little
				return true, nil
			}
		}
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		constraint := &pod.Spec.TopologySpreadConstraints[i]
		if other.Namespace != pod.Namespace || constraint.WhenUnsatisfiable != corev1.DoNotSchedule {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(constraint.LabelSelector)
		if err != nil {
			return false, err
		}
		if selector.Matches(labels.Set(other.Labels)) {
			return true, nil
		}
	}
	return false, nil
}

// isSchedulableAfterVolumeChange: nodes may reach the pod's volumes now that could not before.
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
	return hint(uses && s.mayRetry(ledger.ClusterChanged{UID: pod.UID, Change: cmp.Or(after, before)}))
}

// isSchedulableAfterDeviceChange: there are more devices, or more free ones, or the pod's own claim has changed, or a class serves other resources.
func (s *Spread) isSchedulableAfterDeviceChange(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	extended := len(extendedResources(pod)) > 0
	if len(pod.Spec.ResourceClaims) == 0 && !extended {
		return fwk.QueueSkip, nil
	}
	if claim, ok := after.(*resourcev1.ResourceClaim); ok && !claims(pod, claim) {
		was, _ := before.(*resourcev1.ResourceClaim) // nil if the claim is new
		if was == nil || was.Status.Allocation == nil || claim.Status.Allocation != nil {
			return fwk.QueueSkip, nil
		}
	}
	_, class := after.(*resourcev1.DeviceClass)
	return hint(s.mayRetry(ledger.ClusterChanged{UID: pod.UID, Change: after, Filters: class && extended}))
}

// claims is true if the claim is the pod's, by name or because it was made for the pod.
func claims(pod *corev1.Pod, claim *resourcev1.ResourceClaim) bool {
	return metav1.IsControlledBy(claim, pod) || claim.Namespace == pod.Namespace &&
		slices.ContainsFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
			return c.ResourceClaimName != nil && *c.ResourceClaimName == claim.Name
		})
}

func hint(queue bool) (fwk.QueueingHint, error) {
	if queue {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// mayRetry is true for one exhausted pod of each class, for each change that may have made room. If that pod finds a node, the next one is woken.
func (s *Spread) mayRetry(event ledger.ClusterChanged) bool { return s.book.apply(event).OK }

// SignPod signs pods in namespaces without a spread: nothing here decides where they go. A pod of a spread has no signature, so that no result of another pod
// is used for it: later versions of kube-scheduler ask before the pod's cycle, when its subset is not known.
func (s *Spread) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if owner := workload.ControllerOf(pod); owner != nil && !workload.EndsChain(owner.Kind) && s.book.hasSpreads(pod.Namespace) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "a spread may divide the pod")
	}
	return []fwk.SignFragment{{Key: Name, Value: ""}}, nil
}
