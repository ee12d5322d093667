package members

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	inventory "sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	"sigs.k8s.io/cluster-inventory-api/pkg/access"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

const (
	// DefaultNamespace holds the ClusterProfiles and the Secrets with their kubeconfigs. Nothing else should be there: the hub reads all its Secrets.
	DefaultNamespace = "berth-members"
	// mostConnecting is how many members the hub connects to at the same time. Hundreds at once, as after a restart, would all take too long.
	mostConnecting = 32
	// mostRequests limits the requests to one member in a second, and burst those at once.
	mostRequests, burst = 100, 200
)

// Options say which members there are and how patient the hub is with them. Zero values mean the defaults.
type Options struct {
	// Namespace in the hub that holds the ClusterProfiles and their Secrets.
	Namespace string
	// Providers are the credential plugins that ClusterProfiles may choose from. Nil means none.
	Providers *access.Config

	// ProbeInterval is how often a ready member is asked whether it is well (10 s), and ProbeTimeout how long it may take (5 s). A member that does not answer is found
	// after at most ProbeInterval + 2 ProbeTimeout.
	ProbeInterval, ProbeTimeout time.Duration
	// RequestTimeout bounds each request of a client from Client (10 s).
	RequestTimeout time.Duration
	// SyncTimeout bounds how long the cache of a member may take to be complete (1 min).
	SyncTimeout time.Duration
	// StaleAfter is the greatest age of what is read from a cache (3 min). It must exceed the minute after which watches send bookmarks.
	StaleAfter time.Duration
	// ShortestPause (1 s) and LongestPause (30 s) bound the time between attempts to connect. It doubles from one to the other.
	ShortestPause, LongestPause time.Duration

	// scheme has the types of the clients of members.
	scheme *runtime.Scheme
}

func (o *Options) complete(scheme *runtime.Scheme) {
	o.scheme = scheme
	o.Namespace = cmp.Or(o.Namespace, DefaultNamespace)
	o.ProbeInterval = cmp.Or(o.ProbeInterval, 10*time.Second)
	o.ProbeTimeout = cmp.Or(o.ProbeTimeout, 5*time.Second)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, 10*time.Second)
	o.SyncTimeout = cmp.Or(o.SyncTimeout, time.Minute)
	o.StaleAfter = cmp.Or(o.StaleAfter, 3*time.Minute)
	o.ShortestPause = cmp.Or(o.ShortestPause, time.Second)
	o.LongestPause = cmp.Or(o.LongestPause, 30*time.Second)
}

// Change says that something has changed in a member.
type Change struct {
	Member string
	// Workload is the one that has changed, or whose pods have. Zero if the state of the member or its labels have changed: then any workload may have
	// changed, or nothing is known of them any more.
	Workload types.NamespacedName
	// Labels of what has changed. They must not be changed.
	Labels map[string]string
}

// Set is all members of the hub. Its methods may be called at any time by anybody. None of them waits for a member.
type Set struct {
	options Options
	hub     client.Reader // a cache of the hub's ClusterProfiles and Secrets
	live    client.Reader // the hub itself
	events  events.EventRecorder
	started chan struct{} // closed when ctx is set
	ctx     context.Context
	known   atomic.Bool
	// connecting has one entry for each member that the hub connects to now.
	connecting chan struct{}

	mu     sync.Mutex
	links  map[string]*link
	claims claims
	sinks  []func(Change)
}

var (
	_ reconcile.Reconciler = &Set{}
	_ manager.Runnable     = &Set{}
)

// Setup adds the members to a manager, on the leader only. The manager's API server is the hub; it must have the kind ClusterProfile.
func Setup(mgr ctrl.Manager, options Options) (*Set, error) {
	options.complete(mgr.GetScheme())
	scheme := runtime.NewScheme()
	if err := errors.Join(inventory.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	// The manager's cache would read the Secrets of all namespaces.
	hub, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: scheme, Mapper: mgr.GetRESTMapper(), DefaultNamespaces: map[string]cache.Config{options.Namespace: {}},
		DefaultTransform: cache.TransformStripManagedFields(), ReaderFailOnMissingInformer: true,
	})
	if err != nil {
		return nil, err
	}
	s := &Set{options: options, hub: hub, live: mgr.GetAPIReader(), events: mgr.GetEventRecorder("berth-united"), started: make(chan struct{}), connecting: make(chan struct{}, mostConnecting), links: map[string]*link{}, claims: claims{}}
	if err := errors.Join(mgr.Add(manager.RunnableFunc(hub.Start)), mgr.Add(s)); err != nil {
		return nil, err
	}
	return s, ctrl.NewControllerManagedBy(mgr).Named("members").
		WatchesRawSource(source.Kind(hub, &inventory.ClusterProfile{}, &handler.TypedEnqueueRequestForObject[*inventory.ClusterProfile]{})).
		WatchesRawSource(source.Kind(hub, &corev1.Secret{}, handler.TypedEnqueueRequestsFromMapFunc(s.profilesOf))).
		Complete(s)
}

