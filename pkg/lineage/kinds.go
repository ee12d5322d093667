package lineage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

// ReplicaSet owns the pods of a Deployment.
var ReplicaSet = schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}

// podKind is watched for other reasons. A pod may own pods, as the driver of a Spark application does.
var podKind = schema.GroupKind{Group: corev1.GroupName, Kind: "Pod"}

// spreadKind is watched for other reasons too. A pod waits for the spread that a rule makes.
var spreadKind = v1beta1.Kind.GroupKind()

// isWatched is true for a kind that is watched from the start.
func isWatched(kind schema.GroupKind) bool {
	_, watched := builtIn[kind]
	return watched || kind == podKind || kind == spreadKind
}

var builtIn = workload.Watched()

const (
	// RetryInterval is how often a kind that could not be watched is tried again. No event tells about a new kind or a
	// new permission.
	RetryInterval = 30 * time.Second
	// startTimeout bounds the wait for the first list of a kind.
	startTimeout = 10 * time.Second

	// Everybody can name a kind that does not exist as the owner of a pod. At most maxAbsent of such kinds are
	// remembered and tried again. Each namespace has at most maxUnknown kinds that do not exist or were not tried yet.
	// A further kind replaces one of these if possible.
	maxAbsent  = 200
	maxUnknown = 50
)

// Kinds are the kinds of workloads, and of owners between them and their pods. Start begins to watch other than
// built-in kinds on demand, one at a time.
type Kinds struct {
	mapper meta.RESTMapper
	live   client.Reader
	clock  clock.PassiveClock
	// onStart are called with each kind when its watch begins: the cache and others register for its events.
	onStart []func(context.Context, *metav1.PartialObjectMetadata) error
	// changed is called when known changes.
	changed func()
	wanted  workqueue.TypedRateLimitingInterface[wish]

	// starting is held while the watch of a kind begins, so that this happens once.
	starting sync.Mutex
	// absent are the known kinds that are NotServed, oldest first. It is guarded by starting.
	absent []schema.GroupKind
	mu     sync.RWMutex
	// seenKinds are the kinds of owners in each namespace, except built-in ones, with the time when they were first
	// seen.
	seenKinds map[string]map[schema.GroupKind]time.Time
	// known are the kinds that are watched, or that could not be. Reading takes no lock.
	known sync.Map // of schema.GroupKind to knownKind
}

var (
	_ manager.Runnable               = &Kinds{}
	_ manager.LeaderElectionRunnable = &Kinds{}
)

type knownKind struct {
	version string
	// unwatchable is why the kind is not watched. Nil if it is.
	unwatchable *Unwatchable
	retryAt     time.Time
}

// wish asks for a kind to be watched.
type wish struct {
	kind schema.GroupKind
	// again is true if the kind could not be watched earlier. It is tried again only if it is still in known.
	again bool
}

// Unwatchable says why objects of a kind cannot be watched. Users can solve that, and no event tells when they have.
// Owner chains end at such objects.
type Unwatchable struct {
	Kind schema.GroupKind
	Why  whyUnwatchable
	// Resource of the kind. Empty if it is NotServed.
	Resource schema.GroupResource
}

// whyUnwatchable is the reason why a kind cannot be watched.
type whyUnwatchable string

const (
	// NotServed: the API server has no such kind.
	NotServed whyUnwatchable = "NotServed"
	// NotNamespaced: its objects are cluster-scoped. Pods and spreads are not.
	NotNamespaced whyUnwatchable = "NotNamespaced"
	// NotListed: the API server does not list its objects.
	NotListed whyUnwatchable = "NotListed"
	// Forbidden: Berth may not list its objects.
	Forbidden whyUnwatchable = "Forbidden"
)

// NewKinds returns Kinds that watch no kind yet. The mapper and the reader send requests to the API server.
func NewKinds(mapper meta.RESTMapper, live client.Reader, clock clock.PassiveClock) *Kinds {
	return &Kinds{
		mapper:    mapper,
		live:      live,
		clock:     clock,
		changed:   func() {},
		wanted:    workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[wish](100*time.Millisecond, RetryInterval)),
		seenKinds: map[string]map[schema.GroupKind]time.Time{},
	}
}

