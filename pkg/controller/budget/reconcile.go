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
	"k8s.io/apimachinery/pkg/util/validation"
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

// labelRetry is when a label that could not be written is tried again. Everything else goes on meanwhile.
const labelRetry = 5 * time.Second

// reconciler writes the status of one budget, and the labels of its pods, at a time.
type reconciler struct {
	cached client.Reader
	// live reads from the API server. Everything that a status or a ledger is made of comes from it.
	live   client.Reader
	writer client.Client
	census *census.Census
	events events.EventRecorder
	clock  clock.PassiveClock
	seen   *seenEntries
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
		return resultOf(r.publish(ctx, pub, unusable(pub, v1alpha1.ReasonInvalidBudget, "the budget protects nothing until its spec is corrected: "+errs.ToAggregate().Error(), r.now())))
	}
	end := r.extent.begin(request.NamespacedName)
	defer end()
	gone, err := r.gone(ctx, pub)
	if err != nil {
		return reconcile.Result{}, err
	}
	count, err := r.census.Take(ctx, pub.Namespace, policy, "")
	if apierrors.IsForbidden(err) { // by a right that is missing, of which no event tells when it is there
		status := unusable(pub, v1alpha1.ReasonReadFailed, "Berth cannot read the budget's pods or their workload, and protects no further pod until it can: "+err.Error(), r.now())
		return reconcile.Result{}, errors.Join(err, r.publish(ctx, pub, status))
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	// A label that cannot be written is reported, and keeps nothing else from being done.
	isNew := r.extent.set(request.NamespacedName, pub, count)
	end()
	failed := r.protect(ctx, count)
	if isNew {
		failed = errors.Join(failed, r.unprotect(ctx, request.Namespace))
	}
	over, next := r.settle(pub, count, gone)
	if err := r.conclude(ctx, pub, policy, count, over); err != nil {
		return resultOf(errors.Join(failed, err))
	}
	if failed != nil {
		klog.FromContext(ctx).Error(failed, "Trying again to write labels", "budget", klog.KObj(pub))
		next = sooner(next, labelRetry)
	}
	if count.Unwatched || count.TargetGone {
		next = sooner(next, lookInterval)
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

// sooner is the earlier of two times to look again, of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// resultOf has a budget that was written by somebody else looked at again soon, and forgets about one that was deleted meanwhile.
func resultOf(err error) (reconcile.Result, error) {
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
		ledger, told := over.strikeOut(pub.Status.Ledger)
		err := r.publish(ctx, pub, describe(pub, policy, count, ledger, r.now()))
		if err == nil {
			r.report(ctx, pub, told)
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
// those of any later revision. What the cache still has is not asked about: an event comes when it is gone. No pod has a name that the API server does
// not take, and it would not say of such a name that nothing has it.
func (r *reconciler) gone(ctx context.Context, pub *v1alpha1.PodUnavailableBudget) (map[types.UID]bool, error) {
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
		remaining := r.expiry - ages[i]
		switch {
		case (found || gone[entry.UID]) && model.Settled(entry, pod):
			over[entryKeyOf(entry)] = proven
		case remaining <= 0 && model.MayExpire(entry, pod):
			if entry.Operation == v1alpha1.OperationLeave && !count.Covers(entry.UID) {
				pod = nil // it may have the labels of the budget still, and have been taken from the workload that the budget names
			}
			over[entryKeyOf(entry)] = outcomeOf(entry, pod)
		default:
			next = sooner(next, max(remaining, time.Second))
		}
	}
	return over, next
}

// settled are the entries of a ledger that are not needed any more, as they were when that was found out.
type settled map[entryKey]outcome

type outcome int

const (
	proven outcome = iota + 1
	// left: the pod is none of the budget's.
	left
	// unproven: it has happened, and nothing shows that it is over.
	unproven
	// expired: it has not happened.
	expired
)

// outcomeOf an entry that expires.
func outcomeOf(entry *v1alpha1.LedgerEntry, pod *corev1.Pod) outcome {
	switch {
	case !model.Happened(entry, pod):
		return expired
	case entry.Operation == v1alpha1.OperationLeave:
		return left
	default:
		return unproven
	}
}

// strikeOut parts the entries that are needed, and those of which there is something to tell, from the others. An entry that was renewed meanwhile is
// needed.
func (s settled) strikeOut(ledger []v1alpha1.LedgerEntry) (needed []v1alpha1.LedgerEntry, told []lapsed) {
	for i := range ledger {
		switch outcome := s[entryKeyOf(&ledger[i])]; outcome {
		case proven, left:
		case unproven, expired:
			told = append(told, lapsed{ledger[i], outcome})
		default:
			needed = append(needed, ledger[i])
		}
	}
	return needed, told
}

// lapsed is an entry that was struck out without proof.
type lapsed struct {
	v1alpha1.LedgerEntry
	outcome outcome
}

// report says which entries were struck out without proof.
func (r *reconciler) report(ctx context.Context, pub *v1alpha1.PodUnavailableBudget, all []lapsed) {
	for i := range all {
		entry := &all[i]
		approvalLapsed(entry, r.expiry).send(r.events, pub)
		klog.FromContext(ctx).Info("Approval expired", "budget", klog.KObj(pub), "pod", entry.Name, "operation", entry.Operation, "happened", entry.outcome == unproven)
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
