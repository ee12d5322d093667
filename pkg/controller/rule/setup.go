package rule

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/workload"
)

// Setup adds the controllers of rules to the manager. The scheme must have the types of pkg/crd/rules/v1alpha1, which the API server must serve, and the cache the options of the frame. The
// context is used until Setup returns.
func Setup(ctx context.Context, mgr ctrl.Manager) error {
	kinds := lineage.NewKinds(mgr.GetRESTMapper(), mgr.GetAPIReader(), clock.RealClock{})
	w := &world{Reader: mgr.GetCache(), kinds: kinds, store: &lineage.Rules{Reader: mgr.GetCache()}}
	recorder := mgr.GetEventRecorder("berth-rules")
	makes, err := frame.New("spreadrule-namespace", mgr, &maker{world: w, client: mgr.GetClient(), clock: clock.RealClock{}, pace: frame.Pace{Interval: frame.StatusInterval}})
	if err != nil {
		return err
	}
	reports, err := frame.New("spreadrule", mgr, &reporter{world: w, client: mgr.GetClient(), events: recorder, clock: clock.RealClock{}, pace: frame.Pace{Interval: frame.StatusInterval}})
	if err != nil {
		return err
	}
	watch := func(object client.Object, namespaces handler.MapFunc, affected func(context.Context, client.Object) sets.Set[reconcile.Request], matters predicate.Predicate) error {
		return errors.Join(
			// A pod of a new workload waits for its spread, so nothing is collected first.
			watchIn(mgr, makes, object, handler.EnqueueRequestsFromMapFunc(namespaces), matters),
			watchIn(mgr, reports, object, frame.Delayed(func(ctx context.Context, object, _ client.Object) sets.Set[reconcile.Request] {
				return affected(ctx, object)
			}), matters))
	}
	kinds.OnStart(func(_ context.Context, object *metav1.PartialObjectMetadata) error {
		return watch(object, inNamespace, w.rulesOf(object.GroupVersionKind().GroupKind()), workloadMatters)
	})
	for kind, typed := range workload.Watched() {
		err = errors.Join(err, watch(typed.NewObject(), inNamespace, w.rulesOf(kind), workloadMatters))
	}
	// The status of a spread matters to the report alone.
	err = errors.Join(err,
		watchIn(mgr, makes, &v1beta1.WorkloadSpread{}, handler.EnqueueRequestsFromMapFunc(inNamespace), spreadMatters),
		watchIn(mgr, reports, &v1beta1.WorkloadSpread{}, frame.Delayed(w.rulesOfSpread), predicate.Funcs{}),
		watch(&v1alpha1.SpreadRule{}, inNamespace, w.everyRule, predicate.GenerationChangedPredicate{}),
		watch(&v1alpha1.ClusterSpreadRule{}, w.everyNamespace, w.everyRule, predicate.GenerationChangedPredicate{}),
		watch(lineage.NewNamespace(), itself, w.everyRule, predicate.LabelChangedPredicate{}))
	return errors.Join(err, mgr.Add(kinds))
}

func watchIn(mgr ctrl.Manager, by controller.Controller, object client.Object, to handler.EventHandler, matters predicate.Predicate) error {
	if err := by.Watch(source.Kind(mgr.GetCache(), object, to, matters)); err != nil {
		return fmt.Errorf("watching %T: %w", object, err)
	}
	return nil
}

// world is what both controllers read.
type world struct {
	client.Reader // the cache
	kinds         *lineage.Kinds
	store         *lineage.Rules
	// refused says why the API server refuses a spread, of type types.NamespacedName to string. The maker writes it for the reporter.
	refused sync.Map
}

// forNamespace asks the maker to look at a namespace.
func forNamespace(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: name, Name: name}}
}

func inNamespace(_ context.Context, object client.Object) []reconcile.Request {
	return []reconcile.Request{forNamespace(object.GetNamespace())}
}

func itself(_ context.Context, namespace client.Object) []reconcile.Request {
	return []reconcile.Request{forNamespace(namespace.GetName())}
}

// everyNamespace is for a cluster-wide rule, which may have picked other namespaces before it changed.
func (w *world) everyNamespace(ctx context.Context, _ client.Object) (all []reconcile.Request) {
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NamespaceList"}}
	if err := w.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "Listing namespaces; a rule takes effect late")
	}
	for i := range list.Items {
		all = append(all, forNamespace(list.Items[i].Name))
	}
	return all
}

// everyRule is for what may change the report of any rule: another rule, or a namespace.
func (w *world) everyRule(ctx context.Context, changed client.Object) sets.Set[reconcile.Request] {
	all := w.rulesWith(ctx, "", func(*lineage.Rule) bool { return true })
	switch changed.(type) {
	case *v1alpha1.SpreadRule, *v1alpha1.ClusterSpreadRule: // also if it is invalid or gone
		w.store.Forget(changed.GetUID())
		all.Insert(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(changed)})
	}
	return all
}

// rulesOf are the rules that may pick a workload of the kind.
func (w *world) rulesOf(kind schema.GroupKind) func(context.Context, client.Object) sets.Set[reconcile.Request] {
	return func(ctx context.Context, object client.Object) sets.Set[reconcile.Request] {
		return w.rulesWith(ctx, object.GetNamespace(), func(r *lineage.Rule) bool { return r.Kind == kind })
	}
}

func (w *world) rulesWith(ctx context.Context, namespace string, matches func(*lineage.Rule) bool) sets.Set[reconcile.Request] {
	requests := sets.New[reconcile.Request]()
	all, err := w.store.All(ctx, namespace)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Listing rules; a status is late")
	}
	for _, r := range all {
		if matches(r) {
			requests.Insert(reconcile.Request{NamespacedName: r.NamespacedName})
		}
	}
	return requests
}

// rulesOfSpread is the rule that has made a spread, and those that may pick its workload.
func (w *world) rulesOfSpread(ctx context.Context, object, other client.Object) sets.Set[reconcile.Request] {
	spread, is := object.(*v1beta1.WorkloadSpread)
	if !is {
		return nil
	}
	requests := sets.New[reconcile.Request]()
	maker, made := workload.MakerOf(spread)
	if made {
		requests.Insert(reconcile.Request{NamespacedName: maker})
	}
	if !made || other == nil { // one that wins, or one that is missing now
		return requests.Union(w.rulesOf(workload.TargetOf(spread).Kind)(ctx, spread))
	}
	return requests
}

// spreadMatters to the maker: its status does not.
var spreadMatters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
		!equality.Semantic.DeepEqual(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
		!equality.Semantic.DeepEqual(e.ObjectOld.GetOwnerReferences(), e.ObjectNew.GetOwnerReferences())
}}

// workloadMatters passes what may change whether a rule picks the workload, and its number of replicas. It drops what another object controls, such as most ReplicaSets.
var workloadMatters = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return workload.ControllerUID(e.Object) == "" },
	DeleteFunc: func(e event.DeleteEvent) bool { return workload.ControllerUID(e.Object) == "" },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld, e.ObjectNew
		if !workload.HaveSameController(before, after) {
			return true
		}
		return workload.ControllerUID(after) == "" && (before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
			!equality.Semantic.DeepEqual(before.GetLabels(), after.GetLabels()))
	},
}
