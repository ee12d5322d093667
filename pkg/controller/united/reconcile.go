package united

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	model "github.com/berth-project/berth/pkg/united"
)

// kindInterval is how often a UnitedDeployment looks for the kind of its template, while the API server does not serve it, or Berth may not list it. No event tells.
const kindInterval = 10 * time.Second

// reconciler writes the children and the status of UnitedDeployments, one UnitedDeployment at a time per worker.
type reconciler struct {
	owners *lineage.Lineage
	// client reads from the cache, and writes.
	client client.Client
	// live reads from the API server.
	live client.Reader
	// members are the other clusters. Nil if this one is no hub.
	members apply.Members
	events  events.EventRecorder
	clock   clock.PassiveClock
	// ownership says whether Berth is to serve UnitedDeployments.
	ownership *ownership
	measures  *measures

	memories frame.Memories[memory]
	told     frame.Pace
	// Remote is what goes on in the other clusters.
	apply.Remote[*seen]
	// orphaned are the UIDs of UnitedDeployments that are being deleted without their children, of type types.NamespacedName to types.UID.
	orphaned sync.Map
}

var _ reconcile.Reconciler = &reconciler{}

// view is what is known about a UnitedDeployment at one time, and what follows from it.
type view struct {
	ud *v1beta1.UnitedDeployment
	// policy is nil if the spec is not valid. invalid then says why.
	policy  *model.Policy
	invalid field.ErrorList
	// found and plan are nil if the spec is not valid.
	found *children
	plan  *model.Plan
	// lower and rest are the steps to take.
	lower, rest []step
	collisions  int32
}

// Reconcile does what is to be done. A namespace that is being deleted takes care of itself.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, request)
	if apply.EndsWithNamespace(err) {
		return reconcile.Result{}, nil
	}
	return result, err
}

// reconcile plans from the cache. If there is something to write, it plans again from the API server, and carries out that plan.
func (r *reconciler) reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if !r.isServed() {
		return reconcile.Result{}, nil
	}
	if ours, err := r.ownership.isOurs(ctx); err != nil {
		return reconcile.Result{}, err
	} else if !ours {
		return reconcile.Result{RequeueAfter: lineage.RetryInterval}, nil
	}
	ud := &v1beta1.UnitedDeployment{}
	err := r.client.Get(ctx, request.NamespacedName, ud)
	if apierrors.IsNotFound(err) {
		r.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the UnitedDeployment: %w", err)
	}
	if r.members != nil && isFederated(ud) && !r.members.Known(ctx) {
		return reconcile.Result{RequeueAfter: apply.UnknownInterval}, nil
	}
	if !ud.DeletionTimestamp.IsZero() {
		return r.cascade(ctx, ud) // the garbage collector deletes the children here, or leaves them behind, as it was asked
	}
	if r.members != nil {
		if late := r.LateWrites(request.NamespacedName, r.members.List()); late != nil {
			return r.note(ctx, &view{ud: ud}, *ud.Status.DeepCopy(), late, reconcile.Result{RequeueAfter: frame.BatchWindow})
		}
	}
	m := r.memories.Of(ud, &memory{templates: map[string]*model.Template{}})
	v, err := r.look(ctx, ud, theCache, m)
	if err != nil {
		return reconcile.Result{}, err
	}
	if done, err := r.finalize(ctx, v); !done {
		return reconcile.Result{RequeueAfter: frame.BatchWindow}, err
	}
	if !v.mustWrite() {
		return r.tell(ctx, v, m)
	}
	ud = &v1beta1.UnitedDeployment{}
	err = r.live.Get(ctx, request.NamespacedName, ud)
	if apierrors.IsNotFound(err) || err == nil && (ud.UID != v.ud.UID || !ud.DeletionTimestamp.IsZero()) {
		return reconcile.Result{}, nil // an event follows
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the UnitedDeployment: %w", err)
	}
	if v, err = r.look(ctx, ud, theServer, m); err != nil {
		return reconcile.Result{}, err
	}
	if !v.mustWrite() {
		return r.tell(ctx, v, m)
	}
	return r.carryOut(ctx, v, m)
}

// look gathers what is known, and plans.
func (r *reconciler) look(ctx context.Context, ud *v1beta1.UnitedDeployment, from from, m *memory) (*view, error) {
	v := &view{ud: ud, collisions: ptr.Deref(ud.Status.CollisionCount, 0)}
	if m.policy == nil && m.invalid == nil || m.generation != ud.Generation {
		m.policy, m.invalid = model.Compile(ud, field.NewPath("spec"))
		m.generation = ud.Generation
	}
	if v.policy, v.invalid = m.policy, m.invalid; v.policy == nil {
		return v, nil
	}
	if v.invalid = r.refuseClusters(ud); v.invalid != nil {
		v.policy = nil
		return v, nil
	}
	var err error
	if v.found, err = r.childrenOf(ctx, ud, v.policy, from, m); err != nil {
		return nil, err
	}
	if from == theServer && len(v.found.adoptable) > 0 {
		if err := r.adopt(ctx, ud, v.found.adoptable); err != nil {
			return nil, err
		}
		if v.found, err = r.childrenOf(ctx, ud, v.policy, from, m); err != nil {
			return nil, err
		}
	}
	revision := ud.Status.UpdatedRevision
	if v.acts() {
		if revision, v.collisions, err = r.ensureRevision(ctx, ud, m); err != nil {
			return nil, err
		}
	}
	observed := model.Observed{Now: r.clock.Now(), Revision: revision, Status: ud.Status.DeepCopy(), Clusters: v.found.clusters}
	for _, c := range v.found.all {
		observed.Children = append(observed.Children, c.Child)
	}
	plan := v.policy.Plan(observed)
	v.plan = &plan
	m.applied.Keep(func(of apply.Key) bool {
		return slices.ContainsFunc(v.found.all, func(c *child) bool { return keyOf(&c.Child) == of })
	})
	if v.acts() {
		v.lower, v.rest, err = r.steps(ctx, ud, v.policy, v.plan, v.found, m)
	}
	return v, err
}

