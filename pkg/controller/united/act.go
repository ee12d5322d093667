package united

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
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

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
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

	mu sync.Mutex
	// applied are the children as they were applied last.
	applied map[childKey]applied
}

// applied is what was applied to a child, and the generation that it had afterwards. If the child has another generation, somebody has changed its spec.
type applied struct {
	object     [sha256.Size]byte
	generation int64
}

func newMemory(of types.UID) *memory {
	return &memory{uid: of, templates: map[string]*model.Template{}, applied: map[childKey]applied{}}
}

// keepOnly forgets children that do not exist any more.
func (m *memory) keepOnly(all []*child) {
	exist := sets.New[childKey]()
	for _, c := range all {
		exist.Insert(keyOf(&c.Child))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.applied {
		if !exist.Has(key) {
			delete(m.applied, key)
		}
	}
}

func (m *memory) remember(key childKey, a applied) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applied[key] = a
}

func (m *memory) was(key childKey, a applied) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.applied[key] == a
}

// step is a child that is not as wanted.
type step struct {
	model.Wanted
	// in is the cluster while it is written.
	in *cluster
	// child is nil if it is to be created.
	child *child
	// object is what is applied. Nil if only replicas are written, or the child is deleted.
	object *unstructured.Unstructured
	hash   [sha256.Size]byte
}

