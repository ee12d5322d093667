package budget

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/workload"
)

// replaceRetry is how long the controller waits before it repeats a step that was refused, as a drain does.
const replaceRetry = 5 * time.Second

// replace decides about the pods that are replaced first, and takes the steps that come before the write of the status. again is when to repeat a step, 0 if
// none has to be. Every step can be repeated: all that it relies on is in the pods and in the budget's status.
func (r *reconciler) replace(ctx context.Context, pub *v1beta1.PodUnavailableBudget, policy *model.Policy, count *census.Count) (plan model.Replacing, again time.Duration) {
	facts := count.Facts
	facts.Ledger, facts.Replacing = pub.Status.Ledger, pub.Status.Replacing
	elsewhere := sets.New[types.UID]()
	for _, pod := range count.Pods {
		if handover := model.HandoverOf(pod); handover != nil && handover.Budget != pub.Name {
			if other, found := r.extent.of(types.NamespacedName{Namespace: pub.Namespace, Name: handover.Budget}); found && other.pods.Has(pod.UID) {
				elsewhere.Insert(pod.UID)
			}
		}
	}
	plan = policy.Replace(facts, count.Pods, elsewhere, r.clock.Now())
	again = r.leaveEndingNodes(ctx, pub, policy, facts, count.Pods)
	logger := klog.FromContext(ctx).WithValues("budget", klog.KObj(pub))
	for _, pod := range plan.HandOver {
		switch err := r.handOver(ctx, pub, pod); {
		case err == nil:
			logger.V(2).Info("Handed a pod to its Deployment, so that a new one is made", "pod", klog.KObj(pod))
		case errors.Is(err, errNotReplaceable), apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsTooManyRequests(err):
			plan.Over.Insert(pod.UID) // so that others get their turn; the next request begins anew
			notReplaced(pod, "it cannot be handed to its Deployment: "+err.Error()).Send(r.events, pub, nil)
		default:
			logger.Error(err, "Will try again to hand a pod to its Deployment", "pod", klog.KObj(pod))
			again = replaceRetry
		}
	}
	for _, pod := range plan.Evict {
		switch err := r.evict(ctx, pod); {
		case err == nil:
		case plan.Late.Has(pod.UID):
			plan.TakeBack = append(plan.TakeBack, pod)
			plan.Over.Insert(pod.UID)
		default:
			logger.V(2).Info("Will try again to evict a pod that was replaced first", "pod", klog.KObj(pod), "error", err)
			again = replaceRetry
		}
	}
	return plan, again
}

// leaveEndingNodes asks for the eviction of pods on nodes that announce their end. The webhook decides as about any eviction: it lets a pod go for which there
// is room, and notes another one in the status, so that a new pod is made first. again is when to ask for those that are left, 0 if there are none.
func (r *reconciler) leaveEndingNodes(ctx context.Context, pub *v1beta1.PodUnavailableBudget, policy *model.Policy, facts model.Facts, pods []*corev1.Pod) (again time.Duration) {
	notices := map[string]string{}
	ends := func(name string) bool {
		notice, known := notices[name]
		if node := (&corev1.Node{}); !known && r.cached.Get(ctx, types.NamespacedName{Name: name}, node, client.UnsafeDisableDeepCopy) == nil {
			notice = r.notices.Of(node)
		}
		notices[name] = notice
		return notice != ""
	}
	ask, left := policy.LeaveFirst(facts, pods, ends, r.clock.Now())
	for _, pod := range ask {
		nodeEnds(pod, notices[pod.Spec.NodeName]).Send(r.events, pub, nil)
		if err := r.evict(ctx, pod); err != nil && !apierrors.IsTooManyRequests(err) {
			klog.FromContext(ctx).Error(err, "Will try again to evict a pod from a node that ends", "budget", klog.KObj(pub), "pod", klog.KObj(pod))
		}
	}
	if left {
		return replaceRetry
	}
	return 0
}

