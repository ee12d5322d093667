package budget

import (
	"context"
	"maps"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

func itself(_ context.Context, object client.Object) []string { return []string{object.GetName()} }

// ofPod are the budgets whose numbers a pod may change. A protected pod may be in no budget, for instance because its budget was deleted while the
// controller was down. Then ofPod returns an empty name, and Reconcile looks for such pods in the whole namespace.
func (r *reconciler) ofPod(_ context.Context, pod client.Object) []string {
	names := r.extent.affected(pod.GetNamespace(), func(e *extent) bool {
		return e.selector.Matches(labels.Set(pod.GetLabels())) || e.pods.Has(pod.GetUID())
	})
	if _, protected := pod.GetLabels()[v1beta1.ProtectedLabel]; protected && len(names) == 0 {
		return []string{""}
	}
	return names
}

// ofWorkload are the budgets that have pods of the workload, or that name it. A new workload affects no further budgets; its pods do once they are created.
func (r *reconciler) ofWorkload(_ context.Context, object client.Object) []string {
	above := workload.ControllerUID(object)
	return r.extent.affected(object.GetNamespace(), func(e *extent) bool {
		return e.owners.Has(object.GetUID()) || above != "" && e.owners.Has(above) || e.target != nil && e.target.Name == object.GetName()
	})
}

// ofDisruptionBudget are the budgets that ask for a PodDisruptionBudget: beside another for the same pods, Berth keeps none.
func (r *reconciler) ofDisruptionBudget(_ context.Context, object client.Object) []string {
	return r.extent.affected(object.GetNamespace(), func(e *extent) bool { return e.keeps })
}

// ofNode are the budgets of the pods on a node.
func (r *reconciler) ofNode(ctx context.Context, node, _ client.Object) sets.Set[reconcile.Request] {
	requests, pods := sets.New[reconcile.Request](), &corev1.PodList{}
	if err := r.cached.List(ctx, pods, client.MatchingFields{frame.NodeField: node.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "Not looking at the pods of a node that announces its end", "node", node.GetName())
	}
	for i := range pods.Items {
		for _, name := range r.ofPod(ctx, &pods.Items[i]) {
			requests.Insert(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pods.Items[i].Namespace, Name: name}})
		}
	}
	return requests
}

// nodeMatters lets through nodes that begin or cease to announce their end.
func (r *reconciler) nodeMatters() predicate.Predicate {
	noticeOf := func(object client.Object) string {
		if node, ok := object.(*corev1.Node); ok {
			return r.notices.Of(node)
		}
		return ""
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return noticeOf(e.Object) != "" },
		UpdateFunc: func(e event.UpdateEvent) bool { return noticeOf(e.ObjectOld) != noticeOf(e.ObjectNew) },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// podMatters drops updates that do not matter to budgets, such as most changes of conditions and annotations. A change of SelectorKeysAnnotation matters,
// because two budgets of one pod may overwrite each other's keys. After the first change of a spec every update matters, because the cache does not
// have the images that the containers run.
var podMatters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Pod)
	after, okAfter := e.ObjectNew.(*corev1.Pod)
	if !ok || !okAfter {
		return true
	}
	return before.UID != after.UID || model.WasChanged(before) || model.WasChanged(after) ||
		!workload.HaveSameController(before, after) ||
		before.Spec.NodeName != after.Spec.NodeName || before.Status.Phase != after.Status.Phase ||
		!maps.Equal(before.Labels, after.Labels) ||
		before.Annotations[v1beta1.SelectorKeysAnnotation] != after.Annotations[v1beta1.SelectorKeysAnnotation] ||
		model.Observe(before, nil, false) != model.Observe(after, nil, false)
}}

// workloadMatters drops updates that change neither the replicas of a workload nor its owner. The status of a Job tells how many pods it still asks for. The
// cache does not keep it, so every update of a Job matters.
var workloadMatters = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	_, isJob := e.ObjectNew.(*batchv1.Job)
	return isJob || e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
		!workload.HaveSameController(e.ObjectOld, e.ObjectNew)
}}

// extents remember what the last count of each budget covered, and which budgets are being counted.
type extents struct {
	mu          sync.RWMutex
	byNamespace map[string]map[string]*extent
}

type extent struct {
	// counting: a count is in progress. It may miss events that arrive now.
	counting bool
	// counted: the fields below are set. A budget that could not be counted is retried after a backoff, and not on events of pods.
	counted    bool
	uid        types.UID
	generation int64
	source     model.Source
	selector   labels.Selector
	pods       sets.Set[types.UID]
	// owners of the pods, and those above them.
	owners sets.Set[types.UID]
	// target is the workload that the budget names, nil if it names none.
	target *v1beta1.TargetReference
	// keeps: the budget asks for a PodDisruptionBudget.
	keeps bool
}

func newExtents() *extents { return &extents{byNamespace: map[string]map[string]*extent{}} }

// affected are the names of the budgets in a namespace that are being counted, or for whose last count by is true.
func (e *extents) affected(namespace string, by func(*extent) bool) []string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var names []string
	for name, extent := range e.byNamespace[namespace] {
		if extent.counting || extent.counted && by(extent) {
			names = append(names, name)
		}
	}
	return names
}

// of is the result of a budget's last count. It is false for a budget that was never counted.
func (e *extents) of(name types.NamespacedName) (extent, bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	known, found := e.byNamespace[name.Namespace][name.Name]
	if !found || !known.counted {
		return extent{}, false
	}
	return *known, true
}

// begin marks a budget as being counted, until the returned function is called. The function may be called more than once.
func (e *extents) begin(name types.NamespacedName) (end func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byNamespace[name.Namespace] == nil {
		e.byNamespace[name.Namespace] = map[string]*extent{}
	}
	known := e.byNamespace[name.Namespace][name.Name]
	if known == nil {
		known = &extent{}
		e.byNamespace[name.Namespace][name.Name] = known
	}
	known.counting = true
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		known.counting = false
	}
}

// set records a count. isNew is true for the first count by this policy of the budget.
func (e *extents) set(name types.NamespacedName, pub *v1beta1.PodUnavailableBudget, count *census.Count) (isNew bool) {
	pods := sets.New[types.UID]()
	for _, pod := range count.Pods {
		pods.Insert(pod.UID)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.byNamespace[name.Namespace][name.Name]
	source := model.SourceOf(pub)
	isNew = !known.counted || !known.source.Equal(&source)
	*known = extent{
		counting: known.counting, counted: true, uid: pub.UID, generation: pub.Generation, source: source, selector: count.Selector, pods: pods, owners: count.Owners, target: pub.Spec.TargetReference,
		keeps: pub.Spec.KeepPodDisruptionBudget,
	}
	return isNew
}

func (e *extents) forget(name types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if delete(e.byNamespace[name.Namespace], name.Name); len(e.byNamespace[name.Namespace]) == 0 {
		delete(e.byNamespace, name.Namespace)
	}
}
