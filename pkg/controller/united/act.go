package united

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/members"
	model "github.com/berth-project/berth/pkg/united"
)

// concurrentWrites is how many children or pods of a UnitedDeployment are written at a time.
const concurrentWrites = 8

// memory is what the controller remembers of a UnitedDeployment. It only saves requests. Without it everything is read, and applied once more.
type memory struct {
	// policy is the compiled spec of a generation, or nil if it is not valid. invalid then says why.
	policy     *model.Policy
	invalid    field.ErrorList
	generation int64
	// revision is the name of the ControllerRevision of the latest template. It exists. hash is that of the template.
	revision, hash string
	// templates of other revisions, by name.
	templates map[string]*model.Template
	// clusters are the other ones where the last look into the caches found children.
	clusters []string
	// pruned says for which state the ControllerRevisions were pruned last.
	pruned string

	// applied are the children as they were applied last.
	applied apply.Memory
}

// step is a child that is not as wanted.
type step struct {
	model.Wanted
	// child is nil if it is to be created.
	child *child
	// object is what is applied. Nil if only replicas are written, or the child is deleted.
	object *unstructured.Unstructured
	hash   apply.Hash
}

// steps are what the plan asks for, without the children that are as wanted.
func (r *reconciler) steps(ctx context.Context, ud *v1beta1.UnitedDeployment, policy *model.Policy, plan *model.Plan, found *children, m *memory) (lower, rest []step, _ error) {
	byKey := map[apply.Key]*child{}
	for _, c := range found.all {
		byKey[keyOf(&c.Child)] = c
	}
	for _, wanted := range plan.Children {
		if wanted.Late {
			continue
		}
		s := step{Wanted: wanted}
		if wanted.Child != nil {
			s.child = byKey[keyOf(wanted.Child)]
		}
		if err := r.render(ctx, &s, ud, policy, m); err != nil {
			return nil, nil, err
		}
		switch {
		case s.isDone(m):
		case s.child == nil && found.isEnding(&s): // it is made when the previous one is gone, of which an event tells
		case s.child != nil && (s.ReplicasOnly || s.Replicas < s.child.Replicas):
			lower = append(lower, s)
		default:
			rest = append(rest, s)
		}
	}
	return lower, rest, nil
}

// render sets the object that is applied. There is none for a held child whose revision does not exist any more: only its replicas can be written.
func (r *reconciler) render(ctx context.Context, s *step, ud *v1beta1.UnitedDeployment, policy *model.Policy, m *memory) error {
	if s.ReplicasOnly {
		return nil
	}
	template := policy.Template
	if s.Held && s.Revision != m.revision {
		var err error
		if template, err = r.templateOf(ctx, ud, s.Revision, m); err != nil {
			return err
		}
		if template == nil || template.Kind != s.child.Kind {
			s.ReplicasOnly = true
			return nil
		}
	}
	content, err := policy.Render(s.Wanted, template, s.Revision, r.versionOf(template.Kind).GroupVersion().String(), ud)
	if err != nil {
		return fmt.Errorf("rendering the child of subset %s: %w", policy.Subsets[s.Subset].Name, err)
	}
	s.object = &unstructured.Unstructured{Object: content}
	s.hash = apply.HashOf(content)
	return nil
}

// isDone is true if the child is as wanted, or nothing can be done now.
func (s *step) isDone(m *memory) bool {
	switch {
	case s.child == nil:
		return false
	case s.Delete:
		return s.child.left > 0 || !s.child.Observed
	case s.ReplicasOnly:
		return s.Replicas == s.child.Replicas && s.Trial == s.child.Trial
	default:
		return s.Trial == s.child.Trial && m.applied.Has(s.Cluster, s.child.object, s.hash) &&
			contains(s.child.object.GetLabels(), s.object.GetLabels()) && contains(s.child.object.GetAnnotations(), s.object.GetAnnotations())
	}
}

func contains(all, some map[string]string) bool {
	for key, value := range some {
		if all[key] != value {
			return false
		}
	}
	return true
}

// act carries out the steps, several in a cluster at a time; see apply.Steps.
func (r *reconciler) act(ctx context.Context, v *view, m *memory) *apply.Outcome {
	return apply.Steps(ctx, &r.Remote, client.ObjectKeyFromObject(v.ud), v.lower, v.rest, func(by int32, s *step) (bool, error) {
		s.Replicas, s.Trial = s.Replicas-by, max(s.Trial-by, 0)
		err := r.render(ctx, s, v.ud, v.policy, m)
		return err == nil && !s.isDone(m), err
	}, func(ctx context.Context, steps []step, o *apply.Outcome) {
		var writing errgroup.Group
		writing.SetLimit(concurrentWrites)
		for i := range steps {
			writing.Go(func() error {
				if !r.write(ctx, v.ud, &steps[i], m, o) {
					o.Keep(steps[i])
				}
				return nil // the outcome has the error
			})
		}
		_ = writing.Wait()
	})
}

func errandOf(ud *v1beta1.UnitedDeployment, cluster string) members.Errand {
	return members.Errand{Object: client.ObjectKeyFromObject(ud), Member: cluster}
}

// In implements apply.Placed.
func (s step) In() string { return s.Cluster }

// Raise implements apply.Placed.
func (s step) Raise() int32 {
	if s.child == nil {
		return s.Replicas
	}
	return s.Replicas - s.child.Replicas
}

