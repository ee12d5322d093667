package report

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

func ofSidecarSet(set *v1beta1.SidecarSet) Report {
	status := &set.Status
	r := reportOf(v1beta1.Kind, set)
	r.Replicas = status.MatchedPods
	if !r.judge(meta.FindStatusCondition(status.Conditions, v1beta1.ReadyCondition), status.ObservedGeneration == set.Generation,
		"berth-controller has not looked at this version of it; see that it runs with --sidecar-sets") {
		return r
	}
	r.Subsets = []Subset{{Name: status.LatestRevision, Pods: status.UpdatedPods, Quota: &status.MatchedPods, Target: status.MatchedPods, Schedulable: true}}
	if n := status.MatchedPods - status.ReadyPods; n > 0 {
		r.Notes = append(r.Notes, Pods(n, "is", "are")+" not ready")
	}
	if n := status.NotUpdatablePods; n > 0 {
		r.Notes = append(r.Notes, Pods(n, "", "")+" cannot be updated in place")
	}
	r.Next = r.Message
	if r.Ready {
		r.Next = "nothing to do"
	}
	if n := Pods(status.NotInjectedPods, "", ""); r.Ready && status.NotInjectedPods > 0 {
		r.Next = "nothing to do for these; " + n + " of its selector have no sidecars, because they are older than the SidecarSet, or were created without the webhook: delete them to let their workloads make new ones"
		if set.Spec.InjectionStrategy.Paused {
			r.Next = "nothing to do for these; " + n + " of its selector have no sidecars: injectionStrategy.paused keeps them from new pods"
		}
	}
	return r
}
