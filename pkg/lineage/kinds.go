package lineage

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-project/berth/pkg/workload"
)

// Kinds that are always watched.
var (
	Deployment  = schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}
	ReplicaSet  = schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}
	StatefulSet = schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}
	Job         = schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}
)

var builtIn = map[schema.GroupKind]struct {
	newObject func() client.Object
	newList   func() client.ObjectList
}{
	Deployment:  {func() client.Object { return &appsv1.Deployment{} }, func() client.ObjectList { return &appsv1.DeploymentList{} }},
	ReplicaSet:  {func() client.Object { return &appsv1.ReplicaSet{} }, func() client.ObjectList { return &appsv1.ReplicaSetList{} }},
	StatefulSet: {func() client.Object { return &appsv1.StatefulSet{} }, func() client.ObjectList { return &appsv1.StatefulSetList{} }},
	Job:         {func() client.Object { return &batchv1.Job{} }, func() client.ObjectList { return &batchv1.JobList{} }},
}

const (
	// RetryInterval is how long it takes to see something that no event tells: a new kind, a new permission.
	RetryInterval = 30 * time.Second
	// startTimeout bounds the wait for the first list of a kind.
	startTimeout = 10 * time.Second
)

// Kinds are the kinds of workloads and of owners between them and their pods. Those that are not built in are watched when somebody wants
// them, one at a time; Start works on that.
type Kinds struct {
	mapper meta.RESTMapper
	live   client.Reader
	clock  clock.PassiveClock
	// onStart has the cache and others take in a kind that is watched from now on.
	onStart []func(context.Context, *metav1.PartialObjectMetadata) error
	// changed is called when something is new in known.
	changed func()
	wanted  workqueue.TypedRateLimitingInterface[schema.GroupKind]

	// starting is held while a kind is being started, so that it is started once.
	starting sync.Mutex
	mu       sync.RWMutex
	// seenKinds are the kinds of owners in each namespace, except those above.
	seenKinds map[string]sets.Set[schema.GroupKind]
	// known are the kinds that were started, or could not be. Reading takes no lock.
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

// Unwatchable is why objects of a kind cannot be watched, which users can mend, and which no event tells the end of. They count as the end
// of a chain of owners.
type Unwatchable struct {
	Kind schema.GroupKind
	Why  WhyUnwatchable
	// Resource of the kind. Empty if it is NotServed.
	Resource schema.GroupResource
}

// WhyUnwatchable is one reason of several.
type WhyUnwatchable string

const (
	// NotServed: the API server has no such kind.
	NotServed WhyUnwatchable = "NotServed"
	// NotNamespaced: its objects are in no namespace, as pods and spreads are.
	NotNamespaced WhyUnwatchable = "NotNamespaced"
	// NotListed: the API server does not list its objects.
	NotListed WhyUnwatchable = "NotListed"
	// Forbidden: Berth may not list its objects.
	Forbidden WhyUnwatchable = "Forbidden"
)

// NewKinds watches no kind yet. The mapper and the reader ask the API server.
func NewKinds(mapper meta.RESTMapper, live client.Reader, clock clock.PassiveClock) *Kinds {
	return &Kinds{
		mapper:    mapper,
		live:      live,
		clock:     clock,
		changed:   func() {},
		wanted:    workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[schema.GroupKind](100*time.Millisecond, RetryInterval)),
		seenKinds: map[string]sets.Set[schema.GroupKind]{},
	}
}

// OnStart has a function called with every kind that is watched from now on, which fails if the function does. Call it before the manager
// starts.
func (k *Kinds) OnStart(do func(context.Context, *metav1.PartialObjectMetadata) error) {
	k.onStart = append(k.onStart, do)
}

// NeedLeaderElection is false: every replica answers for itself.
func (k *Kinds) NeedLeaderElection() bool { return false }

