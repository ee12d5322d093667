package workloadspread

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/workload"
)

// customWorkloads knows the owners and workloads of kinds that the scheduler has no informer for: anything with a scale subresource, or
// whose replicas a spread gives paths to. A kind is watched, by its metadata alone, from the moment that a spread names it or it owns a
// pod in a namespace with a spread. Replicas are read by one request for each change of the workload.
type customWorkloads struct {
	mapper   *restmapper.DeferredDiscoveryRESTMapper
	dynamic  dynamic.Interface
	metadata metadata.Interface

	// changed and seen pass news on to the ledger. retry has it look again at all pods whose owner is unknown.
	changed func(workloadKey)
	seen    func(types.UID)
	retry   func()

	kindQueue   workqueue.TypedRateLimitingInterface[schema.GroupKind]
	targetQueue workqueue.TypedRateLimitingInterface[workloadKey]

	mu    sync.Mutex
	kinds map[schema.GroupKind]*customKind
	// targets are the workloads that spreads name, until forget.
	targets map[workloadKey]*customTarget
}

type customKind struct {
	// lister is nil until the kind is watched.
	lister cache.GenericLister
	// synced is true once its objects have been listed.
	synced cache.InformerSynced
	// unreadable: the API server does not let us list the kind. Until it does, its objects count as the end of a chain of owners.
	unreadable bool
}

type customTarget struct {
	// version and paths of the spread that names it, by which its replicas are read. They never change: a spec with others gets another target,
	// so that a late answer is not taken for it.
	version  string
	paths    []string
	replicas int32
	known    bool
}

func newCustomWorkloads(config *restclient.Config, client kubernetes.Interface) (*customWorkloads, error) {
	config = jsonConfig(config)
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a dynamic client: %w", err)
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a metadata client: %w", err)
	}
	return &customWorkloads{
		mapper:      restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
		dynamic:     dynamicClient,
		metadata:    metadataClient,
		kindQueue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[schema.GroupKind](100*time.Millisecond, 30*time.Second)),
		targetQueue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[workloadKey](100*time.Millisecond, 30*time.Second)),
		kinds:       map[schema.GroupKind]*customKind{},
		targets:     map[workloadKey]*customTarget{},
	}, nil
}

// run works until the context ends.
func (c *customWorkloads) run(ctx context.Context) {
	go func() {
		<-ctx.Done()
		c.kindQueue.ShutDown()
		c.targetQueue.ShutDown()
	}()
	go work(ctx, c.kindQueue, c.watchKind)
	go work(ctx, c.targetQueue, c.readTarget)
}

// work takes items from the queue until it is shut down. An item that failed comes back later.
func work[T comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[T], do func(context.Context, T) error) {
	for {
		item, shutdown := queue.Get()
		if shutdown {
			return
		}
		if err := do(ctx, item); err != nil {
			klog.FromContext(ctx).V(2).Info("Will try again", "item", item, "err", err)
			queue.AddRateLimited(item)
		} else {
			queue.Forget(item)
		}
		queue.Done(item)
	}
}

// parent implements workloads.
func (c *customWorkloads) parent(namespace string, owner workload.Owner) (*workload.Owner, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := c.want(owner.Kind)
	if kind.unreadable && !kind.synced() {
		return nil, true
	}
	if kind.lister == nil {
		return nil, false
	}
	object, err := kind.lister.ByNamespace(namespace).Get(owner.Name)
	if err != nil {
		return nil, false
	}
	metadata, err := meta.Accessor(object)
	if err != nil || metadata.GetUID() != owner.UID {
		return nil, false
	}
	return workload.ControllerOf(metadata), true
}

// replicas implements workloads.
func (c *customWorkloads) replicas(key workloadKey, spec *v1alpha1.WorkloadSpreadSpec) (int32, bool) {
	var paths []string
	if spec.TargetFilter != nil {
		paths = spec.TargetFilter.ReplicasPathList
	}
	_, version, found := strings.Cut(spec.TargetReference.APIVersion, "/")
	if !found {
		version = spec.TargetReference.APIVersion
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want(schema.GroupKind{Group: key.group, Kind: key.kind})
	target := c.targets[key]
	if target == nil || target.version != version || !slices.Equal(target.paths, paths) {
		target = &customTarget{version: version, paths: slices.Clone(paths)}
		c.targets[key] = target
		c.targetQueue.Add(key)
	}
	return target.replicas, target.known
}

// forget implements workloads.
func (c *customWorkloads) forget(key workloadKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.targets, key)
}

