package united

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/sites"
	model "github.com/berth-project/berth/pkg/united"
	"github.com/berth-project/berth/pkg/workload"
)

// child is a child with the object that was read. The object may be shared, and must not be changed.
type child struct {
	model.Child
	object client.Object
	// left is how many pods it has, without those that have ended, by the cache or by its own status.
	left int32
}

// children are all children of a UnitedDeployment.
type children struct {
	all []*child
	// adoptable are objects without a controller that are like a child in all but the owner.
	adoptable []adoptable
	// clusters are the other ones, as far as they concern the UnitedDeployment. Children in those that do not answer are not known.
	clusters []sites.Cluster
	// late is true if a cluster has not answered yet.
	late bool
	// unwatchable is why the kind of the template cannot be read. Nil if it can.
	unwatchable *lineage.Unwatchable
}

// isEnding is true if the name of a child that is to be made belongs to one that is being deleted.
func (c *children) isEnding(s *step) bool {
	return slices.ContainsFunc(c.all, func(other *child) bool {
		return other.Deleting && other.Cluster == s.Cluster && other.Name == s.object.GetName() && other.Kind == s.object.GroupVersionKind().GroupKind()
	})
}

// adoptable is an object in a cluster.
type adoptable struct {
	cluster *cluster
	object  client.Object
}

// In implements apply.Placed.
func (a adoptable) In() string { return a.cluster.name }

// Raise implements apply.Placed.
func (a adoptable) Raise() int32 { return 0 }

func keyOf(c *model.Child) apply.Key { return apply.Key{Cluster: c.Cluster, UID: c.UID} }

// from says where children are read. Pods always come from the cache.
type from string

const (
	theCache  from = "cache"
	theServer from = "API server"
)

// childrenOf reads the children. It returns an error unless it has read all of those in the cluster of the UnitedDeployment.
func (r *reconciler) childrenOf(ctx context.Context, ud *v1beta1.UnitedDeployment, policy *model.Policy, from from, m *memory) (*children, error) {
	var found children
	here, err := r.cluster("")
	if err != nil {
		return nil, err
	}
	for _, kind := range []schema.GroupKind{model.DeploymentKind, model.StatefulSetKind, model.CloneSetKind, model.AdvancedStatefulSetKind} {
		unwatchable, err := r.owners.Watch(ctx, kind)
		if err != nil {
			return nil, err
		}
		if unwatchable == nil {
			err := r.readKind(ctx, here, kind, ud, policy, from, &found)
			// A list of no objects is no error. So a kind of OpenKruise is not served any more, and its objects are gone.
			if _, isBuiltIn := workload.BuiltIn(kind); apierrors.IsNotFound(err) && !isBuiltIn {
				unwatchable, err = &lineage.Unwatchable{Kind: kind, Why: lineage.NotServed}, nil
			}
			if err != nil {
				return nil, err
			}
		}
		// Of a kind that may not be listed there may be children, whose replicas would not count.
		if unwatchable != nil && (unwatchable.Why == lineage.Forbidden || policy.Template != nil && policy.Template.Kind == kind) {
			found.unwatchable = unwatchable
		}
	}
	r.readMembers(ctx, ud, policy, from, &found, m)
	return &found, nil
}

// readKind adds the children of a kind in a cluster.
func (r *reconciler) readKind(ctx context.Context, in *cluster, kind schema.GroupKind, ud *v1beta1.UnitedDeployment, policy *model.Policy, from from, found *children) error {
	mine, orphans, err := r.objectsOf(ctx, in, ud, kind, from)
	if err != nil {
		return fmt.Errorf("reading the children of kind %s: %w", kind, err)
	}
	for _, object := range mine {
		c, err := r.observe(ctx, in, object, kind)
		if err != nil {
			return err
		}
		found.all = append(found.all, c)
	}
	for _, object := range orphans {
		if policy.Template != nil && policy.Template.Kind == kind && isAdoptable(object, policy) {
			found.adoptable = append(found.adoptable, adoptable{in, object})
		}
	}
	return nil
}

// objectsOf are the objects of a kind in a cluster that are the UnitedDeployment's, and those that it may adopt.
func (r *reconciler) objectsOf(ctx context.Context, in *cluster, ud *v1beta1.UnitedDeployment, kind schema.GroupKind, from from) (mine, orphans []client.Object, err error) {
	_, isBuiltIn := workload.BuiltIn(kind)
	reader, options := in.live, []client.ListOption{client.InNamespace(ud.Namespace)}
	var list client.ObjectList = &unstructured.UnstructuredList{}
	if from == theCache { // it has the metadata of kinds that are not built in
		reader, list, options = in.cache, &metav1.PartialObjectMetadataList{}, append(options, client.UnsafeDisableDeepCopy)
	} else if in.name != "" {
		options = append(options, client.HasLabels{v1alpha1.HubLabel})
	}
	all, err := read(ctx, reader, r.newList(kind, list), options...)
	if err != nil {
		return nil, nil, err
	}
	for _, object := range all {
		if in.owns(object, ud) {
			mine = append(mine, object)
		} else if in.offers(object, ud) {
			orphans = append(orphans, object)
		}
	}
	if isBuiltIn || from == theServer {
		return mine, orphans, nil
	}
	if mine, err = r.wholeOf(ctx, mine, kind); err == nil {
		orphans, err = r.wholeOf(ctx, orphans, kind)
	}
	return mine, orphans, err
}

