package lineage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// Template is what a pod was made from, as far as its controller is of a built-in kind. Nil if that is not known.
func (s *Snapshot) Template(pod *corev1.Pod) *corev1.PodTemplateSpec {
	owner := workload.ControllerOf(pod)
	if owner == nil {
		return nil
	}
	object, _ := s.Owner(pod.Namespace, *owner)
	return workload.Template(object)
}

// Replacement is the pod that would be made in place of one that goes, as it would be in a subset of its spread, or
// without one: a copy without its node, with what the subset wants. It is what admission would make as far as the pod
// itself shows that: what others have added to the pod is in the copy too. The error says why the pod is not known.
func (s *Snapshot) Replacement(pod *corev1.Pod, policy *subset.Policy, spread string, in int) (*corev1.Pod, error) {
	made := pod.DeepCopy()
	from, admitted := policy.AdmittedTo(subset.AdmittedOf(pod), spread)
	if admitted || policy.BindsEarly() {
		if admitted && from != subset.None && policy.Subsets[from].Patch != nil {
			template := s.Template(pod)
			if template == nil {
				return nil, errors.New("its template is not known")
			}
			bare := podFrom(template, pod.Namespace)
			patched, err := policy.Subsets[from].Patch.Apply(bare)
			if err != nil {
				return nil, err
			}
			keepOthers(bare, made, patched)
			made = bare
		}
		note := v1beta1.AdmittedSubset{Name: spread, Subset: policy.Subset(in).Name}
		bound, err := policy.BindEarly(made, in, note, nil)
		if err != nil {
			return nil, err
		}
		made = bound
	} else if template := s.Template(pod); template != nil && pod.Generation > 1 { // somebody may have resized it
		resizeTo(made.Spec.Containers, template.Spec.Containers)
		resizeTo(made.Spec.InitContainers, template.Spec.InitContainers)
	}
	made.Name, made.UID, made.ResourceVersion = pod.Name+"-again", pod.UID+"-again", ""
	made.Spec.NodeName, made.Status = "", corev1.PodStatus{}
	made.CreationTimestamp, made.DeletionTimestamp = metav1.Time{}, nil
	constraints := &policy.Constraints
	if in != subset.None {
		constraints = &policy.Subsets[in].Constraints
	}
	constraints.AddTo(made)
	return made, nil
}

// keepOthers adds to a pod of the template what others have added to a pod that exists: what the template with the
// patch of its subset does not have.
func keepOthers(bare, pod, patched *corev1.Pod) {
	labels := bare.Labels
	bare.ObjectMeta = pod.ObjectMeta
	bare.Labels = others(labels, pod.Labels, patched.Labels)
	spec, is, had := &bare.Spec, &pod.Spec, &patched.Spec
	spec.NodeSelector = others(spec.NodeSelector, is.NodeSelector, had.NodeSelector)
	container := func(c corev1.Container) string { return c.Name }
	spec.Containers = append(spec.Containers, without(is.Containers, had.Containers, container)...)
	spec.InitContainers = append(spec.InitContainers, without(is.InitContainers, had.InitContainers, container)...)
	spec.Volumes = append(spec.Volumes, without(is.Volumes, had.Volumes, func(v corev1.Volume) string { return v.Name })...)
	spec.Tolerations = append(spec.Tolerations, without(is.Tolerations, had.Tolerations, func(t corev1.Toleration) string { return fmt.Sprint(t.Key, t.Operator, t.Value, t.Effect) })...)
	spec.Priority, spec.Overhead = is.Priority, is.Overhead // BindEarly clears them if the patch of the other subset changes their classes
}

// others are own, with those of all that had lacks.
func others(own, all, had map[string]string) map[string]string {
	kept := maps.Clone(all)
	maps.DeleteFunc(kept, func(key, _ string) bool {
		_, found := had[key]
		return found
	})
	if kept == nil {
		return own
	}
	maps.Copy(kept, own)
	return kept
}

// without are those of all whose key none in had has.
func without[T any](all, had []T, key func(T) string) (left []T) {
	for _, one := range all {
		if !slices.ContainsFunc(had, func(other T) bool { return key(other) == key(one) }) {
			left = append(left, one)
		}
	}
	return left
}

// resizeTo gives containers the amounts that those of the same name have. Others stay: a LimitRange or a webhook has
// given them, and will again.
func resizeTo(containers, as []corev1.Container) {
	for i := range containers {
		for j := range as {
			if containers[i].Name == as[j].Name {
				maps.Copy(containers[i].Resources.Requests, as[j].Resources.Requests)
				maps.Copy(containers[i].Resources.Limits, as[j].Resources.Limits)
			}
		}
	}
}

// podFrom is a pod as a template describes it, without a name.
func podFrom(template *corev1.PodTemplateSpec, namespace string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Namespace = namespace
	return pod
}

// NewPod is a pod as the workload would make it now, without a name: of the present revision, and owned by the object
// that makes such pods. For a kind that is not built in its template is read from spec.template, by one request.
func (s *Snapshot) NewPod(ctx context.Context, spread *v1beta1.WorkloadSpread) (*corev1.Pod, error) {
	target := workload.TargetOf(spread)
	object, builtIn := s.Owner(spread.Namespace, target)
	template := workload.Template(object)
	switch {
	case template != nil:
	case builtIn:
		return nil, fmt.Errorf("%s %s/%s does not exist", target.Kind.Kind, spread.Namespace, target.Name)
	default:
		var err error
		if template, err = s.readTemplate(ctx, spread); err != nil {
			return nil, err
		}
		if object, err = s.Lineage.Read(ctx, spread.Namespace, target); err != nil {
			return nil, err
		}
	}
	pod, maker := podFrom(template, spread.Namespace), object
	switch o := object.(type) {
	case *appsv1.Deployment:
		if newest := s.newestReplicaSet(o); newest != nil {
			maker, target.Kind = newest, ReplicaSet
			if hash, found := newest.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; found {
				metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.DefaultDeploymentUniqueLabelKey, hash)
			}
		}
	case *appsv1.StatefulSet:
		if o.Status.UpdateRevision != "" {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.ControllerRevisionHashLabelKey, o.Status.UpdateRevision)
		}
	}
	if maker != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(maker, target.Kind.WithVersion("v1"))}
	}
	return pod, nil
}

// newestReplicaSet is that of a Deployment's last revision. Nil if it has none.
func (s *Snapshot) newestReplicaSet(of *appsv1.Deployment) (newest *appsv1.ReplicaSet) {
	for _, object := range s.owners[ReplicaSet] {
		rs := object.(*appsv1.ReplicaSet)
		if !metav1.IsControlledBy(rs, of) {
			continue
		}
		if newest == nil || workload.CompareRevisions(rs, newest) > 0 {
			newest = rs
		}
	}
	return newest
}

func (s *Snapshot) readTemplate(ctx context.Context, spread *v1beta1.WorkloadSpread) (*corev1.PodTemplateSpec, error) {
	ref := spread.Spec.TargetReference
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
	if err := s.live.Get(ctx, client.ObjectKey{Namespace: spread.Namespace, Name: ref.Name}, object); err != nil {
		return nil, fmt.Errorf("reading %s %s/%s: %w", ref.Kind, spread.Namespace, ref.Name, err)
	}
	template := workload.Template(object)
	if template == nil {
		return nil, fmt.Errorf("%s %s/%s has no pod template at spec.template", ref.Kind, spread.Namespace, ref.Name)
	}
	return template, nil
}