// want has a kind watched from now on.
func (c *customWorkloads) want(gk schema.GroupKind) *customKind {
	kind := c.kinds[gk]
	if kind == nil {
		kind = &customKind{}
		c.kinds[gk] = kind
		c.kindQueue.Add(gk)
	}
	return kind
}

// watchKind starts the informer of a kind. It fails until the API server serves the kind.
func (c *customWorkloads) watchKind(ctx context.Context, gk schema.GroupKind) error {
	mapping, err := c.mapper.RESTMapping(gk)
	if err != nil {
		c.mapper.Reset()
		return fmt.Errorf("looking up %s: %w", gk, err)
	}
	informer := metadatainformer.NewFilteredMetadataInformer(c.metadata, mapping.Resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil)
	news := func(obj any) {
		name, err := cache.DeletionHandlingObjectToName(obj)
		if err != nil {
			return // the object has a name
		}
		key := workloadKey{name.Namespace, gk.Group, gk.Kind, name.Name}
		c.mu.Lock()
		_, wanted := c.targets[key]
		c.mu.Unlock()
		if wanted {
			c.targetQueue.Add(key)
		}
	}
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			news(obj)
			if object, err := meta.Accessor(obj); err == nil {
				c.seen(object.GetUID())
			}
		},
		UpdateFunc: func(_, obj any) { news(obj) },
		DeleteFunc: news,
	}); err != nil {
		return fmt.Errorf("watching %s: %w", gk, err)
	}
	if err := informer.Informer().SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		if apierrors.IsForbidden(err) && c.setUnreadable(gk) {
			klog.FromContext(ctx).Error(err, "Pods below this kind are treated as if it had no owner. Give the scheduler get, list and watch on it, "+
				"in a ClusterRole with the label rbac.berth.dev/aggregate-to-workload-reader", "kind", gk)
			c.retry()
		}
	}); err != nil {
		return fmt.Errorf("watching %s: %w", gk, err)
	}
	c.mu.Lock()
	c.kinds[gk].lister, c.kinds[gk].synced = informer.Lister(), informer.Informer().HasSynced
	c.mu.Unlock()
	c.requeueTargets(gk)
	go informer.Informer().RunWithContext(ctx)
	return nil
}

func (c *customWorkloads) setUnreadable(gk schema.GroupKind) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = !c.kinds[gk].unreadable
	c.kinds[gk].unreadable = true
	return changed
}

func (c *customWorkloads) requeueTargets(gk schema.GroupKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.targets {
		if key.group == gk.Group && key.kind == gk.Kind {
			c.targetQueue.Add(key)
		}
	}
}

// readTarget reads the replicas of a workload, if it is still a target.
func (c *customWorkloads) readTarget(ctx context.Context, key workloadKey) error {
	c.mu.Lock()
	watched := c.kinds[schema.GroupKind{Group: key.group, Kind: key.kind}].lister != nil
	target := c.targets[key]
	c.mu.Unlock()
	if target == nil || !watched {
		return nil // no spread names it any more, or watchKind will queue it again
	}
	gk := schema.GroupKind{Group: key.group, Kind: key.kind}
	mapping, err := c.mapper.RESTMapping(gk, target.version)
	if meta.IsNoMatchError(err) {
		mapping, err = c.mapper.RESTMapping(gk) // the spread's version is no longer served
	}
	if err != nil {
		return fmt.Errorf("looking up %s: %w", gk, err)
	}
	replicas, err := c.read(ctx, c.dynamic.Resource(mapping.Resource).Namespace(key.namespace), key.name, target.paths)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the replicas of %s in namespace %s: %w", key, key.namespace, err)
	}
	c.mu.Lock()
	current := c.targets[key] == target
	if current {
		target.replicas, target.known = replicas, err == nil
	}
	c.mu.Unlock()
	if current { // else it was forgotten meanwhile, or replaced by a target that is in the queue
		c.changed(key)
	}
	return nil
}

func (c *customWorkloads) read(ctx context.Context, client dynamic.ResourceInterface, name string, paths []string) (int32, error) {
	if len(paths) > 0 {
		object, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		return workload.AtPaths(object.Object, paths)
	}
	scale, err := client.Get(ctx, name, metav1.GetOptions{}, "scale")
	if err != nil {
		return 0, err
	}
	replicas, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas")
	return int32(replicas), err
}
