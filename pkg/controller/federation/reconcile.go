package federation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
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
	members Members
	events  events.EventRecorder
	clock   clock.PassiveClock
	// measures are what metrics say.
	measures *measures

	// mu guards seats, from before a plan is made until what it takes is held.
	mu    sync.Mutex
	seats model.Seats
	// primed is when each cluster became reachable whose ReplicaSets are all in seats.
	primed map[string]time.Time
	// applied is what was applied last, of type types.NamespacedName to *apply.Memory; see appliedOf.
	applied sync.Map
	// Remote is what goes on in the clusters.
	apply.Remote[seen, end]
	// warned is the generation of a FederatedReplicaSet for which an event named the clusters that do not exist, of type types.NamespacedName to warning.
	warned sync.Map
}

// warning is the state of a FederatedReplicaSet that an event has told of.
type warning struct {
	uid        types.UID
	generation int64
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
	err := r.client.Get(ctx, request.NamespacedName, frs)
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
	if done, err := r.finalize(ctx, frs, frs.Annotations[v1alpha1.CascadeAnnotation] == "true"); !done {
		return reconcile.Result{}, err // an event follows
	}
	policy, invalid := model.Compile(frs)
	if len(invalid) > 0 {
		return reconcile.Result{}, r.publishInvalid(ctx, frs, invalid.ToAggregate())
	}
	if late := r.lateWrites(ctx, frs); late != nil {
		return r.note(ctx, frs, policy, late, reconcile.Result{RequeueAfter: frame.BatchWindow})
	}
	v, err := r.look(ctx, frs, policy, theCaches)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(v.lower)+len(v.rest) > 0 {
		frs = &v1alpha1.FederatedReplicaSet{}
		if err := r.live.Get(ctx, request.NamespacedName, frs); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if frs.UID != v.frs.UID || frs.Generation != v.frs.Generation || !frs.DeletionTimestamp.IsZero() {
			return reconcile.Result{}, nil // an event follows
		}
		from := theServers
		if len(v.lower) == 0 {
			from = theSets
		}
		v, err = r.look(ctx, frs, policy, from)
		if err == nil && from == theSets && len(v.lower) > 0 {
			v, err = r.look(ctx, frs, policy, theServers)
		}
		if err != nil {
			return reconcile.Result{}, err
		}
	}
	if written, err := r.publish(ctx, v.frs, &v.plan.Status); !written {
		return reconcile.Result{RequeueAfter: frame.BatchWindow}, err
	}
	r.warn(v)
	return r.carryOut(ctx, v)
}

// look gathers what is known, and plans. What the plan takes is held until the next look.
func (r *reconciler) look(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, policy *model.Policy, from from) (*view, error) {
	v := &view{frs: frs, policy: policy}
	locals, err := r.localsOf(ctx, frs, policy, from)
	if err != nil {
		return nil, err
	}
	observed := model.Observed{Now: r.clock.Now(), Generation: frs.Generation, Status: &frs.Status, Seats: &r.seats}
	observed.Members = make([]model.Member, len(locals))
	for i := range locals {
		observed.Members[i] = locals[i].Member
		v.late = v.late || locals[i].Late
	}
	if err := r.plan(ctx, v, observed, locals, from); err != nil {
		return nil, err
	}
	v.lower, v.rest, err = r.steps(frs, policy, &v.plan, locals)
	if from == theCaches && err == nil && len(v.lower)+len(v.rest) == 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seat(policy, locals) // the caches have what was written last
	}
	return v, err
}

// plan asks the model. From the time at which it counts the seats, until those that the plan takes are held, no other plan is made.
func (r *reconciler) plan(ctx context.Context, v *view, observed model.Observed, locals []local, from from) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.prime(ctx); err != nil {
		return err
	}
	if from != theCaches {
		r.seat(v.policy, locals)
	}
	v.plan = v.policy.Plan(observed)
	if from != theCaches {
		v.policy.Hold(&r.seats, &v.plan)
	}
	return nil
}

// seat says what a FederatedReplicaSet has in the clusters that answer and report their room.
func (r *reconciler) seat(policy *model.Policy, locals []local) {
	for i := range locals {
		l := &locals[i]
		if !l.Reachable || l.Late || l.Room == nil {
			continue
		}
		asked := int32(0)
		if l.Local != nil {
			asked = l.Local.Replicas
		}
		r.seats.Set(l.Name, policy.Key(), policy.Shape, asked)
	}
}

