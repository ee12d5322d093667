package workloadspread

import (
	"context"
	"fmt"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	listersappsv1 "k8s.io/client-go/listers/apps/v1"
	listersbatchv1 "k8s.io/client-go/listers/batch/v1"
	listersv1 "k8s.io/client-go/listers/core/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	policyv1alpha1 "github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	"github.com/berth-project/berth/pkg/workload"
)

// listeners are the registrations of our event handlers. The scheduler waits for its own handlers before it schedules, but not for these.
type listeners struct {
	synced []cache.InformerSynced
	// spreadsError is why the spreads could not be listed at the last attempt.
	spreadsError atomic.Pointer[string]
}

func (w *listeners) add(registration cache.ResourceEventHandlerRegistration, err error) error {
	if err != nil {
		return fmt.Errorf("registering an event handler: %w", err)
	}
	w.synced = append(w.synced, registration.HasSynced)
	return nil
}

// hasSynced is true once the ledger has taken in everything that the informers' first lists held.
func (w *listeners) hasSynced() bool {
	for _, synced := range w.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// watch feeds the ledger from the scheduler's informers and from one for spreads, which it starts.
func watch(ctx context.Context, l *ledger, factory informers.SharedInformerFactory, spreads cache.SharedIndexInformer) (*listeners, error) {
	w := &listeners{}
	handlers := []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{spreads, spreadEvents(l)},
		{factory.Apps().V1().Deployments().Informer(), workloadEvents(l, appsv1.GroupName, "Deployment")},
		{factory.Apps().V1().ReplicaSets().Informer(), workloadEvents(l, appsv1.GroupName, "ReplicaSet")},
		{factory.Apps().V1().StatefulSets().Informer(), workloadEvents(l, appsv1.GroupName, "StatefulSet")},
		{factory.Batch().V1().Jobs().Informer(), workloadEvents(l, batchv1.GroupName, "Job")},
		{factory.Core().V1().Nodes().Informer(), nodeEvents(l)},
		{factory.Core().V1().Pods().Informer(), podEvents(l)},
	}
	for _, h := range handlers {
		if err := w.add(h.informer.AddEventHandler(h.handler)); err != nil {
			return nil, err
		}
	}
	if err := spreads.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		message := err.Error()
		w.spreadsError.Store(&message)
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}); err != nil {
		return nil, fmt.Errorf("setting the watch error handler: %w", err)
	}
	go spreads.RunWithContext(ctx)
	return w, nil
}

func newSpreadInformer(config *restclient.Config) (cache.SharedIndexInformer, error) {
	return newInformer(config, v1alpha1.AddToScheme, v1alpha1.Resource, &v1alpha1.WorkloadSpread{})
}

func newBudgetInformer(config *restclient.Config) (cache.SharedIndexInformer, error) {
	return newInformer(config, policyv1alpha1.AddToScheme, policyv1alpha1.Resource, &policyv1alpha1.PodUnavailableBudget{})
}

// newInformer watches custom resources in all namespaces. The scheduler's own configuration speaks protobuf, which they do not.
func newInformer(config *restclient.Config, addToScheme func(*runtime.Scheme) error, resource schema.GroupVersionResource, object runtime.Object) (cache.SharedIndexInformer, error) {
	scheme := runtime.NewScheme()
	if err := addToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering %T: %w", object, err)
	}
	version := resource.GroupVersion()
	config = jsonConfig(config)
	config.GroupVersion = &version
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := restclient.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", resource.Resource, err)
	}
	listWatch := cache.NewListWatchFromClient(client, resource.Resource, metav1.NamespaceAll, fields.Everything())
	return cache.NewSharedIndexInformer(listWatch, object, 0, cache.Indexers{}), nil
}

func jsonConfig(config *restclient.Config) *restclient.Config {
	config = restclient.CopyConfig(config)
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeJSON
	return config
}

func spreadEvents(l *ledger) cache.ResourceEventHandler {
	changed := func(obj any) { l.spreadChanged(obj.(*v1alpha1.WorkloadSpread)) }
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, obj any) { changed(obj) },
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
				l.spreadGone(types.NamespacedName{Namespace: name.Namespace, Name: name.Name})
			}
		},
	}
}

func workloadEvents(l *ledger, group, kind string) cache.ResourceEventHandler {
	news := func(obj any) {
		if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			l.workloadChanged(workloadKey{name.Namespace, group, kind, name.Name})
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			news(obj)
			l.ownerSeen(obj.(metav1.Object).GetUID())
		},
		UpdateFunc: func(_, obj any) { news(obj) },
		DeleteFunc: news,
	}
}

