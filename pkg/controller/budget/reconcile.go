package budget

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
)

// lookInterval is how often the controller checks for changes without an event, such as the scale of a custom kind.
const lookInterval = 30 * time.Second

// labelRetry is how long the controller waits before it retries to write a label. The rest of the reconciliation does not wait.
const labelRetry = 5 * time.Second

// reconciler writes the status of budgets, and the labels of their pods.
type reconciler struct {
	cached client.Reader
	// live reads from the API server. The input of every status and ledger comes from it.
	live   client.Reader
	writer client.Client
	census *census.Census
	events events.EventRecorder
	clock  clock.PassiveClock
	// seen is when this process first saw each ledger entry, a time.Time by seenKey.
	seen   *cache.Expiring
	expiry time.Duration
	extent *extents
	// notices announce the end of a node. Nil announces nothing.
	notices podstate.Notices
}

var _ reconcile.Reconciler = &reconciler{}

// Reconcile reads the budget, and then its pods and workloads. It protects new pods, removes ledger entries that are not needed any more, and writes the
// status if it has changed. It also keeps the PodDisruptionBudget that the budget asks for, and replaces pods first. For a request without a name it removes the label from pods of the namespace that are in no budget.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if request.Name == "" {
		return reconcile.Result{}, r.unprotect(ctx, request.Namespace)
	}
	pub := &v1beta1.PodUnavailableBudget{}
	err := r.live.Get(ctx, request.NamespacedName, pub)
	if apierrors.IsNotFound(err) {
		r.extent.forget(request.NamespacedName)
		return reconcile.Result{}, r.unprotect(ctx, request.Namespace)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the budget: %w", err)
	}
	if pub.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	policy, errs := model.Compile(pub)
	if len(errs) > 0 {
		return resultOf(r.publish(ctx, pub, unusable(pub, v1beta1.ReasonInvalidBudget, "the budget protects nothing until its spec is corrected: "+errs.ToAggregate().Error(), r.now())))
	}
	end := r.extent.begin(request.NamespacedName)
	defer end()
	gone, err := r.gone(ctx, pub)
	if err != nil {
		return reconcile.Result{}, err
	}
	count, err := r.census.Take(ctx, pub, policy, "")
	if apierrors.IsForbidden(err) { // no event tells when the permission is granted, so the error makes the controller retry
		status := unusable(pub, v1beta1.ReasonReadFailed, "Berth cannot read the budget's pods or their workload, and protects no further pod until it can: "+err.Error(), r.now())
		return reconcile.Result{}, errors.Join(err, r.publish(ctx, pub, status))
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	// An error in writing a label or the PodDisruptionBudget is logged below. It does not prevent the other steps.
	isNew := r.extent.set(request.NamespacedName, pub, count)
	end()
	failed := r.protect(ctx, count)
	if isNew {
		failed = errors.Join(failed, r.unprotect(ctx, request.Namespace))
	}
	kept, err := r.keepDisruptionBudget(ctx, pub, policy, count)
	failed = errors.Join(failed, err)
	over, next := r.settle(pub, count, gone)
	plan, again := r.replace(ctx, pub, policy, count)
	if err := r.conclude(ctx, pub, policy, count, over, kept, plan.Over); err != nil {
		return resultOf(errors.Join(failed, err))
	}
	if r.takeBackAll(ctx, pub, policy, count, &plan) {
		again = replaceRetry
	}
	next = sooner(sooner(next, again), plan.Next)
	if failed != nil {
		klog.FromContext(ctx).Error(failed, "Writing labels and the PodDisruptionBudget will be tried again", "budget", klog.KObj(pub))
		next = sooner(next, labelRetry)
	}
	for i := range count.Facts.Pods {
		if until := count.Facts.Pods[i].Until; !until.IsZero() {
			next = sooner(next, max(until.Sub(r.clock.Now()), time.Second))
		}
	}
	if count.Unwatched || count.TargetGone {
		next = sooner(next, lookInterval)
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

// sooner is the shorter of two delays before the next reconciliation. 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// resultOf turns an error into a result. A budget that somebody else has changed is reconciled again soon. A budget that was deleted is no error.
func resultOf(err error) (reconcile.Result, error) {
	if errors.Is(err, errChanged) || apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: frame.BatchWindow}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// errChanged is returned by conclude if the pods were counted for a budget that has changed since.
var errChanged = errors.New("the budget has changed meanwhile")

// conclude writes the status for the pods that were counted, and sends its events. If the webhook has written a new status in between, conclude computes
// the status for that version and tries again. The count is still valid then, and so are the outcomes of entries that have not changed. forgotten are the pods
// that are not replaced first any more.
func (r *reconciler) conclude(
	ctx context.Context, pub *v1beta1.PodUnavailableBudget, policy *model.Policy, count *census.Count, over settled, kept condition, forgotten sets.Set[types.UID],
) error {
	for range maxAttempts {
		ledger, expired := over.strikeOut(pub.Status.Ledger)
		status := describe(pub, policy, count, ledger, kept, r.now())
		status.Replacing = slices.DeleteFunc(status.Replacing, func(pod v1beta1.ReplacedPod) bool { return forgotten.Has(pod.UID) })
		err := r.publish(ctx, pub, status)
		if err == nil {
			for i := range expired {
				approvalExpired(&expired[i], r.expiry).Send(r.events, pub, nil)
				klog.FromContext(ctx).Info("Approval expired", "budget", klog.KObj(pub), "pod", expired[i].Name, "operation", expired[i].Operation)
			}
			return nil
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		latest := &v1beta1.PodUnavailableBudget{}
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(pub), latest); err != nil {
			return fmt.Errorf("reading the budget again: %w", err)
		}
		before, now := model.SourceOf(pub), model.SourceOf(latest)
		onlyStatus := now.Equal(&before) && latest.DeletionTimestamp == nil && maps.Equal(latest.Annotations, pub.Annotations)
		if !onlyStatus {
			break
		}
		pub = latest
	}
	return errChanged
}

// maxAttempts is how often conclude tries to write a status for one count.
const maxAttempts = 3

// gone are the pods of the ledger that do not exist any more, by UID. Reconcile calls it before it reads the pods of the budget. So no list of pods at
// that revision or later contains a pod that is gone. If the cache still has a pod, gone does not ask the API server: an event follows when
// the pod is gone. A pod with an invalid name cannot exist. gone does not ask about such names, because the API server would not answer "not found".
func (r *reconciler) gone(ctx context.Context, pub *v1beta1.PodUnavailableBudget) (map[types.UID]bool, error) {
	gone := map[types.UID]bool{}
	for i := range pub.Status.Ledger {
		entry := &pub.Status.Ledger[i]
		if len(validation.IsDNS1123Subdomain(entry.Name)) > 0 {
			gone[entry.UID] = true
			continue
		}
		name := types.NamespacedName{Namespace: pub.Namespace, Name: entry.Name}
		for _, reader := range []client.Reader{r.cached, r.live} {
			pod := &corev1.Pod{}
			err := reader.Get(ctx, name, pod)
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("reading pod %s: %w", name, err)
			}
			gone[entry.UID] = err != nil || pod.UID != entry.UID
			if !gone[entry.UID] {
				break
			}
		}
	}
	return gone, nil
}

// settle finds the ledger entries whose outcome is proven, and those that expire. next is when to check the remaining entries again, 0 if there are none.
// All proof is from the counted pods, or older.
func (r *reconciler) settle(pub *v1beta1.PodUnavailableBudget, count *census.Count, gone map[types.UID]bool) (over settled, next time.Duration) {
	listed := make(map[types.UID]*corev1.Pod, len(count.Listed))
	for _, pod := range count.Listed {
		listed[pod.UID] = pod
	}
	over = settled{}
	for i := range pub.Status.Ledger {
		entry := &pub.Status.Ledger[i]
		pod, found := listed[entry.UID]
		remaining := r.expiry - r.age(pub, entry)
		switch {
		case (found || gone[entry.UID]) && model.Settled(entry, pod):
			over[keyOf(entry)] = false
		case remaining <= 0 && model.MayExpire(entry, pod):
			hasLeft := entry.Operation == v1beta1.OperationLeave && (!count.Covers(entry.UID) || model.IsExempt(pod, count.Ignored))
			over[keyOf(entry)] = !hasLeft
		default:
			next = sooner(next, max(remaining, time.Second))
			continue
		}
		r.seen.Delete(seenKey{pub.UID, keyOf(entry)})
	}
	return over, next
}

// settled has the ledger entries that are not needed any more. It is true for those about which nothing is proven. An entry that was renewed since has
// another key.
type settled map[v1beta1.LedgerEntry]bool

// strikeOut returns the entries that are still needed, and those that it removes without proof, which must be reported. An entry that was renewed
// in between is needed.
func (s settled) strikeOut(ledger []v1beta1.LedgerEntry) (needed, expired []v1beta1.LedgerEntry) {
	for i := range ledger {
		switch unproven, over := s[keyOf(&ledger[i])]; {
		case !over:
			needed = append(needed, ledger[i])
		case unproven:
			expired = append(expired, ledger[i])
		}
	}
	return needed, expired
}

// publish writes the status if it has changed, and sends its events. The write carries the resourceVersion of pub, so it fails with a conflict if the
// budget has changed since it was read.
func (r *reconciler) publish(ctx context.Context, pub *v1beta1.PodUnavailableBudget, status v1beta1.PodUnavailableBudgetStatus) error {
	if equality.Semantic.DeepEqual(pub.Status, status) {
		return nil
	}
	frame.TellOfOtherWriter(r.events, pub, string(v1beta1.ReasonTwoControllers))
	written := pub.DeepCopy()
	written.Status = status
	if err := r.writer.Status().Update(ctx, written); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	if err := frame.TrackWriters(ctx, r.writer, written, v1beta1.Kind); err != nil {
		klog.FromContext(ctx).Error(err, "Another controller would not be noticed", "budget", klog.KObj(pub))
	}
	for _, n := range newsOf(written, &pub.Status) {
		n.Send(r.events, written, nil)
	}
	return nil
}
