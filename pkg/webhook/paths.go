package webhook

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-project/berth/pkg/endpoint"
)

const (
	// formerFor is how long Berth answers at a path after it was removed from the webhook configurations. Some API server may not know about the change yet.
	formerFor = time.Minute
	// A client that calls an unknown path may know about a new path earlier than this replica. Then the replica reads the configurations live, at most once
	// in looksApart, and for all calls that wait meanwhile. Each read takes at most lookTimeout.
	looksApart  = 500 * time.Millisecond
	lookTimeout = time.Second
	// keepInterval is how often Berth checks the age of the paths.
	keepInterval = 30 * time.Second
	// retryInterval is the delay before a retry after an error.
	retryInterval = time.Second
)

// paths maintain the secret paths in the webhook configurations, and know them. The paths are stored nowhere else. Every replica answers at the paths that
// a configuration has, or had until formerFor ago, and at no others. Every replica fills in missing paths and replaces old ones. If several do so at once, the
// first write wins and the others get a conflict.
type paths struct {
	cache cache.Cache
	// cached is the cache.
	cached client.Reader
	live   client.Reader
	writer client.Writer
	clock  clock.Clock

	// looking is held while the configurations are read live. looked is when the last such read began.
	looking sync.Mutex
	looked  time.Time

	mu sync.Mutex
	// known are the paths at which this replica answers, and until when. The zero time means as long as a configuration has the path. known is nil until the
	// configurations were read.
	known map[string]time.Time
	// asked is set once every webhook in the configurations has a path at which this replica answers.
	asked  atomic.Bool
	warned sync.Once
}

var (
	_ manager.Runnable               = &paths{}
	_ manager.LeaderElectionRunnable = &paths{}
)

// newPaths returns paths that watch webhook configurations in the cache. Start runs the cache.
func newPaths(configurations cache.Cache, live client.Reader, writer client.Writer, now clock.Clock) *paths {
	return &paths{
		cache: configurations, cached: configurations, live: live, writer: writer, clock: now,
	}
}

// NeedLeaderElection is false, because the API server calls every replica.
func (p *paths) NeedLeaderElection() bool { return false }

// Start runs the cache and maintains the paths until the context ends.
func (p *paths) Start(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	announce := func(object any) {
		configuration, ok := object.(client.Object)
		if !ok || !slices.Contains(endpoint.Configurations, configuration.GetName()) {
			return
		}
		p.see(configuration)
		select {
		case changed <- struct{}{}:
		default: // a change is announced already
		}
	}
	for _, kind := range configurationKinds() {
		informer, err := p.cache.GetInformer(ctx, kind)
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc:    announce,
				UpdateFunc: func(_, object any) { announce(object) },
				DeleteFunc: announce, // a tombstone is not a client.Object and is ignored: keep runs after keepInterval at the latest
			})
		}
		if err != nil {
			return fmt.Errorf("watching webhook configurations: %w", err)
		}
	}
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return p.cache.Start(ctx) })
	running.Go(func() error {
		if !p.cache.WaitForCacheSync(ctx) {
			return nil // the context has ended
		}
		for {
			next := keepInterval
			if err := p.keep(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Updating the paths in the webhook configurations")
				next = retryInterval
			}
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			case <-p.clock.After(next):
			}
		}
	})
	return running.Wait()
}

// keep learns the existing paths, fills in missing ones, and replaces old ones.
func (p *paths) keep(ctx context.Context) error {
	configurations, err := read(ctx, p.cached)
	if err != nil {
		return err
	}
	p.learn(configurations)
	p.warn(ctx, configurations)
	var errs []error
	for _, configuration := range configurations {
		errs = append(errs, p.fill(ctx, configuration))
	}
	return errors.Join(errs...)
}

// warn logs once if a configuration has a path without a secret segment, which every client can call. Berth answers there, because somebody has configured it.
func (p *paths) warn(ctx context.Context, configurations []client.Object) {
	for _, configuration := range configurations {
		for _, webhook := range endpoint.WebhooksOf(configuration) {
			if path := webhook.Path(); path == webhook.Handler {
				p.warned.Do(func() {
					klog.FromContext(ctx).Info("A webhook configuration has a path without a secret segment, so every client that can connect gets an answer. Apply this version's manifests",
						"configuration", klog.KObj(configuration), "webhook", webhook.Name, "path", path)
				})
			}
		}
	}
}

