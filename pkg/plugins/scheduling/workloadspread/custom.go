package workloadspread

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// customWorkloads knows the owners and workloads of kinds for which the scheduler has no informer: kinds with a scale subresource, and kinds to whose
// replicas a spread gives paths. It watches the metadata of a kind from the moment that a spread names the kind, or that an object of it owns a pod
// in a namespace with a spread. It reads replicas, and ordinals of kinds that hide them, after each change of the workload, and replicas of any kind when the ledger asks.
type customWorkloads struct {
	mapper   *restmapper.DeferredDiscoveryRESTMapper
	dynamic  dynamic.Interface
	metadata metadata.Interface
	clock    clock.PassiveClock

	// tell passes events to the ledger.
	tell func(ledger.Event)

	kindQueue   workqueue.TypedRateLimitingInterface[schema.GroupKind]
	targetQueue workqueue.TypedRateLimitingInterface[ledger.Workload]

	// discoveries limits how often watchKind calls discovery. Anybody may create pods with owners of any number of kinds that do not exist.
	discoveries *rate.Limiter

	mu    sync.Mutex
	kinds map[schema.GroupKind]*customKind
	// targets are the workloads that spreads name, until forget.
	targets map[ledger.Workload]*customTarget
	// asked are the numbers of the questions that are not answered. forget keeps them: the ledger may have asked again, after a change of the spread.
	asked map[ledger.Workload]int64
}

const (
	// discoveryInterval is the shortest time between two calls of discovery, after the first discoveryBurst.
	discoveryInterval = 10 * time.Second
	discoveryBurst    = 30
	// unservedFor is how long pods wait for a kind of their owners that the API server does not serve. It may have been created a moment ago.
	unservedFor = 30 * time.Second
	// maxUnserved is how many kinds are tried again that the API server does not serve. Pods below others do not wait, and the next pod has such a kind tried again.
	maxUnserved = 200
)

type customKind struct {
	// watched is false until the API server serves the kind. stop then ends its informer.
	watched bool
	stop    context.CancelFunc
	// stale is true if a version was watched that the API server does not serve any more, and discovery has not been called since.
	stale bool
	// unserved is since when the API server has not served the kind. Zero if it does, and before the first try.
	unserved time.Time
	// ends is true if the ledger was told that owners of this kind end the chain.
	ends bool
}

type customTarget struct {
	// version and paths by which the replicas are read, from the spread. They never change: a spec with other values gets a new target, so that a
	// late answer is not taken for an answer to it.
	version  string
	paths    []string
	replicas int32
	known    bool
	ordinals *workload.Ordinals
}

func newCustomWorkloads(config *restclient.Config, client kubernetes.Interface, now clock.PassiveClock) (*customWorkloads, error) {
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
		clock:       now,
		discoveries: rate.NewLimiter(rate.Every(discoveryInterval), discoveryBurst),
		kindQueue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[schema.GroupKind](100*time.Millisecond, 30*time.Second)),
		targetQueue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[ledger.Workload](100*time.Millisecond, 30*time.Second)),
		kinds:       map[schema.GroupKind]*customKind{},
		targets:     map[ledger.Workload]*customTarget{},
		asked:       map[ledger.Workload]int64{},
	}, nil
}

// run works until the context ends.
func (c *customWorkloads) run(ctx context.Context) {
	go work(ctx, c.kindQueue, c.watchKind)
	go work(ctx, c.targetQueue, c.readTarget)
}

// work processes items of the queue until the context ends. An item that failed is tried again later.
func work[T comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[T], do func(context.Context, T) error) {
	context.AfterFunc(ctx, queue.ShutDown)
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

// want implements ownerReader.
func (c *customWorkloads) want(gk schema.GroupKind) {
	if builtIn.Has(gk) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watched(gk)
}

// follow implements ownerReader.
func (c *customWorkloads) follow(spread *v1beta1.WorkloadSpread) {
	owner := workload.TargetOf(spread)
	key := ledger.WorkloadOf(spread.Namespace, owner)
	if builtIn.Has(owner.Kind) && len(subset.ReplicaPaths(spread)) == 0 {
		c.forget(key) // the spread may have given paths before
		return
	}
	c.mu.Lock()
	c.watched(owner.Kind)
	target := c.targets[key]
	if target == nil || target.version != ledger.TargetVersion(spread) || !slices.Equal(target.paths, subset.ReplicaPaths(spread)) {
		target = &customTarget{version: ledger.TargetVersion(spread), paths: slices.Clone(subset.ReplicaPaths(spread))}
		c.targets[key] = target
		c.targetQueue.Add(key)
	}
	news := target.news(key)
	c.mu.Unlock()
	c.tell(news)
}

// read implements ownerReader.
func (c *customWorkloads) read(question ledger.Question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[question.Workload] = question.Number
	c.targetQueue.Add(question.Workload)
}

// news is what was read of a target.
func (t *customTarget) news(key ledger.Workload) ledger.ReplicasRead {
	return ledger.ReplicasRead{Workload: key, Version: t.version, Paths: t.paths, Replicas: t.replicas, Known: t.known, Ordinals: t.ordinals}
}

// forget implements ownerReader.
func (c *customWorkloads) forget(key ledger.Workload) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.targets, key)
}

