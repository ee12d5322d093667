package budget

import (
	"encoding/json"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/workload"
)

// A pod is replaced first in three steps. Its ReplicaSet hands it to their Deployment: the Deployment becomes the controller of the pod. So the ReplicaSet
// makes another pod. The old pod keeps its labels, serves as before, and counts as a pod of the Deployment. It goes by the ordinary count once the new pod
// is ready. If that takes too long, the ReplicaSet takes it back. docs/decisions/0038-replace-first.md says why this is safe.

var (
	replicaSet = schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}
	deployment = schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}
)

// IsReplaceable is true for a pod of a Deployment's ReplicaSet. A claim can still forbid a second pod; see IsExclusive.
func IsReplaceable(pod *corev1.Pod) bool {
	owner := workload.ControllerOf(pod)
	return owner != nil && owner.Kind == replicaSet && pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != "" && pod.DeletionTimestamp == nil
}

// IsExclusive is true for a claim that only one pod, or the pods of one node, may write. A second pod would wait for the first.
func IsExclusive(claim *corev1.PersistentVolumeClaim) bool {
	modes := claim.Spec.AccessModes
	return !slices.Contains(modes, corev1.ReadWriteMany) && (len(modes) == 0 || slices.Contains(modes, corev1.ReadWriteOnce) || slices.Contains(modes, corev1.ReadWriteOncePod))
}

// replaces is true if the pod of a refused request is replaced first. It notes the pod in the decision if there is room for one more.
func (p *Policy) replaces(d *Decision, r *Request) bool {
	if p.ReplaceFirst == 0 || IsReplacing(d.Replacing, r.UID) {
		return p.ReplaceFirst > 0
	}
	if !r.Replaceable || len(d.Replacing) >= p.ReplaceFirst {
		return false
	}
	d.Replacing = append(d.Replacing, v1beta1.ReplacedPod{UID: r.UID, Name: r.Name})
	d.Changed = true
	return true
}

// askAgain is how long a pod that was asked for gives way to others.
const askAgain = 5 * time.Second

// LeaveFirst are the pods to ask for next, because their nodes end, as many as can be replaced at a time. They take turns: something else may hold one of them. left
// is true if more than these have to leave, or one of these may be refused.
func (p *Policy) LeaveFirst(f Facts, pods []*corev1.Pod, ends func(node string) bool, now time.Time) (ask []*corev1.Pod, left bool) {
	if p.ReplaceFirst == 0 {
		return nil, false
	}
	recorded := recordedIn(f.Ledger)
	for i, pod := range pods {
		if f.Pods[i].State != Exempt && !recorded.Has(pod.UID) && !IsReplacing(f.Replacing, pod.UID) && IsReplaceable(pod) && podstate.IsActive(pod) && ends(pod.Spec.NodeName) {
			ask = append(ask, pod)
		}
	}
	left = len(ask) > 0
	if n := len(ask); n > 0 {
		turn := int(now.UnixNano()/int64(askAgain)) % n
		ask = slices.Concat(ask[turn:], ask[:turn])[:min(n, max(p.ReplaceFirst-len(f.Replacing), 0))]
	}
	return ask, left
}

// IsReplacing is true if the pod is among those that are replaced first.
func IsReplacing(all []v1beta1.ReplacedPod, uid types.UID) bool {
	return slices.ContainsFunc(all, func(one v1beta1.ReplacedPod) bool { return one.UID == uid })
}

// handover says which ReplicaSet has handed a pod to its Deployment, for which budget, and when, by the controller's clock.
type handover struct {
	Budget     string      `json:"budget"`
	ReplicaSet string      `json:"replicaSet"`
	UID        types.UID   `json:"uid"`
	Since      metav1.Time `json:"since"`
}

// HandoverOf is nil for a pod that no ReplicaSet has handed over. The annotation alone says nothing: the pod's controller must be a Deployment.
func HandoverOf(pod *corev1.Pod) *handover {
	text, found := pod.Annotations[v1beta1.ReplacedFirstAnnotation]
	if !found {
		return nil
	}
	owner, h := workload.ControllerOf(pod), &handover{}
	if owner == nil || owner.Kind != deployment || json.Unmarshal([]byte(text), h) != nil || h.ReplicaSet == "" || h.UID == "" {
		return nil
	}
	return h
}