// OnStart registers a function that is called with each kind when its watch begins. If the function fails, the kind is
// not watched and is tried again. Call OnStart before the manager starts.
func (k *Kinds) OnStart(do func(context.Context, *metav1.PartialObjectMetadata) error) {
	k.onStart = append(k.onStart, do)
}

// NeedLeaderElection is false: every replica watches.
func (k *Kinds) NeedLeaderElection() bool { return false }

// Start watches the kinds that are asked for, until the context ends.
func (k *Kinds) Start(ctx context.Context) error {
	go func() {
		<-ctx.Done()
		k.wanted.ShutDown()
	}()
	for {
		wish, shutdown := k.wanted.Get()
		if shutdown {
			return nil
		}
		k.grant(ctx, wish)
		k.wanted.Done(wish)
	}
}

func (k *Kinds) grant(ctx context.Context, w wish) {
	if _, remembered := k.look(w.kind); w.again && !remembered {
		k.wanted.Forget(w)
		return
	}
	unwatchable, err := k.Watch(ctx, w.kind)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Watching a kind will be tried again")
		k.wanted.AddRateLimited(w)
		return
	}
	k.wanted.Forget(w)
	if unwatchable != nil {
		k.wanted.AddAfter(wish{w.kind, true}, RetryInterval)
	}
}

// seek asks for a watch of an owner kind in the namespace, unless the namespace has too many unknown kinds already.
func (k *Kinds) seek(namespace string, kind schema.GroupKind) {
	k.see(namespace, kind)
	if k.wasSeen(namespace, kind) {
		k.want(kind)
	}
}

// want queues a kind to be watched, unless it is watched already.
func (k *Kinds) want(kind schema.GroupKind) {
	if isWatched(kind) || workload.EndsChain(kind) {
		return
	}
	if known, found := k.look(kind); !found || known.unwatchable != nil {
		k.wanted.Add(wish{kind: kind})
	}
}

func (k *Kinds) look(kind schema.GroupKind) (known knownKind, found bool) {
	value, _ := k.known.Load(kind)
	known, found = value.(knownKind)
	return known, found
}

// see records that an object in the namespace has an owner of the kind. first is true for a new kind that must be
// watched to know the owners of its objects. If the namespace has too many unknown kinds, see records nothing and
// returns false.
func (k *Kinds) see(namespace string, kind schema.GroupKind) (first bool) {
	if _, watched := builtIn[kind]; watched || workload.EndsChain(kind) || k.wasSeen(namespace, kind) {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seenKinds[namespace] == nil {
		k.seenKinds[namespace] = map[schema.GroupKind]time.Time{}
	}
	now := k.clock.Now()
	if !k.makeRoom(k.seenKinds[namespace], now) {
		return false
	}
	k.seenKinds[namespace][kind] = now
	return !isWatched(kind)
}

func (k *Kinds) wasSeen(namespace string, kind schema.GroupKind) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	_, seen := k.seenKinds[namespace][kind]
	return seen
}

// makeRoom is true if the namespace may have one more kind. If it has maxUnknown already, makeRoom forgets one that was
// tried and does not exist, or that was not tried within RetryInterval. It is false if there is no such kind.
func (k *Kinds) makeRoom(seen map[schema.GroupKind]time.Time, now time.Time) bool {
	unknown, idle := 0, schema.GroupKind{}
	for kind, since := range seen {
		if isWatched(kind) {
			continue
		}
		known, found := k.look(kind)
		if found && !known.isAbsent() {
			continue
		}
		if unknown++; found || now.Sub(since) >= RetryInterval {
			idle = kind
		}
	}
	if unknown < maxUnknown {
		return true
	}
	delete(seen, idle) // no effect if idle is empty
	return !idle.Empty()
}

// seenIn are the kinds of owners that objects of a namespace have named.
func (k *Kinds) seenIn(namespace string) []schema.GroupKind {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return slices.Collect(maps.Keys(k.seenKinds[namespace]))
}

// WatchSeen watches all kinds of owners in a namespace. It leaves out kinds that cannot be watched.
func (k *Kinds) WatchSeen(ctx context.Context, namespace string) error {
	for _, kind := range k.seenIn(namespace) {
		if _, err := k.Watch(ctx, kind); err != nil {
			return err
		}
	}
	return nil
}