// prime makes the seats of clusters that report their room, once after each time that they became reachable or began to report: what this process has not planned itself is in their ReplicaSets.
func (r *reconciler) prime(ctx context.Context) error {
	var shapes map[string]*model.Policy
	for _, m := range r.members.List() {
		if m.Room == nil {
			delete(r.primed, m.Name)
			continue
		}
		if since, is := r.primed[m.Name]; m.State != members.Ready || is && since.Equal(m.Since) {
			continue
		}
		if shapes == nil {
			shapes = map[string]*model.Policy{}
			var all v1alpha1.FederatedReplicaSetList
			if err := r.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
				return fmt.Errorf("listing FederatedReplicaSets: %w", err)
			}
			for i := range all.Items {
				if policy, invalid := model.Compile(&all.Items[i]); len(invalid) == 0 {
					shapes[string(all.Items[i].UID)] = policy
				}
			}
		}
		cache, err := r.members.Cache(m.Name)
		if err != nil {
			continue // it has just stopped to answer
		}
		var sets appsv1.ReplicaSetList
		if err := cache.List(ctx, &sets, client.HasLabels{v1alpha1.HubLabel}, client.UnsafeDisableDeepCopy); err != nil {
			continue
		}
		for i := range sets.Items {
			if policy := shapes[sets.Items[i].Labels[v1alpha1.OwnerLabel]]; policy != nil {
				r.seats.Raise(m.Name, policy.Key(), policy.Shape, replicasOf(&sets.Items[i]))
			}
		}
		if r.primed == nil {
			r.primed = map[string]time.Time{}
		}
		r.primed[m.Name] = m.Since
	}
	return nil
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

// lateWrites is how writes ended for which an earlier pass did not wait. Nil if there are none.
func (r *reconciler) lateWrites(ctx context.Context, frs *v1alpha1.FederatedReplicaSet) *outcome {
	o, any := &outcome{refused: map[string]string{}}, false
	for _, m := range r.members.List() {
		if end := r.Writing.Late(members.Errand{Object: client.ObjectKeyFromObject(frs), Member: m.Name}); end != nil && end.step != nil {
			o.add(end)
			any = true
		}
	}
	if !any {
		return nil
	}
	r.tell(ctx, frs, o)
	return o
}

// note puts refusals into the status.
func (r *reconciler) note(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, policy *model.Policy, o *outcome, result reconcile.Result) (reconcile.Result, error) {
	status, news := frs.Status.DeepCopy(), false
	for _, member := range slices.Sorted(maps.Keys(o.refused)) {
		message := "refuses the ReplicaSet: " + o.refused[member]
		if policy.Refuse(status, member, message, r.clock.Now()) {
			frame.Warning(v1alpha1.ReasonClusterRefused, "ScaleCluster", "cluster %s %s", member, message).Send(r.events, frs, nil)
			news = true
		}
	}
	if news {
		_, err := r.publish(ctx, frs, status)
		o.err = errors.Join(o.err, err)
	}
	if o.err != nil {
		return reconcile.Result{}, o.err
	}
	if o.stale || news {
		result.RequeueAfter = frame.BatchWindow
	}
	return result, nil
}

