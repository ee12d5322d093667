package federation

import (
	"context"
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

func render(policy *model.Policy, replicas int32, owner types.UID) rendered {
	content := policy.Render(replicas, owner)
	return rendered{&unstructured.Unstructured{Object: content}, apply.HashOf(content)}
}

// steps are what the plan asks for, without the ReplicaSets that are as wanted.
func (r *reconciler) steps(frs *v1alpha1.FederatedReplicaSet, policy *model.Policy, plan *model.Plan, locals []local) (lower, rest []step) {
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
				set = render(policy, s.Replicas, frs.UID)
				byReplicas[s.Replicas] = set
			}
			s.rendered = set
		}
		switch {
		case isDone(&s, was):
		case s.Lowers():
			lower = append(lower, s)
		default:
			rest = append(rest, s)
		}
	}
	return lower, rest
}

func isDone(s *step, was *apply.Memory) bool {
	switch {
	case s.local.set == nil || s.Delete:
		return false
	case s.Leaving:
		return !s.Lowers()
	default:
		return s.local.ours && was.Has(s.Member, s.local.set, s.hash)
	}
}

// appliedOf is what was applied last for a FederatedReplicaSet.
func (r *reconciler) appliedOf(frs types.NamespacedName) *apply.Memory {
	all, _ := r.applied.LoadOrStore(frs, &apply.Memory{})
	return all.(*apply.Memory)
}

// act carries out the steps; see apply.Steps.
func (r *reconciler) act(ctx context.Context, v *view) *apply.Outcome {
	key, owner := client.ObjectKeyFromObject(v.frs), v.frs.UID // a write may outlast this pass, which replaces what v.frs points to
	was := r.appliedOf(key)
	o := apply.Steps(ctx, &r.Remote, key, v.lower, v.rest, func(by int32, s *step) (bool, error) {
		if s.Replicas -= by; !s.Leaving {
			s.rendered = render(v.policy, s.Replicas, owner)
		}
		return (s.Local != nil || s.Replicas > 0) && !isDone(s, was), nil
	}, func(ctx context.Context, steps []step, o *apply.Outcome) {
		for i := range steps {
			r.write(ctx, key, owner, &steps[i], o)
		}
	})
	r.tell(ctx, v.frs, o)
	return o
}

// In implements apply.Placed.
func (s step) In() string { return s.Member }

// Raise implements apply.Placed.
func (s step) Raise() int32 { return s.Replicas - s.Before() }

// write carries out one step. It fails if the ReplicaSet has changed since it was read.
func (r *reconciler) write(ctx context.Context, frs types.NamespacedName, owner types.UID, s *step, o *apply.Outcome) {
	err := r.do(ctx, frs, owner, s)
	switch {
	case !r.Wrote(o, members.Errand{Object: frs, Member: s.Member}, s.Member, err, r.clock.Now()):
		o.Keep(s)
	case s.Raise() != 0 && !s.Delete:
		o.Join(&apply.Outcome{Scaled: []string{fmt.Sprintf("%s from %d to %d replicas", s.Member, s.Before(), s.Replicas)}})
	}
}

func (r *reconciler) do(ctx context.Context, frs types.NamespacedName, owner types.UID, s *step) error {
	to, err := r.members.Client(s.Member)
	if err != nil {
		return err
	}
	w := &apply.Step{
		In: to, Live: to, Strict: true, Wanted: s.object, Replicas: s.Replicas, Delete: s.Delete, Manager: v1alpha1.FieldManager,
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
	var now types.UID // of the ReplicaSet that is known. After an error nobody knows what has arrived.
	was := r.appliedOf(frs)
	if err == nil && s.object != nil {
		was.Remember(s.Member, object, s.hash, operation)
		now = object.GetUID()
	}
	was.Keep(func(of apply.Key) bool { return of.Cluster != s.Member || of.UID == now }) // a cluster says what UIDs it likes, and has one ReplicaSet
	return err
}

// tell writes an event about the clusters that were asked for another number of replicas.
func (r *reconciler) tell(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, o *apply.Outcome) {
	if len(o.Scaled) == 0 {
		return
	}
	slices.Sort(o.Scaled)
	all := strings.Join(o.Scaled, ", ")
	frame.Normal(v1alpha1.ReasonClusterScaled, "ScaleCluster", "scaled %s", all).Send(r.events, frs, nil)
	klog.FromContext(ctx).V(2).Info("Scaled clusters", "federatedreplicaset", klog.KObj(frs), "clusters", all)
}
