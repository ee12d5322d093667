package lineage

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

// Lineage reads owners and spreads from the cache. Objects that it returns are shared and must not be changed.
type Lineage struct {
	// Reader is the cache.
	Reader client.Reader
	*Kinds
	// Rules are those by which workloads get spreads. Nil means none.
	Rules *Rules

	policies policies
	// arrivals are those of owners, and announced are those of spreads.
	arrivals, announced *arrivals
	// ordinals are those that Ordinals has read, by ordinalsOf.
	ordinals *lru.Cache
	// spreadsIn is nil if the lineage gets no events of spreads.
	spreadsIn *spreadsIn
	// synced return true once the initial content of the cache has been processed.
	synced []cache.InformerSynced
}

// HasSynced is true once the lineage has processed what was in the cache when the manager started. Before that its
// answers are incomplete.
func (l *Lineage) HasSynced() bool {
	for _, synced := range l.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// Options of a Lineage. The zero value means the defaults.
type Options struct {
	// Compatibility of the installation, for spreads that say nothing. Empty means none.
	Compatibility v1beta1.Compatibility
}

// New returns a lineage over the manager's cache. The cache watches spreads, pods and built-in workloads from the
// start, and other kinds on demand. New uses the context only until it returns.
func New(ctx context.Context, mgr ctrl.Manager, opts Options) (*Lineage, error) {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1beta1.WorkloadSpread{}, TargetField, TargetKeyOf); err != nil {
		return nil, fmt.Errorf("indexing spreads by their workloads: %w", err)
	}
	l := Over(mgr.GetCache(), NewKinds(mgr.GetRESTMapper(), mgr.GetAPIReader(), clock.RealClock{}), clock.RealClock{})
	l.policies.installation = opts.Compatibility
	l.spreadsIn = &spreadsIn{byNamespace: map[string]sets.Set[types.UID]{}}
	l.OnStart(func(ctx context.Context, object *metav1.PartialObjectMetadata) error {
		_, err := l.Handle(ctx, mgr, object, l.ownerSeen, nil)
		return err
	})
	type told struct {
		object     client.Object
		seen, gone func(metav1.Object)
	}
	all := []told{{&v1beta1.WorkloadSpread{}, l.spreadSeen, l.spreadGone}, {&corev1.Pod{}, l.ownerSeen, nil}}
	for _, typed := range builtIn {
		all = append(all, told{typed.NewObject(), l.ownerSeen, nil})
	}
	for _, of := range all {
		synced, err := l.Handle(ctx, mgr, of.object, of.seen, of.gone)
		if err != nil {
			return nil, err
		}
		l.synced = append(l.synced, synced)
	}
	return l, mgr.Add(l.Kinds)
}

// Over returns a lineage that reads from the reader and gets no events. The reader must index spreads by TargetField.
func Over(reader client.Reader, kinds *Kinds, clock clock.WithTicker) *Lineage {
	l := &Lineage{
		Reader:    reader,
		Kinds:     kinds,
		arrivals:  newArrivals(clock, windowKept),
		announced: newArrivals(clock, 0),
		ordinals:  lru.New(mostOrdinals),
	}
	kinds.changed = l.arrivals.lookAgain
	return l
}

