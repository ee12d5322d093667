package whatif

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// play is one run of the scheduler on the picture.
type play struct {
	*Engine
	rooms *fit.Rooms
	// there are the pods of the cluster that are not gone.
	there []*corev1.Pod
	// pending are the pods that are scheduled here, in the order in which they came.
	pending []*corev1.Pod
	active  sets.Set[types.UID]
	// bound and refused are what came of them. A pod that waits in a subset is in neither.
	bound   map[types.UID]*corev1.Pod
	refused map[types.UID]v1beta1.Reason
}

// begin tells the plugin about the namespace of a spread, as if its workload had this number of replicas and the pods
// that are gone did not exist.
func (e *Engine) begin(ctx context.Context, d *Divided, replicas int32, gone sets.Set[types.UID]) (*play, error) {
	there := slices.DeleteFunc(slices.Clone(e.Pods), func(pod *corev1.Pod) bool { return gone.Has(pod.UID) })
	rooms, err := e.scheduler.Take(there, e.Nodes)
	if err != nil {
		return nil, err
	}
	p := &play{Engine: e, rooms: rooms, there: there, active: sets.New[types.UID](), bound: map[types.UID]*corev1.Pod{}, refused: map[types.UID]v1beta1.Reason{}}
	e.plugin.Begin(e.clock.Now())
	e.plugin.Activate = func(pod *corev1.Pod) { p.active.Insert(pod.UID) }
	for _, node := range e.Nodes {
		e.plugin.Apply(ledger.NodeSeen{Node: node})
	}
	namespace := d.Spread.Namespace
	for i := range e.Spreads {
		if e.Spreads[i].Namespace == namespace {
			e.plugin.Apply(ledger.SpreadSeen{Spread: &e.Spreads[i]})
		}
	}
	target := workload.TargetOf(d.Spread)
	if err := p.tellOwners(ctx, namespace, &target, target, replicas); err != nil {
		return nil, err
	}
	e.plugin.Apply(ledger.ReplicasRead{Workload: ledger.WorkloadOf(namespace, target), Version: ledger.TargetVersion(d.Spread), Paths: subset.ReplicaPaths(d.Spread),
		Replicas: replicas, Known: true, Ordinals: d.Ordinals})
	for _, pod := range there {
		if pod.Namespace != namespace {
			continue
		}
		if err := p.tellOwners(ctx, namespace, workload.ControllerOf(pod), target, replicas); err != nil {
			return nil, err
		}
		e.plugin.Apply(ledger.PodSeen{Pod: pod})
	}
	return p, nil
}

// tellOwners tells the plugin about an owner and its owners. The target has this number of replicas.
func (p *play) tellOwners(ctx context.Context, namespace string, owner *workload.Owner, target workload.Owner, replicas int32) error {
	for range workload.LongestOwnerChain {
		if owner == nil || workload.EndsChain(owner.Kind) {
			return nil
		}
		object, err := p.Lineage.Read(ctx, namespace, *owner)
		if err != nil {
			return err
		}
		if object == nil {
			if _, builtIn := p.Owner(namespace, *owner); !builtIn {
				p.plugin.Apply(ledger.KindEndsChain{Kind: owner.Kind, Ends: true})
			}
			return nil
		}
		if owner.Kind == target.Kind && owner.Name == target.Name {
			object = scaled(object, replicas)
		}
		p.plugin.Apply(ledger.OwnerSeen{Kind: owner.Kind, Object: object})
		owner = workload.ControllerOf(object)
	}
	return nil
}

// scaled is a workload with another number of replicas. An object of a kind that is not built in has none.
func scaled(object client.Object, replicas int32) client.Object {
	object = object.DeepCopyObject().(client.Object)
	if field := workload.PartsOf(object).Replicas; field != nil {
		*field = &replicas
	}
	if job, is := object.(*batchv1.Job); is {
		job.Spec.Completions = nil
	}
	return object
}

// enqueue adds a pod that the scheduler has to schedule.
func (p *play) enqueue(pod *corev1.Pod) {
	p.pending = append(p.pending, pod)
	p.active.Insert(pod.UID)
}

// see adds a pod that is new.
func (p *play) see(pod *corev1.Pod) {
	p.plugin.Apply(ledger.PodSeen{Pod: pod})
	p.enqueue(pod)
}

// isScheduled is true for a pod that Berth's scheduler would take from its queue.
func isScheduled(pod *corev1.Pod) bool {
	return subset.IsActive(pod) && pod.Spec.NodeName == "" && pod.Spec.SchedulerName == v1beta1.SchedulerName && len(subset.OtherGates(pod)) == 0
}

// cyclesPerPod bounds the cycles of a run. A pod needs one for each subset, and more if others make it try again.
const cyclesPerPod = 200

// run schedules pods until nothing but time passes, for as long as patience says.
func (p *play) run(ctx context.Context, patience time.Duration) error {
	end := p.plugin.Now().Add(patience)
	for range cyclesPerPod * (len(p.pending) + 1) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if pod := p.next(); pod != nil {
			if err := p.schedule(ctx, pod); err != nil {
				return fmt.Errorf("pod %s: %w", pod.Name, err)
			}
			continue
		}
		if next := p.plugin.Next(); next.IsZero() || next.After(end) {
			return nil
		}
		p.plugin.Advance()
	}
	return fmt.Errorf("%d pods do not come to rest", len(p.pending)-len(p.bound))
}

// next is the active pod that the scheduling queue would take first, or nil.
func (p *play) next() (first *corev1.Pod) {
	if len(p.active) == 0 {
		return nil
	}
	for _, pod := range p.pending {
		if p.active.Has(pod.UID) && p.bound[pod.UID] == nil && (first == nil || corev1helpers.PodPriority(pod) > corev1helpers.PodPriority(first)) {
			first = pod
		}
	}
	if first == nil {
		p.active.Clear() // pods that are not scheduled here
	}
	return first
}

func (p *play) schedule(ctx context.Context, pod *corev1.Pod) error {
	p.active.Delete(pod.UID)
	delete(p.refused, pod.UID)
	cycle, err := p.rooms.Schedule(ctx, pod)
	if err != nil {
		return err
	}
	if cycle.Node == "" {
		if !cycle.Status.IsSuccess() {
			p.refused[pod.UID] = p.plugin.ReasonOf(cycle.Status)
		}
		return nil
	}
	bound, err := p.plugin.Bind(cycle.State, pod, cycle.Node)
	if err != nil {
		return err
	}
	p.bound[pod.UID] = bound
	return p.rooms.Bind(bound)
}

// byAge is the order in which the scheduling queue takes pods that came before the what-if.
func byAge(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}
