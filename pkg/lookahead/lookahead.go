// Package lookahead answers UnitedDeployments with lookAhead: how many replicas does each subset have room for? It runs in the scheduler, which links the filters
// and knows the cluster, and writes its answers into the status, where the controller reads them. In a member of a federation it reports to the hub, too, how many more pods
// find a node. Begin reading at Start.
package lookahead

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/united"
)

const (
	// resync is how often every UnitedDeployment is looked at again. A process that begins to lead answers within this time.
	resync = 10 * time.Second
	// enough is how many more replicas a subset has room for before it counts as having enough. It bounds the work of one answer.
	enough = 500
	// fieldManager is the name with which answers are applied.
	fieldManager = "berth-scheduler"
)

// answerer writes answers, one at a time.
type answerer struct {
	client dynamic.Interface
	// uniteds are the UnitedDeployments as unstructured content.
	uniteds cache.SharedIndexInformer
	pods    corelisters.PodLister
	nodes   corelisters.NodeLister
	filters *fit.Filters
	clock   clock.PassiveClock
	leads   func() bool
	queue   workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

// Start answers and reports until the context ends, while leads returns true. It needs informers of the factory, which must not run yet and which the caller starts. Where the API
// server has no UnitedDeployments, or the scheduler may not read them, it tries again from time to time.
func Start(ctx context.Context, client dynamic.Interface, typed kubernetes.Interface, factory informers.SharedInformerFactory, leads func() bool) error {
	a, r, err := newWorkers(ctx, client, typed, factory, leads)
	if err != nil {
		return err
	}
	core := factory.Core().V1()
	if err := a.uniteds.SetTransform(keep); err != nil {
		return fmt.Errorf("setting the transform of UnitedDeployments: %w", err)
	}
	if err := a.uniteds.SetWatchErrorHandlerWithContext(onWatchError); err != nil {
		return fmt.Errorf("setting the error handler of UnitedDeployments: %w", err)
	}
	add := func(object any) {
		if name, err := cache.ObjectToName(object); err == nil && leads() {
			a.queue.Add(name)
		}
	}
	if _, err := a.uniteds.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, object any) { add(object) }}); err != nil {
		return fmt.Errorf("registering an event handler: %w", err)
	}
	synced := []cache.InformerSynced{core.Pods().Informer().HasSynced, core.Nodes().Informer().HasSynced, factory.Apps().V1().ReplicaSets().Informer().HasSynced, a.uniteds.HasSynced}
	go a.uniteds.RunWithContext(ctx)
	go func() {
		defer a.queue.ShutDown()
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			go wait.UntilWithContext(ctx, a.work, time.Second)
			go wait.UntilWithContext(ctx, r.report, reportInterval)
		}
		<-ctx.Done()
	}()
	return nil
}

// newWorkers makes what answers and what reports. Both work at the same time, and a picture of filters belongs to one of them, so each has its own.
func newWorkers(ctx context.Context, client dynamic.Interface, typed kubernetes.Interface, factory informers.SharedInformerFactory, leads func() bool) (*answerer, *reporter, error) {
	var filters [2]*fit.Filters
	for i := range filters {
		var err error
		if filters[i], err = fit.NewFilters(ctx, typed, factory); err != nil {
			return nil, nil, err
		}
	}
	core := factory.Core().V1()
	a := &answerer{
		client: client, filters: filters[0], clock: clock.RealClock{}, leads: leads, pods: core.Pods().Lister(), nodes: core.Nodes().Lister(),
		uniteds: dynamicinformer.NewFilteredDynamicInformer(client, v1beta1.Resource, metav1.NamespaceAll, resync, cache.Indexers{}, nil).Informer(),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()),
	}
	return a, &reporter{client: typed, filters: filters[1], clock: clock.RealClock{}, pods: a.pods, nodes: a.nodes, sets: factory.Apps().V1().ReplicaSets().Lister(), leads: leads}, nil
}

// onWatchError says little where UnitedDeployments are not installed, or switched off.
func onWatchError(ctx context.Context, reflector *cache.Reflector, err error) {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		klog.FromContext(ctx).V(4).Info("No UnitedDeployments", "err", err)
		return
	}
	cache.DefaultWatchErrorHandler(ctx, reflector, err)
}

// keep drops the content of UnitedDeployments that do not look ahead.
func keep(object any) (any, error) {
	ud, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	ud.SetManagedFields(nil)
	if !looksAhead(ud) {
		delete(ud.Object, "spec")
		delete(ud.Object, "status")
	}
	return ud, nil
}

func looksAhead(ud *unstructured.Unstructured) bool {
	asked, _, _ := unstructured.NestedBool(ud.Object, "spec", "topology", "scheduleStrategy", "adaptive", "lookAhead") // no such field is no
	return asked
}

func (a *answerer) work(ctx context.Context) {
	for {
		name, ended := a.queue.Get()
		if ended {
			return
		}
		if err := a.answer(ctx, name); err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Finding out what a UnitedDeployment has room for", "uniteddeployment", klog.KRef(name.Namespace, name.Name))
			a.queue.AddRateLimited(name)
		} else {
			a.queue.Forget(name)
		}
		a.queue.Done(name)
	}
}

