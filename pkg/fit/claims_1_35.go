//go:build !kubernetes_1_37

package fit

import coreinformers "k8s.io/client-go/informers/core/v1"

// PersistentVolumeClaims implements coreinformers.Interface.
func (v v1WithClaims) PersistentVolumeClaims() coreinformers.PersistentVolumeClaimInformer {
	return v.informer()
}
