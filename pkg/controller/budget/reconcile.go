package budget

import (
	"context"
	"errors"
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

// Reconcile reads the budget, and after it what it covers, protects new pods, strikes out what is proven, and writes what is new. A request without
// a name is about the pods of a namespace that are in no budget.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if request.Name == "" {
		return reconcile.Result{}, r.unprotect(ctx, request.Namespace)
	}
	pub := &v1alpha1.PodUnavailableBudget{}
	err := r.live.Get(ctx, request.NamespacedName, pub)
	if apierrors.IsNotFound(err) {
		r.extent.forget(request.NamespacedName)
		r.seen.forget(request.NamespacedName)
		r.census.Forget(request.NamespacedName)
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
		return outcome(r.publish(ctx, pub, unusable(pub, v1alpha1.ReasonInvalidBudget, "protects nothing until it is corrected: "+errs.ToAggregate().Error(), r.now())))
	}
	gone, err := r.gone(ctx, pub)
	if err != nil {
		return reconcile.Result{}, err
	}
	count, err := r.census.Take(ctx, pub.Namespace, policy, "")
	if apierrors.IsForbidden(err) { // by a right that is missing, of which no event tells when it is there
		status := unusable(pub, v1alpha1.ReasonReadFailed, "no further pod is protected until it can be read what there is: "+err.Error(), r.now())
		return reconcile.Result{}, errors.Join(err, r.publish(ctx, pub, status))
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	// A label that cannot be written is reported, and keeps nothing else from being done.
	isNew := r.extent.set(request.NamespacedName, pub.Generation, count)
	failed := r.protect(ctx, count.Pods)
	if isNew {
		failed = errors.Join(failed, r.unprotect(ctx, request.Namespace))
	}
	over, next := r.settle(pub, count, gone)
	if err := errors.Join(failed, r.conclude(ctx, pub, policy, count, over)); err != nil {
		return outcome(err)
	}
	if (count.Unwatched || count.TargetGone) && (next == 0 || next > lookInterval) {
		next = lookInterval
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

// outcome has a budget that was written by somebody else looked at again soon, and forgets about one that was deleted meanwhile.
func outcome(err error) (reconcile.Result, error) {
	if errors.Is(err, errChanged) || apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: batchWindow}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// errChanged is returned by conclude if what was read is not good enough any more for the budget that there is.
var errChanged = errors.New("the budget has changed meanwhile")

// conclude writes the status, and its news, for the pods that were read. If the webhook was faster it writes it for the budget as it is then: what is
// known of the pods, and by them of entries that are still as they were, is as true as it was.
func (r *reconciler) conclude(ctx context.Context, pub *v1alpha1.PodUnavailableBudget, policy *model.Policy, count *census.Count, over settled) error {
	for range maxAttempts {
		ledger, gone := over.strikeOut(pub.Status.Ledger)
		err := r.publish(ctx, pub, describe(pub, policy, count, ledger, r.now()))
		if err == nil {
			r.report(ctx, pub, gone)
			return nil
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		latest := &v1alpha1.PodUnavailableBudget{}
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(pub), latest); err != nil {
			return fmt.Errorf("reading the budget again: %w", err)
		}
		if !isSameBudget(pub, latest) {
			break
		}
		pub = latest
	}
	return errChanged
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
		pod, found := listed[entry.UID]
		left := r.expiry - ages[i]
		switch {
		case (found || gone[entry.UID]) && model.Settled(entry, pod):
			over[sightingOf(entry)] = proven
		case left <= 0 && model.MayExpire(pod):
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