// write carries out one step. If the API server refuses the object of an existing child, its replicas are still written: a template that is not valid does
// not keep anybody from scaling.
func (r *reconciler) write(ctx context.Context, ud *v1beta1.UnitedDeployment, s *step, m *memory, o *apply.Outcome) bool {
	wrote := func(err error) bool { return r.Wrote(o, errandOf(ud, s.Cluster), s.subset(), err, r.clock.Now()) }
	in, err := r.cluster(s.Cluster)
	if err != nil {
		return wrote(err)
	}
	w := &apply.Step{
		In: in.client, Live: in.live, Strict: in.name != "", Wanted: s.object, Replicas: s.Replicas, Annotations: map[string]any{v1beta1.TrialAnnotation: nil}, Delete: s.Delete, Manager: v1beta1.FieldManager,
		Owns: func(object client.Object) bool { return in.owns(object, ud) },
	}
	if s.child != nil {
		w.Before = s.child.object
	}
	if s.Trial > 0 {
		w.Annotations[v1beta1.TrialAnnotation] = strconv.Itoa(int(s.Trial))
	}
	operation := w.Operation()
	object, err := r.do(ctx, ud, s, w)
	if apierrors.IsAlreadyExists(err) {
		err = r.explain(ctx, in, ud, s, err)
	}
	if err == nil && operation == apply.Apply && s.Trial == 0 && object.GetAnnotations()[v1beta1.TrialAnnotation] != "" { // somebody else has set it too
		w.Before, w.Wanted = object, nil
		object, err = r.do(ctx, ud, s, w)
	}
	if err == nil && s.object != nil {
		m.applied.Remember(s.Cluster, object, s.hash, operation)
	}
	if wrote(err) {
		return true
	}
	if operation != apply.Apply || apply.ResultOf(err) != apply.Refused || s.Raise() == 0 {
		return false
	}
	w.Wanted = nil
	_, err = r.do(ctx, ud, s, w)
	return wrote(err)
}

// do writes an object, and tells of it.
func (r *reconciler) do(ctx context.Context, ud *v1beta1.UnitedDeployment, s *step, w *apply.Step) (client.Object, error) {
	operation := w.Operation()
	object, err := w.Do(ctx)
	r.measures.wrote(operation, err)
	if err == nil {
		for _, n := range newsOfStep(s, operation) {
			n.Send(r.events, ud, nil)
		}
		klog.FromContext(ctx).V(2).Info("Wrote a child", "uniteddeployment", klog.KObj(ud), "child", object.GetName(), "operation", operation, "replicas", s.Replicas, "revision", s.Revision)
	}
	return object, err
}

// subset of the step, for messages.
func (s *step) subset() string {
	where := ""
	if s.Cluster != "" {
		where = " in cluster " + s.Cluster
	}
	if s.child != nil {
		return s.child.Subset + where
	}
	return s.object.GetLabels()[v1beta1.SubsetNameLabel] + where
}

// explain says who has the name of a child. It returns the error if that is a child of the UnitedDeployment, which was made or is being deleted.
func (r *reconciler) explain(ctx context.Context, in *cluster, ud *v1beta1.UnitedDeployment, s *step, exists error) error {
	other := &metav1.PartialObjectMetadata{}
	other.SetGroupVersionKind(s.object.GroupVersionKind())
	if err := in.live.Get(ctx, client.ObjectKeyFromObject(s.object), other); err != nil {
		return err
	}
	if in.owns(other, ud) {
		return exists
	}
	return &apply.Obstacle{Message: fmt.Sprintf("%s %s exists and is no child of this UnitedDeployment; delete it, or give the subset another name", s.object.GetKind(), other.Name)}
}

// label writes the labels of pods.
func (r *reconciler) label(ctx context.Context, pods []model.Pod) error {
	return r.writePods(labelling, pods, func(pod *model.Pod, to *corev1.Pod) error {
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"labels":{%q:%q}}}`, pod.UID, v1beta1.ReservedPodLabel, strconv.FormatBool(*pod.Reserved))
		return r.client.Patch(ctx, to, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1beta1.FieldManager))
	})
}

// replace deletes pods that a StatefulSet waits for in vain.
func (r *reconciler) replace(ctx context.Context, ud *v1beta1.UnitedDeployment, pods []model.Pod) error {
	return r.writePods(replacing, pods, func(pod *model.Pod, to *corev1.Pod) error {
		if err := r.client.Delete(ctx, to, client.Preconditions{UID: &pod.UID}); err != nil {
			return err
		}
		podReplaced(pod).Send(r.events, ud, nil)
		klog.FromContext(ctx).V(2).Info("Deleted a pod that its StatefulSet waits for in vain", "uniteddeployment", klog.KObj(ud), "pod", pod.Name)
		return nil
	})
}

// writePods writes pods. One that is gone is left out, and the plan comes again.
func (r *reconciler) writePods(is apply.Operation, pods []model.Pod, write func(*model.Pod, *corev1.Pod) error) error {
	var writing errgroup.Group
	writing.SetLimit(concurrentWrites)
	for i := range pods {
		writing.Go(func() error {
			pod := &pods[i]
			err := write(pod, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}})
			if r.measures.wrote(is, err); apply.ResultOf(err) != apply.Written && apply.ResultOf(err) != apply.Stale {
				return fmt.Errorf("writing pod %s (%s): %w", pod.Name, is, err)
			}
			return nil
		})
	}
	return writing.Wait()
}
