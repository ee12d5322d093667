package cycle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	podevictions "sigs.k8s.io/descheduler/pkg/descheduler/evictions"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/subset"
)

// Strategy is a way to decide on the pods of a spread.
type Strategy struct {
	// Name of the plugin.
	Name string
	// Direction in which it moves pods.
	Direction moves.Direction
	// Decide is one of the decisions of package moves.
	Decide func(*moves.Facts, moves.Cluster) moves.Decision
	// Covers is true for the namespaces of the spreads that it is about. Nil is true for all.
	Covers func(namespace string) bool
	// Stable is how long a node must have been ready to count as room. 0 takes any node that the filters take.
	Stable time.Duration
	// Schedulers are the names of schedulers whose pending pods it moves. Nil for those of all.
	Schedulers []string
	// Evictor is that of the plugin's handle. Its filters have a say in pods that run; what they look at does not apply
	// to pods that do not.
	Evictor frameworktypes.Evictor
}

func (s *Strategy) covers(of *spread) bool { return s.Covers == nil || s.Covers(of.object.Namespace) }

// admits is true if the strategy may evict the pod.
func (s *Strategy) admits(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" {
		return s.Schedulers == nil || slices.Contains(s.Schedulers, pod.Spec.SchedulerName)
	}
	return s.Evictor.Filter(pod)
}

// leastBrake and brakeShare bound how many running pods a strategy moves in one cycle, over all spreads: a hundredth of
// all pods, and at least 200. So a mistake, such as a label that a node pool has lost, costs little before somebody
// sees it. The pods of a spread are never divided, so that the last spread may exceed the limit.
const (
	leastBrake = 200
	brakeShare = 100
)

// shuffleEvery is how long spreads decide in the same order.
const shuffleEvery = 10 * time.Minute

// order is that in which spreads decide. It changes with time: what one spread takes and cannot use, because somebody
// forbids its evictions, others get another time.
func (c *Cycle) order() []int {
	return rand.New(rand.NewPCG(uint64(c.Now.Unix()/int64(shuffleEvery/time.Second)), 0)).Perm(len(c.spreads))
}

// mostAtOnce is for how many spreads pods are evicted at the same time. An eviction waits for the API server far longer
// than anybody computes.
const mostAtOnce = 16

// Run has a strategy decide on each spread in its scope, one after the other, and then does what it decided for several
// at a time. The error joins what went wrong for single spreads.
func (c *Cycle) Run(ctx context.Context, strategy Strategy) error {
	defer func() {
		for _, s := range c.spreads {
			c.report.take(s)
		}
	}()
	for _, s := range c.unread {
		if strategy.covers(s) {
			s.noteHeld(&strategy, moves.Held{From: subset.None, Reason: v1beta1.ReasonTargetUnreadable})
			c.report.take(s)
		}
	}
	decided := make([]*moves.Decision, len(c.spreads)) // nil for spreads out of scope
	left := max(leastBrake, c.allPods/brakeShare)
	for _, i := range c.order() {
		s := c.spreads[i]
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !strategy.covers(s) {
			continue
		}
		if left <= 0 {
			s.noteHeld(&strategy, moves.Held{From: subset.None, Reason: v1beta1.ReasonLimitReached})
			continue
		}
		klog.FromContext(ctx).V(4).Info("Deciding", "workloadspread", klog.KObj(s.object), "generation", s.object.Generation, "pods", len(s.facts.Pods), "replicas", s.facts.Replicas, "quota", s.facts.Policy.Plan(s.facts.Replicas).Quota, "moves", s.facts.Moves)
		decision := strategy.Decide(&s.facts, &cluster{Cycle: c, ctx: ctx, spread: s, strategy: &strategy})
		for _, held := range decision.Held {
			s.noteHeld(&strategy, held)
		}
		for _, move := range decision.Moves {
			if move.Pod.NodeName != "" {
				left--
			}
		}
		decided[i] = &decision
	}
	errs := make([]error, len(c.spreads))
	var acting errgroup.Group
	acting.SetLimit(mostAtOnce)
	for i, s := range c.spreads {
		if decided[i] == nil {
			continue
		}
		acting.Go(func() error {
			if err := c.act(ctx, &strategy, s, decided[i]); err != nil {
				errs[i] = fmt.Errorf("spread %s/%s: %w", s.object.Namespace, s.object.Name, err)
			}
			return nil
		})
	}
	_ = acting.Wait() // the errors are in errs
	return errors.Join(errs...)
}

