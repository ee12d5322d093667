package report

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

// Federated says where the replicas of a FederatedReplicaSet are and what happens next.
type Federated struct {
	// Kind is FederatedReplicaSet. It tells the report from that of a spread.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Ready, with the reason and what to do about it if it is false.
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Replicas that are asked for, and available pods in all clusters that answer.
	Replicas          int32 `json:"replicas"`
	AvailableReplicas int32 `json:"availableReplicas"`
	// MayExceedBy is how many replicas may run above the total, in clusters that do not answer.
	MayExceedBy int32 `json:"mayExceedBy,omitempty"`
	// Unplaced says which replicas no cluster takes. Empty if all have one.
	Unplaced string `json:"unplaced,omitempty"`
	// Clusters by name. Empty until the controller has looked at it.
	Clusters []FederatedCluster `json:"clusters,omitempty"`
	// Next is what the system does, or waits for.
	Next string `json:"next"`
}

// FederatedCluster is the part of a FederatedReplicaSet in a cluster.
type FederatedCluster struct {
	Name string `json:"name"`
	// Replicas that the cluster is asked for, and how many it is to have in the end.
	Replicas int32 `json:"replicas"`
	Share    int32 `json:"share"`
	// Available are its available pods, as they were seen last.
	Available int32 `json:"available"`
	// Capacity is how many replicas it has room for. Nil if nothing is known to limit it.
	Capacity *int32 `json:"capacity,omitempty"`
	// Until is when it is tried again with more than its capacity. Nil if that is not known.
	Until   *time.Time            `json:"until,omitempty"`
	State   v1alpha1.ClusterState `json:"state"`
	Message string                `json:"message,omitempty"`
}

// OfFederated reads the status of a FederatedReplicaSet as it is to be understood at a moment.
func OfFederated(frs *v1alpha1.FederatedReplicaSet, now time.Time) Federated {
	status := &frs.Status
	r := Federated{
		Kind: v1alpha1.Kind.Kind, Namespace: frs.Namespace, Name: frs.Name,
		Replicas: ptr.Deref(frs.Spec.Replicas, 1), AvailableReplicas: status.AvailableReplicas, MayExceedBy: status.MayExceedBy,
	}
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ReadyCondition)
	if ready == nil || status.ObservedGeneration != frs.Generation {
		r.Next = "berth-united has not looked at this version of it; see that it runs with --federation: kubectl get pods -n berth-system"
		return r
	}
	r.Ready, r.Reason, r.Message = ready.Status == "True", ready.Reason, ready.Message
	if placed := meta.FindStatusCondition(status.Conditions, v1alpha1.PlacedCondition); placed != nil && placed.Status == "False" {
		r.Unplaced = placed.Message
	}
	for i := range status.Clusters {
		c := &status.Clusters[i]
		of := FederatedCluster{Name: c.Name, Replicas: c.Wanted, Share: c.Share, Available: c.AvailableReplicas, State: c.State, Message: c.Message}
		if c.Capacity != nil {
			of.Capacity = ptr.To(c.Capacity.Replicas)
			if retry := c.Capacity.RetryTime; retry != nil && retry.After(now) {
				of.Until = ptr.To(retry.Time)
			}
		}
		r.Clusters = append(r.Clusters, of)
	}
	r.Next = r.next()
	return r
}

func (r *Federated) next() string {
	switch {
	case !r.Ready:
		return r.Message
	case r.Unplaced != "":
		return r.Unplaced
	}
	for _, c := range r.Clusters {
		if c.State == v1alpha1.ClusterFull && c.Until != nil {
			return fmt.Sprintf("%s gets more than %d replicas at %s", c.Name, *c.Capacity, stamp(*c.Until))
		}
	}
	if r.AvailableReplicas < r.Replicas {
		return fmt.Sprintf("%d of %s are available", r.AvailableReplicas, Pods(r.Replicas, "", ""))
	}
	return "nothing: every replica runs"
}
