// Package report says what the status of a spread means to a person: where its pods are, what keeps others, and what happens next. The command line
// and the page show the same report. It takes a WorkloadSpread and returns plain data; begin reading at Of.
package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// Spread says where the pods of a spread are and what happens next.
type Spread struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Target is the workload as "Deployment/web".
	Target   string `json:"target"`
	Strategy string `json:"strategy"`
	// Ready, with the reason and what to do about it if it is false.
	Ready   bool           `json:"ready"`
	Reason  v1beta1.Reason `json:"reason,omitempty"`
	Message string         `json:"message,omitempty"`
	// Paused is true if the descheduler moves none of its pods.
	Paused bool `json:"paused,omitempty"`
	// Replicas that the workload asks for, and pods that want attention.
	Replicas int32 `json:"replicas"`
	Pending  int32 `json:"pending"`
	Unplaced int32 `json:"unplaced"`
	Adopted  int32 `json:"adopted"`
	Surplus  int32 `json:"surplus"`
	// Subsets in order. Empty if the spread divides no pods.
	Subsets []Subset `json:"subsets,omitempty"`
	// ByTarget is true if the spread has shares or minimums. The quotas and the order of the subsets then do not say where pods go; the targets do.
	ByTarget bool `json:"byTarget,omitempty"`
	// Moves has the last move of the descheduler between each two subsets, the oldest first. The status keeps a move for at most two days.
	Moves []v1beta1.Move `json:"moves,omitempty"`
	// Next is what the system does, or waits for.
	Next string `json:"next"`
	// Wait is that of the first subset that could take pods of later ones. Next says it too.
	Wait *Wait `json:"wait,omitempty"`
}

// Subset is one subset.
type Subset struct {
	Name string `json:"name"`
	// Pods that are bound in the subset, of all revisions.
	Pods int32 `json:"pods"`
	// Revisions divide the pods by rollout revision, if each revision has the quota for itself. Empty while there is only one.
	Revisions []Revision `json:"revisions,omitempty"`
	// Quota of each revision, or of all if the spread's quotaScope is Workload. Nil for no limit, and if it is not known.
	Quota *int32 `json:"quota,omitempty"`
	// Over is how many pods are above the quota, where each revision is compared with its own.
	Over int32 `json:"over,omitempty"`
	// Target is how many pods the subset holds when all have their place.
	Target int32 `json:"target"`
	// Schedulable is false if pods wait for a node of the subset.
	Schedulable bool `json:"schedulable"`
	// Message says why not.
	Message string `json:"message,omitempty"`
	// Wait is what keeps pods of later subsets from this one for now. Nil if no later subset holds pods for it, and if nothing is known that keeps them.
	Wait *Wait `json:"wait,omitempty"`
}

// Revision is the part of a subset that belongs to one rollout revision of the workload.
type Revision struct {
	Name string `json:"name"`
	Pods int32  `json:"pods"`
}

// Of reads the status of a spread as it is to be understood at a moment.
func Of(spread *v1beta1.WorkloadSpread, now time.Time) Spread {
	status := &spread.Status
	r := Spread{
		Namespace: spread.Namespace, Name: spread.Name,
		Target:   spread.Spec.TargetReference.Kind + "/" + spread.Spec.TargetReference.Name,
		Strategy: string(spread.Spec.ScheduleStrategy.Type),
		Paused:   moves.IsPaused(spread),
		Replicas: status.ObservedReplicas, Pending: status.PendingPods, Unplaced: status.UnplacedPods, Adopted: status.AdoptedPods, Surplus: status.SurplusPods,
	}
	r.Moves = slices.SortedStableFunc(slices.Values(status.Moves), func(a, b v1beta1.Move) int { return a.Time.Compare(b.Time.Time) })
	ready := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady)
	if ready == nil || status.ObservedGeneration != spread.Generation {
		r.Next = "berth-controller has not looked at this version of the spread; see that it runs: kubectl get pods -n berth-system"
		return r
	}
	r.Ready, r.Reason, r.Message = ready.Status == "True", v1beta1.Reason(ready.Reason), ready.Message
	policy, _ := subset.Compile(spread, field.NewPath("spec"))
	if policy == nil || len(status.SubsetStatuses) != len(policy.Subsets) {
		r.Next = "no pod is placed until that is corrected: " + r.Message
		return r
	}
	plan := policy.Plan(status.ObservedReplicas)
	pods := plan.Replicas
	if policy.IsPart {
		pods = status.Pods()
	}
	targets, _ := policy.Targets(&plan, pods)
	r.ByTarget = policy.IsRanked()
	byOrdinal := workload.ByOrdinal(workload.TargetOf(spread).Kind)
	if byOrdinal {
		targets, _ = policy.TargetsByOrdinal(&plan, pods)
	}
	for i := range status.SubsetStatuses {
		is := &status.SubsetStatuses[i]
		of := Subset{Name: is.Name, Pods: is.Replicas, Target: targets[i], Schedulable: true}
		if quota := plan.Quota[i]; quota != subset.NoLimit {
			of.Quota = &quota
		}
		of.Revisions = revisionsOf(status, i)
		of.Over = over(status, &of)
		if schedulable := meta.FindStatusCondition(is.Conditions, v1beta1.ConditionSchedulable); schedulable != nil && schedulable.Status == "False" {
			of.Schedulable, of.Message = false, schedulable.Message
		}
		r.Subsets = append(r.Subsets, of)
	}
	for i := len(r.Subsets) - 1; i >= 0; i-- {
		if r.couldTake(i) > 0 {
			r.Subsets[i].Wait = Waits(spread, policy, i, time.Time{}, now)
			r.Wait = r.Subsets[i].Wait
		}
	}
	r.Next = nextStep(&r, policy, byOrdinal && policy.GoByOrdinal())
	return r
}

