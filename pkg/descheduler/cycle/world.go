package cycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	policyv1alpha1 "github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	"github.com/berth-project/berth/pkg/descheduler/guarded"
	"github.com/berth-project/berth/pkg/fit"
)

// Options of a World.
type Options struct {
	// Clock is the real one if nil. Decisions go by it; deadlines go by the real one.
	Clock clock.WithTicker
	// DryRun writes no status and no event. What becomes of evictions is up to the clients.
	DryRun bool
	// CallTimeout is how long one write may take. 0 is 5 s.
	CallTimeout time.Duration
}

const defaultCallTimeout = 5 * time.Second

// World is what the strategies of one process share over all cycles. It remembers nothing of a cycle but numbers for metrics.
type World struct {
	options Options
	live    client.Client
	typed   kubernetes.Interface
	guard   *guarded.Client

	mu      sync.Mutex
	current *Cycle
}

// NewWorld makes a world that reads and writes as the configuration says, and evicts through the guard.
func NewWorld(config *rest.Config, guard *guarded.Client, options Options) (*World, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.CallTimeout == 0 {
		options.CallTimeout = defaultCallTimeout
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, policyv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering types: %w", err)
		}
	}
	live, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	registerMetrics()
	return &World{options: options, live: live, typed: guard, guard: guard}, nil
}

// Begin begins a cycle. The context bounds it.
func (w *World) Begin(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.guard.BeginCycle()
	w.current = &Cycle{world: w, ctx: ctx, Now: w.options.Clock.Now(), report: &Report{}}
	w.current.telling.SetLimit(mostEvents)
}

// End ends the cycle, once its events are written, and returns what it decided.
func (w *World) End() *Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.current
	w.current = nil
	if c == nil {
		return &Report{}
	}
	if err := c.telling.Wait(); err != nil {
		klog.FromContext(c.ctx).Error(err, "Some of what was done has no event")
	}
	if c.filters != nil {
		_ = c.filters.Close() // its plugins hold nothing
	}
	return c.report
}

// Join is called by a strategy while it is built, before the informers of its handle are started. In a dry run of the framework's, strategies are
// built twice, and the second time with informers of a fake API server, which are not used.
func (w *World) Join(ctx context.Context, handle frameworktypes.Handle) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == nil || w.current.filters != nil {
		return nil
	}
	filters, err := fit.NewFilters(ctx, w.typed, handle.SharedInformerFactory())
	if err != nil {
		return err
	}
	w.current.filters = filters
	return nil
}

var errNoCycle = errors.New("there is no cycle to be part of")

// Cycle is the one that is under way, with its look at the cluster taken.
func (w *World) Cycle() (*Cycle, error) {
	w.mu.Lock()
	c := w.current
	w.mu.Unlock()
	if c == nil {
		return nil, errNoCycle
	}
	c.once.Do(func() { c.err = c.gather(c.ctx) })
	return c, c.err
}

// Settle takes from the budgets of a pod what its eviction used, whichever plugin evicted it. A budget that refused it counts as used up.
func (w *World) Settle(ctx context.Context, pod *corev1.Pod, result guarded.Result) {
	w.mu.Lock()
	c := w.current
	w.mu.Unlock()
	if c == nil || c.budgets == nil {
		return
	}
	switch result {
	case guarded.Evicted, guarded.Unanswered:
		c.budgets.take(pod)
	case guarded.Refused:
		c.budgets.close(ctx, pod)
	}
}
