package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// earlyBinding picks the subset of a pod at admission, when its spec can still be patched.
type earlyBinding struct {
	owners   *lineage.Lineage
	bookings *bookings
}

// maxPickLength bounds the mark of a pick, in bytes. It is read from pods, so anybody can write one, and the webhook remembers it.
const maxPickLength = 64

// maxPickAge is longer than the API server works on one request.
const maxPickAge = time.Minute

// review answers with the pod as its subset wants it. It picks the subset, unless an earlier review of the same pod has picked one.
func (e *earlyBinding) review(ctx context.Context, request *podRequest, found *lineage.Spread) answer {
	key := types.NamespacedName{Namespace: request.Namespace, Name: found.Name}
	object := &v1beta1.WorkloadSpread{}
	if err := e.owners.Reader.Get(ctx, key, object, client.UnsafeDisableDeepCopy); err != nil {
		return e.admitUnchanged(ctx, key, fmt.Errorf("reading WorkloadSpread %s: %w", key.Name, err))
	}
	target, err := e.owners.Read(ctx, key.Namespace, workload.TargetOf(object))
	if err != nil {
		return e.admitUnchanged(ctx, key, err)
	}
	policy := found.Policy
	admitted, in := e.pickedBefore(ctx, request, policy, key)
	if in == subset.None {
		if admitted, in, err = e.pick(ctx, request, policy, object, target); err != nil {
			return e.admitUnchanged(ctx, key, err)
		}
	}
	patch, err := request.Object.patchFor(policy, in, admitted, workload.Selector(target))
	if err != nil {
		return e.admitUnchanged(ctx, key, fmt.Errorf("applying the patch of subset %s of WorkloadSpread %s: %w", admitted.Subset, key.Name, err))
	}
	return answer{outcome: picked, patch: patch}
}

// pickedBefore is the pick that an earlier review left on the pod. The pod carries the patch of this subset. The API server asks again after other
// webhooks, or its own plugins, have changed the pod. It is subset.None if the pod has no pick of this spread, or one that is too old for this
// request: then the pod is a copy of another pod.
func (e *earlyBinding) pickedBefore(ctx context.Context, request *podRequest, policy *subset.Policy, spread types.NamespacedName) (v1beta1.AdmittedSubset, int) {
	var admitted v1beta1.AdmittedSubset
	note, noted := request.Object.Metadata.Annotations[v1beta1.AdmittedAnnotation]
	if !noted || json.Unmarshal([]byte(note), &admitted) != nil || admitted.Name != spread.Name || admitted.Pick == "" || len(admitted.Pick) > maxPickLength {
		return admitted, subset.None
	}
	in, now := policy.Index(admitted.Subset), e.bookings.clock.Now()
	if in == subset.None || now.Sub(admitted.Time.Time).Abs() > maxPickAge { // the clock of another replica may be ahead
		return admitted, subset.None
	}
	klog.FromContext(ctx).V(4).Info("Keeping to the subset picked before", "workloadspread", klog.KRef(spread.Namespace, spread.Name), "subset", admitted.Subset)
	if !request.isTrial() {
		e.bookings.keep(spread, place{revision: subset.RevisionOf(request.Object.pod()), subset: admitted.Subset}, admitted.Pick)
	}
	return admitted, in
}

// pick finds out how full the subsets are, lets the model pick one, and books it.
func (e *earlyBinding) pick(ctx context.Context, request *podRequest, policy *subset.Policy, spread *v1beta1.WorkloadSpread, target client.Object) (
	v1beta1.AdmittedSubset, int, error) {
	pod, now := request.Object.pod(), e.bookings.clock.Now()
	admitted := v1beta1.AdmittedSubset{Name: spread.Name, Pick: string(uuid.NewUUID()), Time: metav1.NewTime(now)}
	closed := moves.ClosedBy(spread.Status.Moves, spread.Status.SubsetStatuses, policy, now)
	asking := candidate{
		spread: client.ObjectKeyFromObject(spread), policy: policy, revision: subset.RevisionOf(pod), mark: admitted.Pick, trial: request.isTrial(), closed: closed,
		node: func(name string) (*corev1.Node, error) { return e.owners.Node(ctx, name) },
	}
	asking.replicas, asking.mayLag = replicasOrObserved(target, spread)
	var err error
	if asking.position, err = e.positionOf(ctx, request.Namespace, pod, policy, workload.TargetOf(spread)); err != nil {
		return admitted, subset.None, err
	}
	if asking.owners, err = e.ownersBelow(ctx, request.Namespace, pod, workload.TargetOf(spread)); err != nil {
		return admitted, subset.None, err
	}
	verdict, err := e.bookings.book(&asking)
	if err != nil {
		return admitted, subset.None, err
	}
	admitted.Lent = verdict.Lent
	if verdict.Subset != subset.None {
		admitted.Subset = policy.Subsets[verdict.Subset].Name
	}
	klog.FromContext(ctx).V(4).Info("Picked a subset at admission", "workloadspread", klog.KObj(spread), "subset", admitted.Subset, "reason", verdict.Reason)
	return admitted, verdict.Subset, nil
}