// couldTake is how many pods of other subsets could be in this one: it has fewer than it should hold, and others have more.
func (r *Spread) couldTake(subset int) int32 {
	return max(min(r.Subsets[subset].Target-r.Subsets[subset].Pods, r.podsAbove()), 0)
}

// revisionsOf are the revisions that have pods, in order of their names, with their pods in one subset. There are none if there is only one revision, or
// if all revisions share the quota.
func revisionsOf(status *v1beta1.WorkloadSpreadStatus, index int) []Revision {
	if len(status.VersionedSubsetStatuses) < 2 {
		return nil
	}
	var all []Revision
	for _, name := range slices.Sorted(maps.Keys(status.VersionedSubsetStatuses)) {
		if in := status.VersionedSubsetStatuses[name]; index < len(in) {
			all = append(all, Revision{Name: name, Pods: in[index].Replicas})
		}
	}
	return all
}

// over is how many pods of the subset are above its quota:
//
//	sum over all revisions of max(pods − quota, 0)
//
// Without revisions all pods are compared with the quota. The controller reports no surplus if it does not know the quotas.
func over(status *v1beta1.WorkloadSpreadStatus, in *Subset) (n int32) {
	if in.Quota == nil || status.SurplusPods == 0 {
		return 0
	}
	rest := in.Pods // pods without a revision share a quota
	for _, revision := range in.Revisions {
		n += max(revision.Pods-*in.Quota, 0)
		rest -= revision.Pods
	}
	return n + max(rest-*in.Quota, 0)
}

// nextStep is the first thing that the system does or waits for, in the order in which a person would want to know. If the ordinals of the pods decide
// where they belong, the status does not say whether each pod is there: it counts pods.
func nextStep(r *Spread, policy *subset.Policy, byOrdinal bool) string {
	if !r.Ready {
		return r.Message
	}
	for i := range r.Subsets {
		if in := &r.Subsets[i]; !in.Schedulable {
			switch adaptive := policy.Strategy == v1beta1.AdaptiveScheduleStrategy; {
			case adaptive && policy.BindsEarly() && policy.Adaptive.Wait == 0:
				return fmt.Sprintf("%s: those with the patch of %s wait for a node there; without rescheduleCriticalSeconds none goes on to another subset",
					Pods(r.Pending, "is pending", "are pending"), in.Name)
			case adaptive && policy.BindsEarly():
				return fmt.Sprintf("%s: those with the patch of %s wait for a node there; after %s %s replaces them, for another subset",
					Pods(r.Pending, "is pending", "are pending"), in.Name, policy.Adaptive.Wait, r.descheduler("EvictUnschedulableSubsetPods"))
			case adaptive && r.ByTarget:
				return Pods(r.Pending, "is pending", "are pending") + ": no subset has a node for them; they are bound as soon as one has"
			case adaptive:
				return fmt.Sprintf("%s: no subset from %s on has a node for them; they are bound as soon as one has", Pods(r.Pending, "is pending", "are pending"), in.Name)
			}
			return fmt.Sprintf("%s for a node of %s: with strategy Fixed none goes on to another subset", Pods(r.Pending, "waits", "wait"), in.Name)
		}
	}
	switch full, scopes := r.fullFor(); {
	case r.Pending > 0 && policy.WhenFull == v1beta1.WhenFullWait && full == scopes:
		return Pods(r.Pending, "waits", "wait") + " until a slot is free: every subset is full (whenFull: Wait)"
	case r.Pending > 0 && policy.WhenFull == v1beta1.WhenFullWait && full > 0:
		return Pods(r.Pending, "is pending", "are pending") + ": on the way to a node, or waiting for a slot of a revision for which every subset is full (whenFull: Wait)"
	case r.Pending > 0 && policy.BindsEarly() && len(r.fullSubsets()) > 0:
		return Pods(r.Pending, "is", "are") + " on the way to a node; berth-controller replaces a pod that carries the patch of a full subset: " + strings.Join(r.fullSubsets(), ", ")
	case r.Pending > 0:
		return Pods(r.Pending, "is", "are") + " on the way to a node"
	case r.Surplus > 0:
		return Pods(r.Surplus, "is", "are") + " above quota: deleted first when the workload is scaled down, or moved by " + r.descheduler("EnforceSubsetMaxReplicas")
	case r.Unplaced > 0:
		return Pods(r.Unplaced, "runs", "run") + " in no subset: deleted first when the workload is scaled down"
	}
	for i := range r.Subsets {
		if pods := r.couldTake(i); pods > 0 {
			others := "later"
			if r.ByTarget || byOrdinal {
				others = "other"
			}
			return fmt.Sprintf("%s of %s subsets could be in %s: moved by the descheduler's RebalanceToPreferredSubset when it has room%s",
				Pods(pods, "", ""), others, r.Subsets[i].Name, r.Subsets[i].Wait.Clause())
		}
	}
	if byOrdinal {
		return "nothing: every subset holds as many pods as it should"
	}
	return "nothing: every pod is where it belongs"
}

