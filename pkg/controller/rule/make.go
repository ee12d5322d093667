package rule

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/workload"
)

const (
	// writes is how many spreads of a namespace are written at the same time.
	writes = 8
	// manager is the field manager of the spreads.
	manager client.FieldOwner = "berth-rules"
)

// maker makes, changes and deletes the spreads of rules in one namespace.
type maker struct {
	*world
	client client.Client
	clock  clock.PassiveClock
	// pace limits how often a spread is changed back, if another program writes it too.
	pace frame.Pace
}

var _ reconcile.Reconciler = &maker{}

// Reconcile compares the spreads of rules in a namespace with those that should be there, and writes what differs.
func (m *maker) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	before, named, err := m.spreadsIn(ctx, request.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	in, err := m.store.In(ctx, request.Namespace)
	if err != nil || len(in) == 0 && len(before) == 0 {
		return reconcile.Result{}, err
	}
	wanted, unread, err := m.wanted(ctx, request.Namespace, in, named)
	if err != nil {
		return reconcile.Result{}, err
	}
	m.refused.Range(func(key, _ any) bool {
		if of := key.(types.NamespacedName); of.Namespace == request.Namespace && wanted[of.Name] == nil {
			m.refused.Delete(of)
		}
		return true
	})
	retry, err := m.write(ctx, before, wanted, unread)
	if len(unread) > 0 {
		retry = sooner(retry, lineage.RetryInterval)
	}
	return reconcile.Result{RequeueAfter: retry}, err
}

// spreadsIn are the spreads in a namespace that rules have made, by name, and the workloads of those that somebody has written.
func (w *world) spreadsIn(ctx context.Context, namespace string) (made map[string]*v1beta1.WorkloadSpread, named sets.Set[workload.Owner], _ error) {
	var list v1beta1.WorkloadSpreadList
	if err := w.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("listing the spreads of namespace %s: %w", namespace, err)
	}
	made, named = map[string]*v1beta1.WorkloadSpread{}, sets.New[workload.Owner]()
	for i := range list.Items {
		if spread := &list.Items[i]; workload.MadeByRule(spread) {
			made[spread.Name] = spread
		} else {
			named.Insert(workload.TargetOf(spread))
		}
	}
	return made, named, nil
}

// wanted are the spreads that the rules make in a namespace, by name. unread are the kinds of workloads that cannot be read now: their spreads stay as they are.
func (m *maker) wanted(ctx context.Context, namespace string, in []*lineage.Rule, named sets.Set[workload.Owner]) (_ map[string]*v1beta1.WorkloadSpread, unread sets.Set[schema.GroupKind], _ error) {
	kinds, wanted := sets.New[schema.GroupKind](), map[string]*v1beta1.WorkloadSpread{}
	for _, r := range in {
		kinds.Insert(r.Kind)
	}
	unread = sets.New[schema.GroupKind]()
	for kind := range kinds {
		workloads, problem, err := m.workloads(ctx, namespace, kind)
		if err != nil {
			return nil, nil, err
		}
		if problem != nil {
			unread.Insert(kind)
		}
		for _, object := range workloads {
			verdict := lineage.PickRule(in, kind, object)
			if verdict.Rule == nil || object.GetDeletionTimestamp() != nil || named.Has(workload.Owner{Kind: kind, Name: object.GetName()}) {
				continue
			}
			spread := verdict.Rule.SpreadFor(object)
			wanted[spread.Name] = spread
		}
	}
	return wanted, unread, nil
}

// workloads are those of a kind in a namespace. Empty means all namespaces. The problem says why the kind cannot be read.
func (w *world) workloads(ctx context.Context, namespace string, kind schema.GroupKind) (all []client.Object, problem *lineage.Unwatchable, _ error) {
	var list client.ObjectList
	if typed, builtIn := workload.BuiltIn(kind); builtIn {
		list = typed.NewList()
	} else {
		problem, err := w.kinds.Watch(ctx, kind)
		if problem != nil || err != nil {
			return nil, problem, err
		}
		metadata := &metav1.PartialObjectMetadataList{}
		metadata.SetGroupVersionKind(w.kinds.NewObject(kind).GetObjectKind().GroupVersionKind())
		list = metadata
	}
	if err := w.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("listing workloads of kind %s: %w", kind, err)
	}
	return all, nil, meta.EachListItem(list, func(item runtime.Object) error {
		all = append(all, item.(client.Object))
		return nil
	})
}

