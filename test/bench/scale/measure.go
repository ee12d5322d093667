package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics/legacyregistry"
)

// options of one measurement.
type options struct {
	Stock       bool
	BindTimeout time.Duration
	// Waits enables the measurement of waits for the mutex. It takes a few percent of a processor. The steps after begin need it.
	Waits bool
	// Updates, Scrapes and Creations are how often each step runs. Churn is how long pods come and go, and Rate how many a second. 0 skips the step.
	Updates, Scrapes, Creations int
	Churn                       time.Duration
	Rate                        int
	// Limit bounds each wait for the scheduler.
	Limit time.Duration
}

// result contains the measurements of one shape. Times are in milliseconds, memory is in bytes.
type result struct {
	Shape        shape
	Pods         int
	Limit        float64 // of the wait for the first answer
	Synced       float64 // from the start to the informers' sync
	OwnHandlers  float64 // from Synced until the scheduler's own handlers have seen all objects
	Ready        float64 // from the informers' sync to the plugin's first answer
	ReadyCPU     float64 // of this process meanwhile, including its API server
	Lists        int     // requests that read the bound pods before the first answer
	ListsTook    float64
	Settled      float64 // from the informers' sync until all pods have a node
	Heap         uint64
	Start        held
	Update       series
	UpdateHeld   held
	UpdateCPU    float64
	Creation     float64 // from the creation of all new spreads until they are in force
	CreationCPU  float64
	CreationHeld held
	Scrape       series
	ScrapeHeld   held
	PreFilter    series
	ChurnHeld    held
	Bound        int // pods bound while pods came and went
}

// series summarizes durations.
type series struct{ Median, P99, Max float64 }

func seriesOf(all []time.Duration) series {
	if len(all) == 0 {
		return series{}
	}
	slices.Sort(all)
	at := func(share float64) float64 { return ms(all[int(share*float64(len(all)-1))]) }
	return series{at(0.5), at(0.99), at(1)}
}

// held is how long the ledger's mutex was held without interruption, as another goroutine measures it. It has the median of the longest waits of
// several periods, the maximum, and the noise of the machine in the same time.
type held struct{ Median, Max, Noise float64 }

func heldOf(waits []time.Duration, noise time.Duration) held {
	s := seriesOf(waits)
	return held{s.Median, s.Max, ms(noise)}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// measure starts a scheduler and an API server with the shape's objects, and measures. On an error it returns the results so far.
func measure(ctx context.Context, s shape, o options) (*result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m, err := start(ctx, s, o)
	if err != nil {
		return nil, err
	}
	defer m.server.stop()
	if err := m.begin(ctx); err != nil {
		return m.result, err
	}
	if o.Stock {
		return m.result, nil
	}
	for _, step := range []func(context.Context) error{m.updates, m.scrapes, m.churn, m.creations} {
		if err := m.within(ctx, step); err != nil {
			return m.result, err
		}
	}
	return m.result, nil
}

// measurement of one shape.
type measurement struct {
	shape   shape
	options options
	result  *result
	server  *apiServer
	process *process
	waits   *waits // nil if they are not measured
	// unbound counts the pods of the start that have no node yet. settled receives when it becomes 0.
	unbound atomic.Int64
	settled chan struct{}
	// empty is the heap before the scheduler was created. begun is the time of its creation.
	empty uint64
	begun time.Time
	// release makes the spreads visible.
	release func()
	// raised is how often the probe's quota was raised.
	raised int64
}

// start creates the API server and the scheduler, and starts the scheduler's informers.
func start(ctx context.Context, s shape, o options) (*measurement, error) {
	m := &measurement{shape: s, options: o, server: newAPIServer(), settled: make(chan struct{}, 1), release: func() {}}
	total, pending := s.fill(m.server)
	m.result = &result{Shape: s, Pods: total, Limit: ms(o.Limit)}
	m.unbound.Store(int64(pending))
	m.server.bound = func(types.NamespacedName) {
		if m.unbound.Add(-1) == 0 {
			m.settled <- struct{}{}
		}
	}
	if s.Late {
		m.release = m.server.hold(spreads)
	}
	m.empty, m.begun = heap(), time.Now()
	var err error
	if m.process, err = newScheduler(ctx, m.server.URL, !o.Stock, o.BindTimeout); err != nil {
		return nil, err
	}
	m.process.informers.Start(ctx.Done())
	return m, nil
}

func (m *measurement) within(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, m.options.Limit)
	defer cancel()
	return step(ctx)
}