// descheduler names a strategy that moves pods of the spread, and says if it does not do so now because the spread is paused.
func (r *Spread) descheduler(strategy string) string {
	if r.Paused {
		return "the descheduler's " + strategy + " (paused)"
	}
	return "the descheduler's " + strategy
}

// fullFor is for how many quota scopes every subset is full, and how many scopes there are.
func (r *Spread) fullFor() (full, scopes int) {
	scopes = len(r.Subsets[0].Scopes())
	for scope := range scopes {
		if !slices.ContainsFunc(r.Subsets, func(in Subset) bool { return !in.isFull(scope) }) {
			full++
		}
	}
	return full, scopes
}

// fullSubsets are the names of the subsets that are full for some quota scope.
func (r *Spread) fullSubsets() (names []string) {
	for i := range r.Subsets {
		for scope := range r.Subsets[i].Scopes() {
			if r.Subsets[i].isFull(scope) {
				names = append(names, r.Subsets[i].Name)
				break
			}
		}
	}
	return names
}

func (s *Subset) isFull(scope int) bool { return s.Quota != nil && s.Scopes()[scope].Pods >= *s.Quota }

// Scopes are the parts of the subset that are compared with the quota: its revisions, or all pods under an empty name.
func (s *Subset) Scopes() []Revision {
	if len(s.Revisions) > 0 {
		return s.Revisions
	}
	return []Revision{{Pods: s.Pods}}
}

// Missing is what is left until the spread is placed, one line for each thing: until all pods that the workload asks for exist, have a node and are of one
// revision, and each subset holds as many as the plan wants. It is empty for a placed spread.
func (r *Spread) Missing() (lines []string) {
	if !r.Ready || len(r.Subsets) == 0 {
		return []string{r.Next}
	}
	all, planned := r.Pending+r.Unplaced, int32(0)
	var elsewhere []string
	for i := range r.Subsets {
		in := &r.Subsets[i]
		all += in.Pods
		planned += in.Target
		if in.Pods != in.Target {
			elsewhere = append(elsewhere, fmt.Sprintf("%s has %d of %d", in.Name, in.Pods, in.Target))
		}
	}
	if r.Pending > 0 {
		lines = append(lines, Pods(r.Pending, "has", "have")+" no node")
	}
	if all < r.Replicas {
		lines = append(lines, Pods(r.Replicas-all, "does", "do")+" not exist yet")
	}
	if all > r.Replicas {
		lines = append(lines, Pods(all-r.Replicas, "is", "are")+" more than the workload asks for")
	}
	if n := len(r.Subsets[0].Revisions); n > 0 {
		return append(lines, fmt.Sprintf("the pods are of %d revisions", n))
	}
	if unplaced := r.Unplaced - (r.Replicas - planned); unplaced > 0 {
		elsewhere = append(elsewhere, Pods(unplaced, "is", "are")+" in no subset")
	}
	return append(lines, elsewhere...)
}

// podsAbove is how many pods all subsets together hold above what they should, without those above quotas.
func (r *Spread) podsAbove() (n int32) {
	for i := range r.Subsets {
		n += max(r.Subsets[i].Pods-r.Subsets[i].Target-r.Subsets[i].Over, 0)
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