// Names are those of all members, in their order, as the hub's API server has them. A process that connects to no member can ask, too.
func Names(ctx context.Context, hub client.Reader, namespace string) ([]string, error) {
	profiles := &metav1.PartialObjectMetadataList{}
	profiles.SetGroupVersionKind(inventory.GroupVersion.WithKind("ClusterProfileList"))
	if err := hub.List(ctx, profiles, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing ClusterProfiles: %w", err)
	}
	names := make([]string, 0, len(profiles.Items))
	for i := range profiles.Items {
		names = append(names, profiles.Items[i].Name)
	}
	slices.Sort(names)
	return names, nil
}

// Start implements manager.Runnable. It returns when nothing of any member is left.
func (s *Set) Start(ctx context.Context) error {
	s.ctx = ctx
	close(s.started)
	<-ctx.Done()
	s.mu.Lock()
	links := slices.Collect(maps.Values(s.links))
	s.mu.Unlock()
	for _, l := range links {
		<-l.done
	}
	return nil
}

// List returns what is known of all members, by name.
func (s *Set) List() []Status {
	s.mu.Lock()
	links := maps.Clone(s.links)
	s.mu.Unlock()
	var all []Status
	for _, name := range slices.Sorted(maps.Keys(links)) {
		status, _ := links[name].get()
		all = append(all, status)
	}
	return all
}

// Known is true once this process has tried every member that it found when it started. Until then, a member that is not ready, or that List does not have, may well answer: nobody
// may take it for gone, or make its replicas elsewhere. It waits for the hub's ClusterProfiles, and no longer for a member than it takes to find out that one does not answer.
func (s *Set) Known(ctx context.Context) bool {
	if s.known.Load() {
		return true
	}
	var profiles inventory.ClusterProfileList
	if err := s.hub.List(ctx, &profiles, client.UnsafeDisableDeepCopy); err != nil {
		return false // nobody has begun to read them
	}
	patience := s.options.ProbeInterval + 2*s.options.ProbeTimeout
	for i := range profiles.Items {
		if profiles.Items[i].DeletionTimestamp != nil {
			continue
		}
		if l := s.link(profiles.Items[i].Name); l == nil || !l.isTried(patience) {
			return false
		}
	}
	s.known.Store(true)
	return true
}

// Status returns what is known of a member. It returns false if there is no such member.
func (s *Set) Status(name string) (Status, bool) {
	l := s.link(name)
	if l == nil {
		return Status{}, false
	}
	status, _ := l.get()
	return status, true
}

// Client returns a client for writes and live reads. Every request is bounded by Options.RequestTimeout and fails once the member is not ready or its
// credentials have changed. So callers ask for it again for each piece of work. The error is a *NotReadyError, or says that there is no such member.
func (s *Set) Client(name string) (client.Client, error) {
	now, err := s.session(name)
	if err != nil {
		return nil, err
	}
	return now.live, nil
}

// Cache returns the cache of a member. It holds Deployments, StatefulSets and ReplicaSets without the spec of their pods, and pods, as far as they have
// v1alpha1.HubLabel; see Trim. Pods and ReplicaSets have OwnerIndex. Once the member is not ready, each read returns a *NotReadyError. The error is the same as that of Client.
func (s *Set) Cache(name string) (client.Reader, error) {
	now, err := s.session(name)
	if err != nil {
		return nil, err
	}
	return reader{now}, nil
}

func (s *Set) session(name string) (*session, error) {
	l := s.link(name)
	if l == nil {
		return nil, apierrors.NewNotFound(inventory.GroupVersion.WithResource("clusterprofiles").GroupResource(), name)
	}
	status, now := l.get()
	if now == nil {
		return nil, &NotReadyError{status}
	}
	return now, nil
}

func (s *Set) link(name string) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.links[name]
}