// positionOf is the position of a pod in its StatefulSet, 0 if it has none, or if its ordinals cannot be read.
func (e *earlyBinding) positionOf(ctx context.Context, namespace string, pod *corev1.Pod, policy *subset.Policy, target workload.Owner) (int32, error) {
	controller := workload.ControllerOf(pod)
	if !workload.ByOrdinal(controller.Kind) || !policy.GoByOrdinal() {
		return 0, nil
	}
	set, err := e.owners.AwaitOwner(ctx, namespace, *controller)
	if err != nil {
		return 0, err
	}
	inTime, cancel := context.WithTimeout(ctx, lineage.OwnerTimeout)
	defer cancel()
	read, err := e.owners.Ordinals(inTime, namespace, target)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Picking a subset without the ordinal of the pod", "namespace", namespace, "pod", pod.Name)
	}
	return workload.OrdinalsOf(*controller, set, read).Position(pod.Name, controller.Name), nil
}

// isTrial is true for a dry run.
func (r *podRequest) isTrial() bool { return r.DryRun != nil && *r.DryRun }

func (e *earlyBinding) admitUnchanged(ctx context.Context, key types.NamespacedName, err error) answer {
	klog.FromContext(ctx).Error(err, "Admitting a pod of a spread as it is", "workloadspread", klog.KRef(key.Namespace, key.Name))
	return answer{outcome: failed, warnings: []string{"Berth admits the pod without the patch of its subset: " + err.Error()}}
}

// replicasOrObserved are the replicas of the workload in the cache. If the cache does not have them, they are those in the spread's status, which may
// be older than the pods that are created for them.
func replicasOrObserved(target client.Object, spread *v1beta1.WorkloadSpread) (replicas int32, mayLag bool) {
	if target != nil {
		if replicas, err := workload.Replicas(target, subset.ReplicaPaths(spread)); err == nil {
			return replicas, false
		}
	}
	return spread.Status.ObservedReplicas, true
}

// ownersBelow are the workload of the pod, and all owners of pods below it.
func (e *earlyBinding) ownersBelow(ctx context.Context, namespace string, pod *corev1.Pod, target workload.Owner) (owners []owner, _ error) {
	var top types.UID // the reference to the workload says it also if the cache does not have the workload
	if _, err := e.owners.Climb(ctx, namespace, workload.ControllerOf(pod), func(o workload.Owner) (bool, error) {
		top = o.UID
		return o.Kind == target.Kind && o.Name == target.Name, nil
	}); err != nil {
		return nil, err
	}
	err := e.owners.Below(ctx, namespace, top, func(uid types.UID, divided func(map[string]string) bool) error {
		owners = append(owners, owner{uid, divided})
		return nil
	})
	return owners, err
}

// patchFor returns the changes that the subset makes to the pod: its strategic merge patch, its term and tolerations, Berth's scheduler, and the
// annotation with the pick. With subset.None they are the scheduler and the annotation. Labels by which the workload selects its pods stay as they
// are. The selector is nil if it is not known.
func (o *podObject) patchFor(policy *subset.Policy, index int, admitted v1beta1.AdmittedSubset, selector labels.Selector) ([]jsonpatch.Operation, error) {
	var tree map[string]any
	if err := kjson.Unmarshal(o.raw, &tree); err != nil { // which keeps integers
		return nil, err
	}
	tree, err := policy.PatchEarly(tree, index, admitted, selector)
	if err != nil {
		return nil, err
	}
	var constraints subset.Constraints
	if index != subset.None {
		constraints = policy.Subsets[index].Constraints
	}
	patched, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.CreatePatch(o.raw, patched)
	if err != nil {
		return nil, err
	}
	var after podObject
	if err := json.Unmarshal(patched, &after); err != nil {
		return nil, err
	}
	before := after.pod()
	pod := *before
	pod.Spec.SchedulerName = policy.SchedulerOf(before.Spec.SchedulerName)
	constraints.AddTo(&pod)
	more, err := patchOf(before, &pod)
	return append(patch, more...), err
}
