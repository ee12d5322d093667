package budget

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// batchWindow is how long events are gathered before a budget is described: long enough for a burst to be one write that seldom stands in the
// way of the webhook's, and short enough for a new pod to be protected before it serves.
const batchWindow = 200 * time.Millisecond

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// delayed queues the budgets that an event affects, by their names in the namespace of the object.
type delayed struct {
	affected func(context.Context, client.Object) []string
}

var _ handler.EventHandler = delayed{}

func (d delayed) enqueue(ctx context.Context, object client.Object, q queue) {
	for _, name := range d.affected(ctx, object) {
		q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}, batchWindow)
	}
}

// Create is called for a new object.
func (d delayed) Create(ctx context.Context, e event.CreateEvent, q queue) {
	d.enqueue(ctx, e.Object, q)
}

// Update is called for a changed object, which may affect other budgets than before.
func (d delayed) Update(ctx context.Context, e event.UpdateEvent, q queue) {
	d.enqueue(ctx, e.ObjectOld, q)
	d.enqueue(ctx, e.ObjectNew, q)
}

// Delete is called for an object that is gone.
func (d delayed) Delete(ctx context.Context, e event.DeleteEvent, q queue) {
	d.enqueue(ctx, e.Object, q)
}

// Generic is called by nobody.
func (d delayed) Generic(context.Context, event.GenericEvent, queue) {}

func itself(_ context.Context, object client.Object) []string { return []string{object.GetName()} }

// ofPod are the budgets whose numbers a pod may change. A pod that is protected and in none, because its budget was deleted while nobody looked,
// has the namespace looked through.
func (r *reconciler) ofPod(ctx context.Context, pod client.Object) []string {
	names := r.budgetsOf(ctx, pod.GetNamespace(), func(name types.NamespacedName) bool {
		extent, known := r.extent.of(name)
		return !known || extent.selector.Matches(labels.Set(pod.GetLabels())) || extent.pods.Has(pod.GetUID())
	})
	if _, protected := pod.GetLabels()[v1alpha1.ProtectedLabel]; protected && len(names) == 0 {
		return []string{""}
	}
	return names
}

// ofWorkload are all budgets of the namespace: which of them have pods of the workload would take longer to find out than to count anew.
func (r *reconciler) ofWorkload(ctx context.Context, workload client.Object) []string {
	return r.budgetsOf(ctx, workload.GetNamespace(), func(types.NamespacedName) bool { return true })
}

func (r *reconciler) budgetsOf(ctx context.Context, namespace string, affected func(types.NamespacedName) bool) []string {
	var pubs v1alpha1.PodUnavailableBudgetList
	if err := r.cached.List(ctx, &pubs, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "Listing the budgets of a namespace for an event", "namespace", namespace)
		return nil
	}
	var names []string
	for i := range pubs.Items {
		if affected(client.ObjectKeyFromObject(&pubs.Items[i])) {
			names = append(names, pubs.Items[i].Name)
		}
	}
	return names
}

// extents remember what each budget covered when it was counted last.
type extents struct {
	mu    sync.RWMutex
	known map[types.NamespacedName]extent
}

type extent struct {
	generation int64
	selector   labels.Selector
	pods       sets.Set[types.UID]
}

func newExtents() *extents { return &extents{known: map[types.NamespacedName]extent{}} }

func (e *extents) of(name types.NamespacedName) (extent, bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	known, found := e.known[name]
	return known, found
}

// set is true if nothing was known of the budget as it is now.
func (e *extents) set(name types.NamespacedName, generation int64, count *census.Count) (isNew bool) {
	pods := sets.New[types.UID]()
	for _, pod := range count.Pods {
		pods.Insert(pod.UID)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	before, known := e.known[name]
	e.known[name] = extent{generation, count.Selector, pods}
	return !known || before.generation != generation
}

func (e *extents) forget(name types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.known, name)
}
