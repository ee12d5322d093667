package members

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/client-go/util/flowcontrol"
	inventory "sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

// kinds are what the cache holds of a member. The clients know them and Namespace, and no others.
var kinds = []schema.GroupVersionKind{
	appsv1.SchemeGroupVersion.WithKind("Deployment"), appsv1.SchemeGroupVersion.WithKind("StatefulSet"), appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	corev1.SchemeGroupVersion.WithKind("Pod"),
}

var namespaceKind = corev1.SchemeGroupVersion.WithKind("Namespace")

// knownKinds maps the kinds of the cache, and Namespace, without a request.
func knownKinds() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range kinds {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	mapper.Add(namespaceKind, meta.RESTScopeRoot)
	return mapper
}

// link is one member with one set of credentials. If the credentials change, another link takes its place.
type link struct {
	set *Set
	// profile is what the hub has of the member when the link begins.
	profile *inventory.ClusterProfile
	// config is nil if there are no usable credentials. Then invalid says why.
	config  *rest.Config
	invalid error
	of      fingerprint
	// previous is the link whose place this one takes, or nil.
	previous *link

	// Once the operator of the hub was told that the credentials end within expiryNotice, warned is true, and distrusted once it was told that nothing proves who the member is. Only the link's goroutine
	// uses them.
	warned, distrusted bool

	cancel context.CancelFunc
	done   chan struct{} // closed when nothing of it is left

	mu     sync.Mutex
	status Status
	began  time.Time // of the first attempt
	now    *session  // nil unless ready
}

// run keeps the member connected until the context ends.
func (l *link) run(ctx context.Context) {
	defer close(l.done)
	if l.previous != nil {
		<-l.previous.done // two caches of one member would be twice the memory
		l.previous = nil
	}
	backoff := l.backoff()
	for {
		began := time.Now() //nolint:forbidigo // how long it takes
		l.attempt(ctx)
		if time.Since(began) > l.set.options.LongestPause {
			backoff = l.backoff()
		}
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return
		}
	}
}

func (l *link) backoff() *wait.Backoff {
	return &wait.Backoff{Duration: l.set.options.ShortestPause, Factor: 2, Jitter: 0.2, Steps: 1 << 30, Cap: l.set.options.LongestPause}
}

// attempt connects, and returns when the connection cannot be used, or not any more. Nothing of it is left then.
func (l *link) attempt(ctx context.Context) {
	select {
	case l.set.connecting <- struct{}{}:
	case <-ctx.Done():
		return
	}
	connected := sync.OnceFunc(func() { <-l.set.connecting })
	time.AfterFunc(2*l.set.options.ProbeTimeout, connected) // a slow member delays others no longer
	l.mu.Lock()
	l.began = cmp.Or(l.began, time.Now())
	l.mu.Unlock()
	within, end := context.WithCancelCause(ctx)
	s, err := open(within, end, l)
	if err == nil {
		err = s.run(connected)
	}
	connected()
	if why := context.Cause(within); why != nil {
		err = why
	}
	if ctx.Err() == nil { // otherwise it is not the member's link any more
		l.fail(err)
	}
	end(nil)
	if s != nil {
		s.close()
	}
}

// arrive makes the member ready.
func (l *link) arrive(s *session, version string) {
	l.mu.Lock()
	l.now = s
	l.status.State, l.status.Since, l.status.Version, l.status.Message = Ready, time.Now(), version, "" //nolint:forbidigo // the clock of the connection, which no test replaces
	l.mu.Unlock()
	l.tell(corev1.EventTypeNormal, Ready, "the hub is connected, Kubernetes "+version)
}

// tell tells everybody of a new state. An event of the member's ClusterProfile shows it.
func (l *link) tell(eventType string, state State, message string) {
	l.event(eventType, string(state), message)
	l.set.publish(Change{Member: l.status.Name})
}

func (l *link) event(eventType, reason, message string) {
	l.set.events.Eventf(l.profile, nil, eventType, reason, "Connect", "%s", message)
}

