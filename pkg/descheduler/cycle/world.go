package cycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/descheduler/guarded"
	"github.com/berth-project/berth/pkg/fit"
)

// Options of a World.
type Options struct {
	// Clock that decisions go by. Nil is the API server's clock. Deadlines go by the clock of the machine.
	Clock clock.WithTicker
	// DryRun writes no status and no event. The clients decide what becomes of evictions.
	DryRun bool
	// CallTimeout is how long one write may take. 0 is 5 s.
	CallTimeout time.Duration
	// Report is called with what a look could not read, and after each strategy with what it decided. Nil drops both.
	Report func(*Report)
}

const (
	defaultCallTimeout = 5 * time.Second
	// lookTimeout is how long a look may take.
	lookTimeout = time.Minute
	// maxAge is how old a look may be when a plugin begins to use it.
	maxAge = 30 * time.Second
)

// World is what Berth's plugins of one registry share: their access to the API server, and their look at the cluster. Both come from the handle that
// the framework builds plugins with. Nobody has to tell it when a cycle begins or ends; see Run. Between looks it only remembers the API server's clock.
type World struct {
	options Options

	// Of the plugins that were built last. The context ends with them.
	ctx   context.Context // filters are called without one
	live  client.Client
	typed kubernetes.Interface
	// informers of the framework, which hold all pods and nodes. Nil lets a look list them.
	informers informers.SharedInformerFactory
	// server is nil if the options have a clock.
	server *serverClock

	mu      sync.Mutex
	filters *fit.Filters
	current *Cycle
	// running is true while a strategy uses the current look.
	running bool
}

// NewWorld makes a world without plugins.
func NewWorld(options Options) *World {
	if options.CallTimeout == 0 {
		options.CallTimeout = defaultCallTimeout
	}
	registerMetrics()
	return &World{options: options}
}

var errNoServer = errors.New("the handle has no client of an API server to read spreads from")

// Join is called by a plugin while it is built. Plugins with the same informers share a look.
func (w *World) Join(ctx context.Context, handle frameworktypes.Handle) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	server, _ := handle.ClientSet().CoreV1().RESTClient().(*rest.RESTClient) // nil for a fake client
	factory := handle.SharedInformerFactory()
	switch {
	case server == nil:
		return errNoServer
	case factory == w.informers:
		return nil
	}
	if err := factory.Core().V1().Pods().Informer().SetTransform(keepOfPod); err != nil {
		return fmt.Errorf("reducing the pods of the informers: %w", err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme, policyv1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("registering types: %w", err)
		}
	}
	base := server.Get().AbsPath("/").URL()
	live, err := client.New(&rest.Config{Host: base.String(), RateLimiter: server.GetRateLimiter()}, client.Options{HTTPClient: server.Client, Scheme: scheme})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if w.options.Clock == nil {
		w.server = &serverClock{client: server.Client, url: base.JoinPath("version").String()}
		w.options.Clock = w.server
	}
	w.ctx, w.live, w.typed, w.informers, w.filters, w.current = ctx, live, handle.ClientSet(), factory, nil, nil
	context.AfterFunc(ctx, func() { w.leave(factory) })
	return nil
}

// leave drops what the plugins with these informers have used.
func (w *World) leave(factory informers.SharedInformerFactory) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.informers != factory {
		return
	}
	if w.filters != nil {
		_ = w.filters.Close() // its plugins hold nothing
	}
	w.filters, w.current = nil, nil
}

// LookForRoom is called after Join by a plugin that asks whether pods would find a node. The filters need informers, which the framework starts after
// it has built all plugins.
func (w *World) LookForRoom() (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.filters == nil {
		w.filters, err = fit.NewFilters(w.ctx, w.typed, w.informers)
	}
	return err
}

// Run has a strategy decide and act. In each cycle the framework runs each strategy once. So a look that this very strategy has used is from an earlier
// cycle, and Run takes a new one.
func (w *World) Run(ctx context.Context, strategy *Strategy) error {
	w.mu.Lock()
	if w.current != nil && w.current.usedBy[strategy] {
		w.current = nil
	}
	c := w.look()
	c.usedBy[strategy] = true
	w.running = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running = false
	}()
	if c.err != nil {
		return c.err
	}
	c.telling = errgroup.Group{}
	c.telling.SetLimit(mostEvents)
	err := c.Run(ctx, *strategy)
	if untold := c.telling.Wait(); untold != nil {
		klog.FromContext(ctx).Error(untold, "Some moves have no event")
	}
	w.tell(c)
	return err
}

// Look returns the current look, for filters. It is new if there is none, or if it is old and no strategy is using it.
func (w *World) Look() (*Cycle, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.look()
	return c, c.err
}

func (w *World) look() *Cycle {
	if c := w.current; c != nil && (w.running || time.Since(c.taken) < maxAge) {
		return c
	}
	w.current = nil // frees its memory
	ctx, cancel := context.WithTimeoutCause(w.ctx, lookTimeout, fmt.Errorf("not everything could be read within %s", lookTimeout))
	defer cancel()
	if w.server != nil {
		w.server.align(ctx, w.options.CallTimeout)
	}
	c := &Cycle{world: w, ctx: w.ctx, taken: time.Now(), Now: w.options.Clock.Now(), report: &Report{}, usedBy: map[*Strategy]bool{}, filters: w.filters} //nolint:forbidigo // the age of what is in memory
	c.err = c.gather(ctx)
	w.tell(c)
	w.current = c
	return c
}

// tell hands over what the look has to report.
func (w *World) tell(c *Cycle) {
	report := *c.report
	*c.report = Report{}
	if w.options.Report != nil {
		w.options.Report(&report)
	}
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
	case guarded.Evicted, guarded.ReplacedFirst, guarded.Unanswered:
		c.budgets.take(pod)
	case guarded.Refused:
		c.budgets.close(ctx, pod)
	}
}
