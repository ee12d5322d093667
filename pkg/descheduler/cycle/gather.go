package cycle

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// Cycle is one look at the cluster, and what was done since. Strategies use it one after the other.
type Cycle struct {
	// Now is the time of all decisions of the cycle.
	Now time.Time

	world  *World
	ctx    context.Context // a cycle is a call that the framework cuts into pieces
	err    error           // why the look is not complete, so that no strategy may use it
	report *Report

	filters  *fit.Filters
	rooms    *fit.Rooms
	snapshot *lineage.Snapshot
	lineage  *lineage.Lineage
	budgets  *budgets
	spreads  []*spread
	allPods  int // of the cluster
	// unread are spreads of which something could not be read. They have no facts.
	unread []*spread
	// paused are the spreads whose pods stay, by namespace, whether they can be used or not.
	paused map[string][]paused
	// placed are the pods of all spreads, and alone are nodes that are the only one; both are nil until ComesBack needs
	// them.
	placed map[types.UID]placed
	alone  map[shared]string
}

// spread is a WorkloadSpread that can be used, with its pods.
type spread struct {
	object *v1beta1.WorkloadSpread
	facts  moves.Facts
	pods   map[types.UID]*corev1.Pod
	// refused are shapes of pods for which a subset was found to have no room; see rooms.go.
	refused map[string]bool
	// tally of the pods, nil until ComesBack needs it.
	tally *subset.Tally
	// lines are what was decided about the spread and is not in the report yet.
	lines []Line
	// ordinals of the workload, if its kind hides them.
	ordinals *workload.Ordinals
	// err is why something of the spread could not be read, until it is in the report. Nil if its status says so to its
	// owner.
	err error
}

// gather takes the look.
func (c *Cycle) gather(ctx context.Context) (err error) {
	began := c.world.options.Clock.Now()
	if c.snapshot, err = lineage.TakeWith(ctx, c.world.live, c.world.options.Clock, c.world.informers); err != nil {
		return err
	}
	c.lineage, c.allPods = c.snapshot.Lineage, len(c.snapshot.Pods)
	if c.budgets, err = c.gatherBudgets(ctx); err != nil {
		return err
	}
	if c.filters != nil {
		if c.rooms, err = c.filters.Take(c.snapshot.Pods, c.snapshot.Nodes); err != nil {
			return err
		}
	}
	c.paused = map[string][]paused{}
	for i := range c.snapshot.Spreads {
		if object := &c.snapshot.Spreads[i]; moves.IsPaused(object) {
			c.paused[object.Namespace] = append(c.paused[object.Namespace], paused{lineage.Compile(object), workload.TargetOf(object)})
		}
	}
	byKey := map[types.NamespacedName]*spread{}
	for i := range c.snapshot.Spreads {
		object := &c.snapshot.Spreads[i]
		s, why, err := c.prepare(ctx, object)
		if why != "" {
			klog.FromContext(ctx).V(2).Info("Passing over a spread", "workloadspread", klog.KObj(object), "reason", why)
			if why == v1beta1.ReasonTargetUnreadable {
				c.unread = append(c.unread, &spread{object: object, err: err})
			}
			continue
		}
		byKey[types.NamespacedName{Namespace: object.Namespace, Name: object.Name}] = s
		c.spreads = append(c.spreads, s)
	}
	for _, pod := range c.snapshot.Pods {
		if s := c.spreadOf(ctx, byKey, pod); s != nil {
			s.pods[pod.UID] = pod
			observed := c.observe(pod)
			observed.Sole = s.facts.Replicas < 2 && !s.facts.Policy.IsPart && len(c.budgets.of(pod)) == 0
			observed.Position = c.snapshot.Position(pod, s.facts.Policy, s.ordinals)
			s.facts.Pods = append(s.facts.Pods, observed)
		}
	}
	for _, spreads := range [][]*spread{c.spreads, c.unread} {
		slices.SortFunc(spreads, func(a, b *spread) int {
			return cmp.Or(cmp.Compare(a.object.Namespace, b.object.Namespace), cmp.Compare(a.object.Name, b.object.Name))
		})
	}
	klog.FromContext(ctx).V(1).Info("Looked at the cluster", "spreads", len(c.spreads), "pods", len(c.snapshot.Pods), "nodes", len(c.snapshot.Nodes),
		"took", c.world.options.Clock.Since(began))
	return nil
}

// paused is a spread that is paused.
type paused struct {
	*lineage.Spread
	target workload.Owner
}

