package controller

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
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/workload"
)

var (
	deploymentKind  = schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}
	replicaSetKind  = schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}
	statefulSetKind = schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}
	jobKind         = schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}
)

// builtIn are the kinds that are always watched.
var builtIn = map[schema.GroupKind]struct {
	newObject func() client.Object
	newList   func() client.ObjectList
}{
	deploymentKind:  {func() client.Object { return &appsv1.Deployment{} }, func() client.ObjectList { return &appsv1.DeploymentList{} }},
	replicaSetKind:  {func() client.Object { return &appsv1.ReplicaSet{} }, func() client.ObjectList { return &appsv1.ReplicaSetList{} }},
	statefulSetKind: {func() client.Object { return &appsv1.StatefulSet{} }, func() client.ObjectList { return &appsv1.StatefulSetList{} }},
	jobKind:         {func() client.Object { return &batchv1.Job{} }, func() client.ObjectList { return &batchv1.JobList{} }},
}

const (
	// retryInterval is how long it takes to see something that no event tells: a new kind, a new permission, a new scale subresource.
	retryInterval = 30 * time.Second
	// startTimeout bounds the wait for the first list of a kind.
	startTimeout = 10 * time.Second
)

// kinds are the kinds of workloads and of owners between them and their pods. Those that are not built in are watched, by their metadata
// alone, from the moment that a spread names one, or a spread is looked at in whose namespace an object has an owner of that kind.
type kinds struct {
	mapper meta.RESTMapper
	live   client.Reader
	clock  clock.PassiveClock
	// start fills the cache with a kind, and feeds the queue with its events.
	start func(context.Context, *metav1.PartialObjectMetadata) error

	// starting is held while a kind is being started, so that it is started once.
	starting sync.Mutex
	mu       sync.RWMutex
	// seen are the kinds of owners in each namespace, except those above.
	seen map[string]sets.Set[schema.GroupKind]
	// known are the kinds that were started, or could not be.
	known map[schema.GroupKind]knownKind
}

type knownKind struct {
	version string
	// problem is why the kind is not watched. Nil if it is.
	problem *problem
	retryAt time.Time
}

// problem is a fact that the user can mend and that keeps a workload from being read.
type problem struct {
	condition condition
	// silent: no event tells when it is mended.
	silent bool
}

func newKinds(mapper meta.RESTMapper, live client.Reader, clock clock.PassiveClock) *kinds {
	return &kinds{
		mapper: mapper,
		live:   live,
		clock:  clock,
		seen:   map[string]sets.Set[schema.GroupKind]{},
		known:  map[schema.GroupKind]knownKind{},
	}
}

// see takes note that an object in the namespace has an owner of the kind. It is true the first time for a kind that must be watched to know
// what is above it.
func (k *kinds) see(namespace string, kind schema.GroupKind) (first bool) {
	if _, watched := builtIn[kind]; watched || workload.EndsChain(kind) {
		return false
	}
	k.mu.RLock()
	known := k.seen[namespace].Has(kind)
	k.mu.RUnlock()
	if known {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seen[namespace] == nil {
		k.seen[namespace] = sets.New[schema.GroupKind]()
	}
	k.seen[namespace].Insert(kind)
	return true
}

// watchSeen watches all kinds of owners in a namespace. A kind that cannot be watched is left out: its objects count as the end of a chain.
func (k *kinds) watchSeen(ctx context.Context, namespace string) error {
	k.mu.RLock()
	seen := k.seen[namespace].UnsortedList()
	k.mu.RUnlock()
	for _, kind := range seen {
		if _, err := k.watch(ctx, kind); err != nil {
			return err
		}
	}
	return nil
}

// watch has a kind watched from now on, or says why it cannot be.
func (k *kinds) watch(ctx context.Context, kind schema.GroupKind) (*problem, error) {
	if _, watched := builtIn[kind]; watched {
		return nil, nil
	}
	k.starting.Lock()
	defer k.starting.Unlock()
	k.mu.RLock()
	known, found := k.known[kind]
	k.mu.RUnlock()
	if found && (known.problem == nil || k.clock.Now().Before(known.retryAt)) {
		return known.problem, nil
	}
	version, problem, err := k.tryStart(ctx, kind)
	if err != nil {
		return nil, fmt.Errorf("watching kind %s: %w", kind, err)
	}
	if problem != nil && !found {
		klog.FromContext(ctx).Info("Not watching this kind: its objects count as the end of a chain of owners", "kind", kind, "problem", problem.condition.message)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known[kind] = knownKind{version: version, problem: problem, retryAt: k.clock.Now().Add(retryInterval)}
	return problem, nil
}

// tryStart asks before it starts, because a watch that is forbidden would wait for ever.
func (k *kinds) tryStart(ctx context.Context, kind schema.GroupKind) (version string, _ *problem, _ error) {
	mapping, err := k.mapper.RESTMapping(kind)
	if meta.IsNoMatchError(err) {
		return "", &problem{kindNotFound(kind), true}, nil
	}
	if err != nil {
		return "", nil, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return "", &problem{kindNotNamespaced(kind), true}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(mapping.GroupVersionKind)
	switch err := k.live.List(ctx, list, client.Limit(1)); {
	case apierrors.IsForbidden(err):
		return "", &problem{forbidden("list", mapping.Resource.GroupResource()), true}, nil
	case apierrors.IsMethodNotSupported(err):
		return "", &problem{notListed(mapping.Resource.GroupResource()), true}, nil
	case err != nil:
		return "", nil, err
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(mapping.GroupVersionKind)
	return mapping.GroupVersionKind.Version, nil, k.start(ctx, object)
}

// newObject is an empty object to read one of the kind into, or nil for a kind that is not watched.
func (k *kinds) newObject(kind schema.GroupKind) client.Object {
	if typed, found := builtIn[kind]; found {
		return typed.newObject()
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	known, found := k.known[kind]
	if !found || known.problem != nil {
		return nil
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind.WithVersion(known.version))
	return object
}

// newLists are empty lists of every kind that may own pods in the namespace and is watched.
func (k *kinds) newLists(namespace string) iter.Seq2[schema.GroupKind, client.ObjectList] {
	return func(yield func(schema.GroupKind, client.ObjectList) bool) {
		for kind, typed := range builtIn {
			if !yield(kind, typed.newList()) {
				return
			}
		}
		k.mu.RLock()
		seen := k.seen[namespace].UnsortedList()
		k.mu.RUnlock()
		for _, kind := range seen {
			k.mu.RLock()
			known, found := k.known[kind]
			k.mu.RUnlock()
			if !found || known.problem != nil {
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