// watched is the entry of a kind that is watched from now on.
func (c *customWorkloads) watched(gk schema.GroupKind) *customKind {
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
	c.mu.Lock()
	stale := c.kinds[gk].stale
	c.mu.Unlock()
	if stale && !c.rediscover() {
		return fmt.Errorf("%s is served in another version, or not any more", gk)
	}
	mapping, err := c.mapper.RESTMapping(gk)
	if err != nil {
		c.rediscover()
		if meta.IsNoMatchError(err) && !c.isUnserved(gk) {
			return nil
		}
		return fmt.Errorf("looking up %s: %w", gk, err)
	}
	c.mu.Lock()
	c.kinds[gk].stale, c.kinds[gk].unserved = false, time.Time{}
	c.mu.Unlock()
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		c.endChains(gk, true) // objects below such an owner are in no namespace, so no spread can name one of its workloads
		return nil
	}
	resource := c.metadata.Resource(mapping.Resource)
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := resource.List(ctx, options)
			c.wasListed(ctx, gk, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
			watcher, err := resource.Watch(ctx, options)
			if err == nil {
				c.wasListed(ctx, gk, nil) // a watch may begin with the list
			}
			return watcher, err
		},
	}, c.metadata), &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})
	if err := informer.SetTransform(workload.Keep); err != nil {
		return fmt.Errorf("watching %s: %w", gk, err)
	}
	ctx, stop := context.WithCancel(ctx)
	read := func(object metav1.Object) {
		key := ledger.Workload{Namespace: object.GetNamespace(), Group: gk.Group, Kind: gk.Kind, Name: object.GetName()}
		c.mu.Lock()
		_, wanted := c.targets[key]
		c.mu.Unlock()
		if wanted {
			c.targetQueue.Add(key)
		}
	}
	if _, err := informer.AddEventHandler(eventsOf(read, func(_, object metav1.Object) { read(object) }, read)); err != nil {
		stop()
		return fmt.Errorf("watching %s: %w", gk, err)
	}
	c.mu.Lock()
	c.kinds[gk].watched, c.kinds[gk].stop = true, stop
	c.mu.Unlock()
	for _, key := range c.targetsOf(gk) {
		c.targetQueue.Add(key)
	}
	go informer.RunWithContext(ctx)
	if !builtIn.Has(gk) { // the scheduler's informers send events of those
		go func() {
			if err := followOwners(ctx, informer, c.tell, gk); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Pods below this kind wait until the scheduler is started again", "kind", gk)
			}
		}()
	}
	return nil
}

// rediscover has the mapper call discovery again, unless it has done so too often. It returns whether it has.
func (c *customWorkloads) rediscover() bool {
	if !c.discoveries.AllowN(c.clock.Now(), 1) {
		return false
	}
	c.mapper.Reset()
	return true
}

// isUnserved records that the API server does not serve a kind. It is false if the kind is not to be tried again. Pods stop waiting for it after unservedFor, as they do in
// the webhook and the controllers.
func (c *customWorkloads) isUnserved(gk schema.GroupKind) bool {
	c.mu.Lock()
	kind, now, unserved := c.kinds[gk], c.clock.Now(), 0
	if kind.unserved.IsZero() {
		kind.unserved = now
	}
	late := now.Sub(kind.unserved) >= unservedFor
	for _, other := range c.kinds {
		if !other.unserved.IsZero() {
			unserved++
		}
	}
	c.mu.Unlock()
	if unserved > maxUnserved && len(c.targetsOf(gk)) == 0 {
		c.endChains(gk, true)
		c.mu.Lock()
		delete(c.kinds, gk)
		c.mu.Unlock()
		return false
	}
	if late {
		c.endChains(gk, true)
	}
	return true
}

// targetsOf are the workloads of a kind that spreads name.
func (c *customWorkloads) targetsOf(gk schema.GroupKind) (keys []ledger.Workload) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.targets {
		if key.Group == gk.Group && key.Kind == gk.Kind {
			keys = append(keys, key)
		}
	}
	return keys
}

// endChains tells the ledger whether owners of the kind end the chain, unless it knows.
func (c *customWorkloads) endChains(gk schema.GroupKind, ends bool) (changed bool) {
	c.mu.Lock()
	kind := c.kinds[gk]
	if changed = kind != nil && kind.ends != ends; changed { // nil if isUnserved has dropped it
		kind.ends = ends
	}
	c.mu.Unlock()
	if changed {
		c.tell(ledger.KindEndsChain{Kind: gk, Ends: ends})
	}
	return changed
}

