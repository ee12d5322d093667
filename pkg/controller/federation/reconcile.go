package federation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	model "github.com/berth-project/berth/pkg/federation"
	"github.com/berth-project/berth/pkg/members"
)

// reconciler writes the ReplicaSets and the status of FederatedReplicaSets, one at a time per worker.
type reconciler struct {
	// client reads from the cache of the hub, and writes. live reads from its API server.
	client  client.Client
	live    client.Reader
	members apply.Members
	events  events.EventRecorder
	clock   clock.PassiveClock
	// measures are what metrics say.
	measures *measures

	// told is when each status was written.
	told frame.Pace
	// applied is what was applied last, of type types.NamespacedName to *apply.Memory; see appliedOf.
	applied sync.Map
	// Remote is what goes on in the clusters.
	apply.Remote[seen]
}

var _ reconcile.Reconciler = &reconciler{}

// view is what is known about a FederatedReplicaSet at one time, and what follows from it.
type view struct {
	frs         *v1alpha1.FederatedReplicaSet
	policy      *model.Policy
	plan        model.Plan
	lower, rest []step
	// late is true if a cluster has not answered yet.
	late bool
}

// Reconcile plans from the caches. If there is something to write, it plans again from the API servers, and carries out that plan.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	frs := &v1alpha1.FederatedReplicaSet{}
	err := r.client.Get(ctx, request.NamespacedName, frs, client.UnsafeDisableDeepCopy) // nothing below changes what it points to
	if apierrors.IsNotFound(err) {
		r.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the FederatedReplicaSet: %w", err)
	}
	if !r.members.Known(ctx) {
		return reconcile.Result{RequeueAfter: apply.UnknownInterval}, nil
	}
	if !frs.DeletionTimestamp.IsZero() {
		return r.cascade(ctx, frs)
	}
	cascades := frs.Annotations[v1alpha1.CascadeAnnotation] == "true"
	if done, err := frame.SetFinalizer(ctx, r.client, frs, v1alpha1.CascadeFinalizer, cascades, v1alpha1.FieldManager); !done {
		return reconcile.Result{}, err // an event follows
	}
	policy, invalid := model.Compile(frs)
	if len(invalid) > 0 {
		return reconcile.Result{}, r.publishNotReady(ctx, frs, v1alpha1.ReasonInvalid, "%s", invalid.ToAggregate())
	}
	if late := r.LateWrites(request.NamespacedName, r.members.List()); late != nil {
		r.tell(ctx, frs, late)
		return r.note(ctx, frs, policy, late, reconcile.Result{RequeueAfter: frame.BatchWindow})
	}
	v := r.look(ctx, frs, policy, theCaches)
	wait := r.told.Wait(request.NamespacedName, r.clock.Now())
	switch {
	case len(v.lower)+len(v.rest) > 0:
		if v, err = r.lookAgain(ctx, v); v == nil || err != nil {
			return reconcile.Result{}, err
		}
	case wait > 0 && v.plan.Status.ObservedGeneration == frs.Status.ObservedGeneration && !isStored(&v.plan.Status, &frs.Status):
		return reconcile.Result{RequeueAfter: wait}, nil // an older status stays for a moment
	}
	isNew := v.frs.Status.ObservedGeneration != v.frs.Generation
	if written, err := r.publish(ctx, v.frs, &v.plan.Status); !written {
		return reconcile.Result{RequeueAfter: frame.BatchWindow}, err
	}
	if isNew && len(v.plan.Unknown) > 0 {
		frame.Warning(v1alpha1.ReasonUnknownCluster, "CheckSpec", "no cluster has the name %s; correct or remove it", frame.AtMost(900, strings.Join(v.plan.Unknown, ", "))).Send(r.events, v.frs, nil)
	}
	return r.carryOut(ctx, v)
}

