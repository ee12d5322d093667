package spread

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

	"github.com/berth-project/berth/pkg/autoscaler"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/writers"
)

// writeInterval is the shortest time between two writes of a spread's status, for bursts longer than the batch window.
const writeInterval = time.Second

// reconciler writes the status of spreads, and what their pods should carry, one spread at a time per worker.
type reconciler struct {
	// client reads spreads from the cache, and writes.
	client client.Client
	// live reads from the API server.
	live   client.Reader
	family *family
	// autoscaler of the nodes. Nil means none.
	autoscaler *autoscaler.Detector
	events     events.EventRecorder
	clock      clock.PassiveClock
	pace       *pace
	// accounts of the pods, and the changes since they were updated.
	accounts accounts
	changes  *changes
	// measures are the numbers for the metrics.
	measures *measures
}

var _ reconcile.Reconciler = &reconciler{}

// Reconcile updates one spread. If that fails half-way, the account of its pods may be incomplete and is dropped.
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
	spread := &v1beta1.WorkloadSpread{}
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
	if r.measures.take(request.NamespacedName, status, facts) {
		nodesOverfull(facts.overfull).send(r.events, spread, nil)
	}
	result, err := r.publish(ctx, spread, status, facts)
	if err != nil {
		return result, err
	}
	sooner := func(after time.Duration) {
		if result.RequeueAfter == 0 || after < result.RequeueAfter {
			result.RequeueAfter = after
		}
	}
	if retry > 0 {
		sooner(retry)
	}
	if at := turnsAt(&status, facts); !at.IsZero() {
		sooner(max(at.Sub(facts.now.Time), batchWindow))
	}
	return result, nil
}

// publish writes the status if it has changed. The write has the resourceVersion of the spread that the status describes. If that is not the latest,
// the write fails, and a newer status follows.
func (r *reconciler) publish(ctx context.Context, spread *v1beta1.WorkloadSpread, status v1beta1.WorkloadSpreadStatus, f *facts) (reconcile.Result, error) {
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
	writers.Tell(r.events, spread, string(v1beta1.ReasonTwoControllers))
	written := spread.DeepCopy()
	written.Status = *status.DeepCopy()
	written.ManagedFields = nil // the cache keeps only parts of them
	switch err := r.client.Status().Update(ctx, written); {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: batchWindow}, nil
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil // deleted meanwhile
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("writing the status: %w", err)
	}
	r.pace.wrote(client.ObjectKeyFromObject(spread), r.clock.Now())
	if err := writers.Track(ctx, r.client, written, v1beta1.Kind); err != nil {
		klog.FromContext(ctx).Error(err, "Another controller would not be noticed", "spread", klog.KObj(spread))
	}
	klog.FromContext(ctx).V(2).Info("Wrote status", "spread", klog.KObj(spread), "summary", status.Summary)

	var warnings []string
	if f.policy != nil {
		warnings = f.policy.Warnings
	}
	news := newsOf(written, &spread.Status, warnings)
	if f.policy != nil && f.policy.Kruise {
		news = append(news, recoveries(written, &spread.Status)...)
	}
	for _, n := range news {
		n.send(r.events, written, nil)
	}
	return done, nil
}

// pace limits how often each spread is written.
type pace struct {
	interval time.Duration

	mu   sync.Mutex
	last map[types.NamespacedName]time.Time
}

func newPace(interval time.Duration) *pace {
	return &pace{interval: interval, last: map[types.NamespacedName]time.Time{}}
}

// wait is how long the next write must wait. 0 or less means that it need not.
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
