package federation

import (
	"time"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/sites"
)

// Observed is what the adapter has gathered.
type Observed struct {
	Now time.Time
	// Generation of the FederatedReplicaSet.
	Generation int64
	// Members are all clusters, in any order.
	Members []*Member
	// Status is the previous one.
	Status *v1alpha1.FederatedReplicaSetStatus
}

// Member is a cluster.
type Member struct {
	sites.Cluster
	// Why says what somebody has to do before the cluster is reachable. Empty if nobody knows.
	Why string
	// Local is the ReplicaSet of the FederatedReplicaSet, of a cluster that is late from its cache. Nil if there is none. For a cluster that does not answer it is what was seen last, or nil if that is not known.
	Local *Local
	// Taken is true if another ReplicaSet has the name, which Berth must not touch.
	Taken bool
}

// Local is the ReplicaSet in a cluster.
type Local struct {
	// Replicas is what its spec asks for.
	Replicas int32
	// Deleting is true if it has a deletion timestamp.
	Deleting bool
	// FailingSince is since when its controller cannot create pods. Zero if it can.
	FailingSince time.Time
	// Pods of it that are active: neither being deleted nor ended. Of these, Bound have a node, and Available have been ready for minReadySeconds.
	Pods, Bound, Available int32
	// UnschedulableSince is when the scheduler first said of a pod without a node that no node fits, for each one of which it has said so.
	UnschedulableSince []time.Time
}

// Plan is what is to be done, and what is to be said.
type Plan struct {
	// Clusters to write: first those that get fewer replicas or none, then those that get more. Clusters that do not answer are not in it. One that stays as it is is.
	Clusters []Wanted
	// Status is the new one. It must be written before anything else is.
	Status v1alpha1.FederatedReplicaSetStatus
	// Unknown are the names in the preferences that no cluster has.
	Unknown []string
	// Again is after which time the plan may change by itself. 0 if it does not.
	Again time.Duration
}

// Wanted is what the ReplicaSet in a cluster is to be.
type Wanted struct {
	Member string
	// Local is nil if the ReplicaSet is to be made.
	Local    *Local
	Replicas int32
	// Leaving is true if the cluster gets no replicas any more: nothing but the replicas of its ReplicaSet is written.
	Leaving bool
	// Delete is true if the ReplicaSet is to be deleted. It has no pods.
	Delete bool
}

// Before is how many replicas the cluster is asked for now.
func (w *Wanted) Before() int32 {
	if w.Local == nil {
		return 0
	}
	return w.Local.Replicas
}

// Lowers is true if the cluster is asked for fewer replicas afterwards.
func (w *Wanted) Lowers() bool { return w.Replicas < w.Before() || w.Delete }
