package report

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// Sidecars says how far the pods of a SidecarSet are.
type Sidecars struct {
	// Kind is SidecarSet. It tells the report from that of a spread.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Ready, with the reason if it is false.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	// Revision is the latest version. Empty until the controller has looked at it.
	Revision string `json:"revision,omitempty"`
	// The numbers of the status.
	Matched      int32 `json:"matched"`
	Updated      int32 `json:"updated"`
	Available    int32 `json:"readyPods"`
	NotUpdatable int32 `json:"notUpdatable,omitempty"`
	NotInjected  int32 `json:"notInjected,omitempty"`
	// Next is what the system does, or waits for.
	Next string `json:"next"`
}

// OfSidecarSet reads the status of a SidecarSet.
func OfSidecarSet(set *v1beta1.SidecarSet) Sidecars {
	status := &set.Status
	r := Sidecars{
		Kind: v1beta1.Kind.Kind, Name: set.Name, Revision: status.LatestRevision, Matched: status.MatchedPods, Updated: status.UpdatedPods, Available: status.ReadyPods,
		NotUpdatable: status.NotUpdatablePods, NotInjected: status.NotInjectedPods,
	}
	ready := meta.FindStatusCondition(status.Conditions, v1beta1.ReadyCondition)
	switch {
	case ready == nil || status.ObservedGeneration != set.Generation:
		r.Next = "berth-controller has not looked at this version of it; see that it runs with --sidecar-sets: kubectl get pods -n berth-system"
		return r
	case ready.Status != "True":
		r.Reason, r.Next = ready.Reason, ready.Message
	default:
		r.Ready, r.Next = true, "nothing to do"
	}
	if r.Ready && r.NotInjected > 0 {
		r.Next = fmt.Sprintf("nothing to do for these; %s of its selector have no sidecars, because they are older than the SidecarSet, or were created without the webhook: delete them to let their workloads make new ones", Pods(r.NotInjected, "", ""))
		if set.Spec.InjectionStrategy.Paused {
			r.Next = fmt.Sprintf("nothing to do for these; %s of its selector have no sidecars: injectionStrategy.paused keeps them from new pods", Pods(r.NotInjected, "", ""))
		}
	}
	return r
}
