package federation

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	model "github.com/berth-project/berth/pkg/federation"
	"github.com/berth-project/berth/pkg/members"
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
	// rendered is what is applied. It is shared. Empty if only replicas are written, or the ReplicaSet is deleted.
	rendered
}

// rendered is the ReplicaSet for a number of replicas. It is the same in all clusters.
type rendered struct {
	object *unstructured.Unstructured
	hash   [sha256.Size]byte
}

func render(policy *model.Policy, replicas int32, owner types.UID) (rendered, error) {
	content, err := policy.Render(replicas, owner)
	if err != nil {
		return rendered{}, err
	}
	text, err := json.Marshal(content)
	if err != nil {
		return rendered{}, err
	}
	return rendered{&unstructured.Unstructured{Object: content}, sha256.Sum256(text)}, nil
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

func isDone(s *step, owner types.UID, was *sync.Map) bool {
	switch {
	case s.local.set == nil || s.Delete:
		return false
	case s.Leaving:
		return !s.Lowers()
	default:
		last, known := was.Load(s.Member)
		return known && last == applied{s.local.set.UID, s.hash, s.local.set.Generation} && isOurs(s.local.set, owner) && s.local.set.Labels[v1alpha1.HubLabel] != ""
	}
}

// appliedOf is what was applied last for a FederatedReplicaSet, by cluster, of type string to applied.
func (r *reconciler) appliedOf(frs types.NamespacedName) *sync.Map {
	all, known := r.applied.Load(frs)
	if !known {
		all, _ = r.applied.LoadOrStore(frs, &sync.Map{})
	}
	return all.(*sync.Map)
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
	case isWritten:
		if s.before() != s.Replicas && !s.Delete {
			o.scaled = append(o.scaled, fmt.Sprintf("%s from %d to %d replicas", s.Member, s.before(), s.Replicas))
		}
		return true
	case isStale:
		o.stale = true
	case isRefused:
		o.refused[s.Member] = frame.AtMost(longestComplaint, err.Error())
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
	case frame.IsRefused(err):
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

// act carries out the steps: first those that lower, then the others, as far as those that failed leave room. If a read is out of date, the others wait for the next look.
func (r *reconciler) act(ctx context.Context, v *view) *outcome {
	o := &outcome{refused: map[string]string{}}
	kept := r.all(ctx, v.frs, v.lower, o)
	if rest, err := r.afford(v, kept); err != nil {
		o.err = errors.Join(o.err, err)
	} else if !o.stale {
		r.all(ctx, v.frs, rest, o)
	}
	r.tell(ctx, v.frs, o)
	return o
}

// afford are the steps that do not lower, with so many replicas less as others keep.
func (r *reconciler) afford(v *view, kept int64) ([]step, error) {
	if kept == 0 {
		return v.rest, nil
	}
	raises := make([]int32, len(v.rest))
	for i := range v.rest {
		raises[i] = max(v.rest[i].Replicas-v.rest[i].before(), 0)
	}
	allocation.Afford(raises, kept)
	was := r.appliedOf(client.ObjectKeyFromObject(v.frs))
	var rest []step
	for i, s := range v.rest {
		if n := s.before() + raises[i]; n < s.Replicas {
			s.Replicas = n
			if !s.Leaving {
				var err error
				if s.rendered, err = render(v.policy, n, v.frs.UID); err != nil {
					return nil, err
				}
			}
			if s.Local == nil && n == 0 || isDone(&s, v.frs.UID, was) {
				continue
			}
		}
		rest = append(rest, s)
	}
	return rest, nil
}

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
	for i, end := range r.writing.Each(ctx, errands, func(ctx context.Context, i int) end {
		err := r.write(ctx, key, &steps[i])
		is := steps[i].resultOf(err)
		r.measures.wrote(steps[i].operation(), is)
		return end{&steps[i], r.patient(failure{errands[i], false}, is), err}
	}) {
		if end == nil || !o.add(end) {
			kept += int64(max(steps[i].before()-steps[i].Replicas, 0))
		}
	}
	return kept
}

// end is how a write ended.
type end struct {
	step *step
	is   result
	err  error
}

// failure is what fails in a cluster.
type failure struct {
	members.Errand
	reads bool
}

// patient is a result, or a refusal if requests for a ReplicaSet have failed for too long: its cluster answers and cannot store anything, for instance. Then others get what is due there.
func (r *reconciler) patient(of failure, is result) result {
	if is != isFailed {
		r.failing.Delete(of)
		return is
	}
	now := r.clock.Now()
	if since, known := r.failing.LoadOrStore(of, now); known && now.Sub(since.(time.Time)) >= failsFor {
		return isRefused
	}
	return is
}

// write carries out one step. It fails if the ReplicaSet has changed since it was read.
func (r *reconciler) write(ctx context.Context, frs types.NamespacedName, s *step) error {
	to, err := r.members.Client(s.Member)
	if err != nil {
		return err
	}
	set := s.local.set
	switch s.operation() {
	case deleting:
		err := to.Delete(ctx, &appsv1.ReplicaSet{ObjectMeta: *set.DeepCopy()}, client.Preconditions{UID: &set.UID, ResourceVersion: &set.ResourceVersion}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		return client.IgnoreNotFound(err)
	case scaling:
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": set.UID, "resourceVersion": set.ResourceVersion}, "spec": map[string]any{"replicas": s.Replicas},
		})
		if err != nil {
			return err
		}
		err = to.Patch(ctx, &appsv1.ReplicaSet{ObjectMeta: *set.DeepCopy()}, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1alpha1.FieldManager))
		return err
	}
	object := s.object.DeepCopy()
	if set == nil {
		err = to.Create(ctx, object, client.FieldOwner(v1alpha1.FieldManager))
	} else {
		var version string
		if version, err = frame.UpgradeToApplied(ctx, to, &appsv1.ReplicaSet{ObjectMeta: *set}, v1alpha1.FieldManager); err != nil {
			return err
		}
		object.SetUID(set.UID)
		object.SetResourceVersion(version)
		err = to.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.ForceOwnership, client.FieldOwner(v1alpha1.FieldManager))
	}
	if err == nil {
		r.appliedOf(frs).Store(s.Member, applied{object.GetUID(), s.hash, object.GetGeneration()})
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
	r.events.Eventf(frs, nil, corev1.EventTypeNormal, v1alpha1.ReasonClusterScaled, "ScaleCluster", "scaled %s", frame.AtMost(900, all))
	klog.FromContext(ctx).V(2).Info("Scaled clusters", "federatedreplicaset", klog.KObj(frs), "clusters", all)
}
