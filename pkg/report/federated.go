package report

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

func ofFederated(frs *v1alpha1.FederatedReplicaSet, now time.Time) Report {
	status := &frs.Status
	r := reportOf(v1alpha1.Kind, frs)
	r.Target, r.Replicas = "ReplicaSet in each cluster", ptr.Deref(frs.Spec.Replicas, 1)
	if !r.judge(meta.FindStatusCondition(status.Conditions, v1alpha1.ReadyCondition), status.ObservedGeneration == frs.Generation,
		"berth-united has not looked at this version of it; see that it runs with --federation") {
		return r
	}
	if status.MayExceedBy > 0 && r.Reason != v1alpha1.ReasonUnreachable { // otherwise the message says it
		r.Notes = append(r.Notes, fmt.Sprintf("up to %s above the total may run", Pods(status.MayExceedBy, "", "")))
	}
	if placed := meta.FindStatusCondition(status.Conditions, v1alpha1.PlacedCondition); placed != nil && placed.Status == metav1.ConditionFalse {
		r.Next = placed.Message
		if !r.Ready {
			r.Notes = append(r.Notes, placed.Message)
		}
	}
	for i := range status.Clusters {
		c := &status.Clusters[i]
		of := Subset{Name: c.Name, Pods: c.AvailableReplicas, Quota: &c.Wanted, Target: c.Share, Schedulable: c.State == v1alpha1.ClusterReady}
		if !of.Schedulable {
			of.Message = string(c.State) + ": " + c.Message
		}
		if c.Capacity != nil {
			if retry := c.Capacity.RetryTime; c.State == v1alpha1.ClusterFull && retry != nil && retry.After(now) && r.Next == "" {
				r.Next = fmt.Sprintf("%s gets more than %d replicas at %s", c.Name, c.Capacity.Replicas, stamp(retry.Time))
			}
		}
		r.Subsets = append(r.Subsets, of)
	}
	r.await(status.AvailableReplicas, "are available")
	r.Next = cmp.Or(r.Next, "nothing: every replica runs")
	return r
}