// fail records why the member is not ready. From here on nobody reads its cache.
func (l *link) fail(err error) {
	server := ""
	if l.config != nil {
		server = l.config.Host
	}
	l.mu.Lock()
	before := l.status
	l.now = nil
	l.status.State, l.status.Message = stateOf(err), messageOf(before.Name, server, err)
	if before.State == Ready || before.State.Lives() && !l.status.State.Lives() {
		l.status.Since = time.Now()
	}
	status := l.status
	l.mu.Unlock()
	if before.State != status.State {
		l.tell(corev1.EventTypeWarning, status.State, status.Message)
	}
}

// expiryNotice is how long before the end of credentials the hub warns.
const expiryNotice = 72 * time.Hour

// warnOfExpiry warns once if the credentials end soon. When they have ended, nobody can scale what runs in the member.
func (l *link) warnOfExpiry() {
	status, _ := l.get()
	if l.warned || status.Expires.IsZero() || time.Until(status.Expires) > expiryNotice {
		return
	}
	l.warned = true
	l.event(corev1.EventTypeWarning, "CredentialsEnd", fmt.Sprintf("the credentials for member %s end at %s: renew them before", status.Name, status.Expires.UTC().Format(time.RFC3339)))
}

// warnOfTrust warns once if the hub cannot tell the member from somebody else in the network.
func (l *link) warnOfTrust() {
	if l.distrusted || !l.config.Insecure && !strings.HasPrefix(l.config.Host, "http://") {
		return
	}
	l.distrusted = true
	status, _ := l.get()
	l.event(corev1.EventTypeWarning, "Insecure", fmt.Sprintf("nothing proves that %s is member %s, and others may read what the hub sends: use https with certificate-authority-data, without insecure-skip-tls-verify", l.config.Host, status.Name))
}

// label takes the labels and the cordon of the member's ClusterProfile. It is false if they have not changed.
func (l *link) label(profile *inventory.ClusterProfile) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	cordon := Cordon(profile.Annotations[v1alpha1.CordonAnnotation])
	if maps.Equal(l.status.Labels, profile.Labels) && l.status.Cordon == cordon {
		return false
	}
	l.status.Labels, l.status.Cordon = profile.Labels, cordon
	return true
}

// isTried is false while the first attempt has not ended, or not taken too long.
func (l *link) isTried(patience time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status.State != Connecting || !l.began.IsZero() && time.Since(l.began) >= patience
}

// get returns the status, and the session if the member is ready.
func (l *link) get() (Status, *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status, l.now
}

// session is one connection to a member with its cache. It is complete while it is the link's now.
type session struct {
	link *link
	// open ends with the session. No request of its clients passes after that. end ends it; the first reason counts.
	open      context.Context
	end       context.CancelCauseFunc
	http      *http.Client
	transport http.RoundTripper
	asking    client.Client // for probes
	conns     *connrotation.Dialer
	cache     cache.Cache
	live      client.Client
	reached   *discovery.DiscoveryClient

	running sync.WaitGroup

	// received is how many bytes the cache has been sent before it was complete, and objects how many it has.
	received, objects atomic.Int64
	complete          atomic.Bool

	// lists are the informers, and what a probe read last. Only the link's goroutine uses them.
	lists []list
}

// list is a kind in the cache.
type list struct {
	kind     schema.GroupVersionKind
	informer interface{ LastSyncResourceVersion() string }
	// version is the resource version of the collection at the time asked, when the cache had not reached it yet.
	version string
	asked   time.Time
	// seen is the latest time of which the cache has everything.
	seen time.Time
}