// wasListed records the outcome of a list of the kind: success, or an error.
func (c *customWorkloads) wasListed(ctx context.Context, gk schema.GroupKind, err error) {
	switch {
	case err == nil:
		c.endChains(gk, false)
	case apierrors.IsForbidden(err):
		if c.endChains(gk, true) {
			klog.FromContext(ctx).Error(err, "Pods below this kind are treated as if it had no owner. Give the scheduler get, list and watch on it, "+
				"in a ClusterRole with the label rbac.berth.dev/aggregate-to-workload-reader", "kind", gk)
		}
	case apierrors.IsNotFound(err):
		c.mu.Lock()
		var stop context.CancelFunc
		if kind := c.kinds[gk]; kind != nil { // the last list of a kind that was dropped may come late
			stop = kind.stop
			kind.watched, kind.stale, kind.stop = false, true, nil
		}
		c.mu.Unlock()
		if stop != nil { // else it is being started again
			stop()
			c.kindQueue.AddRateLimited(gk)
		}
	}
}

// readTarget reads the replicas and the ordinals of a workload, if a spread still names it.
func (c *customWorkloads) readTarget(ctx context.Context, key ledger.Workload) error {
	gk := schema.GroupKind{Group: key.Group, Kind: key.Kind}
	c.mu.Lock()
	kind := c.kinds[gk]
	watched := kind != nil && kind.watched
	target := c.targets[key]
	c.mu.Unlock()
	switch {
	case target == nil:
		return c.answer(ctx, key, func(question int64) error { return c.readBuiltIn(ctx, gk, key, question) })
	case !watched:
		return nil // watchKind will queue it again
	}
	return c.answer(ctx, key, func(question int64) error { return c.readCustom(ctx, gk, key, target, question) })
}

// answer calls read with the number of the question about a workload, 0 if there is none. If read fails, the question stays.
func (c *customWorkloads) answer(ctx context.Context, key ledger.Workload, read func(question int64) error) error {
	c.mu.Lock()
	question := c.asked[key]
	c.mu.Unlock()
	err := read(question)
	if err != nil && question != 0 {
		klog.FromContext(ctx).Error(err, "Pods wait until the replicas of their workload can be read", "kind", key.Kind, "workload", klog.KRef(key.Namespace, key.Name))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.asked[key] == question { // else another was asked meanwhile, and the workload is in the queue
		delete(c.asked, key)
	}
	return err
}

// readBuiltIn answers a question about a workload of a kind that the scheduler has an informer for. The informer tells the end of the workload.
func (c *customWorkloads) readBuiltIn(ctx context.Context, gk schema.GroupKind, key ledger.Workload, question int64) error {
	kind, is := workload.BuiltIn(gk)
	if question == 0 || !is {
		return nil // no spread names it any more
	}
	resource, _ := meta.UnsafeGuessKindToResource(gk.WithVersion("v1"))
	found, err := c.dynamic.Resource(resource).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	object := kind.NewObject()
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, object)
	}
	if err == nil {
		_, err = workload.Keep(object)
	}
	if err != nil {
		return fmt.Errorf("reading %s in namespace %s: %w", key, key.Namespace, err)
	}
	c.tell(ledger.OwnerRead{Kind: gk, Object: object, Question: question})
	return nil
}

func (c *customWorkloads) readCustom(ctx context.Context, gk schema.GroupKind, key ledger.Workload, target *customTarget, question int64) error {
	latest, err := c.mapper.RESTMapping(gk) // older versions of a kind may lack the fields of ordinals
	if err != nil {
		return fmt.Errorf("looking up %s: %w", gk, err)
	}
	mapping, err := c.mapper.RESTMapping(gk, target.version)
	if meta.IsNoMatchError(err) {
		mapping, err = latest, nil // the spread's version is no longer served
	}
	if err != nil {
		return fmt.Errorf("looking up %s: %w", gk, err)
	}
	replicas, err := replicasOf(ctx, c.dynamic.Resource(mapping.Resource).Namespace(key.Namespace), key.Name, target.paths)
	var failed error
	if err != nil && !apierrors.IsNotFound(err) {
		failed = fmt.Errorf("reading the replicas of %s in namespace %s: %w", key, key.Namespace, err)
	}
	var ordinals *workload.Ordinals
	if workload.HidesOrdinals(gk) {
		object, err := c.dynamic.Resource(latest.Resource).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if err == nil {
			ordinals = workload.ReadOrdinals(object)
		} else if !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, fmt.Errorf("reading the ordinals of %s in namespace %s: %w", key, key.Namespace, err))
		}
	}
	c.mu.Lock()
	current := c.targets[key] == target
	if current && (err == nil || apierrors.IsNotFound(err)) {
		target.replicas, target.known = replicas, err == nil
	}
	if current && ordinals != nil {
		target.ordinals = ordinals
	}
	news := target.news(key)
	if err == nil {
		news.Question = question
	}
	c.mu.Unlock()
	if current { // else it was forgotten, or replaced by a target that is in the queue
		c.tell(news)
	}
	return failed
}

func replicasOf(ctx context.Context, client dynamic.ResourceInterface, name string, paths []string) (int32, error) {
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
	return workload.OfScale(scale)
}
