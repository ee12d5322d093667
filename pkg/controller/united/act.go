package united

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
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
	uid types.UID
	// policy is the compiled spec of a generation, or nil if it is not valid. invalid then says why.
	policy     *model.Policy
	invalid    field.ErrorList
	generation int64
	// seen is when the generation was first seen.
	seen time.Time
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

func newMemory(of types.UID) *memory {
	return &memory{uid: of, templates: map[string]*model.Template{}}
}

// keepOnly forgets children that do not exist any more.
func (m *memory) keepOnly(all []*child) {
	exist := sets.New[apply.Key]()
	for _, c := range all {
		exist.Insert(keyOf(&c.Child))
	}
	m.applied.Keep(exist.Has)
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
	s.hash, err = apply.HashOf(content)
	return err
}

// isDone is true if the child is as wanted, or nothing can be done now.
func (s *step) isDone(m *memory) bool {
	switch {
	case s.child == nil:
		return false
	case s.Delete:
		return s.child.left > 0 || s.child.status.replicas > 0 || !s.child.Observed
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

// outcome of writes.
type outcome struct {
	mu sync.Mutex
	// refused are messages for the user: the API server does not accept a child.
	refused []string
	// kept is how many replicas stay because writes that were to lower them failed, or have not ended.
	kept int64
	// stale is true if something has changed since it was read.
	stale bool
	err   error
}

// add counts the result of a write. It is false if the write failed.
func (r *reconciler) add(o *outcome, ud *v1beta1.UnitedDeployment, s *step, err error) bool {
	is := apply.ResultOf(err)
	if s.Cluster != "" {
		is = r.Patient(errandOf(ud, s.Cluster), false, is, r.clock.Now())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch is {
	case apply.Written:
		return true
	case apply.Stale:
		o.stale = true
	case apply.Refused:
		message := err.Error()
		if s.Cluster != "" {
			message = apply.Complaint(err)
		}
		o.refused = append(o.refused, s.subset()+": "+message)
	default:
		o.err = errors.Join(o.err, fmt.Errorf("writing the child of subset %s: %w", s.subset(), err))
	}
	return false
}

// join adds what has come of writes in another cluster.
func (o *outcome) join(other *outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refused, o.kept, o.stale, o.err = append(o.refused, other.refused...), o.kept+other.kept, o.stale || other.stale, errors.Join(o.err, other.err)
}

// act carries out the steps: first those that lower, then the others, as far as those that failed leave room, in each cluster slowly at first. If a read is out of date, the others wait for the next look.
func (r *reconciler) act(ctx context.Context, v *view, m *memory) *outcome {
	o, ud := &outcome{}, v.ud
	everywhere(ctx, r, ud, v.lower, o, func(ctx context.Context, steps []step, o *outcome) { r.all(ctx, ud, steps, m, o) })
	if o.stale {
		return o
	}
	rest, err := apply.Afford(v.rest, o.kept, (*step).raise, func(by int32, s *step) (bool, error) {
		s.Replicas, s.Trial = s.Replicas-by, max(s.Trial-by, 0)
		err := r.render(ctx, s, ud, v.policy, m)
		return err == nil && !s.isDone(m), err
	})
	if err != nil {
		o.err = errors.Join(o.err, err)
		return o
	}
	everywhere(ctx, r, ud, rest, o, func(ctx context.Context, steps []step, o *outcome) { r.slowly(ctx, ud, steps, m, o) })
	return o
}

// placed is something in a cluster.
type placed interface {
	in() string
	// keeps is how many replicas stay if nothing is done.
	keeps() int64
}

// everywhere does something in all clusters at the same time. It does not wait for a slow one; see lateWrites.
func everywhere[T placed](ctx context.Context, r *reconciler, ud *v1beta1.UnitedDeployment, all []T, o *outcome, do func(context.Context, []T, *outcome)) {
	byCluster, errands := map[string][]T{}, []members.Errand(nil)
	for _, one := range all {
		if in := one.in(); in != "" && byCluster[in] == nil {
			errands = append(errands, errandOf(ud, in))
		}
		byCluster[one.in()] = append(byCluster[one.in()], one)
	}
	var here sync.WaitGroup
	here.Go(func() { do(ctx, byCluster[""], o) })
	for i, end := range r.Writing.Each(ctx, errands, func(ctx context.Context, i int) *outcome {
		o := &outcome{}
		do(ctx, byCluster[errands[i].Member], o)
		return o
	}) {
		if end != nil {
			o.join(*end)
			continue
		}
		for _, one := range byCluster[errands[i].Member] {
			o.join(&outcome{kept: one.keeps()})
		}
	}
	here.Wait()
}

func errandOf(ud *v1beta1.UnitedDeployment, cluster string) members.Errand {
	return members.Errand{Object: client.ObjectKeyFromObject(ud), Member: cluster}
}

// lateWrites is how writes ended for which an earlier pass did not wait. Nil if there are none.
func (r *reconciler) lateWrites(ud *v1beta1.UnitedDeployment) (o *outcome) {
	if r.members == nil {
		return nil
	}
	for _, status := range r.members.List() {
		if end := r.Writing.Late(errandOf(ud, status.Name)); end != nil {
			if o == nil {
				o = &outcome{}
			}
			o.join(*end)
		}
	}
	return o
}

func (s step) in() string   { return s.Cluster }
func (s step) keeps() int64 { return int64(max(-s.raise(), 0)) }

// raise is how many replicas more the child is asked for by the step.
func (s *step) raise() int32 {
	if s.child == nil {
		return s.Replicas
	}
	return s.Replicas - s.child.Replicas
}

// slowly carries out steps until one fails.
func (r *reconciler) slowly(ctx context.Context, ud *v1beta1.UnitedDeployment, steps []step, m *memory, o *outcome) {
	for size := 1; len(steps) > 0; size *= 2 {
		batch := steps[:min(size, len(steps))]
		if steps = steps[len(batch):]; !r.all(ctx, ud, batch, m, o) {
			return
		}
	}
}

// all carries out steps at the same time. It is false if one failed.
func (r *reconciler) all(ctx context.Context, ud *v1beta1.UnitedDeployment, steps []step, m *memory, o *outcome) bool {
	var failed atomic.Bool
	var writing errgroup.Group
	writing.SetLimit(concurrentWrites)
	for i := range steps {
		writing.Go(func() error {
			if !r.write(ctx, ud, &steps[i], m, o) {
				failed.Store(true)
				o.join(&outcome{kept: steps[i].keeps()})
			}
			return nil
		})
	}
	_ = writing.Wait() // no step returns an error: the outcome has them
	return !failed.Load()
}

// write carries out one step. If the API server refuses the object of an existing child, its replicas are still written: a template that is not valid does
// not keep anybody from scaling.
func (r *reconciler) write(ctx context.Context, ud *v1beta1.UnitedDeployment, s *step, m *memory, o *outcome) bool {
	in, err := r.cluster(s.Cluster)
	if err != nil {
		return r.add(o, ud, s, err)
	}
	w := &apply.Step{
		In: in.client, Live: in.live, Wanted: s.object, Replicas: s.Replicas, Annotations: map[string]any{v1beta1.TrialAnnotation: nil}, Delete: s.Delete, Manager: v1beta1.FieldManager,
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
		m.applied.Remember(s.Cluster, object, s.hash)
	}
	if r.add(o, ud, s, err) {
		return true
	}
	if operation != apply.Apply || apply.ResultOf(err) != apply.Refused || s.raise() == 0 {
		return false
	}
	w.Wanted = nil
	_, err = r.do(ctx, ud, s, w)
	return r.add(o, ud, s, err)
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
func (r *reconciler) label(ctx context.Context, labels []model.Label) error {
	return r.writePods(labelling, len(labels), func(i int) *model.Pod { return &labels[i].Pod }, func(i int, to *corev1.Pod) error {
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"labels":{%q:%q}}}`, labels[i].Pod.UID, v1beta1.ReservedPodLabel, strconv.FormatBool(labels[i].Reserved))
		return r.client.Patch(ctx, to, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1beta1.FieldManager))
	})
}

// replace deletes pods that a StatefulSet waits for in vain.
func (r *reconciler) replace(ctx context.Context, ud *v1beta1.UnitedDeployment, pods []model.Pod) error {
	return r.writePods(replacing, len(pods), func(i int) *model.Pod { return &pods[i] }, func(i int, to *corev1.Pod) error {
		if err := r.client.Delete(ctx, to, client.Preconditions{UID: &pods[i].UID}); err != nil {
			return err
		}
		podReplaced(&pods[i]).Send(r.events, ud, nil)
		klog.FromContext(ctx).V(2).Info("Deleted a pod that its StatefulSet waits for in vain", "uniteddeployment", klog.KObj(ud), "pod", pods[i].Name)
		return nil
	})
}

// writePods writes n pods. One that is gone is left out, and the plan comes again.
func (r *reconciler) writePods(is apply.Operation, n int, pod func(int) *model.Pod, write func(int, *corev1.Pod) error) error {
	var writing errgroup.Group
	writing.SetLimit(concurrentWrites)
	for i := range n {
		of := pod(i)
		writing.Go(func() error {
			err := write(i, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name}})
			if r.measures.wrote(is, err); apply.ResultOf(err) != apply.Written && apply.ResultOf(err) != apply.Stale {
				return fmt.Errorf("writing pod %s (%s): %w", of.Name, is, err)
			}
			return nil
		})
	}
	return writing.Wait()
}
