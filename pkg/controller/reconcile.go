package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/lineage"
)

// writeInterval is the least time between two writes of one spread's status, for a burst that outlasts the batch window.
const writeInterval = time.Second

// reconciler writes the status of one spread, and what its pods should carry, at a time.
type reconciler struct {
	// client reads spreads from the cache, and writes.
	client client.Client
	// live reads from the API server.
	live   client.Reader
	family *family
	events events.EventRecorder
	clock  clock.PassiveClock
	pace   *pace
	// accounts of the pods, and what has happened to them since.
	accounts accounts
	changes  *changes
	// measures are for the metrics.
	measures *measures
}

var _ reconcile.Reconciler = &reconciler{}

// Reconcile brings one spread up to date. If that fails half-way, what it has learned of its pods may be incomplete, and is given up.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	complete := false
	defer func() {
		if !complete { // also when it panics
			r.accounts.close(request.NamespacedName)
		}
	}()
	result, err := r.reconcile(ctx, request)
	complete = err == nil
	return result, err
}

// reconcile gathers the facts about a spread, corrects its pods, describes the facts, and writes what is new. The pods come first: their deletion
// costs must be right before the workload is scaled down.
func (r *reconciler) reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	spread := &v1alpha1.WorkloadSpread{}
	if err := r.client.Get(ctx, request.NamespacedName, spread); err != nil {
		if apierrors.IsNotFound(err) {
			r.pace.forget(request.NamespacedName)
			r.measures.forget(request.NamespacedName)
			r.accounts.close(request.NamespacedName)
			r.changes.take(request.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("reading the spread: %w", err)
	}
	if wait := r.pace.wait(request.NamespacedName, r.clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	facts, err := r.gather(ctx, spread)
	if err != nil {
		return reconcile.Result{}, err
	}
	retry := r.writePods(ctx, spread, facts)
	status := describe(spread, facts)
	r.measures.take(request.NamespacedName, status, facts)
	result, err := r.publish(ctx, spread, status, facts)
	if err == nil && retry > 0 && (result.RequeueAfter == 0 || retry < result.RequeueAfter) {
		result.RequeueAfter = retry
	}
	return result, err
}

// publish writes the status if it is new. It is written with the resourceVersion of the spread that it describes: if that is not the latest,
// the status is not either, and a newer one follows.
func (r *reconciler) publish(ctx context.Context, spread *v1alpha1.WorkloadSpread, status v1alpha1.WorkloadSpreadStatus, f *facts) (reconcile.Result, error) {
	done := reconcile.Result{}
	switch {
	case f.workload.problem != nil && f.workload.problem.silent:
		done.RequeueAfter = lineage.RetryInterval
	case f.account != nil && !f.recount.IsZero():
		done.RequeueAfter = max(f.recount.Sub(f.now.Time), batchWindow)
	}
	if equality.Semantic.DeepEqual(spread.Status, status) {
		return done, nil
	}
	written := spread.DeepCopy()
	written.Status = *status.DeepCopy()
	switch err := r.client.Status().Update(ctx, written); {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: batchWindow}, nil
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil // deleted meanwhile
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("writing the status: %w", err)
	}
	r.pace.wrote(client.ObjectKeyFromObject(spread), r.clock.Now())
	klog.FromContext(ctx).V(2).Info("Wrote status", "spread", klog.KObj(spread), "summary", status.Summary)

	var warnings []string
	if f.policy != nil {
		warnings = f.policy.Warnings
	}
	for _, n := range newsOf(written, &spread.Status, warnings) {
		n.send(r.events, written, nil)
	}
	return done, nil
}

// pace keeps the writes of each spread apart.
type pace struct {
	interval time.Duration

	mu   sync.Mutex
	last map[types.NamespacedName]time.Time
}

func newPace(interval time.Duration) *pace {
	return &pace{interval: interval, last: map[types.NamespacedName]time.Time{}}
}

// wait is how long the next write has to wait; not above 0 if it need not.
func (p *pace) wait(spread types.NamespacedName, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, found := p.last[spread]
	if !found {
		return 0
	}
	return last.Add(p.interval).Sub(now)
}

func (p *pace) wrote(spread types.NamespacedName, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last[spread] = now
}

func (p *pace) forget(spread types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.last, spread)
}
