package budget

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
		err := r.publish(ctx, pub, invalid(pub, errs.ToAggregate(), r.now()))
		if apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: batchWindow}, nil
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	gone, err := r.gone(ctx, pub)
	if err != nil {
		return reconcile.Result{}, err
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
	over, next := r.settle(pub, count, gone)
	done := reconcile.Result{RequeueAfter: next}
	if (count.Unwatched || count.TargetGone) && (next == 0 || next > lookInterval) {
		done.RequeueAfter = lookInterval
	}
	for attempt := 1; ; attempt++ {
		ledger, gone := over.strikeOut(pub.Status.Ledger)
		err := r.publish(ctx, pub, describe(pub, policy, count, ledger, r.now()))
		if err == nil {
			r.report(ctx, pub, gone)
			return done, nil
		}
		if !apierrors.IsConflict(err) {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		// The webhook was faster. What is known of the pods, and by them of entries that are still as they were, is as true as it was.
		latest := &v1alpha1.PodUnavailableBudget{}
		if err := r.live.Get(ctx, request.NamespacedName, latest); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if attempt == maxAttempts || !isSameBudget(pub, latest) {
			return reconcile.Result{RequeueAfter: batchWindow}, nil
		}
		pub = latest
	}
}

// maxAttempts is how often a status is written for the pods that were read once.
const maxAttempts = 3

// isSameBudget is true if only the status may differ.
func isSameBudget(a, b *v1alpha1.PodUnavailableBudget) bool {
	return a.UID == b.UID && a.Generation == b.Generation && b.DeletionTimestamp == nil && maps.Equal(a.Annotations, b.Annotations)
}

// gone are the pods of the ledger that do not exist any more. It is found out before the pods of the budget are read, so that none of these is among
// those of any later revision. What the cache still has is not asked about: an event comes when it is gone.
func (r *reconciler) gone(ctx context.Context, pub *v1alpha1.PodUnavailableBudget) (map[types.UID]bool, error) {
	gone := map[types.UID]bool{}
	for i := range pub.Status.Ledger {
		entry := &pub.Status.Ledger[i]
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

// settle finds the entries of which it is proven what became of them, and those that expire; and when the next one may expire, 0 if none can. All
// proof is older than the pods that were counted, or is one of them.
func (r *reconciler) settle(pub *v1alpha1.PodUnavailableBudget, count *census.Count, gone map[types.UID]bool) (over settled, next time.Duration) {
	listed := make(map[types.UID]*corev1.Pod, len(count.Listed))
	for _, pod := range count.Listed {
		listed[pod.UID] = pod
	}
	over = settled{}
	ages := r.seen.ages(pub)
	for i := range pub.Status.Ledger {
		entry := &pub.Status.Ledger[i]
		pod := listed[entry.UID]
		left := r.expiry - ages[i]
		switch {
		case pod != nil && model.Settled(entry, pod), gone[entry.UID]:
			over[sightingOf(entry)] = proven
		case left <= 0 && (pod == nil || model.MayExpire(pod)):
			over[sightingOf(entry)] = expired
		default:
			left = max(left, time.Second)
			if next == 0 || left < next {
				next = left
			}
		}
	}
	return over, next
}

// settled are the entries of a ledger that are not needed any more, as they were when that was found out.
type settled map[sighting]fate

type fate int

const (
	proven fate = iota + 1
	expired
)

// strikeOut parts the entries that are needed, and those that have expired, from the others. An entry that was renewed meanwhile is needed.
func (s settled) strikeOut(ledger []v1alpha1.LedgerEntry) (needed, gone []v1alpha1.LedgerEntry) {
	for i := range ledger {
		switch s[sightingOf(&ledger[i])] {
		case proven:
		case expired:
			gone = append(gone, ledger[i])
		default:
			needed = append(needed, ledger[i])
		}
	}
	return needed, gone
}

// report says which entries have expired.
func (r *reconciler) report(ctx context.Context, pub *v1alpha1.PodUnavailableBudget, gone []v1alpha1.LedgerEntry) {
	for i := range gone {
		entry := &gone[i]
		approvalExpired(entry, r.expiry).send(r.events, pub)
		klog.FromContext(ctx).Info("Approval expired", "budget", klog.KObj(pub), "pod", entry.Name, "operation", entry.Operation)
	}
}

// publish writes the status if it is new, with the resourceVersion of the budget that it was computed from: if that is not the latest, the
// status is not either.
func (r *reconciler) publish(ctx context.Context, pub *v1alpha1.PodUnavailableBudget, status v1alpha1.PodUnavailableBudgetStatus) error {
	if equality.Semantic.DeepEqual(pub.Status, status) {
		return nil
	}
	written := pub.DeepCopy()
	written.Status = status
	if err := r.writer.Status().Update(ctx, written); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	for _, n := range newsOf(written, &pub.Status) {
		n.send(r.events, written)
	}
	return nil
}