// open prepares a session. It sends no request.
func open(ctx context.Context, end context.CancelCauseFunc, l *link) (*session, error) {
	if l.invalid != nil {
		return nil, l.invalid
	}
	s := &session{link: l, open: ctx, end: end}
	config := rest.CopyConfig(l.config)
	config.UserAgent = "berth-united/federation"
	config.QPS = -1 // the cache and the probes must not wait behind the writes of a busy caller
	s.conns = connrotation.NewDialer((&net.Dialer{Timeout: l.set.options.ProbeTimeout, KeepAlive: 15 * time.Second}).DialContext)
	config.Dial = s.conns.DialContext
	if config.Proxy == nil {
		// This is the default. client-go keeps a transport for ever, unless a proxy is set.
		config.Proxy = http.ProxyFromEnvironment
	}
	var err error
	if s.http, err = rest.HTTPClientFor(config); err != nil {
		return nil, badCredentials("%w", err)
	}
	s.transport = s.http.Transport
	s.http.Transport = &gate{inner: s.transport, open: ctx}
	s.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // a member must not make the hub call others, with its token
	quick, bounded := *s.http, *s.http                                                                   // the cache's own requests last as long as its watches
	quick.Timeout, bounded.Timeout = l.set.options.ProbeTimeout, l.set.options.RequestTimeout
	quick.Transport, bounded.Transport = &limit{s.http.Transport, atMost(longestProbe)}, &limit{s.http.Transport, atMost(longestAnswer)}
	s.http.Transport = &limit{s.http.Transport, func(body io.ReadCloser) io.ReadCloser { return &meteredBody{body, s} }}

	if s.reached, err = discovery.NewDiscoveryClientForConfigAndClient(config, &quick); err != nil {
		return nil, err
	}
	if s.asking, err = client.New(config, client.Options{HTTPClient: &quick, Scheme: l.set.options.scheme, Mapper: knownKinds()}); err != nil {
		return nil, err
	}
	limited := rest.CopyConfig(config)
	limited.QPS, limited.RateLimiter = 0, flowcontrol.NewTokenBucketRateLimiter(mostRequests, burst)
	if s.live, err = client.New(limited, client.Options{HTTPClient: &bounded, Scheme: l.set.options.scheme, Mapper: knownKinds()}); err != nil {
		return nil, err
	}
	if err := s.prepareCache(config); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *session) prepareCache(config *rest.Config) error {
	l := s.link
	ofHub, err := labels.Parse(v1alpha1.HubLabel)
	if err != nil {
		return err
	}
	s.cache, err = cache.New(config, cache.Options{
		HTTPClient: s.http, Scheme: l.set.options.scheme, Mapper: knownKinds(), ReaderFailOnMissingInformer: true, DefaultLabelSelector: ofHub,
		DefaultTransform:         Trim,
		DefaultWatchErrorHandler: s.watchFailed,
	})
	if err != nil {
		return err
	}
	tell := func(object any) {
		if change, ok := about(object); ok {
			if status, now := l.get(); now == s { // until then nothing is complete, and arrive tells everybody
				change.Member = status.Name
				l.set.publish(change)
			}
		}
	}
	for _, kind := range kinds {
		informer, err := s.cache.GetInformerForKind(s.open, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) {
				if s.objects.Add(1) > mostObjects {
					s.end(fmt.Errorf("it says that it has more than %d workloads and pods of the hub", mostObjects))
				}
				tell(object)
			},
			UpdateFunc: func(_, object any) { tell(object) },
			DeleteFunc: func(object any) { s.objects.Add(-1); tell(object) },
		}); err != nil {
			return err
		}
		s.lists = append(s.lists, list{kind: kind, informer: informer.(toolscache.SharedIndexInformer)})
	}
	for _, owned := range []client.Object{&corev1.Pod{}, &appsv1.ReplicaSet{}} {
		if err := s.cache.IndexField(s.open, owned, OwnerIndex, ownerOf); err != nil {
			return err
		}
	}
	return nil
}

