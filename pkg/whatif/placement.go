package whatif

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// placement is where the pods of a spread would be at a number of replicas, once all of them have waited as long as the
// spread lets them.
type placement struct {
	Plan subset.Plan
	// Kept are the pods with a node that stay, and Bound those that would get one.
	Kept, Bound []*corev1.Pod
	// Waiting is how many pods would find no node or no slot. With a StatefulSet that makes its pods one after the
	// other, it includes those that would not be made.
	Waiting int32
	// Subset in which the last of them would wait for a node, or was refused last, and what the filters say about its
	// nodes. Nil if none waits for a node.
	Subset *subset.Subset
	Survey fit.Survey
	// Note is how the pods were made, if not as admission would. Empty otherwise.
	Note string
}

// Simulate is the placement at a number of replicas. Pods with a node stay, unless there are too many.
func (e *Engine) Simulate(ctx context.Context, d *Divided, replicas int32) (*placement, error) {
	placed := &placement{Plan: d.Policy.Plan(replicas)}
	remaining, gone := e.remaining(d, &placed.Plan)
	p, err := e.begin(ctx, d, replicas, gone)
	if err != nil {
		return nil, err
	}
	waiting := false
	for _, pod := range remaining {
		switch {
		case pod.Spec.NodeName != "":
			placed.Kept = append(placed.Kept, pod)
		case isScheduled(pod):
			p.enqueue(pod)
		default:
			waiting = true
			placed.Waiting++
		}
	}
	slices.SortStableFunc(p.pending, byAge)
	maker, err := e.newMaker(ctx, d, &placed.Plan, remaining)
	if err != nil {
		return nil, err
	}
	placed.Note = maker.note
	if err := p.tellOwners(ctx, d.Spread.Namespace, workload.ControllerOf(maker.base), workload.TargetOf(d.Spread), replicas); err != nil {
		return nil, err
	}
	missing := max(replicas-int32(len(remaining)), 0)
	for range missing {
		if maker.inOrder {
			if err := p.run(ctx, patience); err != nil {
				return nil, err
			}
			if waiting = waiting || len(p.bound) < len(p.pending); waiting {
				break // the next pod is made when this one is ready
			}
		}
		pod, claims, err := maker.next()
		if err != nil {
			return nil, err
		}
		if err := p.rooms.Expect(pod.Namespace, claims); err != nil {
			return nil, err
		}
		p.see(pod)
		missing--
	}
	if err := p.run(ctx, patience); err != nil {
		return nil, err
	}
	placed.Waiting += missing
	for _, pod := range p.pending {
		if bound := p.bound[pod.UID]; bound != nil {
			placed.Bound = append(placed.Bound, bound)
			continue
		}
		placed.Waiting++
		if err := p.survey(ctx, d.Policy, pod, placed); err != nil {
			return nil, err
		}
	}
	return placed, nil
}

// patience is how long pods are tried again: up to the first retry of a pod that not only nodes have refused.
const patience = time.Second

// survey asks the filters about the nodes of the subset in which a pod waits. One pod stands for all.
func (p *play) survey(ctx context.Context, policy *subset.Policy, pod *corev1.Pod, placed *placement) (err error) {
	in := p.plugin.ClaimOf(pod)
	if in == nil && p.refused[pod.UID] == v1beta1.ReasonNoNodeFits {
		in = &policy.Subsets[len(policy.Subsets)-1]
	}
	if in == nil || placed.Subset != nil {
		return nil
	}
	placed.Subset = in
	made := pod.DeepCopy()
	in.Constraints.AddTo(made)
	rooms, err := p.Filters.Take(slices.Concat(p.there, slices.Collect(maps.Values(p.bound))), p.Nodes)
	if err != nil {
		return err
	}
	placed.Survey, err = rooms.Survey(ctx, made, nil, in.Holds)
	return err
}
