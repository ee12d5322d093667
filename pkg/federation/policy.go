package federation

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

// Policy is a valid FederatedReplicaSet, compiled for use. It is immutable.
type Policy struct {
	// Name and Namespace of the FederatedReplicaSet, and of the ReplicaSet in each cluster.
	Namespace, Name string
	// Replicas is the total.
	Replicas        int32
	MinReadySeconds int32
	LabelSelector   *metav1.LabelSelector
	// Template of the pods, as decoded from JSON. It must not be changed.
	Template map[string]any
	// TakeOver is true if ReplicaSets of the name may have been another FederatedReplicaSet's.
	TakeOver bool
	// Rebalance lets running replicas move.
	Rebalance bool
	// Clusters by name, or v1alpha1.AnyCluster.
	Clusters map[string]bounds
	// MaxMoving is how many replicas all clusters together may have above the total while replicas move. At least 1.
	MaxMoving int32
	// Unschedulable is for how long a pod may find no node before its replica goes elsewhere.
	Unschedulable time.Duration
	// Retry is after which time a cluster that was full is tried for the first time.
	Retry time.Duration
	// Lost is for how long a cluster may not answer before its replicas go elsewhere.
	Lost time.Duration
}

// bounds of a cluster. Max is allocation.Unlimited if there is none.
type bounds struct{ Min, Max, Weight int32 }

// BoundsOf are those of a cluster. The second result is false if the cluster gets no replicas.
func (p *Policy) BoundsOf(cluster string) (bounds, bool) {
	if own, has := p.Clusters[cluster]; has {
		return own, true
	}
	others, has := p.Clusters[v1alpha1.AnyCluster]
	return others, has
}

// Unknown are the names in the preferences that none of the clusters has, in their order.
func (p *Policy) Unknown(clusters ...string) []string {
	return sets.List(sets.KeySet(p.Clusters).Delete(v1alpha1.AnyCluster).Delete(clusters...))
}
