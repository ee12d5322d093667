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
	policyv1alpha1 "github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	"github.com/berth-project/berth/pkg/workload"
)

// budgets are the PodUnavailableBudgets, as far as preemption is concerned: whom it must not take, and who waits until it may.
//
// They are seen with a delay, and what they promise binds nobody: the API server asks Berth's webhook about every protected victim. A victim that
// it refuses is not tried again until its budgets have news, or a minute has passed.
type budgets struct {
	clock clock.WithDelayedExecution
	// parent is the owner of an owner; false if that has not been seen.
	parent   func(namespace string, owner workload.Owner) (*workload.Owner, bool)
	activate func(map[string]*corev1.Pod)

	mu sync.Mutex
	// known are the budgets that can be used, by namespace and name.
	known map[string]map[string]*knownBudget
	// refused are the victims that were refused lately, since the budgets of their namespace had news.
	refused map[types.UID]string
	// waiting are the pods for which a preemption would have taken more than budgets allow, with the namespaces of those budgets.
	waiting map[types.UID]*waitingPreemptor
}

type knownBudget struct {
	object *policyv1alpha1.PodUnavailableBudget
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

// servedInterval is how often the API server is asked whether it serves PodUnavailableBudgets, until it does.
const servedInterval = 30 * time.Second

// serverResources is what run asks of discovery.
type serverResources interface {
	ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error)
}

// run watches PodUnavailableBudgets once the API server serves them. Without their definition there are none, and the scheduler does without.
func (b *budgets) run(ctx context.Context, served serverResources, informer cache.SharedIndexInformer) {
	logger := klog.FromContext(ctx)
	err := wait.PollUntilContextCancel(ctx, servedInterval, true, func(context.Context) (bool, error) {
		_, err := served.ServerResourcesForGroupVersion(policyv1alpha1.GroupVersion.String())
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
		AddFunc: func(obj any) { b.changed(nil, obj.(*policyv1alpha1.PodUnavailableBudget)) },
		UpdateFunc: func(before, after any) {
			b.changed(before.(*policyv1alpha1.PodUnavailableBudget), after.(*policyv1alpha1.PodUnavailableBudget))
		},
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
				b.gone(types.NamespacedName{Namespace: name.Namespace, Name: name.Name})
			}
		},
	}
}

// podEvents forget pods that need no victims any more, or cannot be any.
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

// changed takes in a new or changed budget. Before is nil for a new one.
func (b *budgets) changed(before, after *policyv1alpha1.PodUnavailableBudget) {
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

// room is how many more pods are available than must be.
func room(pub *policyv1alpha1.PodUnavailableBudget) int32 {
	if pub.Status.ObservedGeneration != pub.Generation {
		return 0
	}
	return pub.Status.CurrentAvailable - pub.Status.DesiredAvailable
}

// gone takes in that a budget was deleted, or protects nothing.
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

// forgetRefusals forgets who was refused in a namespace.
func (b *budgets) forgetRefusals(namespace string) {
	maps.DeleteFunc(b.refused, func(_ types.UID, in string) bool { return in == namespace })
}

// wake has the pods tried again for which budgets of the namespace had no room.
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

// refusalTTL is how long a victim that was refused is left alone if its budgets have no news.
const refusalTTL = time.Minute

// refuse takes in that the API server would not have a pod deleted.
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

// isEmpty is true if there is no budget, as far as is known.
func (b *budgets) isEmpty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.known) == 0 && len(b.refused) == 0
}

// spare says which of the pods, given in the order in which a preemption would rather have them go, it must leave alone. The preemptor is woken
// when there is more room for them.
func (b *budgets) spare(preemptor *corev1.Pod, pods []*corev1.Pod) sets.Set[types.UID] {
	b.mu.Lock()
	defer b.mu.Unlock()
	spared, namespaces := sets.New[types.UID](), sets.New[string]()
	covered := map[*knownBudget][]budget.Pod{}
	for _, pod := range pods {
		if !budget.IsProtected(pod) {
			continue // nobody is asked about it, and no budget counts on it
		}
		if _, was := b.refused[pod.UID]; was {
			spared.Insert(pod.UID)
			namespaces.Insert(pod.Namespace)
		}
		for _, known := range b.known[pod.Namespace] {
			if b.covers(known, pod) {
				covered[known] = append(covered[known], budget.Observe(pod, false))
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

// covers is true if the budget's pods are told by its selector and this is one, or by their workload and this is one as far as can be seen.
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