// Handle registers functions for the objects of a kind: seen for existing, new and changed objects, and gone for
// deleted ones.
func (l *Lineage) Handle(ctx context.Context, mgr ctrl.Manager, object client.Object, seen, gone func(metav1.Object)) (cache.InformerSynced, error) {
	informer, err := mgr.GetCache().GetInformer(ctx, object)
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", object, err)
	}
	call := func(do func(metav1.Object), obj any) {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		if object, ok := obj.(metav1.Object); ok && do != nil {
			do(object)
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { call(seen, obj) },
		UpdateFunc: func(_, obj any) { call(seen, obj) },
		DeleteFunc: func(obj any) { call(gone, obj) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", object, err)
	}
	return registration.HasSynced, nil
}

// ownerSeen processes an object in the cache that may own pods, directly or through others.
func (l *Lineage) ownerSeen(object metav1.Object) {
	l.arrivals.seen(object.GetUID())
	l.seeOwnerOf(object)
}

// seeOwnerOf asks for a watch of the kind of the object's owner, if the namespace has spreads.
func (l *Lineage) seeOwnerOf(object metav1.Object) {
	if owner := workload.ControllerOf(object); owner != nil && l.see(object.GetNamespace(), owner.Kind) {
		if divided, err := l.HasSpreads(context.Background(), object.GetNamespace()); err != nil || divided { //nolint:forbidigo // reads the cache
			l.want(owner.Kind)
		}
	}
}

// spreadSeen prepares for the first pod of a spread, so that the pod does not wait for slow steps.
func (l *Lineage) spreadSeen(object metav1.Object) {
	spread, ok := object.(*v1beta1.WorkloadSpread)
	if !ok {
		return
	}
	l.policies.of(spread)
	if l.spreadsIn != nil {
		l.spreadsIn.add(spread.Namespace, spread.UID)
	}
	l.seek(spread.Namespace, workload.TargetOf(spread).Kind)
	for _, kind := range l.seenIn(spread.Namespace) {
		l.want(kind)
	}
	l.announced.seen(spread.UID)
	if workload.MadeByRule(spread) {
		l.arrivals.seen(madeBy(spread.Namespace, spread.Name))
	}
}

func (l *Lineage) spreadGone(object metav1.Object) {
	l.policies.forget(object.GetUID())
	if l.spreadsIn != nil {
		l.spreadsIn.remove(object.GetNamespace(), object.GetUID())
	}
	l.announced.seen(object.GetUID())
}

// TargetField indexes spreads by the workload that they name, without the version.
const TargetField = "spec.targetRef"

// TargetKeyOf is the index value of a spread for TargetField.
func TargetKeyOf(obj client.Object) []string {
	spread, ok := obj.(*v1beta1.WorkloadSpread)
	if !ok {
		return nil
	}
	return []string{keyOf(workload.TargetOf(spread))}
}

// keyOf names an owner inside its namespace.
func keyOf(o workload.Owner) string { return o.Kind.Group + "/" + o.Kind.Kind + "/" + o.Name }

// MayHaveSpreads is true if the namespace has a spread, or if a rule may make one.
func (l *Lineage) MayHaveSpreads(ctx context.Context, namespace string) (bool, error) {
	if has, err := l.HasSpreads(ctx, namespace); has || err != nil || l.Rules == nil {
		return has, err
	}
	return l.Rules.Apply(ctx, namespace)
}

// HasSpreads is true if the namespace has a spread. It is called for every pod. So it does not list from the cache if
// it can avoid that: the cache would visit all spreads of the namespace even for a list of one.
func (l *Lineage) HasSpreads(ctx context.Context, namespace string) (bool, error) {
	if l.spreadsIn != nil {
		return l.spreadsIn.has(namespace), nil
	}
	var spreads v1beta1.WorkloadSpreadList
	err := l.Reader.List(ctx, &spreads, client.InNamespace(namespace), client.Limit(1), client.UnsafeDisableDeepCopy)
	return len(spreads.Items) > 0, err
}

// SpreadsNaming are the spreads whose targetRef names the workload.
func (l *Lineage) SpreadsNaming(ctx context.Context, namespace string, o workload.Owner) ([]v1beta1.WorkloadSpread, error) {
	var spreads v1beta1.WorkloadSpreadList
	err := l.Reader.List(ctx, &spreads, client.InNamespace(namespace), client.MatchingFields{TargetField: keyOf(o)}, client.UnsafeDisableDeepCopy)
	return spreads.Items, err
}

// Winner is the spread that divides the workload, or nil.
func (l *Lineage) Winner(ctx context.Context, namespace string, o workload.Owner) (*v1beta1.WorkloadSpread, error) {
	spreads, err := l.SpreadsNaming(ctx, namespace, o)
	if err != nil {
		return nil, fmt.Errorf("listing the spreads of %s %s: %w", o.Kind.Kind, o.Name, err)
	}
	var winner *v1beta1.WorkloadSpread
	for i := range spreads {
		if winner == nil || workload.Wins(&spreads[i], winner) {
			winner = &spreads[i]
		}
	}
	return winner, nil
}

// Compiled is the compiled spec of a spread. It is compiled once for each generation.
func (l *Lineage) Compiled(spread *v1beta1.WorkloadSpread) *Spread { return l.policies.of(spread) }

// Compatibility of the installation, for spreads that say nothing. Empty means none.
func (l *Lineage) Compatibility() v1beta1.Compatibility { return l.policies.installation }

// Read reads an owner from the cache. It returns nil if the cache does not have the owner, or if its kind is not
// watched.
func (l *Lineage) Read(ctx context.Context, namespace string, o workload.Owner) (client.Object, error) {
	object := l.NewObject(o.Kind)
	if object == nil {
		return nil, nil
	}
	err := l.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: o.Name}, object, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) || err == nil && o.UID != "" && object.GetUID() != o.UID {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", o.Kind.Kind, o.Name, err)
	}
	return object, nil
}

// mostOrdinals is of how many workloads the ordinals are remembered.
const mostOrdinals = 100

// ordinalsOf is the spec of an object.
type ordinalsOf struct {
	uid        types.UID
	generation int64
}

// Ordinals are those of a workload whose kind hides them. They are nil for another kind, and if the workload is not in
// the cache. Ordinals sends a request if it has not read them since the last change of the spec.
func (l *Lineage) Ordinals(ctx context.Context, namespace string, o workload.Owner) (*workload.Ordinals, error) {
	if !workload.HidesOrdinals(o.Kind) {
		return nil, nil
	}
	metadata, err := l.Read(ctx, namespace, o)
	if err != nil || metadata == nil {
		return nil, err
	}
	if known, found := l.ordinals.Get(ordinalsOf{metadata.GetUID(), metadata.GetGeneration()}); found {
		return known.(*workload.Ordinals), nil
	}
	object := &unstructured.Unstructured{} // of the version that is watched: older versions of a kind may lack the fields of ordinals
	object.SetGroupVersionKind(l.NewObject(o.Kind).GetObjectKind().GroupVersionKind())
	if err := l.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: o.Name}, object); err != nil {
		return nil, fmt.Errorf("reading the ordinals of %s %s: %w", o.Kind.Kind, o.Name, err)
	}
	read := workload.ReadOrdinals(object)
	l.ordinals.Add(ordinalsOf{read.UID, read.Generation}, read)
	return read, nil
}