// read returns the objects of a list.
func read(ctx context.Context, reader client.Reader, list client.ObjectList, options ...client.ListOption) (all []client.Object, _ error) {
	if err := reader.List(ctx, list, options...); err != nil {
		return nil, err
	}
	err := meta.EachListItem(list, func(item runtime.Object) error {
		if object, is := item.(client.Object); is { // every item is
			all = append(all, object)
		}
		return nil
	})
	return all, err
}

// newList is an empty list of a kind. other is that of a kind that is not built in.
func (r *reconciler) newList(kind schema.GroupKind, other client.ObjectList) client.ObjectList {
	if builtIn, is := workload.BuiltIn(kind); is {
		return builtIn.NewList()
	}
	other.GetObjectKind().SetGroupVersionKind(r.versionOf(kind))
	return other
}

// versionOf is the version of a kind of children that Berth reads and writes.
func (r *reconciler) versionOf(kind schema.GroupKind) schema.GroupVersionKind {
	if _, is := workload.BuiltIn(kind); is {
		return kind.WithVersion("v1")
	}
	return r.owners.NewObject(kind).GetObjectKind().GroupVersionKind()
}

// wholeOf reads objects from the API server of which the cache has the metadata only.
func (r *reconciler) wholeOf(ctx context.Context, metadata []client.Object, kind schema.GroupKind) ([]client.Object, error) {
	var all []client.Object
	for _, m := range metadata {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(r.versionOf(kind))
		err := r.live.Get(ctx, client.ObjectKeyFromObject(m), object)
		if apierrors.IsNotFound(err) || err == nil && object.GetUID() != m.GetUID() {
			continue // its deletion has not arrived yet
		}
		if err != nil {
			return nil, err
		}
		all = append(all, object)
	}
	return all, nil
}