// Watch begins to watch a kind, and returns when the cache can read it. If the kind cannot be watched, Watch says why.
// An error is temporary.
func (k *Kinds) Watch(ctx context.Context, kind schema.GroupKind) (*Unwatchable, error) {
	if isWatched(kind) {
		return nil, nil
	}
	k.starting.Lock()
	defer k.starting.Unlock()
	known, found := k.look(kind)
	if found && (known.unwatchable == nil || k.clock.Now().Before(known.retryAt)) {
		return known.unwatchable, nil
	}
	version, unwatchable, err := k.tryStart(ctx, kind)
	if err != nil {
		return nil, fmt.Errorf("watching kind %s: %w", kind, err)
	}
	if unwatchable != nil && !found {
		klog.FromContext(ctx).Info("Not watching this kind: owner chains end at its objects", "kind", kind, "reason", unwatchable.Why)
	}
	now := knownKind{version: version, unwatchable: unwatchable, retryAt: k.clock.Now().Add(RetryInterval)}
	k.known.Store(kind, now)
	if now.isAbsent() != known.isAbsent() {
		k.noteAbsent(kind, now.isAbsent())
	}
	if !found || unwatchable == nil {
		k.changed()
	}
	return unwatchable, nil
}

func (k knownKind) isAbsent() bool { return k.unwatchable != nil && k.unwatchable.Why == NotServed }

// noteAbsent maintains the list of kinds that are not served, and forgets the oldest one if the list is full. The
// caller holds starting.
func (k *Kinds) noteAbsent(kind schema.GroupKind, is bool) {
	if !is {
		k.absent = slices.DeleteFunc(k.absent, func(other schema.GroupKind) bool { return other == kind })
		return
	}
	if len(k.absent) == maxAbsent {
		k.known.Delete(k.absent[0])
		k.absent = slices.Delete(k.absent, 0, 1)
	}
	k.absent = append(k.absent, kind)
}

// tryStart begins to watch a kind. It checks the permission first, because a forbidden watch would wait for ever.
func (k *Kinds) tryStart(ctx context.Context, kind schema.GroupKind) (version string, _ *Unwatchable, _ error) {
	mapping, err := k.mapper.RESTMapping(kind)
	if meta.IsNoMatchError(err) {
		return "", &Unwatchable{Kind: kind, Why: NotServed}, nil
	}
	if err != nil {
		return "", nil, err
	}
	resource := mapping.Resource.GroupResource()
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return "", &Unwatchable{kind, NotNamespaced, resource}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(mapping.GroupVersionKind)
	switch err := k.live.List(ctx, list, client.Limit(1)); {
	case apierrors.IsForbidden(err):
		return "", &Unwatchable{kind, Forbidden, resource}, nil
	case apierrors.IsMethodNotSupported(err):
		return "", &Unwatchable{kind, NotListed, resource}, nil
	case err != nil:
		return "", nil, err
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(mapping.GroupVersionKind)
	for _, do := range k.onStart {
		if err := do(ctx, object); err != nil {
			return "", nil, err
		}
	}
	return mapping.GroupVersionKind.Version, nil, nil
}

// isUnwatchable is true for a kind that could not be watched.
func (k *Kinds) isUnwatchable(kind schema.GroupKind) bool {
	known, _ := k.look(kind)
	return known.unwatchable != nil
}

// NewObject is an empty object for reading an object of the kind. It is nil for a kind that is not watched.
func (k *Kinds) NewObject(kind schema.GroupKind) client.Object {
	if kind == podKind {
		return &corev1.Pod{}
	}
	if typed, found := builtIn[kind]; found {
		return typed.NewObject()
	}
	known, found := k.look(kind)
	if !found || known.unwatchable != nil {
		return nil
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind.WithVersion(known.version))
	return object
}

// NewLists are empty lists of every watched kind that may own pods in the namespace.
func (k *Kinds) NewLists(namespace string) map[schema.GroupKind]client.ObjectList {
	lists := map[schema.GroupKind]client.ObjectList{}
	for kind, typed := range builtIn {
		lists[kind] = typed.NewList()
	}
	for _, kind := range k.seenIn(namespace) {
		if kind == podKind {
			lists[kind] = &corev1.PodList{}
		} else if known, found := k.look(kind); found && known.unwatchable == nil {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(kind.WithVersion(known.version))
			lists[kind] = list
		}
	}
	return lists
}