// write makes the spreads as they are wanted. retry is when to try again, or 0.
func (m *maker) write(ctx context.Context, before, wanted map[string]*v1beta1.WorkloadSpread, unread sets.Set[schema.GroupKind]) (retry time.Duration, _ error) {
	var group errgroup.Group
	group.SetLimit(writes)
	var mu sync.Mutex
	var errs []error
	do := func(what string, spread *v1beta1.WorkloadSpread, request func() error) {
		group.Go(func() error {
			err := request()
			if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
				err = nil // somebody was faster, and an event follows
			}
			mu.Lock()
			defer mu.Unlock()
			switch key := client.ObjectKeyFromObject(spread); {
			case err == nil:
				m.refused.Delete(key)
			case frame.IsRefused(err): // the report says it, and a change of the workload or of the rule may end it
				m.refused.Store(key, err.Error())
				retry = sooner(retry, lineage.RetryInterval)
			default:
				errs = append(errs, fmt.Errorf("%s WorkloadSpread %s/%s: %w", what, spread.Namespace, spread.Name, err))
			}
			return nil
		})
	}
	for name, now := range wanted {
		was, key := before[name], client.ObjectKeyFromObject(now)
		switch {
		case was == nil:
			do("creating", now, func() error { return m.client.Create(ctx, now, manager) })
		case !same(was, now):
			if wait := m.pace.Wait(key, m.clock.Now()); wait > 0 {
				mu.Lock()
				retry = sooner(retry, wait)
				mu.Unlock()
				continue
			}
			m.pace.Wrote(key, m.clock.Now())
			changed := was.DeepCopy()
			changed.Spec, changed.OwnerReferences = now.Spec, now.OwnerReferences
			relabel(changed, now)
			do("changing", now, func() error { return m.client.Update(ctx, changed, manager) })
		}
	}
	for name, was := range before {
		if wanted[name] != nil || unread.Has(workload.TargetOf(was).Kind) || m.ofInvalidRule(ctx, was) || was.DeletionTimestamp != nil {
			continue
		}
		m.pace.Forget(client.ObjectKeyFromObject(was))
		klog.FromContext(ctx).V(2).Info("Deleting the spread of a workload that no rule picks any more", "workloadspread", klog.KObj(was))
		do("deleting", was, func() error {
			return m.client.Delete(ctx, was.DeepCopy(), client.Preconditions{UID: &was.UID})
		})
	}
	_ = group.Wait() // no function returns an error
	return retry, errors.Join(errs...)
}

// sooner is the shorter of two waits, of which the first may be 0 for none.
func sooner(wait, other time.Duration) time.Duration {
	if wait == 0 {
		return other
	}
	return min(wait, other)
}

// ofInvalidRule is true if the rule that has made a spread exists and is invalid. Then its spreads stay as they are until somebody has corrected it.
func (m *maker) ofInvalidRule(ctx context.Context, spread *v1beta1.WorkloadSpread) bool {
	maker, made := workload.MakerOf(spread)
	if !made {
		return false
	}
	object, err := m.rule(ctx, maker)
	if err != nil || object == nil {
		return err != nil
	}
	_, errs := m.store.Compiled(object)
	return len(errs) > 0
}

// rule reads a rule. It is nil if there is none.
func (w *world) rule(ctx context.Context, name client.ObjectKey) (client.Object, error) {
	var object client.Object = &v1alpha1.SpreadRule{}
	if name.Namespace == "" {
		object = &v1alpha1.ClusterSpreadRule{}
	}
	if err := w.Get(ctx, name, object); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return object, nil
}

// same is true if the spread is as it is wanted. Other labels and annotations are the users'.
func same(was, now *v1beta1.WorkloadSpread) bool {
	return equality.Semantic.DeepEqual(was.Spec, now.Spec) && equality.Semantic.DeepEqual(was.OwnerReferences, now.OwnerReferences) &&
		was.Labels[v1beta1.RuleLabel] == now.Labels[v1beta1.RuleLabel] && was.Labels[v1beta1.ClusterRuleLabel] == now.Labels[v1beta1.ClusterRuleLabel]
}

// relabel gives the labels of rules to a spread.
func relabel(spread, as *v1beta1.WorkloadSpread) {
	for _, key := range []string{v1beta1.RuleLabel, v1beta1.ClusterRuleLabel} {
		if value := as.Labels[key]; value != "" {
			metav1.SetMetaDataLabel(&spread.ObjectMeta, key, value)
		} else {
			delete(spread.Labels, key)
		}
	}
}
