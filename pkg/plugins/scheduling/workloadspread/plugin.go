package workloadspread

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/schedulinggates"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/ledger"
)

// Name of the plugin in scheduler configurations.
const Name = "WorkloadSpread"

// Spread gives pods of a WorkloadSpread their subset. It does nothing with other pods.
type Spread struct {
	*core
	handle fwk.Handle
	// preemption runs last; see PostFilter. So profiles must disable the plugin DefaultPreemption. It takes no pod for which a PodUnavailableBudget
	// has no room. Nil in a Rehearsal, where no pod preempts.
	preemption *defaultpreemption.DefaultPreemption
	groups     groups
}

var (
	_ fwk.PreEnqueuePlugin  = &Spread{}
	_ fwk.PreFilterPlugin   = &Spread{}
	_ fwk.PostFilterPlugin  = &Spread{}
	_ fwk.FilterPlugin      = &Spread{}
	_ fwk.PreScorePlugin    = &Spread{}
	_ fwk.ScorePlugin       = &Spread{}
	_ fwk.ScoreExtensions   = &Spread{}
	_ fwk.ReservePlugin     = &Spread{}
	_ fwk.BindPlugin        = &Spread{}
	_ fwk.EnqueueExtensions = &Spread{}
	_ fwk.SignPlugin        = &Spread{}
)

// core is what all profiles of one scheduler share, because they share the quotas.
type core struct {
	settings settings
	lease    *lease
	book     *book
	finder   *finder
	takeover *takeover
	binds    *binds
	// opener is nil in a Rehearsal, where pods have no gates.
	opener  *opener
	refused *refusals
	// latest is the pod as the informer's cache has it, or the given one if the cache has another pod of that name, or none.
	latest func(*corev1.Pod) *corev1.Pod
	// node by its name. Nil if it has not been seen, or is gone.
	node func(name string) *corev1.Node
	// gated is true if the pod's profile enables the gate.
	gated func(*corev1.Pod) bool
	// groupVersion is the version of the pod's group in the informer's cache. Empty if it has none.
	groupVersion func(*corev1.Pod) string
	announce     func(announcement)
}

// Family makes the plugins of one scheduler. The plugins of all its profiles share one ledger. A second scheduler in the same process needs its own
// Family. The zero value is ready to use:
//
//	var plugins workloadspread.Family
//	app.NewSchedulerCommand(app.WithPlugin(workloadspread.Name, plugins.Spread), app.WithPlugin(workloadspread.GateName, plugins.Gate))
//
// After every start the first pod of a spread then has to wait. It need not if the plugins also Observe the leader election, as in cmd/scheduler.
type Family struct {
	once sync.Once
	err  error
	core atomic.Pointer[core]
	// gated are the names of the profiles that enable the gate.
	gated sync.Map
}

// Spread makes the plugin WorkloadSpread of one profile.
func (f *Family) Spread(ctx context.Context, obj runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	settings, err := settingsFrom(obj)
	if err != nil {
		return nil, err
	}
	f.once.Do(func() {
		var c *core
		if c, f.err = newCore(ctx, settings, handle, f.isGated); f.err == nil {
			f.core.Store(c)
		}
	})
	if f.err != nil {
		return nil, f.err
	}
	shared := f.core.Load()
	if !reflect.DeepEqual(shared.settings, settings) {
		return nil, fmt.Errorf("pluginConfig[%s].args: must be the same in all profiles, which share one ledger", Name)
	}
	profile, ok := handle.(framework.Framework)
	if !ok {
		return nil, fmt.Errorf("plugin %s: want the scheduler's own framework.Framework as its handle, got %T", Name, handle)
	}
	shared.finder.predicates.add(ctx, profile)
	preemption, err := defaultpreemption.New(ctx, defaultPreemptionArgs(), handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, err
	}
	guardVictims(preemption, handle, shared.refused)
	groups, err := newGroups(ctx, handle)
	if err != nil {
		return nil, err
	}
	return &Spread{core: shared, handle: handle, preemption: preemption, groups: groups}, nil
}