func (s *spread) noteHeld(strategy *Strategy, held moves.Held) {
	line := Line{Strategy: strategy.Name, Namespace: s.object.Namespace, Spread: s.object.Name, From: s.name(held.From), Verdict: verdictKept, Reason: held.Reason}
	if held.Pod != nil {
		line.Pod, line.Node = held.Pod.Name, held.Pod.NodeName
	}
	if !held.Until.IsZero() {
		line.Until = &held.Until
	}
	s.note(line)
}

func (s *spread) note(line Line) { s.lines = append(s.lines, line) }

// take moves the lines of a spread to the report, and counts them. What could not be read of it is reported once.
func (r *Report) take(s *spread) {
	for i := range s.lines {
		line := &s.lines[i]
		decisions.WithLabelValues(line.Strategy, string(line.Verdict), string(line.Reason)).Inc()
		if line.Result != "" {
			evictions.WithLabelValues(line.Strategy, string(line.Result)).Inc()
		}
	}
	r.Lines = append(r.Lines, s.lines...)
	if s.err != nil {
		r.Unread = errors.Join(r.Unread, fmt.Errorf("spread %s/%s: %w", s.object.Namespace, s.object.Name, s.err))
	}
	s.lines, s.err = nil, nil
}

// act writes what is about to be done, does it, and removes from the record what was refused. Pods that were evicted
// are in flight then, so later strategies of the cycle count them as gone.
func (c *Cycle) act(ctx context.Context, strategy *Strategy, s *spread, decision *moves.Decision) error {
	ahead := memory{moves: s.facts.Moves, misplaced: s.facts.Misplaced}
	if decision.Remembers {
		ahead.misplaced = decision.Misplaced
	}
	if len(decision.Moves) == 0 && equality.Semantic.DeepEqual(ahead.misplaced, s.facts.Misplaced) {
		return nil
	}
	if len(decision.Moves) > 0 {
		ahead.moves = s.facts.Record(decision)
	}
	outdated, err := c.remember(ctx, s, ahead)
	if err != nil {
		return err
	}
	if outdated != "" {
		for i := range decision.Moves {
			s.noteHeld(strategy, moves.Held{Pod: decision.Moves[i].Pod, From: decision.Moves[i].From, Reason: outdated})
		}
		return nil // the next cycle decides again
	}
	failed := c.evictAll(ctx, strategy, s, decision)
	if len(failed) < len(decision.Moves) {
		s.facts.Moved |= strategy.Direction
	}
	if len(failed) > 0 {
		ahead.moves = s.facts.Retract(ahead.moves, failed)
		if outdated, err := c.remember(ctx, s, ahead); outdated != "" || err != nil {
			klog.FromContext(ctx).Error(err, "Pods that were not evicted count as gone for a while", "workloadspread", klog.KObj(s.object), "reason", outdated)
		}
	}
	s.facts.Moves, s.facts.Misplaced = ahead.moves, ahead.misplaced
	return nil
}

