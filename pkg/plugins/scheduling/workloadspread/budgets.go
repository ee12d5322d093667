package workloadspread

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/budget"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

// budgets are the PodUnavailableBudgets, for preemption: which pods it must not take, and which preemptors wait until it may.
//
// This knowledge is delayed and only a forecast: the API server asks Berth's webhook about every protected victim. A refused victim is not tried
// again until its budgets change, or until a minute has passed.
type budgets struct {
	clock clock.WithDelayedExecution
	// parent is the owner of an owner. It is false if that has not been seen.
	parent   func(namespace string, owner workload.Owner) (*workload.Owner, bool)
	activate func(map[string]*corev1.Pod)

	mu sync.Mutex
	// known are the valid budgets, by namespace and name.
	known map[string]map[string]*knownBudget
	// refused are the victims that were refused since the budgets of their namespace changed, with the namespace.
	refused map[types.UID]string
	// waiting are the pods whose preemption would have taken more than budgets allow, with the namespaces of those budgets.
	waiting map[types.UID]*waitingPreemptor
}

type knownBudget struct {
	object *policyv1beta1.PodUnavailableBudget
	policy *budget.Policy
}

type waitingPreemptor struct {
	pod        *corev1.Pod
	namespaces sets.Set[string]
}

func newBudgets(clock clock.WithDelayedExecution, parent func(string, workload.Owner) (*workload.Owner, bool), activate func(map[string]*corev1.Pod)) *budgets {
	return &budgets{
		clock: clock, parent: parent, activate: activate,
		known: map[string]map[string]*knownBudget{}, refused: map[types.UID]string{}, waiting: map[types.UID]*waitingPreemptor{},
	}
}

// servedInterval is how often discovery is asked whether the API server serves PodUnavailableBudgets, until it does.
const servedInterval = 30 * time.Second

// serverResources is the part of the discovery client that is used.
type serverResources interface {
	ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error)
}

// run watches PodUnavailableBudgets once the API server serves them. Without their CRD there are none, and the scheduler works without them.
func (b *budgets) run(ctx context.Context, served serverResources, informer cache.SharedIndexInformer) {
	logger := klog.FromContext(ctx)
	err := wait.PollUntilContextCancel(ctx, servedInterval, true, func(context.Context) (bool, error) {
		_, err := served.ServerResourcesForGroupVersion(policyv1beta1.GroupVersion.String())
		if err != nil && !apierrors.IsNotFound(err) {
			logger.V(2).Info("Will ask again whether there are PodUnavailableBudgets", "err", err)
		}
		return err == nil, nil
	})
	if err == nil {
		informer.RunWithContext(ctx)
	}
}

func (b *budgets) events() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { b.changed(nil, obj.(*policyv1beta1.PodUnavailableBudget)) },
		UpdateFunc: func(before, after any) {
			b.changed(before.(*policyv1beta1.PodUnavailableBudget), after.(*policyv1beta1.PodUnavailableBudget))
		},
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
				b.gone(types.NamespacedName{Namespace: name.Namespace, Name: name.Name})
			}
		},
	}
}

// podEvents forgets pods that need no victims any more, or cannot be victims any more.
func (b *budgets) podEvents() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			if before.(*corev1.Pod).Spec.NodeName == "" && after.(*corev1.Pod).Spec.NodeName != "" {
				b.forget(after.(*corev1.Pod).UID)
			}
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				b.forget(pod.UID)
			}
		},
	}
}

// changed records a new or changed budget. Before is nil for a new one.
func (b *budgets) changed(before, after *policyv1beta1.PodUnavailableBudget) {
	if before != nil && before.Generation == after.Generation && maps.Equal(before.Annotations, after.Annotations) &&
		equality.Semantic.DeepEqual(before.Status, after.Status) {
		return
	}
	policy, errs := budget.Compile(after)
	if len(errs) > 0 || after.DeletionTimestamp != nil {
		b.gone(types.NamespacedName{Namespace: after.Namespace, Name: after.Name}) // it protects nothing
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known[after.Namespace] == nil {
		b.known[after.Namespace] = map[string]*knownBudget{}
	}
	b.known[after.Namespace][after.Name] = &knownBudget{after, policy}
	b.forgetRefusals(after.Namespace)
	if before == nil || before.Generation != after.Generation || room(after) > room(before) {
		b.wake(after.Namespace)
	}
}

// room is how many pods are available above the desired number.
func room(pub *policyv1beta1.PodUnavailableBudget) int32 {
	if pub.Status.ObservedGeneration != pub.Generation {
		return 0
	}
	return pub.Status.CurrentAvailable - pub.Status.DesiredAvailable
}

// gone records that a budget was deleted, or is invalid.
func (b *budgets) gone(name types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.known[name.Namespace], name.Name)
	if len(b.known[name.Namespace]) == 0 {
		delete(b.known, name.Namespace)
	}
	b.forgetRefusals(name.Namespace)
	b.wake(name.Namespace)
}

