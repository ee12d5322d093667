package workloadspread

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/watches"
	"github.com/berth-project/berth/pkg/workload"
)

// listeners are the registrations of our event handlers. The scheduler waits for its own handlers before it schedules pods, but not for these.
type listeners struct {
	synced []cache.InformerSynced
	// spreadsSynced is that of the spreads.
	spreadsSynced cache.InformerSynced
	// noSpreads is true if the API server does not know the kind, so that there are no spreads.
	noSpreads atomic.Bool
	// spreadsError is why the last attempt to list spreads failed.
	spreadsError atomic.Pointer[error]
}

func (w *listeners) add(registration cache.ResourceEventHandlerRegistration, err error) error {
	if err != nil {
		return fmt.Errorf("registering an event handler: %w", err)
	}
	w.synced = append(w.synced, registration.HasSynced)
	return nil
}

// hasSynced is true once the ledger has seen every object of the informers' first lists.
func (w *listeners) hasSynced() bool {
	return !slices.ContainsFunc(w.synced, func(synced cache.InformerSynced) bool { return !synced() })
}

// watch feeds the ledger from the scheduler's informers, and from an informer for spreads that it starts. From then on the scheduler's informers keep
// of workloads only what workload.Keep leaves: no pod template and no annotations. The plugins of kube-scheduler need less. The informers must not
// run yet.
func watch(ctx context.Context, b *book, factory informers.SharedInformerFactory, spreads cache.SharedIndexInformer, list listSpreads) (*listeners, error) {
	w := &listeners{}
	tell := func(event ledger.Event) { b.apply(event) }
	errs := []error{
		w.add(spreads.AddEventHandler(spreadEvents(b))),
		w.add(factory.Core().V1().Nodes().Informer().AddEventHandler(nodeEvents(b))),
		w.add(factory.Core().V1().Pods().Informer().AddEventHandler(podEvents(b))),
	}
	for kind := range builtIn {
		resource, _ := meta.UnsafeGuessKindToResource(kind.WithVersion("v1"))
		generic, err := factory.ForResource(resource)
		if err != nil {
			return nil, fmt.Errorf("finding the informer of %s: %w", kind, err)
		}
		informer := generic.Informer()
		errs = append(errs, informer.SetTransform(workload.Keep), w.add(informer.AddEventHandler(ownerEvents(tell, kind))))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := spreads.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		w.spreadsError.Store(&err)
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}); err != nil {
		return nil, fmt.Errorf("setting the watch error handler: %w", err)
	}
	w.spreadsSynced = w.synced[0]
	go w.runSpreads(ctx, list, spreads)
	return w, nil
}

// listSpreads lists spreads, to find out whether the API server knows the kind.
type listSpreads func(context.Context) error

// kindInterval is how often listSpreads is called until it does.
const kindInterval = time.Second

// runSpreads runs the informer of spreads once their kind is known. The informer itself would notice that much later, because of its backoff.
func (w *listeners) runSpreads(ctx context.Context, list listSpreads, informer cache.SharedIndexInformer) {
	if err := wait.PollUntilContextCancel(ctx, kindInterval, true, func(ctx context.Context) (bool, error) {
		w.noSpreads.Store(apierrors.IsNotFound(list(ctx)))
		return !w.noSpreads.Load(), nil
	}); err == nil {
		informer.RunWithContext(ctx)
	}
}

// listOneSpread lists at most one spread. A client that may not list spreads is not told whether the kind exists, so discovery is asked.
func listOneSpread(client dynamic.Interface, discovery serverResources) listSpreads {
	return func(ctx context.Context) error {
		_, err := client.Resource(v1beta1.Resource).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsForbidden(err) {
			_, err = discovery.ServerResourcesForGroupVersion(v1beta1.GroupVersion.String())
		}
		return err
	}
}

// serverResources is the part of the discovery client that is used.
type serverResources interface {
	ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error)
}