// acts is false if the children stay as they are.
func (v *view) acts() bool {
	return v.policy != nil && v.policy.Template != nil && v.found.unwatchable == nil
}

// mustWrite is true if anything but the status is to be written.
func (v *view) mustWrite() bool {
	return v.acts() && len(v.lower)+len(v.rest)+len(v.plan.Labels)+len(v.plan.Replaced)+len(v.found.adoptable) > 0
}

// carryOut writes what the plan says. The status comes first: the plan of the next time needs to know since when a subset is not schedulable, even if
// this process ends in the middle.
func (r *reconciler) carryOut(ctx context.Context, v *view, m *memory) (reconcile.Result, error) {
	status := v.status(r.clock.Now())
	keepFailure(&status, &v.ud.Status)
	if written, err := r.publish(ctx, v, status); !written {
		return reconcile.Result{RequeueAfter: frame.BatchWindow}, err
	}
	if err := r.label(ctx, v.plan.Labels); err != nil {
		return reconcile.Result{}, err
	}
	o := r.act(ctx, v, m)
	o.Err = errors.Join(o.Err, r.replace(ctx, v.ud, v.plan.Replaced))
	return r.note(ctx, v, v.status(r.clock.Now()), o, v.again())
}

// note says in a status what was refused.
func (r *reconciler) note(ctx context.Context, v *view, status v1beta1.UnitedDeploymentStatus, o *apply.Outcome, result reconcile.Result) (reconcile.Result, error) {
	if len(o.Refused) > 0 {
		var all []string
		for subset, message := range o.Refused {
			all = append(all, subset+": "+message)
		}
		fail(&status, &v.ud.Status, all, r.clock.Now())
		_, err := r.publish(ctx, v, status)
		// The queue tries again later: no event tells when the API server accepts the child.
		return reconcile.Result{}, errors.Join(o.Err, err, fmt.Errorf("the API server refused children: %s", strings.Join(all, "; ")))
	}
	if o.Err != nil {
		return reconcile.Result{}, o.Err
	}
	if o.Stale {
		result.RequeueAfter = frame.BatchWindow
	}
	return result, nil
}

// again is when to look again if nothing happens.
func (v *view) again() (result reconcile.Result) {
	if v.plan != nil {
		result.RequeueAfter = v.plan.Again
	}
	if v.found != nil && v.found.late {
		result.RequeueAfter = apply.Soon(result.RequeueAfter)
	}
	return result
}

// tell writes the status, if nothing else is to be written, and deletes old revisions.
func (r *reconciler) tell(ctx context.Context, v *view, m *memory) (reconcile.Result, error) {
	status, result := v.status(r.clock.Now()), v.again()
	if v.found != nil && v.found.late {
		keepFailure(&status, &v.ud.Status)
	}
	if v.found != nil && v.found.unwatchable != nil {
		result.RequeueAfter = kindInterval
	}
	if wait := r.told.Wait(client.ObjectKeyFromObject(v.ud), r.clock.Now()); wait > 0 && status.ObservedGeneration == v.ud.Status.ObservedGeneration && !equality.Semantic.DeepEqual(status, v.ud.Status) {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if written, err := r.publish(ctx, v, status); !written {
		return reconcile.Result{RequeueAfter: frame.BatchWindow}, err
	}
	// A cluster that does not answer may have children of any revision.
	if v.acts() && !slices.ContainsFunc(status.Clusters, func(c v1beta1.ClusterStatus) bool {
		return c.State == v1beta1.ClusterUnreachable || c.State == v1beta1.ClusterRefusing || c.State == v1beta1.ClusterLost
	}) {
		return result, r.pruneRevisions(ctx, v.ud, v.policy.History, v.found, &status, m)
	}
	return result, nil
}

// publish writes the status if it has changed. It is false if the UnitedDeployment has changed since it was read.
func (r *reconciler) publish(ctx context.Context, v *view, status v1beta1.UnitedDeploymentStatus) (bool, error) {
	key := client.ObjectKeyFromObject(v.ud)
	r.measures.Take(key, status.DeepCopy())
	if equality.Semantic.DeepEqual(status, v.ud.Status) {
		return true, nil
	}
	written := v.ud.DeepCopy()
	written.Status = *status.DeepCopy()
	if done, err := frame.WriteStatus(ctx, r.client, written); !done {
		return false, err
	}
	r.told.Wrote(key, r.clock.Now())
	klog.FromContext(ctx).V(2).Info("Wrote status", "uniteddeployment", klog.KObj(v.ud), "summary", status.Summary)
	for _, n := range newsOf(written, &v.ud.Status, &status, v.policy) {
		n.Send(r.events, written, nil)
	}
	v.ud = written
	return true, nil
}

func (r *reconciler) forget(key types.NamespacedName) {
	r.memories.Forget(key)
	r.told.Forget(key)
	r.orphaned.Delete(key)
	r.measures.Forget(key)
	r.Forget(key)
}
