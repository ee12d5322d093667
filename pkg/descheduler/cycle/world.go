package cycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/crd/versions"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/podstate"
)

// Options of a World.
type Options struct {
	// Clock that decisions go by. Nil is the API server's clock. Deadlines go by the clock of the machine.
	Clock clock.WithTicker
	// DryRun writes no status and no event. The clients decide what becomes of evictions.
	DryRun bool
	// CallTimeout is how long one write may take. Required.
	CallTimeout time.Duration
	// Notices announce the end of a node, to which no pod is moved. Nil announces nothing.
	Notices podstate.Notices
}

// lookTimeout is how long a look may take.
const lookTimeout = time.Minute

// World is what Berth's plugins of one registry share: their access to the API server, and their look at the cluster.
// Both come from the handle that the framework builds plugins with, in each cycle again. Between cycles it only
// remembers the API server's clock.
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
	// current is the look of this cycle. Nil until a plugin needs it.
	current *Cycle
	report  *Report
}

// NewWorld makes a world without plugins.
func NewWorld(options Options) *World {
	return &World{options: options, report: newReport()}
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
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), versions.AddStored(scheme)); err != nil {
		return fmt.Errorf("registering types: %w", err)
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
	return nil
}

// LookForRoom is called after Join by a plugin that asks whether pods would find a node. The filters need informers,
// which the framework starts after it has built all plugins.
func (w *World) LookForRoom() (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.filters == nil {
		w.filters, err = fit.NewFilters(w.ctx, w.typed, w.informers, w.options.Notices)
	}
	return err
}

// Run has a strategy decide and act.
func (w *World) Run(ctx context.Context, strategy Strategy) error {
	c, err := w.Look()
	if err != nil {
		return err
	}
	return c.Run(ctx, strategy)
}

// Look returns the look of this cycle, for strategies and filters.
func (w *World) Look() (*Cycle, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == nil {
		ctx, cancel := context.WithTimeoutCause(w.ctx, lookTimeout, fmt.Errorf("not everything could be read within %s", lookTimeout))
		defer cancel()
		if w.server != nil {
			w.server.align(ctx, w.options.CallTimeout)
		}
		w.current = &Cycle{world: w, ctx: w.ctx, Now: w.options.Clock.Now(), report: w.report, filters: w.filters}
		w.current.err = w.current.gather(ctx)
	}
	return w.current, w.current.err
}

// End is called after each cycle. It drops what was seen, and returns what was decided.
func (w *World) End() *Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.filters != nil {
		_ = w.filters.Close() // its plugins hold nothing
	}
	report := w.report
	w.filters, w.current, w.report = nil, nil, newReport()
	return report
}

// Settle takes from the budgets of a pod what its eviction used, whichever plugin evicted it. A budget that refused it
// counts as used up.
func (w *World) Settle(ctx context.Context, pod *corev1.Pod, result evictionResult) {
	w.mu.Lock()
	c := w.current
	w.mu.Unlock()
	if c == nil || c.budgets == nil {
		return
	}
	switch result {
	case resultEvicted, resultReplacedFirst, resultUnanswered:
		c.budgets.take(pod)
	case resultRefused:
		c.budgets.close(ctx, pod)
	}
}