// begin starts scheduling as soon as possible, and waits until all pods have a node.
func (m *measurement) begin(ctx context.Context) error {
	r := m.result
	if m.options.Waits {
		m.waits = m.process.watchWaits(ctx, pod(m.shape.namespaceOf(0), workloadName(0), fmt.Sprintf("%s-%s-%05d", workloadName(0), hash, 0)))
		defer func() { r.Start = heldOf([]time.Duration{m.waits.ledger.since(ctx)}, m.waits.noise.since(ctx)) }()
	}
	defer func() { r.Lists, r.ListsTook = m.server.taken() }()
	m.process.informers.WaitForCacheSync(ctx.Done())
	m.release()
	synced, cpu := time.Now(), processorTime()
	r.Synced = ms(synced.Sub(m.begun))
	if err := m.within(ctx, m.process.WaitForHandlersSync); err != nil {
		return fmt.Errorf("waiting for the scheduler's handlers: %w", err)
	}
	r.OwnHandlers = ms(time.Since(synced))
	go m.process.Run(ctx)
	if !m.options.Stock {
		if err := m.within(ctx, func(ctx context.Context) error {
			a, err := m.process.spread.await(ctx, func(a *answer) bool { return a.given })
			r.Ready = ms(a.came.Sub(synced))
			return err
		}); err != nil {
			r.Ready = 0
			return fmt.Errorf("waiting for the plugin's first answer: %w", err)
		}
		r.ReadyCPU = ms(processorTime() - cpu)
	}
	select {
	case <-m.settled:
		r.Settled = ms(time.Since(synced))
	case <-time.After(m.options.Limit):
		return fmt.Errorf("%d pods have no node %s after the first could have one", m.unbound.Load(), m.options.Limit)
	}
	var err error
	r.Heap, err = m.restingHeap(ctx)
	return err
}

// restingHeap returns the memory of the scheduler and its caches, in bytes, when no event is under way. Then the informer has a node for every pod,
// and two consecutive measurements differ by less than one percent.
func (m *measurement) restingHeap(ctx context.Context) (held uint64, err error) {
	defer runtime.KeepAlive(m.process)
	pods := m.process.informers.Core().V1().Pods().Lister()
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, m.options.Limit, true, func(context.Context) (bool, error) {
		all, err := pods.List(labels.Everything())
		if err != nil || slices.ContainsFunc(all, func(p *corev1.Pod) bool { return p.Spec.NodeName == "" }) {
			return false, err
		}
		before := held
		held = heap() - m.empty
		return max(held, before)-min(held, before) < held/100, nil
	})
	if err != nil {
		return 0, fmt.Errorf("waiting until the heap rests: %w", err)
	}
	return held, nil
}

// heap returns the live heap.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// afterProbe creates a pod that waits for the probe's quota, calls something, and raises the quota. It returns the time from before something until
// the pod got its subset. By then the scheduler has processed what something did to spreads, because the informer keeps the order.
func (m *measurement) afterProbe(ctx context.Context, something func()) (time.Duration, error) {
	m.raised++
	probe := m.shape.probePod(m.raised)
	m.process.spread.forget()
	m.server.put(probe)
	if _, err := m.process.spread.await(ctx, func(a *answer) bool { return a.pod == probe.Name && a.refused }); err != nil {
		return 0, fmt.Errorf("waiting until pod %s is refused: %w", probe.Name, err)
	}
	m.process.spread.forget()
	start := time.Now()
	something()
	m.server.put(m.shape.probe(m.raised + 1))
	a, err := m.process.spread.await(ctx, func(a *answer) bool { return a.pod == probe.Name && a.given })
	if err != nil {
		return 0, fmt.Errorf("waiting until pod %s has its slot: %w", probe.Name, err)
	}
	return a.came.Sub(start), nil
}