// Climb visits an owner, its controller and so on, until visit returns done or an error, or the chain ends. missing is
// the first owner that is not in the cache, so that its own controller is unknown. It may still arrive. It is nil if
// the climb ended otherwise.
func (l *Lineage) Climb(ctx context.Context, namespace string, from *workload.Owner, visit func(workload.Owner) (done bool, err error)) (missing *workload.Owner, err error) {
	for range workload.LongestOwnerChain {
		if from == nil {
			return nil, nil
		}
		if done, err := visit(*from); done || err != nil || workload.EndsChain(from.Kind) || l.isUnwatchable(from.Kind) {
			return nil, err
		}
		object, err := l.Read(ctx, namespace, *from)
		if err != nil {
			return nil, err
		}
		if object == nil {
			return from, nil
		}
		from = workload.ControllerOf(object)
	}
	return nil, nil
}

// SpreadOf is the spread that divides a pod with this owner and these labels, or nil. The nearest owner with a spread
// that selects the pod counts. missing is the owner at which the search ended because the cache does not have it, or a
// spread that a rule makes for the workload. It may still arrive. A spread of a rule that need not be awaited is found
// before the cache has it.
func (l *Lineage) SpreadOf(ctx context.Context, namespace string, owner *workload.Owner, labels map[string]string) (found *Spread, missing *workload.Owner, _ error) {
	var last *workload.Owner
	missing, err := l.Climb(ctx, namespace, owner, func(o workload.Owner) (bool, error) {
		last = &o
		winner, err := l.Winner(ctx, namespace, o)
		if winner == nil || err != nil {
			return false, err
		}
		s := l.policies.of(winner)
		if !s.Divides(labels) {
			return false, nil
		}
		found = s
		return true, nil
	})
	if found == nil && missing == nil && err == nil {
		found, missing, err = l.promised(ctx, namespace, last, labels)
	}
	return found, missing, err
}

const (
	// OwnerTimeout bounds how long AwaitSpreadOf waits for an owner.
	OwnerTimeout = 500 * time.Millisecond
	// ruledTimeout bounds how long it waits for the spread that a rule makes: another process has to write that. The API
	// server waits for two seconds.
	ruledTimeout = 1500 * time.Millisecond
)

// windowKept is how long an owner that did not arrive is remembered, so that its next pods do not wait again.
const windowKept = time.Minute

// AwaitSpreadOf is SpreadOf, but waits for a missing owner. A workload's controller creates the first pod right after
// its owner, and watches of different kinds are not ordered, so the pod may arrive first. Nothing distinguishes an
// owner that will arrive from a deleted one. So the wait is bounded: the first pod that waits for an owner opens one
// window of OwnerTimeout for all pods of that owner. missing is an owner that did not arrive in time.
func (l *Lineage) AwaitSpreadOf(ctx context.Context, namespace string, owner *workload.Owner, labels map[string]string) (found *Spread, missing *workload.Owner, _ error) {
	missing, err := l.await(ctx, namespace, func() (missing *workload.Owner, err error) {
		found, missing, err = l.SpreadOf(ctx, namespace, owner, labels)
		return missing, err
	})
	return found, missing, err
}

// AwaitOwner is Read, but waits for a missing owner as AwaitSpreadOf does.
func (l *Lineage) AwaitOwner(ctx context.Context, namespace string, o workload.Owner) (object client.Object, _ error) {
	_, err := l.await(ctx, namespace, func() (missing *workload.Owner, err error) {
		if object, err = l.Read(ctx, namespace, o); object == nil {
			missing = &o
		}
		return missing, err
	})
	return object, err
}

// await looks until no owner is missing, or until one has not arrived in time.
func (l *Lineage) await(ctx context.Context, namespace string, look func() (missing *workload.Owner, err error)) (*workload.Owner, error) {
	now := l.arrivals.clock
	// Several owners may be missing, and each may open a window.
	began := now.Now()
	for {
		missing, err := look()
		if missing == nil || err != nil {
			return nil, err
		}
		timeout := OwnerTimeout
		if missing.Kind == spreadKind {
			timeout = ruledTimeout
		}
		l.seek(namespace, missing.Kind)
		arrived, closes := l.arrivals.expect(namespace, missing.UID, timeout)
		left := min(began.Add(timeout).Sub(now.Now()), closes)
		if left <= 0 {
			return missing, nil
		}
		// The owner may have arrived before expect was called. Then no event follows.
		if missing, err = look(); missing == nil || err != nil {
			return nil, err
		}
		select {
		case <-arrived:
		case <-now.After(left):
		case <-ctx.Done():
			return missing, nil
		}
	}
}