// run connects, makes the member ready, and returns why it is not ready any more, or cannot be. It calls connected before it makes the member ready.
func (s *session) run(connected func()) error {
	version, err := s.version()
	if err != nil {
		return err
	}
	if err := s.identify(); err != nil {
		return err
	}
	// The rights are checked before the cache starts, because a cache only tries again.
	if err := s.probe(); err != nil {
		return err
	}
	s.running.Go(func() {
		if err := s.cache.Start(s.open); err != nil {
			s.end(err)
		}
	})
	if err := s.awaitSync(); err != nil {
		return err
	}
	connected()
	s.link.arrive(s, version)
	s.link.warnOfTrust()
	s.link.warnOfExpiry()
	ticker := time.NewTicker(s.link.set.options.ProbeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.open.Done():
			return s.open.Err()
		case <-ticker.C:
		}
		if s.probe() == nil {
			if err := s.checkAge(); err != nil {
				return err
			}
			s.link.warnOfExpiry()
		} else if err := s.probe(); err != nil { // one lost packet is no reason to build a cache again
			return err
		}
	}
}

// identify finds out which cluster the member is, by the UID of a namespace that each cluster has. A member whose manifests are older does not let the hub read it; then nobody knows.
func (s *session) identify() error {
	ctx, cancel := context.WithTimeout(s.open, s.link.set.options.ProbeTimeout)
	defer cancel()
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(namespaceKind)
	err := s.asking.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, namespace)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	s.link.mu.Lock()
	s.link.status.Identity = namespace.UID + "/" + anchorOf(s.link.config)
	s.link.mu.Unlock()
	return s.link.claim(s, namespace.UID)
}

// checkAge is an error if the cache may lack what happened too long ago.
func (s *session) checkAge() error {
	if age := time.Since(s.seen()); age > s.link.set.options.StaleAfter {
		return fmt.Errorf("its watches have brought nothing for %s, although something has changed", age.Round(time.Second))
	}
	return nil
}

// watchFailed is called when a list or watch of the cache has ended with an error. The informer would try again, and meanwhile the cache would be old.
func (s *session) watchFailed(_ context.Context, _ *toolscache.Reflector, err error) {
	if !errors.Is(err, io.EOF) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && s.open.Err() == nil {
		s.end(err)
	}
}

// awaitSync returns when the cache is complete, or why it will not be.
func (s *session) awaitSync() error {
	ctx, cancel := context.WithTimeout(s.open, s.link.set.options.SyncTimeout)
	defer cancel()
	if !s.cache.WaitForCacheSync(ctx) {
		return fmt.Errorf("its workloads and pods could not be listed within %s", s.link.set.options.SyncTimeout)
	}
	s.complete.Store(true)
	for i := range s.lists {
		s.lists[i].seen = s.lists[i].asked
	}
	return nil
}

func (s *session) version() (string, error) {
	info, err := s.reached.ServerVersion()
	if err != nil {
		return "", err
	}
	return info.Major + "." + info.Minor, checkVersion(info)
}

// probe asks for one object of each kind. So it proves that the hub still has its rights, and returns how far the cache should be.
func (s *session) probe() error {
	ctx, cancel := context.WithTimeout(s.open, s.link.set.options.ProbeTimeout)
	defer cancel()
	for i := range s.lists {
		one, asked := &s.lists[i], time.Now()
		objects := &metav1.PartialObjectMetadataList{}
		objects.SetGroupVersionKind(one.kind.GroupVersion().WithKind(one.kind.Kind + "List"))
		if err := s.asking.List(ctx, objects, client.Limit(1), client.HasLabels{v1alpha1.HubLabel}); err != nil {
			return err
		}
		one.heard(objects.ResourceVersion, asked)
	}
	return nil
}

// heard takes an answer of the API server: the collection had that resource version at the time asked.
func (l *list) heard(version string, asked time.Time) {
	if l.reached() {
		l.seen, l.version = l.asked, ""
	}
	if l.version == "" {
		l.version, l.asked = version, asked
	}
}

// reached is true if the cache has everything that the last answer has. In a member where nothing changes, the bookmarks of a watch say so once a minute.
func (l *list) reached() bool {
	if l.version == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(l.informer.LastSyncResourceVersion(), l.version)
	return err == nil && order >= 0
}

