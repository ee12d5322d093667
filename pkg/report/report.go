// Package report says what the status of a spread means to a person: where its pods are, what keeps others, and what happens next. The command line
// and the page show the same report. It takes a WorkloadSpread and returns plain data; begin reading at Of.
package report

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// Spread says where the pods of a spread are and what happens next.
type Spread struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Target is the workload as "Deployment/web".
	Target   string `json:"target"`
	Strategy string `json:"strategy"`
	// Ready, with the reason and what to do about it if it is false.
	Ready   bool            `json:"ready"`
	Reason  v1alpha1.Reason `json:"reason,omitempty"`
	Message string          `json:"message,omitempty"`
	// Replicas that the workload asks for, and pods that want attention.
	Replicas int32 `json:"replicas"`
	Pending  int32 `json:"pending"`
	Unplaced int32 `json:"unplaced"`
	Adopted  int32 `json:"adopted"`
	Surplus  int32 `json:"surplus"`
	// Subsets in order. Empty if the spread divides no pods.
	Subsets []Subset `json:"subsets,omitempty"`
	// Next is what the system does, or waits for.
	Next string `json:"next"`
	// Wait is what keeps pods of later subsets from an earlier one for now; Next says it too. Nil if no pod could be in an earlier subset, and if
	// nothing is known that keeps them.
	Wait *Wait `json:"wait,omitempty"`
}

// Subset is one subset.
type Subset struct {
	Name string `json:"name"`
	// Pods that are bound in the subset, of all revisions.
	Pods int32 `json:"pods"`
	// Quota of each revision, or of all if the spread's quotaScope is Workload. Nil for no limit, and if it is not known.
	Quota *int32 `json:"quota,omitempty"`
	// Target is how many pods the subset holds when all have their place.
	Target int32 `json:"target"`
	// Schedulable is false if pods wait for a node of the subset.
	Schedulable bool `json:"schedulable"`
	// Message says why not.
	Message string `json:"message,omitempty"`
}

// Of reads the status of a spread as it is to be understood at a moment.
func Of(spread *v1alpha1.WorkloadSpread, now time.Time) Spread {
	status := &spread.Status
	r := Spread{
		Namespace: spread.Namespace, Name: spread.Name,
		Target:   spread.Spec.TargetReference.Kind + "/" + spread.Spec.TargetReference.Name,
		Strategy: string(spread.Spec.ScheduleStrategy.Type),
		Replicas: status.ObservedReplicas, Pending: status.PendingPods, Unplaced: status.UnplacedPods, Adopted: status.AdoptedPods, Surplus: status.SurplusPods,
	}
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || status.ObservedGeneration != spread.Generation {
		r.Next = "berth-controller has not looked at this version of the spread; see that it runs: kubectl get pods -n berth-system"
		return r
	}
	r.Ready, r.Reason, r.Message = ready.Status == "True", v1alpha1.Reason(ready.Reason), ready.Message
	policy, _ := subset.Compile(&spread.Spec, field.NewPath("spec"))
	if policy == nil || len(status.SubsetStatuses) != len(policy.Subsets) {
		r.Next = "no pod is placed until that is corrected: " + r.Message
		return r
	}
	plan := policy.Plan(status.ObservedReplicas)
	for i := range status.SubsetStatuses {
		is := &status.SubsetStatuses[i]
		of := Subset{Name: is.Name, Pods: is.Replicas, Target: plan.Target[i], Schedulable: true}
		if quota := plan.Quota[i]; quota != subset.NoLimit {
			of.Quota = &quota
		}
		if schedulable := meta.FindStatusCondition(is.Conditions, v1alpha1.ConditionSchedulable); schedulable != nil && schedulable.Status == "False" {
			of.Schedulable, of.Message = false, schedulable.Message
		}
		r.Subsets = append(r.Subsets, of)
	}
	if into, pods := r.couldGoHome(); pods > 0 {
		r.Wait = Waits(spread, policy, into, time.Time{}, now)
	}
	r.Next = nextStep(&r, policy)
	return r
}

// couldGoHome is the first subset with fewer pods than it should hold while later ones hold more, and how many pods those could give it. The number
// is 0 if there is none.
func (r *Spread) couldGoHome() (into int, pods int32) {
	for i := range r.Subsets {
		if pods = min(r.Subsets[i].Target-r.Subsets[i].Pods, r.PodsAfter(i)); pods > 0 {
			return i, pods
		}
	}
	return subset.None, 0
}

// nextStep is the first thing that the system does or waits for, in the order in which a person would want to know.
func nextStep(r *Spread, policy *subset.Policy) string {
	if !r.Ready {
		return r.Message
	}
	for i := range r.Subsets {
		if in := &r.Subsets[i]; !in.Schedulable {
			if policy.Strategy == v1alpha1.AdaptiveScheduleStrategy {
				return fmt.Sprintf("%s: no subset from %s on has a node for them; they are bound as soon as one has", Pods(r.Pending, "is pending", "are pending"), in.Name)
			}
			return fmt.Sprintf("%s for a node of %s: with strategy Fixed none goes on to another subset", Pods(r.Pending, "waits", "wait"), in.Name)
		}
	}
	switch {
	case r.Pending > 0 && r.full() && policy.WhenFull == v1alpha1.WhenFullWait:
		return Pods(r.Pending, "waits", "wait") + " until a slot is free: every subset is full (whenFull: Wait)"
	case r.Pending > 0:
		return Pods(r.Pending, "is", "are") + " on the way to a node"
	case r.Surplus > 0:
		return Pods(r.Surplus, "is", "are") + " above quota: deleted first when the workload is scaled down, or moved by the descheduler's EnforceSubsetMaxReplicas"
	case r.Unplaced > 0:
		return Pods(r.Unplaced, "runs", "run") + " in no subset: deleted first when the workload is scaled down"
	}
	if into, pods := r.couldGoHome(); pods > 0 {
		next := fmt.Sprintf("%s of later subsets could be in %s: moved by the descheduler's RebalanceToPreferredSubset when it has room", Pods(pods, "", ""), r.Subsets[into].Name)
		if r.Wait != nil {
			next += ", " + r.Wait.Text
		}
		return next
	}
	return "nothing: every pod is where it belongs"
}

// full is true if no subset has room.
func (r *Spread) full() bool {
	for i := range r.Subsets {
		if r.Subsets[i].Quota == nil || r.Subsets[i].Pods < *r.Subsets[i].Quota {
			return false
		}
	}
	return true
}

// PodsAfter is how many pods later subsets hold above what they should.
func (r *Spread) PodsAfter(subset int) (n int32) {
	for _, later := range r.Subsets[subset+1:] {
		n += max(later.Pods-later.Target, 0)
	}
	return n
}

// Pods is "1 pod waits" or "3 pods wait".
func Pods(n int32, one, more string) string {
	if n == 1 {
		return strings.TrimSpace("1 pod " + one)
	}
	return strings.TrimSpace(fmt.Sprintf("%d pods %s", n, more))
}