// Source returns a source of the requests that changes in members lead to, each after a delay, or later if a member changes all the time; see noise. It must be used before the manager starts; requests must not
// block.
func (s *Set) Source(requests func(Change) []reconcile.Request, delay time.Duration) source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		heard := noise{heard: utilcache.NewExpiring()}
		sink := func(change Change) {
			for _, request := range requests(change) {
				queue.AddAfter(request, heard.after(Errand{request.NamespacedName, change.Member}, delay))
			}
		}
		s.mu.Lock()
		s.sinks = append(s.sinks, sink)
		known := slices.Collect(maps.Keys(s.links))
		s.mu.Unlock()
		for _, member := range known { // what it missed
			sink(Change{Member: member})
		}
		return nil
	})
}

func (s *Set) publish(change Change) {
	s.mu.Lock()
	sinks := s.sinks
	s.mu.Unlock()
	for _, sink := range sinks {
		sink(change)
	}
}

// profilesOf returns the profiles that name the Secret.
func (s *Set) profilesOf(ctx context.Context, secret *corev1.Secret) []reconcile.Request {
	var profiles inventory.ClusterProfileList
	if err := s.hub.List(ctx, &profiles); err != nil {
		klog.FromContext(ctx).Error(err, "Listing ClusterProfiles") // their own events come
		return nil
	}
	var requests []reconcile.Request
	for i := range profiles.Items {
		if profiles.Items[i].Annotations[SecretAnnotation] == secret.Name {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&profiles.Items[i])})
		}
	}
	return requests
}

// Reconcile implements reconcile.Reconciler. It gives the member of a ClusterProfile the link of its credentials.
func (s *Set) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	select {
	case <-s.started:
	case <-ctx.Done():
		return reconcile.Result{}, ctx.Err()
	}
	var profile inventory.ClusterProfile
	if err := s.hub.Get(ctx, request.NamespacedName, &profile); apierrors.IsNotFound(err) || err == nil && profile.DeletionTimestamp != nil {
		s.remove(request.Name)
		return reconcile.Result{}, nil
	} else if err != nil {
		return reconcile.Result{}, err
	}
	next := &link{set: s, profile: &profile, done: make(chan struct{})}
	if name := profile.Annotations[SecretAnnotation]; name != "" {
		var secret corev1.Secret
		key := client.ObjectKey{Namespace: profile.Namespace, Name: name}
		err := s.hub.Get(ctx, key, &secret)
		if apierrors.IsNotFound(err) { // Profiles and Secrets have two watches. The one of the Secrets may be the later one.
			err = s.live.Get(ctx, key, &secret)
		}
		if client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, err
		}
		next.of = fingerprintOf(profile.UID, name, secret.Data[KubeconfigKey])
		next.config, next.invalid = fromSecret(name, secret.Data[KubeconfigKey])
	} else {
		next.of = fingerprintOf(profile.UID, profile.Status.AccessProviders, profile.Status.CredentialProviders)
		next.config, next.invalid = fromProviders(s.options.Providers, &profile)
	}
	if s.replace(&profile, next) {
		s.publish(Change{Member: request.Name})
	}
	return reconcile.Result{}, nil
}

// replace starts the link, unless the member has one with the same credentials. It is true if that one has got other labels, or another cordon.
func (s *Set) replace(profile *inventory.ClusterProfile, next *link) (relabelled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	next.status = Status{Name: profile.Name, Namespace: profile.Namespace, Labels: profile.Labels, Cordon: Cordon(profile.Annotations[v1alpha1.CordonAnnotation]), State: Connecting, Since: time.Now(), Expires: expiryOf(next.config)}
	if previous := s.links[profile.Name]; previous != nil {
		if previous.of == next.of {
			return previous.label(profile)
		}
		previous.cancel()
		delete(s.claims, previous)
		next.previous = previous
		if was, _ := previous.get(); was.State != Ready && !was.State.Lives() {
			next.status.Since = was.Since
		}
	}
	var ctx context.Context
	ctx, next.cancel = context.WithCancel(s.ctx)
	s.links[profile.Name] = next
	go next.run(ctx)
	return false
}

func (s *Set) remove(name string) {
	s.mu.Lock()
	gone := s.links[name]
	delete(s.links, name)
	delete(s.claims, gone)
	s.mu.Unlock()
	if gone != nil {
		gone.cancel()
		s.publish(Change{Member: name})
	}
}
