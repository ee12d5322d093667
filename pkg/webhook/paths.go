package webhook

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	expiring "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-project/berth/pkg/endpoint"
)

const (
	// formerFor is how long Berth answers at a path after it last saw it in a webhook configuration, so at least half of that after the removal: some API
	// server may not know about the change yet.
	formerFor = time.Minute
	// keepInterval is how often Berth looks at the configurations if no change is announced.
	keepInterval = 30 * time.Second
	// patience is how long a review at an unknown path waits: the API server may see a new path in its watch before this replica does.
	patience, patienceStep = 2 * time.Second, 20 * time.Millisecond
	// mostPatient is how many reviews wait at once. It bounds what strangers can make this replica do.
	mostPatient = 50
)

// paths maintain the secret paths in the webhook configurations, and know them. The paths are stored nowhere else. Every replica answers at the paths that
// a configuration has, or had not long ago, and at no others. Every replica fills in missing paths. If several do so at once, the first write wins
// and the others get a conflict.
type paths struct {
	cache cache.Cache
	// cached is the cache.
	cached client.Reader
	writer client.Writer
	clock  clock.Clock

	// known has the hashes of the paths at which this replica answers. The time to find one does not depend on how much of a path is correct, so nobody can guess
	// a path bit by bit.
	known *expiring.Expiring
	// learned is true once the configurations were read.
	learned atomic.Bool
	// patient has an item for each review that waits for its path.
	patient chan struct{}
}

var (
	_ manager.Runnable               = &paths{}
	_ manager.LeaderElectionRunnable = &paths{}
)

// newPaths returns paths that watch webhook configurations in the cache. Start runs the cache.
func newPaths(configurations cache.Cache, writer client.Writer, now clock.Clock) *paths {
	return &paths{cache: configurations, cached: configurations, writer: writer, clock: now, known: expiring.NewExpiringWithClock(now), patient: make(chan struct{}, mostPatient)}
}

// NeedLeaderElection is false, because the API server calls every replica.
func (p *paths) NeedLeaderElection() bool { return false }

// Start runs the cache and maintains the paths until the context ends.
func (p *paths) Start(ctx context.Context) error {
	changed := newSignal()
	for _, kind := range configurationKinds() {
		if err := changed.on(ctx, p.cache, kind, func(o client.Object) bool { return slices.Contains(endpoint.Configurations, o.GetName()) }); err != nil {
			return err
		}
	}
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return p.cache.Start(ctx) })
	running.Go(func() error {
		if p.cache.WaitForCacheSync(ctx) {
			repeat(ctx, p.clock, changed, keepInterval, "Updating the paths in the webhook configurations", p.keep)
		}
		return nil
	})
	return running.Wait()
}

// keep learns the existing paths, and fills in missing ones.
func (p *paths) keep(ctx context.Context) error {
	configurations, err := read(ctx, p.cached)
	if err != nil {
		return err
	}
	p.learn(configurations)
	var errs []error
	for _, configuration := range configurations {
		errs = append(errs, p.fill(ctx, configuration))
	}
	return errors.Join(errs...)
}

// fill writes a configuration with new paths where it has none. Berth answers at them before it writes them.
func (p *paths) fill(ctx context.Context, configuration client.Object) error {
	before := configuration.DeepCopyObject().(client.Object)
	filled := false
	for _, webhook := range endpoint.WebhooksOf(configuration) {
		if webhook.Fill() {
			filled = true
		}
	}
	if !filled {
		return nil
	}
	p.learn([]client.Object{configuration})
	// An API server that does not answer must not keep this replica from learning its paths again before it forgets them.
	ctx, cancel := context.WithTimeout(ctx, keepInterval/2)
	defer cancel()
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

// learn makes this replica answer at the paths of the configurations, for formerFor from now.
func (p *paths) learn(configurations []client.Object) {
	for _, configuration := range configurations {
		for _, webhook := range endpoint.WebhooksOf(configuration) {
			if path := webhook.Path(); path != "" {
				p.known.Set(sha256.Sum256([]byte(path)), nil, formerFor)
			}
		}
	}
	p.learned.Store(true)
}

// knows is true for a path at which this replica answers.
func (p *paths) knows(path string) bool {
	_, known := p.known.Get(sha256.Sum256([]byte(path)))
	return known
}

// soonKnows is knows, but it waits up to patience until a path becomes known.
func (p *paths) soonKnows(ctx context.Context, path string) bool {
	if p.knows(path) {
		return true
	}
	select {
	case p.patient <- struct{}{}:
	default:
		return false
	}
	defer func() { <-p.patient }()
	return wait.PollUntilContextTimeout(ctx, patienceStep, patience, true, func(context.Context) (bool, error) { return p.knows(path), nil }) == nil
}

// ready returns nil if every webhook in the configurations has a known path.
func (p *paths) ready(ctx context.Context) error {
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
