package fit

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/utils/ptr"
)

// claims are the persistent volume claims that the filters see: those of the cluster, and those that do not exist yet
// because their pod does not. The filters of kube-scheduler refuse a pod whose claim is missing.
type claims struct {
	cache.Indexer
	classes storagelisters.StorageClassLister
	// made are the claims that do not exist, by namespace and name.
	made map[string]*corev1.PersistentVolumeClaim
}

func claimsOf(factory informers.SharedInformerFactory) *claims {
	return &claims{Indexer: factory.Core().V1().PersistentVolumeClaims().Informer().GetIndexer(), classes: factory.Storage().V1().StorageClasses().Lister(),
		made: map[string]*corev1.PersistentVolumeClaim{}}
}

// GetByKey implements cache.Indexer. It is all that the filters read claims by.
func (c *claims) GetByKey(key string) (item any, exists bool, err error) {
	if claim, found := c.made[key]; found {
		return claim, true, nil
	}
	return c.Indexer.GetByKey(key)
}

// prepare makes the claims that a controller will make for a pod: those of its generic ephemeral volumes, and the
// expected ones. Claims that exist stay as they are. The error says why it is not known where a volume will be.
func (c *claims) prepare(pod *corev1.Pod, expected []*corev1.PersistentVolumeClaim) error {
	for i := range pod.Spec.Volumes {
		if volume := &pod.Spec.Volumes[i]; volume.Ephemeral != nil && volume.Ephemeral.VolumeClaimTemplate != nil {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: *volume.Ephemeral.VolumeClaimTemplate.ObjectMeta.DeepCopy(), Spec: *volume.Ephemeral.VolumeClaimTemplate.Spec.DeepCopy()}
			claim.Name = ephemeral.VolumeClaimName(pod, volume)
			claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}}
			expected = append(expected, claim)
		}
	}
	for _, claim := range expected {
		if err := c.prepareOne(pod.Namespace, claim); err != nil {
			return err
		}
	}
	return nil
}

func (c *claims) prepareOne(namespace string, claim *corev1.PersistentVolumeClaim) error {
	key := namespace + "/" + claim.Name
	if _, exists, err := c.GetByKey(key); exists || err != nil {
		return err
	}
	claim = claim.DeepCopy()
	claim.Namespace, claim.ResourceVersion, claim.Status = namespace, "0", corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
	class, err := c.classOf(claim)
	switch {
	case err != nil:
		return err
	case class == nil && ptr.Deref(claim.Spec.StorageClassName, "") == "",
		class != nil && ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) != storagev1.VolumeBindingWaitForFirstConsumer:
		return fmt.Errorf("the volume of claim %s is chosen before the pod is scheduled, so its place is not known", claim.Name)
	case class != nil:
		claim.Spec.StorageClassName = &class.Name
	}
	c.made[key] = claim
	return nil
}

// classOf is the storage class of a claim. If the claim names none, it is the one that the API server gives it: the
// youngest of those that are marked as the default. It is nil if there is none.
func (c *claims) classOf(claim *corev1.PersistentVolumeClaim) (found *storagev1.StorageClass, _ error) {
	if name := claim.Spec.StorageClassName; name != nil {
		class, err := c.classes.Get(*name)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return class, err
	}
	classes, err := c.classes.List(labels.Everything())
	for _, class := range classes {
		if class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" &&
			(found == nil || cmp.Or(class.CreationTimestamp.Compare(found.CreationTimestamp.Time), cmp.Compare(found.Name, class.Name)) > 0) {
			found = class
		}
	}
	return found, err
}

// factoryWithClaims is an informer factory that shows the filters these claims.
type factoryWithClaims struct {
	informers.SharedInformerFactory
	claims *claims
}

// Core implements informers.SharedInformerFactory. Its informers come from InformerFor.
func (f factoryWithClaims) Core() core.Interface { return core.New(f, metav1.NamespaceAll, nil) }

// InformerFor implements informers.SharedInformerFactory.
func (f factoryWithClaims) InformerFor(object runtime.Object, create internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	informer := f.SharedInformerFactory.InformerFor(object, create)
	if _, is := object.(*corev1.PersistentVolumeClaim); is {
		return claimInformer{informer, f.claims}
	}
	return informer
}

// claimInformer is the informer of the cluster's claims, by which listers see the others too.
type claimInformer struct {
	cache.SharedIndexInformer
	claims *claims
}

func (i claimInformer) GetIndexer() cache.Indexer { return i.claims }