// answer finds out what the subsets have room for, if nobody knows: for a new spec, and again from time to time while a subset has too little.
func (a *answerer) answer(ctx context.Context, name cache.ObjectName) error {
	object, found, err := a.uniteds.GetStore().GetByKey(name.String())
	if err != nil || !found || !a.leads() {
		return err
	}
	content, ok := object.(*unstructured.Unstructured)
	if !ok || !looksAhead(content) || content.GetDeletionTimestamp() != nil {
		return nil
	}
	ud := &v1beta1.UnitedDeployment{}
	written, err := content.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(written, ud)
	}
	if err != nil {
		return fmt.Errorf("decoding: %w", err)
	}
	if last := ud.Status.Capacity; last != nil && last.ObservedGeneration == ud.Generation {
		left := last.Time.Add(united.CapacityInterval).Sub(a.clock.Now())
		if !united.IsShort(&ud.Status) || left > 0 {
			return nil // looked at again after resync
		}
	}
	policy, _ := united.Compile(ud, field.NewPath("spec")) // the controller says what is wrong
	if policy == nil || policy.Template == nil || policy.Adaptive == nil || !policy.Adaptive.LookAhead {
		return nil
	}
	answer, err := a.capacityOf(ctx, ud, policy)
	if err != nil {
		return err
	}
	return a.write(ctx, ud, answer)
}

// capacityOf tries new replicas of each subset on a picture of the cluster, until no node takes one more. Subsets do not take room from each other in it: the picture is taken
// again for each.
func (a *answerer) capacityOf(ctx context.Context, ud *v1beta1.UnitedDeployment, policy *united.Policy) (*v1beta1.Capacity, error) {
	answer := &v1beta1.Capacity{ObservedGeneration: ud.Generation, Time: metav1.NewTime(a.clock.Now())}
	pods, err := a.pods.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	nodes, err := a.nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	for i := range policy.Subsets {
		s := &policy.Subsets[i]
		if s.Cluster != "" {
			continue // its nodes are not here
		}
		pod, err := podOf(ud, policy, i)
		if err != nil {
			return nil, err
		}
		rooms, err := a.filters.Take(pods, nodes)
		if err != nil {
			return nil, fmt.Errorf("taking a picture of the cluster: %w", err)
		}
		has := boundIn(pods, policy, ud.Namespace, s.Name)
		most := policy.Replicas
		if s.Max.IsSet {
			most = min(most, s.Max.Of(policy.Replicas))
		}
		for tried := int32(0); has < most && tried < enough; tried++ {
			next := pod.DeepCopy()
			next.Name, next.UID = fmt.Sprint(pod.Name, "-", tried), types.UID(fmt.Sprint(ud.UID, "-", s.Name, "-", tried))
			_, verdict, why := rooms.Place(ctx, next, nil, func(*corev1.Node) bool { return true })
			if verdict == fit.Unknown {
				klog.FromContext(ctx).V(2).Info("Cannot tell what a subset has room for", "uniteddeployment", klog.KObj(ud), "subset", s.Name, "err", why)
				break
			}
			if verdict == fit.DoesNotFit {
				answer.Subsets = append(answer.Subsets, v1beta1.SubsetCapacity{Name: s.Name, Replicas: has})
				break
			}
			has++
		}
	}
	return answer, nil
}

// podOf is a pod of a subset as its child would make it, as far as the template says it: without the volumes that a StatefulSet adds, and without what admission adds.
func podOf(ud *v1beta1.UnitedDeployment, policy *united.Policy, subset int) (*corev1.Pod, error) {
	child, err := policy.Render(united.Wanted{Subset: subset}, policy.Template, ud.Status.UpdatedRevision, "", ud)
	if err != nil {
		return nil, fmt.Errorf("rendering the child of subset %s: %w", policy.Subsets[subset].Name, err)
	}
	content, _, err := unstructured.NestedMap(child, "spec", "template")
	if err != nil {
		return nil, fmt.Errorf("spec.template: %w", err)
	}
	template := &corev1.PodTemplateSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, template); err != nil {
		return nil, fmt.Errorf("decoding the pod template of subset %s: %w", policy.Subsets[subset].Name, err)
	}
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.Name = ud.Namespace, ud.Name+"-"+policy.Subsets[subset].Name
	return pod, nil
}

// boundIn is how many active pods of a subset have a node.
func boundIn(pods []*corev1.Pod, policy *united.Policy, namespace, subset string) (n int32) {
	for _, pod := range pods {
		if pod.Namespace == namespace && pod.Spec.NodeName != "" && podstate.IsActive(pod) && pod.Labels[v1beta1.SubsetNameLabel] == subset &&
			policy.Selector.Matches(labels.Set(pod.Labels)) {
			n++
		}
	}
	return n
}

func (a *answerer) write(ctx context.Context, ud *v1beta1.UnitedDeployment, answer *v1beta1.Capacity) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(answer)
	if err != nil {
		return fmt.Errorf("encoding: %w", err)
	}
	applied := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"capacity": content}}}
	applied.SetGroupVersionKind(v1beta1.Kind)
	applied.SetNamespace(ud.Namespace)
	applied.SetName(ud.Name)
	applied.SetUID(ud.UID) // not a later one of the same name
	_, err = a.client.Resource(v1beta1.Resource).Namespace(ud.Namespace).ApplyStatus(ctx, ud.Name, applied, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // an event follows
	}
	if err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}