// newSpreadInformer watches the spreads of all namespaces, without what nobody reads. It tells when its watch ends, and when the next one begins. The
// scheduler's own client uses protobuf, which custom resources do not support.
func newSpreadInformer(config *restclient.Config, tell func(ledger.SpreadsWatched)) (cache.SharedIndexInformer, error) {
	scheme, version := runtime.NewScheme(), v1beta1.GroupVersion
	if err := v1beta1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering WorkloadSpreads: %w", err)
	}
	config = jsonConfig(config)
	config.GroupVersion = &version
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := restclient.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for WorkloadSpreads: %w", err)
	}
	listWatch := cache.NewListWatchFromClient(client, v1beta1.Resource.Resource, metav1.NamespaceAll, fields.Everything())
	listWatch.WatchFuncWithContext = watches.Tell(listWatch.WatchFuncWithContext, func(open bool) { tell(ledger.SpreadsWatched{Open: open}) })
	informer := cache.NewSharedIndexInformer(listWatch, &v1beta1.WorkloadSpread{}, 0, cache.Indexers{})
	return informer, informer.SetTransform(func(obj any) (any, error) {
		if s, ok := obj.(*v1beta1.WorkloadSpread); ok {
			s.ManagedFields, s.Status = nil, v1beta1.WorkloadSpreadStatus{Compatibility: s.Status.Compatibility, ReplicasPathList: s.Status.ReplicasPathList}
			maps.DeleteFunc(s.Annotations, func(key, _ string) bool { return key != v1beta1.CompatibilityAnnotation })
		}
		return obj, nil
	})
}

func jsonConfig(config *restclient.Config) *restclient.Config {
	config = restclient.CopyConfig(config)
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeJSON
	return config
}

// eventsOf is a handler that passes on an informer's events about objects of one type. No function may be nil.
func eventsOf[T any](seen func(T), updated func(before, after T), gone func(T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen(obj.(T)) },
		UpdateFunc: func(before, after any) { updated(before.(T), after.(T)) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if object, ok := obj.(T); ok {
				gone(object)
			}
		},
	}
}

func spreadEvents(b *book) cache.ResourceEventHandler {
	seen := func(s *v1beta1.WorkloadSpread) { b.apply(ledger.SpreadSeen{Spread: s}) }
	return eventsOf(seen, func(_, s *v1beta1.WorkloadSpread) { seen(s) }, func(s *v1beta1.WorkloadSpread) {
		b.apply(ledger.SpreadGone{Key: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}})
	})
}

func ownerEvents(tell func(ledger.Event), kind schema.GroupKind) cache.ResourceEventHandler {
	seen := func(object metav1.Object) { tell(ledger.OwnerSeen{Kind: kind, Object: object}) }
	return eventsOf(seen, func(before, after metav1.Object) {
		if before.GetUID() != after.GetUID() {
			tell(ledger.OwnerGone{Kind: kind, Object: before})
		}
		seen(after)
	}, func(object metav1.Object) { tell(ledger.OwnerGone{Kind: kind, Object: object}) })
}

// followOwners makes the ledger follow the objects of a kind, which gets the first list in one event and everything later one by one. It returns once that has begun.
func followOwners(ctx context.Context, informer cache.SharedIndexInformer, tell func(ledger.Event), kind schema.GroupKind) error {
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return ctx.Err()
	}
	list := ledger.OwnersListed{Kind: kind}
	for _, object := range informer.GetStore().List() {
		list.Objects = append(list.Objects, object.(metav1.Object))
	}
	tell(list)
	if _, err := informer.AddEventHandler(ownerEvents(tell, kind)); err != nil {
		return err
	}
	for _, object := range list.Objects { // the handler has seen no end of those that were deleted before it was added
		if latest, found, _ := informer.GetStore().Get(object); !found || latest.(metav1.Object).GetUID() != object.GetUID() {
			tell(ledger.OwnerGone{Kind: kind, Object: object})
		}
	}
	return nil
}

func nodeEvents(b *book) cache.ResourceEventHandler {
	seen := func(node *corev1.Node) { b.apply(ledger.NodeSeen{Node: node}) }
	return eventsOf(seen, func(before, after *corev1.Node) {
		if !maps.Equal(before.Labels, after.Labels) || !slices.Equal(before.Spec.Taints, after.Spec.Taints) {
			seen(after)
		}
	}, func(node *corev1.Node) { b.apply(ledger.NodeGone{Name: node.Name}) })
}

// podEvents: the scheduler's pod informer leaves out pods that have ended, so a pod that ends looks deleted.
func podEvents(b *book) cache.ResourceEventHandler {
	seen := func(pod *corev1.Pod) {
		if pod.Spec.NodeName != "" {
			b.leftQueue(pod.UID)
		}
		b.apply(ledger.PodSeen{Pod: pod})
	}
	gone := func(pod *corev1.Pod) {
		b.apply(ledger.PodGone{UID: pod.UID})
		b.leftQueue(pod.UID) // afterwards, for a cycle that is under way may ask until then
	}
	return eventsOf(seen, func(before, after *corev1.Pod) {
		if before.UID != after.UID {
			gone(before)
		}
		seen(after)
		if b.gateChanged(before, after) {
			b.wake(after) // the queue has no event for that
		}
	}, gone)
}

// builtIn are the kinds of owners that the scheduler has informers for.
var builtIn = sets.KeySet(workload.Watched())
