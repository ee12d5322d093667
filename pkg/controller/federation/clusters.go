package federation

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/members"
)

// concerned are the FederatedReplicaSets that a change in a cluster may concern: the one with the name of the ReplicaSet, or all if the state of the cluster has changed.
func concerned(hub client.Reader) func(members.Change) []reconcile.Request {
	return func(change members.Change) (all []reconcile.Request) {
		if change.Labels[unitedv1beta1.OwnerLabel] != "" {
			return nil
		}
		if change.Workload != (types.NamespacedName{}) {
			return []reconcile.Request{{NamespacedName: change.Workload}}
		}
		var list v1alpha1.FederatedReplicaSetList
		if err := hub.List(context.Background(), &list, client.UnsafeDisableDeepCopy); err != nil { //nolint:forbidigo // reads the cache
			klog.Background().Error(err, "Listing FederatedReplicaSets from the cache; they see the change of a cluster late", "cluster", change.Member)
		}
		for i := range list.Items {
			all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
		return all
	}
}
