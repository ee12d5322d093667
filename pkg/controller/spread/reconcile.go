package spread

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/autoscaler"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
)

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
	pace       frame.Pace
	// accounts of the pods, of types.NamespacedName to *account, and the changes since they were updated. An account belongs to the worker that reconciles its
	// spread.
	accounts sync.Map
	changes  *changes
	// measures are the numbers for the metrics. corrections counts the recounts that differ.
	measures    *frame.Measures[measure]
	corrections prometheus.Counter
	// costs is true if somebody asks what pods cost.
	costs bool
}

var _ reconcile.Reconciler = &reconciler{}

// Reconcile updates one spread. If that fails half-way, the account of its pods may be incomplete and is dropped.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	complete := false
	defer func() {
		if !complete { // also when it panics
			r.accounts.Delete(request.NamespacedName)
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
			r.pace.Forget(request.NamespacedName)
			r.measures.Forget(request.NamespacedName)
			r.accounts.Delete(request.NamespacedName)
			r.changes.take(request.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("reading the spread: %w", err)
	}
	if wait := r.pace.Wait(request.NamespacedName, r.clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	facts, err := r.gather(ctx, spread)
	if err != nil {
		return reconcile.Result{}, err
	}
	retry := r.writePods(ctx, spread, facts)
	status := describe(spread, facts)
	now := measureOf(status, facts)
	if before, taken := r.measures.Take(request.NamespacedName, now); taken && now.overfull > before.overfull {
		nodesOverfull(facts.overfull).Send(r.events, spread, nil)
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
		sooner(max(at.Sub(facts.now.Time), frame.BatchWindow))
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
		done.RequeueAfter = max(f.recount.Sub(f.now.Time), frame.BatchWindow)
	}
	if equality.Semantic.DeepEqual(spread.Status, status) {
		return done, nil
	}
	frame.TellOfOtherWriter(r.events, spread, string(v1beta1.ReasonTwoControllers))
	written := spread.DeepCopy()
	written.Status = *status.DeepCopy()
	if done, err := frame.WriteStatus(ctx, r.client, written); !done {
		return reconcile.Result{RequeueAfter: frame.BatchWindow}, err
	}
	r.pace.Wrote(client.ObjectKeyFromObject(spread), r.clock.Now())
	if err := frame.TrackWriters(ctx, r.client, written, v1beta1.Kind); err != nil {
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
		n.Send(r.events, written, nil)
	}
	return done, nil
}