// lookAgain looks into the API servers before anything is written, also at pods before any of them end. Nil means that the FederatedReplicaSet has changed, and an event follows. Its status is written first, and the
// API server refuses that if the FederatedReplicaSet of the cache is old. If there is no status to write, it is read again here.
func (r *reconciler) lookAgain(ctx context.Context, v *view) (*view, error) {
	first, frs := v, v.frs
	isRead := isStored(&v.plan.Status, &frs.Status)
	if isRead {
		frs = &v1alpha1.FederatedReplicaSet{}
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(first.frs), frs); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		if frs.UID != first.frs.UID || frs.Generation != first.frs.Generation || !frs.DeletionTimestamp.IsZero() {
			return nil, nil
		}
	}
	from := theServers
	if len(v.lower) == 0 {
		from = theSets
	}
	v = r.look(ctx, frs, first.policy, from)
	if from == theSets && len(v.lower) > 0 {
		v = r.look(ctx, frs, first.policy, theServers)
	}
	if !isRead && isStored(&v.plan.Status, &frs.Status) {
		return r.lookAgain(ctx, v)
	}
	return v, nil
}

// look gathers what is known, and plans.
func (r *reconciler) look(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, policy *model.Policy, from from) *view {
	v := &view{frs: frs, policy: policy}
	locals := r.localsOf(ctx, frs, policy, from)
	observed := model.Observed{Now: r.clock.Now(), Generation: frs.Generation, Status: &frs.Status}
	observed.Members = make([]*model.Member, len(locals))
	for i := range locals {
		observed.Members[i] = &locals[i].Member
		v.late = v.late || locals[i].Late
	}
	v.plan = policy.Plan(observed)
	v.lower, v.rest = r.steps(frs, policy, &v.plan, locals)
	return v
}

// carryOut writes the ReplicaSets. A refusal is noted in the status: the model goes by it.
func (r *reconciler) carryOut(ctx context.Context, v *view) (reconcile.Result, error) {
	result := reconcile.Result{RequeueAfter: v.plan.Again}
	if v.late {
		result.RequeueAfter = apply.Soon(result.RequeueAfter)
	}
	if len(v.lower)+len(v.rest) == 0 {
		return result, nil
	}
	return r.note(ctx, v.frs, v.policy, r.act(ctx, v), result)
}

// note puts refusals into the status.
func (r *reconciler) note(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, policy *model.Policy, o *apply.Outcome, result reconcile.Result) (reconcile.Result, error) {
	status, news := frs.Status.DeepCopy(), false
	for _, member := range slices.Sorted(maps.Keys(o.Refused)) {
		message := "refuses the ReplicaSet: " + o.Refused[member]
		if policy.Refuse(status, member, message, r.clock.Now()) {
			frame.Warning(v1alpha1.ReasonClusterRefused, "ScaleCluster", "cluster %s %s", member, message).Send(r.events, frs, nil)
			news = true
		}
	}
	if news {
		_, err := r.publish(ctx, frs, status)
		o.Err = errors.Join(o.Err, err)
	}
	if o.Err != nil {
		return reconcile.Result{}, o.Err
	}
	if o.Stale || news {
		result.RequeueAfter = frame.BatchWindow
	}
	return result, nil
}

// publish writes the status if it has changed. It is false if the FederatedReplicaSet has changed since it was read.
func (r *reconciler) publish(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, status *v1alpha1.FederatedReplicaSetStatus) (bool, error) {
	for i := range status.Conditions { // names of hundreds of clusters would be longer than the API allows
		status.Conditions[i].Message = frame.Message(status.Conditions[i].Message)
	}
	r.measures.Take(client.ObjectKeyFromObject(frs), ptr.To(*status)) // status may be part of a view, which must not stay in memory
	if isStored(status, &frs.Status) {
		return true, nil
	}
	written := frs.DeepCopy()
	written.Status = *status.DeepCopy()
	if done, err := frame.WriteStatus(ctx, r.client, written); !done {
		return false, err
	}
	r.told.Wrote(client.ObjectKeyFromObject(frs), r.clock.Now())
	*frs = *written
	return true, nil
}

