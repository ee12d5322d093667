package budget

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// lookInterval is how long it takes to see something that no event tells, such as the scale of a custom kind.
const lookInterval = 30 * time.Second

// reconciler writes the status of one budget, and the labels of its pods, at a time.
type reconciler struct {
	cached client.Reader
	// live reads from the API server. Everything that a status or a ledger is made of comes from it.
	live   client.Reader
	writer client.Client
	census *census.Census
	events events.EventRecorder
	clock  clock.PassiveClock
	seen   *sightings
	expiry time.Duration
	extent *extents
}

var _ reconcile.Reconciler = &reconciler{}

// Reconcile reads the budget, and after it what it covers, protects new pods, strikes out what is proven, and writes what is new.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pub := &v1alpha1.PodUnavailableBudget{}
	err := r.live.Get(ctx, request.NamespacedName, pub)
	if apierrors.IsNotFound(err) {
		r.extent.forget(request.NamespacedName)
		return reconcile.Result{}, r.unprotect(ctx, request.Namespace)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the budget: %w", err)
	}
	if pub.DeletionTimestamp != nil {
		r.seen.forget(pub.UID)
		return reconcile.Result{}, nil
	}
	policy, errs := model.Compile(pub)
	if len(errs) > 0 {
		return r.publish(ctx, pub, invalid(pub, errs.ToAggregate(), r.now()), reconcile.Result{})
	}
	count, err := r.census.Take(ctx, pub.Namespace, policy, "")
	if err != nil {
		return reconcile.Result{}, err
	}
	r.extent.set(request.NamespacedName, pub.Generation, count)
	if err := r.protect(ctx, count.Pods); err != nil {
		return reconcile.Result{}, err
	}
	if pub.Status.ObservedGeneration != pub.Generation || len(pub.Status.Conditions) == 0 {
		if err := r.unprotect(ctx, request.Namespace); err != nil {
			return reconcile.Result{}, err
		}
	}
	ledger, next, err := r.strikeOut(ctx, pub, count)
	if err != nil {
		return reconcile.Result{}, err
	}
	done := reconcile.Result{RequeueAfter: next}
	if (count.Unwatched || count.TargetGone) && (next == 0 || next > lookInterval) {
		done.RequeueAfter = lookInterval
	}
	facts := count.Facts
	facts.Ledger = ledger
	status := describe(pub, policy, count, ledger, policy.Tally(facts), r.now())
	if len(ledger) < len(pub.Status.Ledger) {
		// Who judges without these entries must see the pods as they were when it was proven what became of them, or later.
		status.LedgerRevision = model.Newest(pub.Status.LedgerRevision, count.Revision)
	}
	return r.publish(ctx, pub, status, done)
}

// strikeOut returns the ledger without the entries of which it is proven what became of them, and those that expire; and when the next one may
// expire, 0 if none can. That a pod is missing in the count proves nothing: the pod is read.
func (r *reconciler) strikeOut(ctx context.Context, pub *v1alpha1.PodUnavailableBudget, count *census.Count) (kept []v1alpha1.LedgerEntry, next time.Duration, err error) {
	counted := make(map[types.UID]*corev1.Pod, len(count.Pods))
	for _, pod := range count.Pods {
		counted[pod.UID] = pod
	}
	ages := r.seen.ages(pub)
	for i := range pub.Status.Ledger {
		entry := &pub.Status.Ledger[i]
		pod, covered := counted[entry.UID]
		if !covered {
			if pod, err = r.readPod(ctx, pub.Namespace, entry.Name); err != nil {
				return nil, 0, err
			}
			covered = pod != nil && count.Selector.Matches(labels.Set(pod.Labels))
		}
		if model.Settled(entry, pod, covered) {
			continue
		}
		left := r.expiry - ages[i]
		if left <= 0 && model.MayExpire(pod) {
			expired(pub, entry, r.expiry).send(r.events, pub)
			klog.FromContext(ctx).Info("Approval expired", "budget", klog.KObj(pub), "pod", entry.Name, "operation", entry.Operation)
			continue
		}
		kept = append(kept, *entry)
		left = max(left, time.Second)
		if next == 0 || left < next {
			next = left
		}
	}
	return kept, next, nil
}

// readPod is nil if there is no pod of the name.
func (r *reconciler) readPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := r.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// publish writes the status if it is new, with the resourceVersion of the budget that it was computed from: if that is not the latest, the
// status is not either, and is computed anew.
func (r *reconciler) publish(ctx context.Context, pub *v1alpha1.PodUnavailableBudget, status v1alpha1.PodUnavailableBudgetStatus, done reconcile.Result) (reconcile.Result, error) {
	if equality.Semantic.DeepEqual(pub.Status, status) {
		return done, nil
	}
	written := pub.DeepCopy()
	written.Status = status
	switch err := r.writer.Status().Update(ctx, written); {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: batchWindow}, nil
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil // deleted meanwhile
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("writing the status: %w", err)
	}
	for _, n := range newsOf(written, &pub.Status) {
		n.send(r.events, written)
	}
	return done, nil
}
