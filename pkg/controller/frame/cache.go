package frame

import (
	"context"
	"fmt"
	"unique"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/workload"
)

// KruiseConfiguration is OpenKruise's ConfigMap with the list of custom kinds.
var KruiseConfiguration = types.NamespacedName{Namespace: "kruise-system", Name: "kruise-configuration"}

// CacheOptions keep in memory only what the controllers read of the watched objects. Other fields read as empty: to read a field, keep it here first.
// Objects from the cache are shared and must not be changed. With requests, pods have in spec.resources what they request, and not otherwise.
func CacheOptions(requests bool) cache.Options {
	shared, keepOfPod := ptr.To(true), KeepOfPod
	if requests {
		keepOfPod = keepRequests
	}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1beta1.WorkloadSpread{}: {Transform: keepWriters},
			&corev1.Pod{}:             {Transform: keepOfPod, UnsafeDisableDeepCopy: shared},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{KruiseConfiguration.Namespace: {
				FieldSelector: fields.OneTermEqualSelector("metadata.name", KruiseConfiguration.Name),
			}}},
			&corev1.Node{}:        {Transform: keepOfNode, UnsafeDisableDeepCopy: shared},
			&appsv1.Deployment{}:  {Transform: workload.Keep, UnsafeDisableDeepCopy: shared},
			&appsv1.ReplicaSet{}:  {Transform: workload.Keep, UnsafeDisableDeepCopy: shared},
			&appsv1.StatefulSet{}: {Transform: workload.Keep, UnsafeDisableDeepCopy: shared},
			&batchv1.Job{}:        {Transform: workload.Keep, UnsafeDisableDeepCopy: shared},
		},
	}
}

// KeepOfPod drops what no controller reads of a pod.
func KeepOfPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Pod{
		ObjectMeta: pod.ObjectMeta,
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, SchedulerName: unique.Make(pod.Spec.SchedulerName).Value()}, // the names are few, and pods share them
		Status:     corev1.PodStatus{Phase: pod.Status.Phase},
	}
	kept.ManagedFields = nil
	kept.Annotations = nil
	for _, key := range []string{v1beta1.MatchedAnnotation, v1beta1.AdmittedAnnotation, v1beta1.PodDeletionCostAnnotation, v1beta1.AskedCostAnnotation, policyv1beta1.NoProtectAnnotation,
		policyv1beta1.SelectorKeysAnnotation, policyv1beta1.ReplacedFirstAnnotation} {
		if value, found := pod.Annotations[key]; found {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, value)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady || condition.Type == corev1.PodScheduled {
			condition.Message = ""
			kept.Status.Conditions = append(kept.Status.Conditions, condition)
		}
	}
	return kept, nil
}

func keepRequests(obj any) (any, error) {
	kept, err := KeepOfPod(obj)
	if pod, ok := obj.(*corev1.Pod); ok {
		kept.(*corev1.Pod).Spec.Resources = &corev1.ResourceRequirements{Requests: resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})}
	}
	return kept, err
}

// keepOfNode keeps what selects a node, what may announce its end, and how large it is.
func keepOfNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Node{ObjectMeta: node.ObjectMeta, Spec: corev1.NodeSpec{Taints: node.Spec.Taints}}
	kept.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: *node.Status.Allocatable.Cpu(), corev1.ResourceMemory: *node.Status.Allocatable.Memory()}
	kept.ManagedFields, kept.Annotations = nil, nil
	for _, c := range node.Status.Conditions {
		kept.Status.Conditions = append(kept.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
	}
	return kept, nil
}

// NodeField of a pod is the node it is bound to: an index of the cache.
const NodeField = "spec.nodeName"

// IndexByNode makes the cache find pods by NodeField, once in a process.
func IndexByNode(ctx context.Context, indexer client.FieldIndexer) error {
	return indexer.IndexField(ctx, &corev1.Pod{}, NodeField, NodeNameOf)
}

// NodeNameOf is what IndexByNode indexes by.
func NodeNameOf(obj client.Object) []string {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil
	}
	return []string{pod.Spec.NodeName}
}

// IndexByController makes the cache find objects by lineage.ControllerField. The objects of a kind can be indexed once in a process.
func IndexByController(ctx context.Context, indexer client.FieldIndexer, objects ...client.Object) error {
	for _, object := range objects {
		if err := indexer.IndexField(ctx, object, lineage.ControllerField, ControllerUIDOf); err != nil {
			return fmt.Errorf("indexing %T by %s: %w", object, lineage.ControllerField, err)
		}
	}
	return nil
}

// ControllerUIDOf is what IndexByController indexes by.
func ControllerUIDOf(obj client.Object) []string {
	if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
		return []string{string(ref.UID)}
	}
	return nil
}