// IsPaused is true for a pod that a paused spread names: its pods stay, even if the spread is invalid, cannot be read,
// or an older one divides its workload. A pod whose owners cannot be read may be one of them.
func (c *Cycle) IsPaused(pod *corev1.Pod) bool {
	return slices.ContainsFunc(c.paused[pod.Namespace], func(p paused) bool {
		if !p.Divides(pod.Labels) {
			return false
		}
		below, err := c.isBelow(c.ctx, pod, p.target)
		return below || err != nil
	})
}

// prepare is the spread without its pods, or why it is passed over. Without an error its status says the same to its
// owner.
func (c *Cycle) prepare(ctx context.Context, object *v1beta1.WorkloadSpread) (*spread, v1beta1.Reason, error) {
	compiled := lineage.Compile(object)
	if compiled.Policy == nil {
		return nil, v1beta1.ReasonInvalidSpread, nil
	}
	target := workload.TargetOf(object)
	winner, err := c.lineage.Winner(ctx, object.Namespace, target)
	if err != nil {
		return nil, v1beta1.ReasonTargetUnreadable, err
	}
	if winner.UID != object.UID {
		return nil, v1beta1.ReasonSpreadConflict, nil
	}
	unwatchable, err := c.lineage.Watch(ctx, target.Kind)
	switch {
	case err != nil:
		return nil, v1beta1.ReasonTargetUnreadable, err
	case unwatchable != nil && unwatchable.Why == lineage.NotServed:
		return nil, v1beta1.ReasonTargetNotFound, nil
	case unwatchable != nil:
		return nil, v1beta1.ReasonTargetUnreadable, nil
	}
	workloadObject, err := c.lineage.Read(ctx, object.Namespace, target)
	if err != nil {
		return nil, v1beta1.ReasonTargetUnreadable, err
	}
	if workloadObject == nil {
		return nil, v1beta1.ReasonTargetNotFound, nil
	}
	replicas, err := c.snapshot.Replicas(ctx, object, workloadObject)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err): // it has no scale subresource
		return nil, v1beta1.ReasonTargetUnreadable, nil
	case err != nil:
		return nil, v1beta1.ReasonTargetUnreadable, fmt.Errorf("replicas of %s %s: %w", target.Kind.Kind, target.Name, err)
	}
	ordinals, err := c.lineage.Ordinals(ctx, object.Namespace, target)
	if err != nil {
		return nil, v1beta1.ReasonTargetUnreadable, err
	}
	facts := moves.FactsOf(object, compiled.Policy, c.Now)
	facts.Replicas = replicas
	// A spread that divides nothing, because this one is older, may be paused all the same.
	facts.Paused = slices.ContainsFunc(c.paused[object.Namespace], func(p paused) bool { return p.target == target })
	return &spread{object: object, ordinals: ordinals, pods: map[types.UID]*corev1.Pod{}, facts: facts, refused: map[string]bool{}}, "", nil
}

// spreadOf is the spread that divides a pod, or nil.
func (c *Cycle) spreadOf(ctx context.Context, byKey map[types.NamespacedName]*spread, pod *corev1.Pod) *spread {
	if len(byKey) == 0 {
		return nil
	}
	found, err := c.snapshot.SpreadOf(ctx, pod)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Passing over a pod", "pod", klog.KObj(pod))
		if c.report.Unread == nil { // one may stand for many
			c.report.Unread = fmt.Errorf("finding the spread of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	if err != nil || found == nil {
		return nil
	}
	return byKey[types.NamespacedName{Namespace: pod.Namespace, Name: found.Name}]
}

// observe reads what the model needs.
func (c *Cycle) observe(pod *corev1.Pod) moves.Pod {
	observed := moves.Pod{Pod: subset.Observe(pod, c.snapshot.Node(pod.Spec.NodeName))}
	observed.OfJob = workload.IsOfJob(pod)
	unschedulable, since := podstate.IsUnschedulable(pod)
	switch {
	case pod.Spec.NodeName != "":
		observed.BoundSince = pod.CreationTimestamp.Time
		if c := podstate.Condition(pod, corev1.PodScheduled); c != nil && !c.LastTransitionTime.IsZero() {
			observed.BoundSince = c.LastTransitionTime.Time
		}
	case unschedulable && pod.Status.NominatedNodeName == "" && len(pod.Spec.SchedulingGates) == 0:
		if observed.UnschedulableSince = since; since.IsZero() {
			observed.UnschedulableSince = pod.CreationTimestamp.Time // Kubernetes does not record when its gates were removed
		}
		if picked := observed.Admitted; picked != nil && picked.Opened && picked.Since.After(observed.UnschedulableSince) {
			observed.UnschedulableSince = picked.Since // the condition is as old as the pod: it was false with the gate, too
		}
	}
	return observed
}