func (c *Cycle) evictAll(ctx context.Context, strategy *Strategy, s *spread, decision *moves.Decision) (failed []moves.Move) {
	for i := range decision.Moves {
		move := &decision.Moves[i]
		pod := s.pods[move.Pod.UID]
		err := strategy.Evictor.Evict(ctx, pod, podevictions.EvictOptions{StrategyName: strategy.Name, Reason: string(move.Reason)})
		result := resultOf(err)
		if result == resultEvicted && c.world.options.DryRun {
			result = resultWouldEvict
		}
		from, to := s.name(move.From), s.name(move.To)
		s.note(Line{Strategy: strategy.Name, Namespace: s.object.Namespace, Spread: s.object.Name, Pod: pod.Name, Node: pod.Spec.NodeName, From: from, To: to,
			Verdict: verdictMoved, Reason: move.Reason, Result: result})
		logger := klog.FromContext(ctx).WithValues("pod", klog.KObj(pod), "workloadspread", klog.KObj(s.object), "from", from, "to", to, "reason", move.Reason)
		switch result {
		case resultEvicted:
			logger.Info("Evicted a pod")
			c.tell(ctx, s, pod, move)
		case resultWouldEvict:
			logger.Info("Would evict a pod, if this were no dry run")
		case resultUnanswered: // it counts as gone, as if the process had ended here
			logger.Info("An eviction got no answer; the pod counts as gone for a while", "err", err)
		case resultReplacedFirst: // the new pod counts by itself
			logger.Info("A pod is replaced before it goes")
			failed = append(failed, *move)
		case resultRefused:
			c.budgets.close(ctx, pod)
			fallthrough
		default:
			logger.Info("A pod was not evicted", "result", result, "err", err)
			failed = append(failed, *move)
		}
	}
	return failed
}

// memory is what the status of a spread holds for deschedulers.
type memory struct {
	moves     []v1beta1.Move
	misplaced *v1beta1.Misplaced
}

// remember writes the memory of a spread into its status, if the spread and its memory are as they were read. If they
// are not, it says what has changed. The status controller writes to the same object; what it changes does not matter.
func (c *Cycle) remember(ctx context.Context, s *spread, m memory) (outdated v1beta1.Reason, _ error) {
	if c.world.options.DryRun {
		return "", nil
	}
	const attempts = 5
	for range attempts {
		latest := &v1beta1.WorkloadSpread{}
		err := c.write(ctx, s.object, m)
		if apierrors.IsConflict(err) {
			err = c.get(ctx, client.ObjectKeyFromObject(s.object), latest)
		} else if err == nil {
			return "", nil
		}
		switch {
		case apierrors.IsNotFound(err):
			return v1beta1.ReasonSpreadChanged, nil
		case err != nil:
			return "", fmt.Errorf("writing what is about to be done: %w", err)
		case !subset.SamePolicy(latest, s.object):
			return v1beta1.ReasonSpreadChanged, nil
		case moves.IsPaused(latest):
			return v1beta1.ReasonPaused, nil
		case !equality.Semantic.DeepEqual(latest.Status.Moves, s.object.Status.Moves) || !equality.Semantic.DeepEqual(latest.Status.Misplaced, s.object.Status.Misplaced):
			return v1beta1.ReasonMovedByOther, nil
		}
		s.object = latest
	}
	return v1beta1.ReasonSpreadChanged, nil
}

func (c *Cycle) get(ctx context.Context, key client.ObjectKey, into *v1beta1.WorkloadSpread) error {
	ctx, cancel := context.WithTimeout(ctx, c.world.options.CallTimeout)
	defer cancel()
	return c.world.live.Get(ctx, key, into)
}

// write patches the status of the object, which is replaced by the answer.
func (c *Cycle) write(ctx context.Context, object *v1beta1.WorkloadSpread, m memory) error {
	ctx, cancel := context.WithTimeout(ctx, c.world.options.CallTimeout)
	defer cancel()
	changed := object.DeepCopy()
	changed.Status.Moves, changed.Status.Misplaced = m.moves, m.misplaced
	patch := client.MergeFromWithOptions(object.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if err := c.world.live.Status().Patch(ctx, changed, patch, client.FieldOwner(reporter)); err != nil {
		return err
	}
	*object = *changed
	return nil
}