// publish writes the status if it has changed. It is false if the FederatedReplicaSet has changed since it was read.
func (r *reconciler) publish(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, status *v1alpha1.FederatedReplicaSetStatus) (bool, error) {
	for i := range status.Conditions { // names of hundreds of clusters would be longer than the API allows
		status.Conditions[i].Message = frame.Message(status.Conditions[i].Message)
	}
	r.measures.Take(client.ObjectKeyFromObject(frs), status.DeepCopy())
	if isStored(status, &frs.Status) {
		return true, nil
	}
	written := frs.DeepCopy()
	written.Status = *status.DeepCopy()
	if done, err := frame.WriteStatus(ctx, r.client, written); !done {
		return false, err
	}
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

// publishInvalid says that the spec cannot be used. The rest of the status stays.
func (r *reconciler) publishInvalid(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, invalid error) error {
	status := frs.Status.DeepCopy()
	status.ObservedGeneration = frs.Generation
	said := frame.False(v1alpha1.ReadyCondition, v1alpha1.ReasonInvalid, "%s", invalid)
	if said.Set(&status.Conditions, frs.Generation, metav1.NewTime(r.clock.Now())) {
		frame.Warning(v1alpha1.ReasonInvalid, "CheckSpec", "%s", invalid).Send(r.events, frs, nil)
	}
	_, err := r.publish(ctx, frs, status)
	return err
}

// warn writes an event about names that no cluster has, once for each generation.
func (r *reconciler) warn(v *view) {
	if len(v.plan.Unknown) == 0 {
		return
	}
	now := warning{v.frs.UID, v.frs.Generation}
	if was, _ := r.warned.Swap(client.ObjectKeyFromObject(v.frs), now); was == now {
		return
	}
	frame.Warning(v1alpha1.ReasonUnknownCluster, "CheckSpec", "no cluster has the name %s; correct or remove it", frame.AtMost(900, strings.Join(v.plan.Unknown, ", "))).Send(r.events, v.frs, nil)
}

// finalize sets or removes the finalizer. It is false if it has changed something, or failed.
func (r *reconciler) finalize(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, wanted bool) (bool, error) {
	return frame.SetFinalizer(ctx, r.client, frs, v1alpha1.CascadeFinalizer, wanted, v1alpha1.FieldManager)
}

// cascade deletes the ReplicaSets in the clusters, if the annotation asks for it. A cluster that does not answer is waited for, as long as the annotation stays.
func (r *reconciler) cascade(ctx context.Context, frs *v1alpha1.FederatedReplicaSet) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(frs, v1alpha1.CascadeFinalizer) {
		return reconcile.Result{}, nil
	}
	if frs.Annotations[v1alpha1.CascadeAnnotation] == "true" {
		all := r.members.List()
		errands := make([]members.Errand, len(all))
		for i, m := range all {
			errands[i] = members.Errand{Object: client.ObjectKeyFromObject(frs), Member: m.Name}
		}
		var errs []error
		left := false
		wasStep := func(e *end) bool { return e.step != nil }
		for i, end := range r.Writing.Answers(ctx, errands, wasStep, func(ctx context.Context, i int) end { return r.deleteIn(ctx, frs, all[i]) }) {
			if left = left || end == nil || end.is != apply.Written; end != nil && end.err != nil {
				errs = append(errs, fmt.Errorf("deleting the ReplicaSet in cluster %s: %w", all[i].Name, end.err))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return reconcile.Result{}, err
		}
		if left {
			return reconcile.Result{RequeueAfter: apply.CascadeInterval}, nil
		}
	}
	_, err := r.finalize(ctx, frs, false)
	return reconcile.Result{}, err
}

// deleteIn deletes the ReplicaSet in a cluster. It is written if there is none any more. A cluster that does not answer, and of which nothing is known, has none.
func (r *reconciler) deleteIn(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, m members.Status) end {
	if m.State != members.Ready {
		if slices.ContainsFunc(frs.Status.Clusters, func(c v1alpha1.ClusterStatus) bool { return c.Name == m.Name && max(c.Wanted, c.Replicas) > 0 }) {
			return end{is: apply.Failed}
		}
		return end{is: apply.Written}
	}
	to, err := r.members.Client(m.Name)
	if err != nil {
		return end{is: apply.Failed, err: err}
	}
	set := &metav1.PartialObjectMetadata{}
	set.SetGroupVersionKind(replicaSetKind)
	err = to.Get(ctx, client.ObjectKeyFromObject(frs), set)
	if apierrors.IsNotFound(err) || err == nil && set.Labels[v1alpha1.OwnerLabel] != string(frs.UID) {
		return end{is: apply.Written}
	}
	if err != nil || !set.DeletionTimestamp.IsZero() {
		return end{is: apply.Failed, err: err}
	}
	uid := set.UID
	err = client.IgnoreNotFound(to.Delete(ctx, set, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	r.measures.wrote(apply.Delete, apply.ResultOf(err))
	return end{is: apply.Stale, err: err}
}

// forget drops what is remembered about a FederatedReplicaSet that does not exist any more.
func (r *reconciler) forget(key types.NamespacedName) {
	r.warned.Delete(key)
	r.measures.Forget(key)
	r.applied.Delete(key)
	r.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seats.Forget(key.String())
}
