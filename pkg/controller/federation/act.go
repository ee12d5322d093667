package federation

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/controller"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	model "github.com/berth-project/berth/pkg/federation"
)

// applied is what was applied to a ReplicaSet, and the generation that it had afterwards. If it has another generation, somebody has changed its spec. It only saves requests.
type applied struct {
	uid        types.UID
	hash       [sha256.Size]byte
	generation int64
}

// step is a ReplicaSet that is not as wanted.
type step struct {
	model.Wanted
	local *local
	// object is what is applied. Nil if only replicas are written, or the ReplicaSet is deleted.
	object *unstructured.Unstructured
	hash   [sha256.Size]byte
}

// steps are what the plan asks for, without the ReplicaSets that are as wanted.
func (r *reconciler) steps(frs *v1alpha1.FederatedReplicaSet, policy *model.Policy, plan *model.Plan, locals map[string]*local) (lower, rest []step, _ error) {
	for _, wanted := range plan.Clusters {
		s := step{Wanted: wanted, local: locals[wanted.Member]}
		if !s.Leaving {
			content, err := policy.Render(s.Replicas, frs.UID)
			if err != nil {
				return nil, nil, err
			}
			text, err := json.Marshal(content)
			if err != nil {
				return nil, nil, err
			}
			s.object, s.hash = &unstructured.Unstructured{Object: content}, sha256.Sum256(text)
		}
		switch {
		case r.isDone(&s, frs):
		case s.Lowers():
			lower = append(lower, s)
		default:
			rest = append(rest, s)
		}
	}
	return lower, rest, nil
}

func (r *reconciler) isDone(s *step, frs *v1alpha1.FederatedReplicaSet) bool {
	switch {
	case s.local.set == nil || s.Delete:
		return false
	case s.Leaving:
		return !s.Lowers()
	default:
		was, known := r.applied.Load(written{client.ObjectKeyFromObject(frs), s.Member})
		return known && was == applied{s.local.set.UID, s.hash, s.local.set.Generation} && isOurs(s.local.set, frs) && s.local.set.Labels[v1alpha1.HubLabel] != ""
	}
}

// written is the ReplicaSet of a FederatedReplicaSet in a member.
type written struct {
	frs    types.NamespacedName
	member string
}

// outcome of all writes.
type outcome struct {
	mu sync.Mutex
	// refused are messages of API servers that do not accept the ReplicaSet, by cluster.
	refused map[string]string
	// stale is true if something has changed since it was read.
	stale bool
	err   error
}

// add notes how a write ended. It is false if the write failed.
func (o *outcome) add(s *step, err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch s.resultOf(err) {
	case isWritten:
		return true
	case isStale:
		o.stale = true
	case isRefused:
		o.refused[s.Member] = err.Error()
	default:
		o.err = errors.Join(o.err, fmt.Errorf("writing the ReplicaSet in cluster %s: %w", s.Member, err))
	}
	return false
}

// resultOf is how the write of a step ended.
func (s *step) resultOf(err error) result {
	if apierrors.IsNotFound(err) && s.local.set != nil { // otherwise the namespace does not exist
		return isStale
	}
	return resultOf(err)
}

// resultOf is how a write ended.
func resultOf(err error) result {
	switch {
	case err == nil:
		return isWritten
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return isStale
	case controller.IsRefused(err):
		return isRefused
	default:
		return isFailed
	}
}

// operation is what the step writes.
func (s *step) operation() operation {
	switch {
	case s.Delete:
		return deleting
	case s.Leaving:
		return scaling
	case s.local.set == nil:
		return creating
	default:
		return applying
	}
}

// act carries out the steps: first those that lower, then, only if all of these succeeded, the others.
func (r *reconciler) act(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, lower, rest []step) *outcome {
	o := &outcome{refused: map[string]string{}}
	if r.all(ctx, frs, lower, o) {
		r.all(ctx, frs, rest, o)
	}
	return o
}

// all carries out steps at the same time. It is false if one of them failed.
func (r *reconciler) all(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, steps []step, o *outcome) bool {
	done := make([]bool, len(steps))
	var writing sync.WaitGroup
	for i := range steps {
		writing.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			err := r.write(ctx, frs, &steps[i])
			r.measures.wrote(steps[i].operation(), steps[i].resultOf(err))
			done[i] = o.add(&steps[i], err)
		})
	}
	writing.Wait()
	for _, d := range done {
		if !d {
			return false
		}
	}
	return true
}

// write carries out one step. It fails if the ReplicaSet has changed since it was read.
func (r *reconciler) write(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, s *step) error {
	to, err := r.members.Client(s.Member)
	if err != nil {
		return err
	}
	set := s.local.set
	switch s.operation() {
	case deleting:
		gone := set.DeepCopy()
		err := to.Delete(ctx, gone, client.Preconditions{UID: &gone.UID, ResourceVersion: ptr.To(gone.ResourceVersion)}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		return client.IgnoreNotFound(err)
	case scaling:
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": set.UID, "resourceVersion": set.ResourceVersion}, "spec": map[string]any{"replicas": s.Replicas},
		})
		if err != nil {
			return err
		}
		err = to.Patch(ctx, set.DeepCopy(), client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1alpha1.FieldManager))
		r.tell(ctx, frs, s, err)
		return err
	}
	object := s.object.DeepCopy()
	if set == nil {
		err = to.Create(ctx, object, client.FieldOwner(v1alpha1.FieldManager))
	} else {
		object.SetUID(set.UID)
		object.SetResourceVersion(set.ResourceVersion)
		err = to.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.ForceOwnership, client.FieldOwner(v1alpha1.FieldManager))
	}
	if err == nil {
		r.applied.Store(written{client.ObjectKeyFromObject(frs), s.Member}, applied{object.GetUID(), s.hash, object.GetGeneration()})
	}
	r.tell(ctx, frs, s, err)
	return err
}

// tell writes an event about a cluster that was asked for another number of replicas.
func (r *reconciler) tell(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, s *step, err error) {
	before := int32(0)
	if s.Local != nil {
		before = s.Local.Replicas
	}
	if err != nil || before == s.Replicas {
		return
	}
	r.events.Eventf(frs, nil, corev1.EventTypeNormal, v1alpha1.ReasonClusterScaled, "ScaleCluster", "scaled cluster %s from %d to %d replicas", s.Member, before, s.Replicas)
	klog.FromContext(ctx).V(2).Info("Scaled a cluster", "federatedreplicaset", klog.KObj(frs), "cluster", s.Member, "from", before, "to", s.Replicas)
}
