package federation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	model "github.com/berth-project/berth/pkg/federation"
	"github.com/berth-project/berth/pkg/members"
)

// step is a ReplicaSet that is not as wanted.
type step struct {
	model.Wanted
	local *local
	// rendered is what is applied. It is shared. Empty if only replicas are written, or the ReplicaSet is deleted.
	rendered
}

// rendered is the ReplicaSet for a number of replicas. It is the same in all clusters.
type rendered struct {
	object *unstructured.Unstructured
	hash   apply.Hash
}

func render(policy *model.Policy, replicas int32, owner types.UID) (rendered, error) {
	content, err := policy.Render(replicas, owner)
	if err != nil {
		return rendered{}, err
	}
	hash, err := apply.HashOf(content)
	return rendered{&unstructured.Unstructured{Object: content}, hash}, err
}

// steps are what the plan asks for, without the ReplicaSets that are as wanted.
func (r *reconciler) steps(frs *v1alpha1.FederatedReplicaSet, policy *model.Policy, plan *model.Plan, locals []local) (lower, rest []step, err error) {
	byName := make(map[string]*local, len(locals))
	for i := range locals {
		byName[locals[i].Name] = &locals[i]
	}
	byReplicas := map[int32]rendered{}
	was := r.appliedOf(client.ObjectKeyFromObject(frs))
	for _, wanted := range plan.Clusters {
		s := step{Wanted: wanted, local: byName[wanted.Member]}
		if !s.Leaving {
			set, done := byReplicas[s.Replicas]
			if !done {
				if set, err = render(policy, s.Replicas, frs.UID); err != nil {
					return nil, nil, err
				}
				byReplicas[s.Replicas] = set
			}
			s.rendered = set
		}
		switch {
		case isDone(&s, frs.UID, was):
		case s.Lowers():
			lower = append(lower, s)
		default:
			rest = append(rest, s)
		}
	}
	return lower, rest, nil
}

func isDone(s *step, owner types.UID, was *apply.Memory) bool {
	switch {
	case s.local.set == nil || s.Delete:
		return false
	case s.Leaving:
		return !s.Lowers()
	default:
		return was.Has(s.Member, s.local.set, s.hash) && isOurs(s.local.set, owner) && s.local.set.Labels[v1alpha1.HubLabel] != ""
	}
}

// appliedOf is what was applied last for a FederatedReplicaSet.
func (r *reconciler) appliedOf(frs types.NamespacedName) *apply.Memory {
	all, known := r.applied.Load(frs)
	if !known {
		all, _ = r.applied.LoadOrStore(frs, &apply.Memory{})
	}
	return all.(*apply.Memory)
}

// outcome of all writes.
type outcome struct {
	// refused are messages of API servers that do not accept the ReplicaSet, by cluster.
	refused map[string]string
	// scaled says which clusters were asked for another number of replicas.
	scaled []string
	// stale is true if something has changed since it was read.
	stale bool
	err   error
}

// add notes how a write ended. It is false if the write failed.
func (o *outcome) add(e *end) bool {
	s, err := e.step, e.err
	switch e.is {
	case apply.Written:
		if s.before() != s.Replicas && !s.Delete {
			o.scaled = append(o.scaled, fmt.Sprintf("%s from %d to %d replicas", s.Member, s.before(), s.Replicas))
		}
		return true
	case apply.Stale:
		o.stale = true
	case apply.Refused:
		o.refused[s.Member] = apply.Complaint(err)
	default:
		o.err = errors.Join(o.err, fmt.Errorf("writing the ReplicaSet in cluster %s: %w", s.Member, err))
	}
	return false
}

// act carries out the steps: first those that lower, then the others, as far as those that failed leave room. If a read is out of date, the others wait for the next look.
func (r *reconciler) act(ctx context.Context, v *view) *outcome {
	o := &outcome{refused: map[string]string{}}
	kept, was := r.all(ctx, v.frs, v.lower, o), r.appliedOf(client.ObjectKeyFromObject(v.frs))
	rest, err := apply.Afford(v.rest, kept, (*step).raise, func(by int32, s *step) (_ bool, err error) {
		if s.Replicas -= by; !s.Leaving {
			s.rendered, err = render(v.policy, s.Replicas, v.frs.UID)
		}
		return err == nil && (s.Local != nil || s.Replicas > 0) && !isDone(s, v.frs.UID, was), err
	})
	if err != nil {
		o.err = errors.Join(o.err, err)
	} else if !o.stale {
		r.all(ctx, v.frs, rest, o)
	}
	r.tell(ctx, v.frs, o)
	return o
}

// raise is how many replicas more the cluster is asked for by the step.
func (s *step) raise() int32 { return s.Replicas - s.before() }

// before is how many replicas the ReplicaSet asks for before the step.
func (s *step) before() int32 {
	if s.Local == nil {
		return 0
	}
	return s.Local.Replicas
}

// all carries out steps at the same time. It returns how many replicas stay because those that were to lower them failed, or have not ended yet.
func (r *reconciler) all(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, steps []step, o *outcome) (kept int64) {
	key, errands := client.ObjectKeyFromObject(frs), make([]members.Errand, len(steps))
	for i := range steps {
		errands[i] = members.Errand{Object: key, Member: steps[i].Member}
	}
	for i, end := range r.Writing.Each(ctx, errands, func(ctx context.Context, i int) end {
		err := r.write(ctx, key, frs.UID, &steps[i])
		return end{&steps[i], r.Patient(errands[i], false, apply.ResultOf(err), r.clock.Now()), err}
	}) {
		if end == nil || !o.add(end) {
			kept += int64(max(-steps[i].raise(), 0))
		}
	}
	return kept
}

// end is how a write ended.
type end struct {
	step *step
	is   apply.Result
	err  error
}

// write carries out one step. It fails if the ReplicaSet has changed since it was read.
func (r *reconciler) write(ctx context.Context, frs types.NamespacedName, owner types.UID, s *step) error {
	to, err := r.members.Client(s.Member)
	if err != nil {
		return err
	}
	w := &apply.Step{
		In: to, Live: to, Wanted: s.object, Replicas: s.Replicas, Delete: s.Delete, Manager: v1alpha1.FieldManager,
		Owns: func(object client.Object) bool { return object.GetLabels()[v1alpha1.OwnerLabel] == string(owner) },
	}
	if s.local.set != nil {
		w.Before = &appsv1.ReplicaSet{ObjectMeta: *s.local.set}
	}
	operation := w.Operation()
	object, err := w.Do(ctx)
	if operation == apply.Delete {
		err = client.IgnoreNotFound(err)
	}
	r.measures.wrote(operation, apply.ResultOf(err))
	if err == nil && s.object != nil {
		was := r.appliedOf(frs)
		was.Remember(s.Member, object, s.hash)
		was.Keep(func(of apply.Key) bool { return of.Cluster != s.Member || of.UID == object.GetUID() }) // a cluster says what UIDs it likes, and has one ReplicaSet
	}
	return err
}

// tell writes an event about the clusters that were asked for another number of replicas.
func (r *reconciler) tell(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, o *outcome) {
	if len(o.scaled) == 0 {
		return
	}
	slices.Sort(o.scaled)
	all := strings.Join(o.scaled, ", ")
	frame.Normal(v1alpha1.ReasonClusterScaled, "ScaleCluster", "scaled %s", all).Send(r.events, frs, nil)
	klog.FromContext(ctx).V(2).Info("Scaled clusters", "federatedreplicaset", klog.KObj(frs), "clusters", all)
}