// steps are what the plan asks for, without the children that are as wanted.
func (r *reconciler) steps(ctx context.Context, ud *v1beta1.UnitedDeployment, policy *model.Policy, plan *model.Plan, found *children, m *memory) (lower, rest []step, _ error) {
	byKey := map[childKey]*child{}
	for _, c := range found.all {
		byKey[keyOf(&c.Child)] = c
	}
	for _, wanted := range plan.Children {
		s := step{Wanted: wanted}
		if wanted.Child != nil {
			s.child = byKey[keyOf(wanted.Child)]
		}
		if !s.ReplicasOnly {
			if err := r.render(ctx, &s, ud, policy, m); err != nil {
				return nil, nil, err
			}
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
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	s.object, s.hash = &unstructured.Unstructured{Object: content}, sha256.Sum256(text)
	return nil
}

// isDone is true if the child is as wanted, or nothing can be done now.
func (s *step) isDone(m *memory) bool {
	switch {
	case s.child == nil:
		return false
	case s.Delete:
		return s.child.left > 0 || s.child.status.replicas > 0 || s.child.status.observed < s.child.object.GetGeneration()
	case s.ReplicasOnly:
		return s.Replicas == s.child.Replicas && s.Trial == s.child.Trial
	default:
		return s.Trial == s.child.Trial && m.was(keyOf(&s.child.Child), applied{s.hash, s.child.object.GetGeneration()}) &&
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

// outcome of all writes.
type outcome struct {
	mu sync.Mutex
	// refused are messages for the user: the API server does not accept a child.
	refused []string
	// stale is true if something has changed since it was read.
	stale bool
	err   error
}

// add counts the result of a write. It is false if the write failed.
func (o *outcome) add(s *step, err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		return true
	case isStale(err):
		o.stale = true
	case isRefused(err):
		message := err.Error()
		if s.Cluster != "" {
			message = frame.AtMost(longestComplaint, message)
		}
		o.refused = append(o.refused, s.subset()+": "+message)
	default:
		o.err = errors.Join(o.err, fmt.Errorf("writing the child of subset %s: %w", s.subset(), err))
	}
	return false
}

// isStale is true for an error that says that the plan is out of date.
func isStale(err error) bool {
	return endsWithNamespace(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsGone(err)
}

// endsWithNamespace is true for an error that says that the namespace is being deleted, and everything in it.
func endsWithNamespace(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// isRefused is true if the same request will be refused again, until the user or somebody else changes something.
func isRefused(err error) bool {
	var known *inTheWay
	if errors.As(err, &known) {
		return true
	}
	return !isStale(err) && frame.IsRefused(err)
}

// act carries out the steps: first those that lower, then the others, as far as those that failed leave room, in each cluster slowly at first. If a read is out of date, the others wait for the next look.
func (r *reconciler) act(ctx context.Context, v *view, m *memory) *outcome {
	o, ud := &outcome{}, v.ud
	kept := int64(0)
	for _, s := range r.all(ctx, ud, v.lower, m, o) {
		kept += int64(max(s.before()-s.Replicas, 0))
	}
	if o.stale {
		return o
	}
	rest, err := r.afford(ctx, v, kept, m)
	if err != nil {
		o.err = errors.Join(o.err, err)
		return o
	}
	byCluster := map[string][]step{}
	for _, s := range rest {
		byCluster[s.Cluster] = append(byCluster[s.Cluster], s)
	}
	var writing sync.WaitGroup
	for _, steps := range byCluster { // none waits for another one
		writing.Go(func() { r.slowly(ctx, ud, steps, m, o) })
	}
	writing.Wait()
	return o
}

// afford are the steps that do not lower, with so many replicas less as others keep.
func (r *reconciler) afford(ctx context.Context, v *view, kept int64, m *memory) ([]step, error) {
	if kept == 0 {
		return v.rest, nil
	}
	raises := make([]int32, len(v.rest))
	for i := range v.rest {
		raises[i] = max(v.rest[i].Replicas-v.rest[i].before(), 0)
	}
	allocation.Afford(raises, kept)
	var rest []step
	for i, s := range v.rest {
		if less := s.Replicas - s.before() - raises[i]; less > 0 {
			s.Replicas, s.Trial = s.Replicas-less, max(s.Trial-less, 0)
			if !s.ReplicasOnly {
				if err := r.render(ctx, &s, v.ud, v.policy, m); err != nil {
					return nil, err
				}
			}
			if s.isDone(m) {
				continue
			}
		}
		rest = append(rest, s)
	}
	return rest, nil
}

// before is how many replicas the child asks for before the step.
func (s *step) before() int32 {
	if s.child == nil {
		return 0
	}
	return s.child.Replicas
}

// slowly carries out steps until one fails.
func (r *reconciler) slowly(ctx context.Context, ud *v1beta1.UnitedDeployment, steps []step, m *memory, o *outcome) {
	for size := 1; len(steps) > 0; size *= 2 {
		batch := steps[:min(size, len(steps))]
		if steps = steps[len(batch):]; len(r.all(ctx, ud, batch, m, o)) > 0 {
			return
		}
	}
}

// all carries out steps at the same time. It returns those that failed.
func (r *reconciler) all(ctx context.Context, ud *v1beta1.UnitedDeployment, steps []step, m *memory, o *outcome) (failed []step) {
	done := make([]bool, len(steps))
	var writing errgroup.Group
	writing.SetLimit(concurrentWrites)
	for i := range steps {
		writing.Go(func() error {
			done[i] = r.write(ctx, ud, &steps[i], m, o)
			return nil
		})
	}
	_ = writing.Wait() // no step returns an error: the outcome has them
	for i := range steps {
		if !done[i] {
			failed = append(failed, steps[i])
		}
	}
	return failed
}

// write carries out one step. If the API server refuses the object of an existing child, its replicas are still written: a template that is not valid does
// not keep anybody from scaling.
func (r *reconciler) write(ctx context.Context, ud *v1beta1.UnitedDeployment, s *step, m *memory, o *outcome) bool {
	var err error
	if s.in, err = r.cluster(s.Cluster); err != nil {
		return o.add(s, err)
	}
	if s.Cluster != "" {
		within, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		ctx = within
	}
	switch {
	case s.child == nil:
		return o.add(s, r.create(ctx, ud, s, m))
	case s.Delete:
		return o.add(s, r.delete(ctx, ud, s))
	case s.ReplicasOnly:
		return o.add(s, r.again(ctx, ud, s, func() error { return r.scale(ctx, ud, s) }))
	}
	err = r.again(ctx, ud, s, func() error { return r.apply(ctx, ud, s, m) })
	if o.add(s, err) {
		return true
	}
	return isRefused(err) && s.Replicas != s.child.Replicas && o.add(s, r.scale(ctx, ud, s))
}

// attempts bounds how often a child is written again because somebody else wrote to it at the same time.
const attempts = 5

// again repeats a write that came too late, as long as only metadata or the status of the child has changed. The plan still holds then: it goes by the spec. Without
// this, somebody who often writes an annotation could keep a child from being scaled for long.
func (r *reconciler) again(ctx context.Context, ud *v1beta1.UnitedDeployment, s *step, write func() error) error {
	for attempt := 1; ; attempt++ {
		err := write()
		if !apierrors.IsConflict(err) || attempt == attempts {
			return err
		}
		now := s.child.object.DeepCopyObject().(client.Object)
		if s.in.live.Get(ctx, client.ObjectKeyFromObject(now), now) != nil || now.GetUID() != s.child.UID || now.GetGeneration() != s.child.object.GetGeneration() ||
			!s.in.owns(now, ud) || !now.GetDeletionTimestamp().IsZero() {
			return err
		}
		s.child.object = now
	}
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

// create makes a child, unless an object of its name exists. Server-side apply would change that object instead.
func (r *reconciler) create(ctx context.Context, ud *v1beta1.UnitedDeployment, s *step, m *memory) error {
	object := s.object.DeepCopy()
	err := s.in.client.Create(ctx, object, client.FieldOwner(v1beta1.FieldManager))
	switch {
	case apierrors.IsAlreadyExists(err):
		err = r.explain(ctx, ud, s, err)
	case s.Cluster != "" && apierrors.IsNotFound(err):
		err = &inTheWay{fmt.Sprintf("namespace %s does not exist there; create it", ud.Namespace)}
	}
	r.measures.wrote(creating, err)
	if err == nil {
		m.remember(childKey{s.Cluster, object.GetUID()}, applied{s.hash, object.GetGeneration()})
		childCreated(s).Send(r.events, ud, nil)
		klog.FromContext(ctx).V(2).Info("Created a child", "uniteddeployment", klog.KObj(ud), "child", s.object.GetName(), "replicas", s.Replicas)
	}
	return err
}

// explain says who has the name of a child. It returns the error if that is a child of the UnitedDeployment, which was made or is being deleted.
func (r *reconciler) explain(ctx context.Context, ud *v1beta1.UnitedDeployment, s *step, exists error) error {
	other := &metav1.PartialObjectMetadata{}
	other.SetGroupVersionKind(s.object.GroupVersionKind())
	if err := s.in.live.Get(ctx, client.ObjectKeyFromObject(s.object), other); err != nil {
		return err
	}
	if s.in.owns(other, ud) {
		return exists
	}
	return &inTheWay{fmt.Sprintf("%s %s exists and is no child of this UnitedDeployment; delete it, or give the subset another name", s.object.GetKind(), other.Name)}
}

// inTheWay is why a child cannot be made until somebody does something about it: another object has its name, or there is no namespace for it.
type inTheWay struct{ message string }

func (i *inTheWay) Error() string { return i.message }

// apply makes a child as it is wanted. It fails if the child has changed since it was read.
func (r *reconciler) apply(ctx context.Context, ud *v1beta1.UnitedDeployment, s *step, m *memory) error {
	before := s.child.object
	version, err := frame.UpgradeToApplied(ctx, s.in.client, before, v1beta1.FieldManager)
	if err != nil {
		return err
	}
	object := s.object.DeepCopy()
	object.SetUID(before.GetUID())
	object.SetResourceVersion(version)
	err = s.in.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.ForceOwnership, client.FieldOwner(v1beta1.FieldManager))
	r.measures.wrote(applying, err)
	if err != nil {
		return err
	}
	if _, tried := object.GetAnnotations()[v1beta1.TrialAnnotation]; tried && s.Trial == 0 { // somebody else has set it too
		s.child.object = object
		if err := r.scale(ctx, ud, s); err != nil {
			return err
		}
	}
	m.remember(childKey{s.Cluster, object.GetUID()}, applied{s.hash, object.GetGeneration()})
	for _, n := range childApplied(s) {
		n.Send(r.events, ud, nil)
	}
	if object.GetGeneration() != before.GetGeneration() {
		klog.FromContext(ctx).V(2).Info("Wrote a child", "uniteddeployment", klog.KObj(ud), "child", object.GetName(), "replicas", s.Replicas, "revision", s.Revision)
	}
	return nil
}

// scale writes only the replicas and the trial of a child. It fails if the child has changed since it was read.
func (r *reconciler) scale(ctx context.Context, ud *v1beta1.UnitedDeployment, s *step) error {
	before := s.child.object
	trial := any(nil)
	if s.Trial > 0 {
		trial = strconv.Itoa(int(s.Trial))
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"uid": before.GetUID(), "resourceVersion": before.GetResourceVersion(), "annotations": map[string]any{v1beta1.TrialAnnotation: trial},
		},
		"spec": map[string]any{"replicas": s.Replicas},
	})
	if err != nil {
		return err
	}
	err = s.in.client.Patch(ctx, before.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1beta1.FieldManager))
	r.measures.wrote(scaling, err)
	if err == nil && s.Replicas != s.child.Replicas {
		childScaled(s).Send(r.events, ud, nil)
		klog.FromContext(ctx).V(2).Info("Scaled a child", "uniteddeployment", klog.KObj(ud), "child", before.GetName(), "replicas", s.Replicas)
	}
	return err
}

// delete deletes a child without pods. It fails if the child has changed since it was read.
func (r *reconciler) delete(ctx context.Context, ud *v1beta1.UnitedDeployment, s *step) error {
	object := s.child.object.DeepCopyObject().(client.Object)
	uid, version := object.GetUID(), object.GetResourceVersion()
	err := s.in.client.Delete(ctx, object, client.Preconditions{UID: &uid, ResourceVersion: &version}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	r.measures.wrote(deleting, err)
	if err == nil {
		childDeleted(s).Send(r.events, ud, nil)
		klog.FromContext(ctx).V(2).Info("Deleted a child", "uniteddeployment", klog.KObj(ud), "child", object.GetName())
	}
	return err
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
func (r *reconciler) writePods(is operation, n int, pod func(int) *model.Pod, write func(int, *corev1.Pod) error) error {
	var writing errgroup.Group
	writing.SetLimit(concurrentWrites)
	for i := range n {
		of := pod(i)
		writing.Go(func() error {
			err := write(i, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name}})
			if r.measures.wrote(is, err); err != nil && !isStale(err) {
				return fmt.Errorf("writing pod %s (%s): %w", of.Name, is, err)
			}
			return nil
		})
	}
	return writing.Wait()
}