func nodeEvents(l *ledger) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { l.nodeSeen(obj.(*corev1.Node).Name) }}
}

// podEvents: the scheduler's pod informer leaves out pods that have ended, so that ending looks like deletion.
func podEvents(l *ledger) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { l.observe(obj.(*corev1.Pod)) },
		UpdateFunc: func(before, obj any) {
			pod := obj.(*corev1.Pod)
			if was := before.(*corev1.Pod); was.UID != pod.UID {
				l.gone(was.UID)
			}
			l.observe(pod)
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				l.gone(pod.UID)
			}
		},
	}
}

// cachedPods implements podLister.
type cachedPods struct{ listersv1.PodLister }

func (c cachedPods) cached(pod *corev1.Pod) bool {
	found, err := c.Pods(pod.Namespace).Get(pod.Name)
	return err == nil && found.UID == pod.UID
}

func (c cachedPods) inNamespace(namespace string) []*corev1.Pod {
	pods, err := c.Pods(namespace).List(labels.Everything())
	if err != nil {
		return nil // a lister reads a local index, which has no errors
	}
	return pods
}

// cachedWorkloads implements workloads for the built-in kinds from the scheduler's informers, and for all others from customWorkloads.
type cachedWorkloads struct {
	deployments  listersappsv1.DeploymentLister
	replicaSets  listersappsv1.ReplicaSetLister
	statefulSets listersappsv1.StatefulSetLister
	jobs         listersbatchv1.JobLister
	custom       *customWorkloads
}

func newCachedWorkloads(factory informers.SharedInformerFactory, custom *customWorkloads) *cachedWorkloads {
	return &cachedWorkloads{
		deployments:  factory.Apps().V1().Deployments().Lister(),
		replicaSets:  factory.Apps().V1().ReplicaSets().Lister(),
		statefulSets: factory.Apps().V1().StatefulSets().Lister(),
		jobs:         factory.Batch().V1().Jobs().Lister(),
		custom:       custom,
	}
}

// builtIn reads an object of a built-in kind. The second result is false for all other kinds; the object is nil if it has not been seen.
func (c *cachedWorkloads) builtIn(key workloadKey) (metav1.Object, bool) {
	switch {
	case key.group == appsv1.GroupName && key.kind == "ReplicaSet":
		return seen(c.replicaSets.ReplicaSets(key.namespace).Get(key.name)), true
	case key.group == appsv1.GroupName && key.kind == "Deployment":
		return seen(c.deployments.Deployments(key.namespace).Get(key.name)), true
	case key.group == appsv1.GroupName && key.kind == "StatefulSet":
		return seen(c.statefulSets.StatefulSets(key.namespace).Get(key.name)), true
	case key.group == batchv1.GroupName && key.kind == "Job":
		return seen(c.jobs.Jobs(key.namespace).Get(key.name)), true
	}
	return nil, false
}

// seen turns "not found", the only error of a lister, into nil.
func seen[T metav1.Object](object T, err error) metav1.Object {
	if err != nil {
		return nil
	}
	return object
}

func (c *cachedWorkloads) parent(namespace string, owner workload.Owner) (*workload.Owner, bool) {
	if workload.EndsChain(owner.Kind) {
		return nil, true
	}
	object, builtIn := c.builtIn(keyOf(namespace, owner))
	if !builtIn {
		return c.custom.parent(namespace, owner)
	}
	if object == nil || object.GetUID() != owner.UID {
		return nil, false
	}
	return workload.ControllerOf(object), true
}

func (c *cachedWorkloads) forget(target workloadKey) { c.custom.forget(target) }

func (c *cachedWorkloads) selector(target workloadKey) labels.Selector {
	object, _ := c.builtIn(target)
	if object, ok := object.(runtime.Object); ok {
		return workload.Selector(object)
	}
	return nil
}

func (c *cachedWorkloads) replicas(target workloadKey, spec *v1alpha1.WorkloadSpreadSpec) (int32, bool) {
	object, builtIn := c.builtIn(target)
	if !builtIn || spec.TargetFilter != nil && len(spec.TargetFilter.ReplicasPathList) > 0 {
		return c.custom.replicas(target, spec)
	}
	c.custom.forget(target) // the spec may have given paths before
	switch w := object.(type) {
	case *appsv1.Deployment:
		return workload.OfDeployment(w), true
	case *appsv1.ReplicaSet:
		return workload.OfReplicaSet(w), true
	case *appsv1.StatefulSet:
		return workload.OfStatefulSet(w), true
	case *batchv1.Job:
		return workload.OfJob(w), true
	}
	return 0, false
}