// takeBackAll gives pods back to their ReplicaSets, after the status was written: a controller that dies in between leaves a pod for which nobody asks, and the
// next one takes it back. It is true if a step has to be repeated.
func (r *reconciler) takeBackAll(ctx context.Context, pub *v1beta1.PodUnavailableBudget, policy *model.Policy, count *census.Count, plan *model.Replacing) (again bool) {
	for _, pod := range plan.TakeBack {
		if policy.ReplaceFirst > 0 && model.IsReplacing(pub.Status.Replacing, pod.UID) {
			notReplaced(pod, fmt.Sprintf("no new pod was ready within %s%s", policy.ReplaceTimeout, whyNoNew(count))).Send(r.events, pub, nil)
		}
		if err := r.takeBack(ctx, pod); err != nil {
			klog.FromContext(ctx).Error(err, "Will try again to give a pod back to its ReplicaSet", "budget", klog.KObj(pub), "pod", klog.KObj(pod))
			again = true
		}
	}
	return again
}

// whyNoNew says what one of the pods that have not started waits for. It is empty if there is none.
func whyNoNew(count *census.Count) string {
	for i, pod := range count.Pods {
		if count.Facts.Pods[i].State != model.Pending {
			continue
		}
		if c := podstate.Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("; pod %s is not scheduled: %.300s", pod.Name, c.Message)
		}
		return fmt.Sprintf("; pod %s has not started", pod.Name)
	}
	return ""
}

// errNotReplaceable: the pod has no ReplicaSet of a Deployment.
var errNotReplaceable = errors.New("it has no ReplicaSet of a Deployment")

// handOver makes the Deployment the controller of a pod. The ReplicaSet then makes another one.
func (r *reconciler) handOver(ctx context.Context, pub *v1beta1.PodUnavailableBudget, pod *corev1.Pod) error {
	set, deployment, owner := &appsv1.ReplicaSet{}, &metav1.PartialObjectMetadata{}, workload.ControllerOf(pod)
	deployment.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	if err := r.readOwner(ctx, pod, set, owner.Name, owner.UID); err != nil {
		return err
	}
	if owner = workload.ControllerOf(set); owner == nil || owner.Kind != deployment.GroupVersionKind().GroupKind() {
		return errNotReplaceable
	}
	// The garbage collector would take the pod for one of a Deployment that is gone.
	if err := r.readOwner(ctx, pod, deployment, owner.Name, owner.UID); err != nil {
		return err
	}
	return r.patch(ctx, pod, model.HandOver(pod, set, pub.Name, r.now()))
}

// takeBack gives a pod back to the ReplicaSet that has handed it over. If that is gone, the pod is evicted, as far as its budget allows it.
func (r *reconciler) takeBack(ctx context.Context, pod *corev1.Pod) error {
	handover, set := model.HandoverOf(pod), &appsv1.ReplicaSet{}
	err := r.readOwner(ctx, pod, set, handover.ReplicaSet, handover.UID)
	if errors.Is(err, errNotReplaceable) || err == nil && workload.ControllerUID(set) != workload.ControllerUID(pod) {
		return r.evict(ctx, pod)
	}
	if err != nil {
		return err
	}
	return r.patch(ctx, pod, model.TakeBack(pod, set))
}

// readOwner reads an owner of the pod from the API server. It returns errNotReplaceable for one that is gone or is being deleted.
func (r *reconciler) readOwner(ctx context.Context, pod *corev1.Pod, owner client.Object, name string, uid types.UID) error {
	err := r.live.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: name}, owner)
	if apierrors.IsNotFound(err) || err == nil && (owner.GetUID() != uid || owner.GetDeletionTimestamp() != nil) {
		return errNotReplaceable
	}
	if err != nil {
		return fmt.Errorf("reading the pod's owner %s: %w", name, err)
	}
	return nil
}

// evict asks for the eviction of a pod, as anybody would. The webhook decides about it.
func (r *reconciler) evict(ctx context.Context, pod *corev1.Pod) error {
	eviction := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}}
	err := r.writer.SubResource("eviction").Create(ctx, pod.DeepCopy(), eviction)
	if apierrors.IsConflict(err) {
		return nil // another pod has the name by now
	}
	return client.IgnoreNotFound(err)
}