// forgetRefusals forgets the refused victims of a namespace.
func (b *budgets) forgetRefusals(namespace string) {
	maps.DeleteFunc(b.refused, func(_ types.UID, in string) bool { return in == namespace })
}

// wake retries the preemptors for which budgets of the namespace had no room.
func (b *budgets) wake(namespace string) {
	woken := map[string]*corev1.Pod{}
	for uid, w := range b.waiting {
		if w.namespaces.Has(namespace) {
			woken[string(uid)] = w.pod
			delete(b.waiting, uid)
		}
	}
	if len(woken) > 0 {
		b.activate(woken)
	}
}

// refusalTTL is how long a refused victim is left alone if its budgets do not change.
const refusalTTL = time.Minute

// refuse records that the API server refused to delete a pod.
func (b *budgets) refuse(victim *corev1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[victim.UID] = victim.Namespace
	b.clock.AfterFunc(refusalTTL, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if _, still := b.refused[victim.UID]; still {
			delete(b.refused, victim.UID)
			b.wake(victim.Namespace)
		}
	})
}

func (b *budgets) forget(pod types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.refused, pod)
	delete(b.waiting, pod)
}

// isEmpty is true if no budget is known.
func (b *budgets) isEmpty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.known) == 0 && len(b.refused) == 0
}

// spare says which of the pods a preemption must leave alone. The pods come in the order in which the preemption prefers to take them. The preemptor
// is woken when the budgets have more room.
func (b *budgets) spare(preemptor *corev1.Pod, pods []*corev1.Pod) sets.Set[types.UID] {
	b.mu.Lock()
	defer b.mu.Unlock()
	spared, namespaces := sets.New[types.UID](), sets.New[string]()
	covered := map[*knownBudget][]budget.Pod{}
	for _, pod := range pods {
		if !budget.IsProtected(pod) {
			continue // the API server does not ask about it, and no budget counts it as available
		}
		if _, was := b.refused[pod.UID]; was {
			spared.Insert(pod.UID)
			namespaces.Insert(pod.Namespace)
		}
		for _, known := range b.known[pod.Namespace] {
			if b.covers(known, pod) {
				covered[known] = append(covered[known], budget.Expect(pod, known.policy.Ignored))
			}
		}
	}
	for known, pods := range covered {
		for i, may := range known.policy.Foresee(known.object, pods) {
			if !may {
				spared.Insert(pods[i].UID)
				namespaces.Insert(known.object.Namespace)
			}
		}
	}
	if len(spared) == 0 {
		return nil
	}
	if w := b.waiting[preemptor.UID]; w != nil {
		namespaces = namespaces.Union(w.namespaces)
	}
	b.waiting[preemptor.UID] = &waitingPreemptor{preemptor, namespaces}
	return spared
}

// covers is true if the budget counts the pod, by its selector or by its workload. It is also true if that cannot be seen yet.
func (b *budgets) covers(known *knownBudget, pod *corev1.Pod) bool {
	target := known.policy.Target
	if target == nil {
		return known.policy.Selector.Matches(labels.Set(pod.Labels))
	}
	kind := schema.FromAPIVersionAndKind(target.APIVersion, target.Kind).GroupKind()
	owner := workload.ControllerOf(pod)
	for range workload.LongestOwnerChain {
		if owner == nil {
			return false
		}
		if owner.Kind == kind && owner.Name == target.Name {
			return true
		}
		next, seen := b.parent(pod.Namespace, *owner)
		if !seen {
			return true // some budget protects the pod, and it may be this one
		}
		owner = next
	}
	return false
}