// Gate makes the plugin WorkloadSpreadGate of one profile.
func (f *Family) Gate(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	stock, err := schedulinggates.New(ctx, nil, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, err
	}
	f.gated.Store(handle.ProfileName(), nil)
	return &gate{f, stock.(*schedulinggates.SchedulingGates)}, nil
}

// isGated is true if the profile that schedules the pod has a gate.
func (f *Family) isGated(pod *corev1.Pod) bool {
	_, gated := f.gated.Load(pod.Spec.SchedulerName)
	return gated
}

// defaultPreemptionArgs are those of a scheduler without configuration for DefaultPreemption.
func defaultPreemptionArgs() *schedulerconfig.DefaultPreemptionArgs {
	return &schedulerconfig.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100}
}

// newCore connects the ledger to the scheduler. It starts informers and does not wait.
func newCore(ctx context.Context, limits settings, handle fwk.Handle, gated func(*corev1.Pod) bool) (*core, error) {
	logger := klog.LoggerWithName(klog.FromContext(ctx), Name)
	ctx = klog.NewContext(ctx, logger)
	factory := handle.SharedInformerFactory()
	custom, err := newCustomWorkloads(handle.KubeConfig(), handle.ClientSet(), clock.RealClock{})
	if err != nil {
		return nil, err
	}
	pods, nodes := factory.Core().V1().Pods().Lister(), factory.Core().V1().Nodes().Lister()
	c := &core{
		settings: limits,
		lease:    &lease{clock: clock.RealClock{}, uncertainPeriod: uncertainPeriod(limits.bind)},
		finder:   newFinder(limits.notices),
		gated:    gated,
		announce: announceTo(handle),
		node: func(name string) *corev1.Node {
			node, err := nodes.Get(name)
			if err != nil {
				return nil // not seen yet, or gone
			}
			return node
		},
	}
	c.latest = func(pod *corev1.Pod) *corev1.Pod {
		if found, err := pods.Pods(pod.Namespace).Get(pod.Name); err == nil && found.UID == pod.UID {
			return found
		}
		return pod
	}
	activate := func(pods map[string]*corev1.Pod) { handle.Activate(logger, pods) }
	c.book = &book{
		clock:    clock.RealClock{},
		activate: activate,
		cached: func(pod *corev1.Pod) bool {
			found, err := pods.Pods(pod.Namespace).Get(pod.Name)
			return err == nil && mayStillRun(found, pod)
		},
		owners: custom,
		ledger: ledger.New(limits.observation), inFlight: map[types.UID]bool{}, held: map[types.UID]*heldPod{},
	}
	exposeMetrics(c.book) // before anything counts
	custom.tell = func(event ledger.Event) { c.book.apply(event) }
	spreads, err := newSpreadInformer(handle.KubeConfig(), func(event ledger.SpreadsWatched) { c.book.apply(event) })
	if err != nil {
		return nil, err
	}
	listeners, err := watch(ctx, c.book, factory, spreads, listOneSpread(custom.dynamic, handle.ClientSet().Discovery()))
	if err != nil {
		return nil, err
	}
	if c.groupVersion, err = watchGroups(c.book, factory); err != nil {
		return nil, err
	}
	custom.run(ctx)
	c.refused = newRefusals(clock.RealClock{}, activate)
	go wait.UntilWithContext(ctx, func(context.Context) { c.book.audit() }, ledger.AuditInterval)
	c.takeover = newTakeover(clock.RealClock{}, c.lease, handle.ClientSet(), custom.metadata, c.book, listeners)
	c.binds = newBinds(ctx, handle.ClientSet(), c.book, limits.bind)
	c.opener = newOpener(ctx, handle.ClientSet(), c.book, c.latest, c.lease, limits.bind)
	return c, nil
}

// Name of the plugin.
func (s *Spread) Name() string { return Name }
