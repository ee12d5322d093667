package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/plugins/scheduling/workloadspread"
)

// process is a whole scheduler in this process, with the deployed configuration but without leader election.
type process struct {
	*scheduler.Scheduler
	informers informers.SharedInformerFactory
	// spread and gate are Berth's plugins. They are nil in a scheduler without them.
	spread *observed
	gate   fwk.PreEnqueuePlugin
}

// newScheduler creates a scheduler with the deployed configuration. Without Berth's plugins it is a stock scheduler with the same profile name.
func newScheduler(ctx context.Context, url string, withPlugins bool, bindTimeout time.Duration) (*process, error) {
	object, _, err := scheme.Codecs.UniversalDecoder().Decode(manifests.SchedulerConfig, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the scheduler's configuration: %w", err)
	}
	configuration := object.(*schedulerconfig.KubeSchedulerConfiguration)
	config := &restclient.Config{Host: url, QPS: configuration.ClientConnection.QPS, Burst: int(configuration.ClientConnection.Burst)}
	config.AcceptContentTypes, config.ContentType = runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON, runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	p := &process{informers: scheduler.NewInformerFactory(client, 0)}
	options := []scheduler.Option{
		scheduler.WithKubeConfig(config),
		scheduler.WithPercentageOfNodesToScore(configuration.PercentageOfNodesToScore),
	}
	if withPlugins {
		for _, c := range configuration.Profiles[0].PluginConfig {
			if args, ok := c.Args.(*workloadspread.Args); ok {
				args.BindTimeout = &metav1.Duration{Duration: bindTimeout}
			}
		}
		options = append(options, scheduler.WithProfiles(configuration.Profiles...), scheduler.WithFrameworkOutOfTreeRegistry(p.registry()))
	} else {
		var stock schedulerconfig.KubeSchedulerConfiguration
		const text = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: " + schedulerName + "}]\n"
		if err := runtime.DecodeInto(scheme.Codecs.UniversalDecoder(), []byte(text), &stock); err != nil {
			return nil, fmt.Errorf("reading the stock scheduler's configuration: %w", err)
		}
		options = append(options, scheduler.WithProfiles(stock.Profiles...))
	}
	p.Scheduler, err = scheduler.New(ctx, client, p.informers, nil, func(string) events.EventRecorder { return silent{} }, options...)
	if err != nil {
		return nil, fmt.Errorf("making the scheduler: %w", err)
	}
	if withPlugins && (p.spread == nil || p.gate == nil) {
		return nil, errors.New("the deployed configuration does not enable both plugins")
	}
	return p, nil
}

func (p *process) registry() frameworkruntime.Registry {
	family := &workloadspread.Family{}
	return frameworkruntime.Registry{
		workloadspread.Name: func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			plugin, err := family.Spread(ctx, args, handle)
			if err != nil {
				return nil, err
			}
			p.spread = &observed{Spread: plugin.(*workloadspread.Spread), news: make(chan struct{}, 1)}
			return p.spread, nil
		},
		workloadspread.GateName: func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			plugin, err := family.Gate(ctx, args, handle)
			if err == nil {
				p.gate = plugin.(fwk.PreEnqueuePlugin)
			}
			return plugin, err
		},
	}
}

// silent drops events.
type silent struct{}

func (silent) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// observed is the plugin with time measurement in PreFilter.
type observed struct {
	*workloadspread.Spread

	mu      sync.Mutex
	answers []answer
	news    chan struct{}
}

// answer is one call of PreFilter.
type answer struct {
	pod         string
	asked, came time.Time
	// given is true if the pod may look for a node. refused is true if it must wait. Both are false if the call failed.
	given, refused bool
}

// PreFilter implements fwk.PreFilterPlugin.
func (o *observed) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	asked := time.Now()
	result, status := o.Spread.PreFilter(ctx, state, pod, nodes)
	a := answer{pod: pod.Name, asked: asked, came: time.Now(), given: status.IsSuccess() || status.IsSkip(), refused: status.IsRejected()}
	o.mu.Lock()
	o.answers = append(o.answers, a)
	o.mu.Unlock()
	select {
	case o.news <- struct{}{}:
	default:
	}
	return result, status
}

// forget deletes the answers so far.
func (o *observed) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answers = nil
}

// all returns all answers since the last forget.
func (o *observed) all() []answer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.answers)
}

// await waits for an answer.
func (o *observed) await(ctx context.Context, is func(*answer) bool) (answer, error) {
	for {
		o.mu.Lock()
		at := slices.IndexFunc(o.answers, func(a answer) bool { return is(&a) })
		var found answer
		if at >= 0 {
			found = o.answers[at]
		}
		o.mu.Unlock()
		if at >= 0 {
			return found, nil
		}
		select {
		case <-o.news:
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
	}
}

// waits measures how long other goroutines wait for the ledger's mutex. One goroutine repeatedly calls methods of the plugins that take the mutex and
// do almost nothing else. The longest call in a period is at least as long as the mutex was held in it. Another goroutine does the same with a
// channel instead of the ledger. This shows the noise of the machine.
type waits struct {
	ledger, noise longest
}

type longest struct {
	mu    sync.Mutex
	wait  time.Duration
	calls int
}

const pause = 100 * time.Microsecond

func (l *longest) watch(ctx context.Context, call func()) {
	for ctx.Err() == nil {
		start := time.Now()
		call()
		took := time.Since(start)
		l.mu.Lock()
		l.wait = max(l.wait, took)
		l.calls++
		l.mu.Unlock()
		time.Sleep(pause)
	}
}

// since returns the longest call since the previous time. It waits until all calls that began before have ended.
func (l *longest) since(ctx context.Context) time.Duration {
	l.mu.Lock()
	until := l.calls + 2
	l.mu.Unlock()
	for ctx.Err() == nil {
		l.mu.Lock()
		if l.calls >= until {
			wait := l.wait
			l.wait = 0
			l.mu.Unlock()
			return wait
		}
		l.mu.Unlock()
		time.Sleep(pause)
	}
	return 0
}

// watchWaits begins to measure. The pod is one that has a slot.
func (p *process) watchWaits(ctx context.Context, pod *corev1.Pod) *waits {
	w := &waits{}
	go w.ledger.watch(ctx, func() {
		p.spread.SignPod(ctx, pod)
		p.gate.PreEnqueue(ctx, pod)
	})
	ping, pong := make(chan struct{}), make(chan struct{})
	go func() {
		for {
			select {
			case <-ping:
				pong <- struct{}{}
			case <-ctx.Done():
				return
			}
		}
	}()
	go w.noise.watch(ctx, func() {
		select {
		case ping <- struct{}{}:
			<-pong
		case <-ctx.Done():
		}
	})
	return w
}

// during runs f and returns the longest waits meanwhile.
func (w *waits) during(ctx context.Context, f func() error) (wait, noise time.Duration, err error) {
	w.ledger.since(ctx)
	w.noise.since(ctx)
	err = f()
	return w.ledger.since(ctx), w.noise.since(ctx), err
}