// updates raise the quota of one spread.
func (m *measurement) updates(ctx context.Context) error {
	var took, waits []time.Duration
	var noisiest time.Duration
	cpu := processorTime()
	for range m.options.Updates {
		wait, noise, err := m.waits.during(ctx, func() error {
			d, err := m.afterProbe(ctx, func() {})
			took = append(took, d)
			return err
		})
		if err != nil {
			return err
		}
		waits, noisiest = append(waits, wait), max(noisiest, noise)
	}
	m.result.UpdateCPU = ms(processorTime()-cpu) / float64(max(m.options.Updates, 1))
	m.result.Update, m.result.UpdateHeld = seriesOf(took), heldOf(waits, noisiest)
	return nil
}

// creations give the extra workloads their spreads.
func (m *measurement) creations(ctx context.Context) error {
	if m.options.Creations == 0 {
		return nil
	}
	cpu := processorTime()
	wait, noise, err := m.waits.during(ctx, func() error {
		took, err := m.afterProbe(ctx, func() {
			for i := range m.options.Creations {
				m.server.put(m.shape.spread(m.shape.namespaceOf(0), fmt.Sprintf("%s-%d", extraName, i), 1))
			}
		})
		m.result.Creation = ms(took)
		return err
	})
	m.result.CreationCPU = ms(processorTime() - cpu)
	m.result.CreationHeld = heldOf([]time.Duration{wait}, noise)
	return err
}

// scrapes read all metrics.
func (m *measurement) scrapes(ctx context.Context) error {
	var took, waits []time.Duration
	var noisiest time.Duration
	for range m.options.Scrapes {
		wait, noise, err := m.waits.during(ctx, func() error {
			start := time.Now()
			families, err := legacyregistry.DefaultGatherer.Gather()
			took = append(took, time.Since(start))
			for _, family := range families {
				if strings.Contains(family.GetName(), "workloadspread_slots") {
					return err
				}
			}
			return errors.Join(err, fmt.Errorf("the plugin's metrics are not among %d", len(families)))
		})
		if err != nil {
			return fmt.Errorf("reading the metrics: %w", err)
		}
		waits, noisiest = append(waits, wait), max(noisiest, noise)
	}
	m.result.Scrape, m.result.ScrapeHeld = seriesOf(took), heldOf(waits, noisiest)
	return nil
}

// churn deletes pods at a rate, and creates a new pod for each.
func (m *measurement) churn(ctx context.Context) error {
	if m.options.Churn == 0 {
		return nil
	}
	m.process.spread.forget()
	deleted := 0
	wait, noise, err := m.waits.during(ctx, func() error {
		random := rand.New(rand.NewPCG(1, 2))
		tick := time.NewTicker(time.Second / time.Duration(m.options.Rate))
		defer tick.Stop()
		constraints := constraintsOf(m.shape.spread("any", "any", 1))
		for end := time.Now().Add(m.options.Churn); time.Now().Before(end); <-tick.C {
			i, j := random.IntN(m.shape.Spreads), random.IntN(m.shape.Pods)
			namespace, name := m.shape.namespaceOf(i), workloadName(i)
			if !m.server.removeBound(types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("%s-%s-%05d", name, hash, j)}) {
				continue // it is gone already
			}
			deleted++
			next := pod(namespace, name, fmt.Sprintf("%s-%s-new-%05d", name, hash, deleted))
			m.shape.admit(next, constraints)
			m.server.put(next)
		}
		return nil
	})
	var took []time.Duration
	pods := map[string]bool{}
	for _, a := range m.process.spread.all() {
		took = append(took, a.came.Sub(a.asked))
		if a.given {
			pods[a.pod] = true
		}
	}
	m.result.PreFilter, m.result.Bound = seriesOf(took), len(pods)
	m.result.ChurnHeld = heldOf([]time.Duration{wait}, noise)
	if err == nil && len(pods) < deleted/2 {
		err = fmt.Errorf("%d pods were made, and only %d had a cycle", deleted, len(pods))
	}
	return err
}

// processorTime of this process so far.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0 // getrusage has no error for this process
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