// fill writes a configuration with new paths where they are needed. Berth answers at them before it writes them.
func (p *paths) fill(ctx context.Context, configuration client.Object) error {
	before, now := configuration.DeepCopyObject().(client.Object), p.clock.Now()
	filled := false
	for _, webhook := range endpoint.WebhooksOf(configuration) {
		if webhook.Fill(now) {
			filled = true
			p.mu.Lock()
			p.known[webhook.Path()] = now.Add(formerFor)
			p.mu.Unlock()
		}
	}
	if !filled {
		return nil
	}
	// The patch contains only paths. An update could lose fields that only a newer API server knows.
	patch := client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	if err := p.writer.Patch(ctx, configuration, patch, client.FieldOwner("berth-controller")); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil // the watch delivers the current version
		}
		return fmt.Errorf("writing the paths of webhook configuration %s: %w", before.GetName(), err)
	}
	klog.FromContext(ctx).V(2).Info("Wrote new paths into the webhook configuration", "configuration", klog.KObj(configuration))
	return nil
}

// see learns the paths of one version of a configuration. When keep reads the cache, there may be a newer version already. An API server that has seen this
// one asks at its paths for a while.
func (p *paths) see(configuration client.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		return // keep has not learned the first version yet
	}
	for _, webhook := range endpoint.WebhooksOf(configuration) {
		if path := webhook.Path(); path != "" {
			if _, found := p.known[path]; !found {
				p.known[path] = p.clock.Now().Add(formerFor)
			}
		}
	}
}

// learn updates known to the paths of the configurations. Other paths stay known for formerFor.
func (p *paths) learn(configurations []client.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, known := p.clock.Now(), map[string]time.Time{}
	for path, until := range p.known {
		if until.IsZero() {
			until = now.Add(formerFor)
		}
		if now.Before(until) {
			known[path] = until
		}
	}
	for _, configuration := range configurations {
		for _, webhook := range endpoint.WebhooksOf(configuration) {
			if path := webhook.Path(); path != "" {
				known[path] = time.Time{}
			}
		}
	}
	p.known = known
}

// answered is true if Berth answers a call at a path. The path has a handler. For an unknown path it uses a live read of the configurations that began after
// the call. That may take looksApart plus lookTimeout.
func (p *paths) answered(ctx context.Context, path string) bool {
	if p.knows(path) {
		return true
	}
	asked := p.clock.Now()
	p.looking.Lock()
	defer p.looking.Unlock()
	if p.knows(path) {
		return true
	}
	if !p.looked.Before(asked) {
		return false // the previous holder of the lock has read the configurations after this call arrived
	}
	if early := p.looked.Add(looksApart).Sub(asked); early > 0 {
		<-p.clock.After(early)
	}
	p.looked = p.clock.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout) // other calls wait for this read too, so it must not end with ctx
	defer cancel()
	configurations, err := read(ctx, p.live)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Reading the webhook configurations for an unknown path")
		return false
	}
	p.learn(configurations)
	return p.knows(path)
}

// knows is true for a path at which this replica answers. Its time does not depend on how much of a path is correct, so that nobody can guess it bit by bit.
func (p *paths) knows(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, same := p.clock.Now(), 0
	for known, until := range p.known {
		if until.IsZero() || now.Before(until) {
			same |= subtle.ConstantTimeCompare([]byte(known), []byte(path))
		}
	}
	return same == 1
}

// learned is true once the configurations were read.
func (p *paths) learned() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known != nil
}

// ready returns nil once every webhook in the configurations has a known path. It keeps returning nil after that: if somebody removes a path later, an
// unready replica would not bring it back.
func (p *paths) ready(ctx context.Context) error {
	if p.asked.Load() {
		return nil
	}
	configurations, err := read(ctx, p.cached)
	if err != nil {
		return err
	}
	for _, configuration := range configurations {
		for _, webhook := range endpoint.WebhooksOf(configuration) {
			if !p.knows(webhook.Path()) {
				return fmt.Errorf("the API server has no path for webhook %s yet", webhook.Name)
			}
		}
	}
	p.asked.Store(len(configurations) > 0)
	return nil
}

func configurationKinds() []client.Object {
	return []client.Object{&admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfiguration{}}
}

// read returns the existing webhook configurations of Berth.
func read(ctx context.Context, reader client.Reader) ([]client.Object, error) {
	var configurations []client.Object
	for _, name := range endpoint.Configurations {
		for _, configuration := range configurationKinds() {
			switch err := reader.Get(ctx, types.NamespacedName{Name: name}, configuration); {
			case err == nil:
				configurations = append(configurations, configuration)
			case !apierrors.IsNotFound(err):
				return nil, fmt.Errorf("reading webhook configuration %s: %w", name, err)
			}
		}
	}
	return configurations, nil
}