// seen is the time of which the whole cache has everything.
func (s *session) seen() time.Time {
	seen := s.lists[0].seen
	for _, one := range s.lists[1:] {
		if one.seen.Before(seen) {
			seen = one.seen
		}
	}
	return seen
}

// close returns when nothing of the session is left. Its context has ended.
func (s *session) close() {
	s.running.Wait()
	s.conns.CloseAll()
	utilnet.CloseIdleConnectionsFor(s.transport)
}

var errClosed = errors.New("the connection to the member was closed meanwhile")

// gate lets requests pass while the session is open. A request returns when its context or the session ends, even if the transport does not: a credential
// plugin that hangs does not look at contexts.
type gate struct {
	inner http.RoundTripper
	open  context.Context
}

// RoundTrip implements http.RoundTripper.
func (g *gate) RoundTrip(request *http.Request) (*http.Response, error) {
	type answer struct {
		response *http.Response
		err      error
	}
	if g.open.Err() != nil {
		return nil, errClosed
	}
	answers := make(chan answer)
	left := make(chan struct{})
	own := request.Clone(request.Context()) // the transport may still change it when this has returned
	go func() {
		//nolint:bodyclose // the receiver closes it, or the line below
		response, err := g.inner.RoundTrip(own)
		select {
		case answers <- answer{response, err}:
		case <-left:
			if response != nil {
				response.Body.Close()
			}
		}
	}()
	select {
	case a := <-answers:
		return a.response, a.err
	case <-request.Context().Done():
		close(left)
		return nil, request.Context().Err()
	case <-g.open.Done():
		close(left)
		return nil, errClosed
	}
}

const (
	// longestProbe bounds an answer to a probe, and longestAnswer one to a read or a write, in bytes. A member chooses what it sends, and the hub keeps an answer in memory until it has all of it. With longestAnswer
	// a list has some ten thousands of pods.
	longestProbe  = 4 << 20
	longestAnswer = 256 << 20
	// longestLists bounds all that the cache is sent before it is complete, in bytes, and mostObjects what it has afterwards. No cluster has as many.
	longestLists = 1 << 30
	mostObjects  = 500_000
)

// meteredBody is an answer to the cache. If the lists do not end, the session does.
type meteredBody struct {
	io.ReadCloser
	session *session
}

// Read implements io.Reader.
func (b *meteredBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if s := b.session; !s.complete.Load() && s.received.Add(int64(n)) > longestLists {
		err = fmt.Errorf("its lists are longer than %d bytes", longestLists)
		s.end(err)
	}
	return n, err
}

// limit passes requests on, and bounds what is read of an answer.
type limit struct {
	inner http.RoundTripper
	bound func(io.ReadCloser) io.ReadCloser
}

// RoundTrip implements http.RoundTripper.
func (l *limit) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.inner.RoundTrip(request)
	if err == nil {
		response.Body = l.bound(response.Body)
	}
	return response, err
}

// atMost ends an answer that is longer with an error.
func atMost(bytes int64) func(io.ReadCloser) io.ReadCloser {
	return func(body io.ReadCloser) io.ReadCloser { return http.MaxBytesReader(nil, body, bytes) }
}

// reader reads the cache of a session while the session lasts.
type reader struct {
	session *session
}

var _ client.Reader = reader{}

// Get implements client.Reader.
func (r reader) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	return r.still(r.session.cache.Get(ctx, key, object, options...))
}

// List implements client.Reader.
func (r reader) List(ctx context.Context, objects client.ObjectList, options ...client.ListOption) error {
	return r.still(r.session.cache.List(ctx, objects, options...))
}

// still is an error if what was read may be old.
func (r reader) still(err error) error {
	if status, now := r.session.link.get(); now != r.session || r.session.open.Err() != nil {
		return &NotReadyError{status}
	}
	return err
}
