//go:build kubernetes_1_37

package fit

import (
	corev1 "k8s.io/api/core/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// PersistentVolumeClaims implements coreinformers.Interface.
func (v v1WithClaims) PersistentVolumeClaims() coreinformers.TypedPersistentVolumeClaimInformer {
	return v.informer()
}

// TypedInformer implements coreinformers.TypedPersistentVolumeClaimInformer.
func (i claimInformer) TypedInformer() coreinformers.PersistentVolumeClaimIndexInformer {
	return cache.NewTypedSharedIndexInformer[*corev1.PersistentVolumeClaim](i)
}