// HandOver is the merge patch that hands a pod of the ReplicaSet to the Deployment that controls both. The patch fails if the pod has changed.
func HandOver(pod *corev1.Pod, set *appsv1.ReplicaSet, budget string, now metav1.Time) []byte {
	mark, _ := json.Marshal(handover{Budget: budget, ReplicaSet: set.Name, UID: set.UID, Since: now}) // texts and a time do not fail
	to := *metav1.GetControllerOf(set)
	to.BlockOwnerDeletion = nil // only those who may change the finalizers of the Deployment may set it
	return moveTo(pod, to, string(mark))
}

// TakeBack is the merge patch that gives a pod back to its ReplicaSet. The patch fails if the pod has changed.
func TakeBack(pod *corev1.Pod, set *appsv1.ReplicaSet) []byte {
	to := *metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind(replicaSet.Kind))
	to.BlockOwnerDeletion = nil
	return moveTo(pod, to, nil)
}

// moveTo is a patch that replaces the controller of a pod. A nil mark removes the annotation.
func moveTo(pod *corev1.Pod, to metav1.OwnerReference, mark any) []byte {
	owners := slices.DeleteFunc(slices.Clone(pod.OwnerReferences), func(ref metav1.OwnerReference) bool {
		return ref.UID == to.UID || ref.Controller != nil && *ref.Controller
	})
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": pod.ResourceVersion, "ownerReferences": append(owners, to), "annotations": map[string]any{v1beta1.ReplacedFirstAnnotation: mark},
	}}) // texts do not fail
	return patch
}

// Replacing is what to do next about the pods that are replaced first.
type Replacing struct {
	// HandOver, Evict and TakeBack are the pods for each step.
	HandOver, Evict, TakeBack []*corev1.Pod
	// Over are the pods that are to be forgotten: they are gone, or cannot be replaced, or are taken back.
	Over sets.Set[types.UID]
	// Late are those of Evict that are to be taken back if their eviction is refused: something else holds them, such as a PodDisruptionBudget.
	Late sets.Set[types.UID]
	// Next is how long to wait until a pod is to be taken back, 0 if there is none.
	Next time.Duration
}

// Replace says what to do next about the pods that are replaced first. pods are those of the facts, in the same order. elsewhere are those that another budget
// has handed over and looks after.
//
//   - A pod that may go by the count is evicted, whether it was handed over or not. The webhook decides about that eviction as about any.
//   - A pod is handed over while fewer than ReplaceFirst are.
//   - A pod is taken back if it was handed over too long ago, or if nobody asks for it: the budget was edited, or a controller has died in between. Then its
//     ReplicaSet has a pod too many. It removes one that is not ready first, and the webhook decides about that as well.
func (p *Policy) Replace(f Facts, pods []*corev1.Pod, elsewhere sets.Set[types.UID], now time.Time) Replacing {
	plan := Replacing{Over: sets.New[types.UID](), Late: sets.New[types.UID]()}
	for i := range f.Replacing {
		plan.Over.Insert(f.Replacing[i].UID)
	}
	recorded, handed, t := recordedIn(f.Ledger), 0, p.Tally(f)
	var wanted []*corev1.Pod
	for i, pod := range pods {
		asked, handover := plan.Over.Has(pod.UID), HandoverOf(pod)
		if !asked && (handover == nil || elsewhere.Has(pod.UID)) || !podstate.IsActive(pod) {
			continue
		}
		plan.Over.Delete(pod.UID)
		state := f.Pods[i].State
		if handover != nil {
			handed++
		}
		left := time.Duration(0)
		if handover != nil && asked && p.ReplaceFirst > 0 {
			left = handover.Since.Add(p.ReplaceTimeout).Sub(now)
		}
		switch {
		case recorded.Has(pod.UID): // it is about to go
		case state == Exempt || p.judge(v1beta1.OperationEvict, &f.Pods[i], false, &t).Allowed:
			plan.Evict = append(plan.Evict, pod)
			if handover != nil && left <= 0 {
				plan.Late.Insert(pod.UID)
			}
			if state == Available {
				t.take(&f.Pods[i])
			}
		case left > 0:
			if plan.Next == 0 || left < plan.Next {
				plan.Next = left
			}
		case handover != nil:
			plan.TakeBack = append(plan.TakeBack, pod)
			plan.Over.Insert(pod.UID)
		case p.ReplaceFirst > 0 && IsReplaceable(pod):
			wanted = append(wanted, pod)
		default:
			plan.Over.Insert(pod.UID)
		}
	}
	plan.HandOver = wanted[:min(len(wanted), max(p.ReplaceFirst-handed, 0))]
	return plan
}
