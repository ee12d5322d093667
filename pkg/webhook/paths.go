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
	// formerFor is how long a path is answered at which the API server is told to ask no more. Some API server may not have heard of it yet.
	formerFor = time.Minute
	// Who asks at a path that is not known may have heard of it earlier than this replica. It then reads the configurations itself, but never more often, and for
	// all who ask meanwhile.
	looksApart  = 500 * time.Millisecond
	lookTimeout = time.Second
	// keepInterval is how often the age of paths is looked at.
	keepInterval = 30 * time.Second
	// retryInterval is when to try again after an error.
	retryInterval = time.Second
)

// paths keep the paths at which the API server asks, in the webhook configurations, and know them. The configurations are the only place where they are: what
// one of them names is answered, by every replica, and nothing else is. Every replica fills in what is missing or old; an update conflict decides whose path it is.
type paths struct {
	cache cache.Cache
	// cached is the cache.
	cached client.Reader
	live   client.Reader
	writer client.Writer
	clock  clock.Clock

	// looking is held while the configurations are read live, and looked is when that last began.
	looking sync.Mutex
	looked  time.Time

	mu sync.Mutex
	// known are the paths that are answered, and until when. The zero time means as long as a configuration names it. It is nil until the configurations were read.
	known map[string]time.Time
	// asked is set once the API server was told to ask at paths that are answered here.
	asked  atomic.Bool
	warned sync.Once
}

var (
	_ manager.Runnable               = &paths{}
	_ manager.LeaderElectionRunnable = &paths{}
)

// newPaths returns paths that run the cache, in which they watch webhook configurations.
func newPaths(configurations cache.Cache, live client.Reader, writer client.Writer, now clock.Clock) *paths {
	return &paths{
		cache: configurations, cached: configurations, live: live, writer: writer, clock: now,
	}
}

// NeedLeaderElection is false: every replica is asked.
func (p *paths) NeedLeaderElection() bool { return false }

// Start runs the cache and keeps the paths until the context ends.
func (p *paths) Start(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	announce := func(object any) {
		if named, ok := object.(client.Object); !ok || !slices.Contains(endpoint.Configurations, named.GetName()) {
			return
		}
		select {
		case changed <- struct{}{}:
		default: // is announced already
		}
	}
	for _, kind := range configurationKinds() {
		informer, err := p.cache.GetInformer(ctx, kind)
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc:    announce,
				UpdateFunc: func(_, object any) { announce(object) },
				DeleteFunc: announce, // a tombstone is no object: what it was about is forgotten in time
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
				klog.FromContext(ctx).Error(err, "Keeping the paths at which the API server asks")
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

// keep fills in the paths that are missing or old, and learns those that are there.
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

// warn says once if the API server is told to ask where strangers can ask too. It is answered there: somebody has said so.
func (p *paths) warn(ctx context.Context, configurations []client.Object) {
	for _, configuration := range configurations {
		for _, webhook := range endpoint.WebhooksOf(configuration) {
			if path := webhook.Path(); path == webhook.Handler {
				p.warned.Do(func() {
					klog.FromContext(ctx).Info("Everybody who can connect is answered as the API server is: a webhook configuration names a path without a secret. Apply this version's manifests",
						"configuration", klog.KObj(configuration), "webhook", webhook.Name, "path", path)
				})
			}
		}
	}
}

// fill writes a configuration with new paths where they are needed. They are answered before they are written.
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
	// A patch of nothing but paths, because the API server may be newer, with fields that would be lost.
	patch := client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	if err := p.writer.Patch(ctx, configuration, patch, client.FieldOwner("berth-controller")); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil // the watch tells what it is now
		}
		return fmt.Errorf("telling the API server where to ask in webhook configuration %s: %w", before.GetName(), err)
	}
	klog.FromContext(ctx).V(2).Info("The API server is told to ask at new paths", "configuration", klog.KObj(configuration))
	return nil
}

// learn makes known what all of the configurations name.
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

// answered tells whether somebody who asks at a path, which leads to a handler, is to be answered. It reads the configurations if it does not know the path, later
// than it was asked. That may take looksApart and lookTimeout.
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
		return false // whoever held the lock has looked for all who waited
	}
	if early := p.looked.Add(looksApart).Sub(asked); early > 0 {
		<-p.clock.After(early)
	}
	p.looked = p.clock.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout) // others wait for it too
	defer cancel()
	configurations, err := read(ctx, p.live)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking up an unknown path")
		return false
	}
	p.learn(configurations)
	return p.knows(path)
}

// knows takes the same time for paths that are alike in part.
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

// learned tells whether the configurations were read.
func (p *paths) learned() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known != nil
}

// ready is nil once the API server has been told a path for every webhook that there is. It stays nil: to answer nobody would not bring a path back that is
// taken away later.
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
				return fmt.Errorf("the API server does not know where to ask for webhook %s yet", webhook.Name)
			}
		}
	}
	p.asked.Store(len(configurations) > 0)
	return nil
}

func configurationKinds() []client.Object {
	return []client.Object{&admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfiguration{}}
}

// read returns Berth's webhook configurations, those that there are.
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