// Start watches the kinds that are wanted, until the context ends.
func (k *Kinds) Start(ctx context.Context) error {
	go func() {
		<-ctx.Done()
		k.wanted.ShutDown()
	}()
	for {
		kind, shutdown := k.wanted.Get()
		if shutdown {
			return nil
		}
		switch unwatchable, err := k.Watch(ctx, kind); {
		case err != nil:
			klog.FromContext(ctx).Error(err, "Will try again")
			k.wanted.AddRateLimited(kind)
		case unwatchable != nil:
			k.wanted.Forget(kind)
			k.wanted.AddAfter(kind, RetryInterval)
		default:
			k.wanted.Forget(kind)
		}
		k.wanted.Done(kind)
	}
}

// want has a kind watched soon.
func (k *Kinds) want(kind schema.GroupKind) {
	if _, watched := builtIn[kind]; watched || workload.EndsChain(kind) {
		return
	}
	if known, found := k.look(kind); !found || known.unwatchable != nil {
		k.wanted.Add(kind)
	}
}

func (k *Kinds) look(kind schema.GroupKind) (known knownKind, found bool) {
	value, found := k.known.Load(kind)
	if found {
		known, found = value.(knownKind)
	}
	return known, found
}

// see takes note that an object in the namespace has an owner of the kind. It is true the first time for a kind that must be watched to know
// what is above it.
func (k *Kinds) see(namespace string, kind schema.GroupKind) (first bool) {
	if _, watched := builtIn[kind]; watched || workload.EndsChain(kind) {
		return false
	}
	k.mu.RLock()
	known := k.seenKinds[namespace].Has(kind)
	k.mu.RUnlock()
	if known {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seenKinds[namespace] == nil {
		k.seenKinds[namespace] = sets.New[schema.GroupKind]()
	}
	k.seenKinds[namespace].Insert(kind)
	return true
}

// seenIn are the kinds of owners that were seen in a namespace.
func (k *Kinds) seenIn(namespace string) []schema.GroupKind {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.seenKinds[namespace].UnsortedList()
}

// WatchSeen watches all kinds of owners in a namespace. A kind that cannot be watched is left out.
func (k *Kinds) WatchSeen(ctx context.Context, namespace string) error {
	for _, kind := range k.seenIn(namespace) {
		if _, err := k.Watch(ctx, kind); err != nil {
			return err
		}
	}
	return nil
}

// Watch has a kind watched from now on, or says why it cannot be. It returns when the kind can be read.
func (k *Kinds) Watch(ctx context.Context, kind schema.GroupKind) (*Unwatchable, error) {
	if _, watched := builtIn[kind]; watched {
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
		klog.FromContext(ctx).Info("Not watching this kind: its objects count as the end of a chain of owners", "kind", kind, "reason", unwatchable.Why)
	}
	k.known.Store(kind, knownKind{version: version, unwatchable: unwatchable, retryAt: k.clock.Now().Add(RetryInterval)})
	k.changed()
	return unwatchable, nil
}

// tryStart asks before it starts, because a watch that is forbidden would wait for ever.
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

// isUnwatchable is true for a kind that was found to be so.
func (k *Kinds) isUnwatchable(kind schema.GroupKind) bool {
	if _, watched := builtIn[kind]; watched {
		return false
	}
	known, _ := k.look(kind)
	return known.unwatchable != nil
}

// NewObject is an empty object to read one of the kind into, or nil for a kind that is not watched.
func (k *Kinds) NewObject(kind schema.GroupKind) client.Object {
	if typed, found := builtIn[kind]; found {
		return typed.newObject()
	}
	known, found := k.look(kind)
	if !found || known.unwatchable != nil {
		return nil
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind.WithVersion(known.version))
	return object
}

// NewLists are empty lists of every kind that may own pods in the namespace and is watched.
func (k *Kinds) NewLists(namespace string) iter.Seq2[schema.GroupKind, client.ObjectList] {
	return func(yield func(schema.GroupKind, client.ObjectList) bool) {
		for kind, typed := range builtIn {
			if !yield(kind, typed.newList()) {
				return
			}
		}
		for _, kind := range k.seenIn(namespace) {
			known, found := k.look(kind)
			if !found || known.unwatchable != nil {
				continue
			}
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(kind.WithVersion(known.version))
			if !yield(kind, list) {
				return
			}
		}
	}
}