// childFields are what Berth reads of a child of any kind, besides its metadata, selector and template.
type childFields struct {
	Spec struct {
		Replicas        *int32 `json:"replicas"`
		MinReadySeconds int32  `json:"minReadySeconds"`
		// UpdateStrategy of a CloneSet has the partition in two places, by its version. That of a Deployment has another name, and no partition.
		UpdateStrategy struct {
			Partition     *intstr.IntOrString `json:"partition"`
			RollingUpdate struct {
				Partition *intstr.IntOrString `json:"partition"`
			} `json:"rollingUpdate"`
		} `json:"updateStrategy"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration int64              `json:"observedGeneration"`
		Replicas           int32              `json:"replicas"`
		UpdatedReplicas    int32              `json:"updatedReplicas"`
		AvailableReplicas  int32              `json:"availableReplicas"`
		Conditions         []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

func fieldsOf(object client.Object) (*childFields, error) {
	fields := &childFields{}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(content, fields)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the fields of %s: %w", object.GetName(), err)
	}
	return fields, nil
}

// isAdoptable is true for an object that selects the pods that a child of its subset selects. Only then it can become one: its selector cannot change.
func isAdoptable(object client.Object, policy *model.Policy) bool {
	wanted := metav1.AddLabelToSelector(policy.LabelSelector.DeepCopy(), v1beta1.SubsetNameLabel, object.GetLabels()[v1beta1.SubsetNameLabel])
	return object.GetDeletionTimestamp().IsZero() && equality.Semantic.DeepEqual(workload.LabelSelector(object), wanted)
}

// adopt makes objects children of the UnitedDeployment that it may adopt, as far as nobody has changed them.
func (r *reconciler) adopt(ctx context.Context, ud *v1beta1.UnitedDeployment, all []adoptable) error {
	o := &apply.Outcome{}
	apply.Everywhere(ctx, &r.Remote, client.ObjectKeyFromObject(ud), all, o, func(ctx context.Context, all []adoptable, o *apply.Outcome) {
		for _, a := range all {
			patch, err := json.Marshal(map[string]any{"metadata": a.cluster.claim(a.object, ud)})
			if err == nil {
				err = a.cluster.client.Patch(ctx, a.object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1beta1.FieldManager))
			}
			r.measures.wrote(adopting, err)
			switch {
			case err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err):
			case a.In() != "": // it must not keep the other clusters waiting
				klog.FromContext(ctx).Error(err, "Adopting an object in another cluster", "uniteddeployment", klog.KObj(ud), "cluster", a.In(), "object", a.object.GetName())
			default:
				o.Join(&apply.Outcome{Err: fmt.Errorf("adopting %s: %w", a.object.GetName(), err)})
			}
		}
	})
	return o.Err
}

// observe is what the model is told about a child.
func (r *reconciler) observe(ctx context.Context, in *cluster, object client.Object, kind schema.GroupKind) (*child, error) {
	fields, err := fieldsOf(object)
	if err != nil {
		return nil, err
	}
	labels, annotations, spec, status := object.GetLabels(), object.GetAnnotations(), &fields.Spec, &fields.Status
	trial, _ := strconv.ParseInt(annotations[v1beta1.TrialAnnotation], 10, 32) // 0 for what is not a number
	asked := ptr.Deref(spec.Replicas, 1)
	partition, _ := intstr.GetScaledValueFromIntOrPercent(cmp.Or(spec.UpdateStrategy.RollingUpdate.Partition, spec.UpdateStrategy.Partition), int(asked), true) // 0 for none
	c := &child{object: object, Child: model.Child{
		Kind: kind, Cluster: in.name, Name: object.GetName(), UID: object.GetUID(),
		Subset: labels[v1beta1.SubsetNameLabel], Revision: labels[v1beta1.RevisionLabel], PatchText: annotations[v1beta1.SubsetPatchAnnotation],
		PodOwner: workload.TemplateLabels(object)[v1beta1.OwnerLabel],
		Created:  object.GetCreationTimestamp().Time, Deleting: !object.GetDeletionTimestamp().IsZero(),
		Replicas: max(asked, 0), Partition: int32(partition), Trial: max(int32(trial), 0), ByOrdinal: workload.ByOrdinal(kind),
		MinReady: time.Duration(spec.MinReadySeconds) * time.Second, Observed: status.ObservedGeneration >= object.GetGeneration(),
	}}
	if selector := workload.LabelSelector(object); selector != nil && selector.MatchLabels[v1beta1.SubsetNameLabel] != "" {
		c.Subset = selector.MatchLabels[v1beta1.SubsetNameLabel] // it cannot change, and the label can: then the label is set again
	}
	for _, condition := range status.Conditions {
		if failed := condition.Type == string(appsv1.DeploymentReplicaFailure) || condition.Type == "FailedScale"; failed && condition.Status == metav1.ConditionTrue {
			c.FailingSince = condition.LastTransitionTime.Time
		}
	}
	c.Rolled = c.Observed && status.Replicas == asked && status.AvailableReplicas >= asked && status.UpdatedReplicas >= asked-min(c.Partition, asked)
	ordinals := workload.OrdinalsOf(workload.Owner{Kind: kind}, object, nil)
	if advanced, is := object.(*unstructured.Unstructured); is && c.ByOrdinal {
		ordinals = workload.ReadOrdinals(advanced)
	}
	all, err := podsOf(ctx, in, object, kind)
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		of := one.(*corev1.Pod)
		if !podstate.HasEnded(of) {
			c.left++
		}
		if !podstate.IsActive(of) {
			continue
		}
		pod := podOf(of)
		if ordinals != nil {
			pod.Ordinal = ordinals.Position(pod.Name, object.GetName()) - 1
		}
		c.Pods = append(c.Pods, pod)
	}
	c.left = max(c.left, status.Replicas)
	return c, nil
}

// podsOf are the pods of a child in the cache.
func podsOf(ctx context.Context, in *cluster, object client.Object, kind schema.GroupKind) ([]client.Object, error) {
	below := func(owner client.Object, list client.ObjectList) ([]client.Object, error) {
		all, err := read(ctx, in.cache, list, client.InNamespace(owner.GetNamespace()), in.controlledBy(owner.GetName(), owner.GetUID()), client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("listing what %s controls: %w", owner.GetName(), err)
		}
		return slices.DeleteFunc(all, func(one client.Object) bool { return !metav1.IsControlledBy(one, owner) }), nil
	}
	if kind != model.DeploymentKind {
		return below(object, &corev1.PodList{})
	}
	var all []client.Object
	sets, err := below(object, &appsv1.ReplicaSetList{})
	for _, set := range sets {
		pods, podsErr := below(set, &corev1.PodList{})
		all, err = append(all, pods...), errors.Join(err, podsErr)
	}
	return all, err
}

// podOf is what the model is told about a pod, without its ordinal.
func podOf(pod *corev1.Pod) model.Pod {
	p := model.Pod{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Revision: pod.Labels[v1beta1.RevisionLabel], Bound: pod.Spec.NodeName != "",
	}
	if value, has := pod.Labels[v1beta1.ReservedPodLabel]; has {
		p.Reserved = ptr.To(value == "true")
	}
	p.Ready, p.ReadySince = podstate.IsReady(pod)
	_, p.UnschedulableSince = podstate.IsUnschedulable(pod)
	return p
}