// isStored is true if the API server has the status already.
func isStored(status, there *v1alpha1.FederatedReplicaSetStatus) bool {
	// With hundreds of clusters, nearly all are the same, and the long comparison takes a hundred times as long.
	equal := func(a, b v1alpha1.ClusterStatus) bool { return a == b || equality.Semantic.DeepEqual(a, b) }
	rest, restThere := *status, *there
	rest.Clusters, restThere.Clusters = nil, nil
	return slices.EqualFunc(status.Clusters, there.Clusters, equal) && equality.Semantic.DeepEqual(rest, restThere)
}

// publishNotReady says why nothing goes on. The rest of the status stays.
func (r *reconciler) publishNotReady(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, reason, format string, values ...any) error {
	status := frs.Status.DeepCopy()
	status.ObservedGeneration = frs.Generation
	said := frame.False(v1alpha1.ReadyCondition, reason, format, values...)
	if said.Set(&status.Conditions, frs.Generation, metav1.NewTime(r.clock.Now())) {
		frame.Reported(false, reason, said.Message).Send(r.events, frs, nil)
	}
	_, err := r.publish(ctx, frs, status)
	return err
}

// cascade deletes the ReplicaSets in the clusters, if the annotation asks for it. A cluster that does not answer is waited for, as long as the annotation stays.
func (r *reconciler) cascade(ctx context.Context, frs *v1alpha1.FederatedReplicaSet) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(frs, v1alpha1.CascadeFinalizer) {
		return reconcile.Result{}, nil
	}
	if frs.Annotations[v1alpha1.CascadeAnnotation] == "true" {
		asking := *frs // a visit may outlast this pass, which replaces what frs points to
		left, silent := r.VisitAll(ctx, client.ObjectKeyFromObject(frs), r.members.List(), func(ctx context.Context, m *members.Status) (bool, error) { return r.deleteIn(ctx, &asking, m) })
		if len(silent) > 0 {
			err := r.publishNotReady(ctx, frs, v1alpha1.ReasonDeletionWaits, "it is not deleted yet: these clusters do not answer, or refuse the deletion: %s; or remove the annotation %s, and what is left there stays",
				strings.Join(silent, ", "), v1alpha1.CascadeAnnotation)
			return reconcile.Result{RequeueAfter: apply.CascadeInterval}, err
		}
		if left {
			return reconcile.Result{RequeueAfter: apply.CascadeInterval}, nil
		}
	}
	_, err := frame.SetFinalizer(ctx, r.client, frs, v1alpha1.CascadeFinalizer, false, v1alpha1.FieldManager)
	return reconcile.Result{}, err
}

// deleteIn deletes the ReplicaSet in a cluster. It is true if there was one. A cluster that does not answer, and of which nothing is known, has none.
func (r *reconciler) deleteIn(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, m *members.Status) (left bool, _ error) {
	if m.State != members.Ready && !slices.ContainsFunc(frs.Status.Clusters, func(c v1alpha1.ClusterStatus) bool { return c.Name == m.Name && max(c.Wanted, c.Replicas) > 0 }) {
		return false, nil
	}
	to, err := r.members.Client(m.Name)
	if err != nil {
		return false, err
	}
	set := &metav1.PartialObjectMetadata{}
	set.SetGroupVersionKind(replicaSetKind)
	err = to.Get(ctx, client.ObjectKeyFromObject(frs), set)
	if err != nil || set.Labels[v1alpha1.OwnerLabel] != string(frs.UID) {
		return false, client.IgnoreNotFound(err)
	}
	if set.DeletionTimestamp.IsZero() {
		uid := set.UID
		err = client.IgnoreNotFound(to.Delete(ctx, set, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground)))
		r.measures.wrote(apply.Delete, apply.ResultOf(err))
	}
	return true, err
}

// forget drops what is remembered about a FederatedReplicaSet that does not exist any more.
func (r *reconciler) forget(key types.NamespacedName) {
	r.measures.Forget(key)
	r.told.Forget(key)
	r.applied.Delete(key)
	r.Forget(key)
}
