// Package report says what the status of an object means to a person: where its pods are, what keeps others, and what
// happens next. The command line and the page show the same report. It takes an object and returns plain data; begin
// reading at Of.
package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// Report says where the pods of an object are and what happens next. It has the same form for every kind.
type Report struct {
	// Of is the kind of the object.
	Of       metav1.GroupKind `json:"of"`
	Metadata metadata         `json:"metadata"`
	// Target is the workload of a spread, as "Deployment/web", or what is in each subset or cluster. Empty for a
	// SidecarSet.
	Target   string `json:"target,omitempty"`
	Strategy string `json:"strategy,omitempty"`
	// Ready, with the reason and what to do about it if it is false.
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Paused is true if the descheduler moves none of the pods.
	Paused bool `json:"paused,omitempty"`
	// Replicas that are asked for, and pods that want attention. Of a SidecarSet, the pods that have its sidecars.
	Replicas int32 `json:"replicas"`
	Pending  int32 `json:"pending"`
	Unplaced int32 `json:"unplaced"`
	Adopted  int32 `json:"adopted"`
	Surplus  int32 `json:"surplus"`
	// Subsets in order, or clusters by name, or the latest version of a SidecarSet. Empty until a controller has looked
	// at the object, and for a spread that divides no pods.
	Subsets []Subset `json:"subsets,omitempty"`
	// ByTarget is true if the quotas and the order of the subsets do not say where pods go; the targets do. So it is
	// for shares and minimums.
	ByTarget bool `json:"byTarget,omitempty"`
	// Moves has the last move of the descheduler between each two subsets, the oldest first. The status keeps a move
	// for at most two days.
	Moves []v1beta1.Move `json:"moves,omitempty"`
	// Notes are what else a person should know.
	Notes []string `json:"notes,omitempty"`
	// Next is what the system does, or waits for.
	Next string `json:"next"`
	// Wait is that of the first subset that could take pods of later ones. Next says it too.
	Wait *Wait `json:"wait,omitempty"`
}

// metadata names the object. A SidecarSet has no namespace.
type metadata struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// Of reads the status of a WorkloadSpread, UnitedDeployment, FederatedReplicaSet or SidecarSet as it is to be
// understood at a moment.
func Of(object metav1.Object, now time.Time) Report {
	switch o := object.(type) {
	case *v1beta1.WorkloadSpread:
		return ofSpread(o, now)
	case *unitedv1beta1.UnitedDeployment:
		return ofUnited(o, now)
	case *federationv1alpha1.FederatedReplicaSet:
		return ofFederated(o, now)
	case *sidecarv1beta1.SidecarSet:
		return ofSidecarSet(o)
	default:
		panic(fmt.Sprintf("there is no report of %T", object))
	}
}

// reportOf begins the report of an object.
func reportOf(kind schema.GroupVersionKind, object metav1.Object) Report {
	return Report{Of: metav1.GroupKind{Group: kind.Group, Kind: kind.Kind}, Metadata: metadata{Name: object.GetName(), Namespace: object.GetNamespace()}}
}

// judge takes the condition Ready, which is nil if there is none yet. It is false if the program has not looked at this
// generation of the object.
func (r *Report) judge(ready *metav1.Condition, seen bool, program string) bool {
	if ready == nil || !seen {
		r.Next = program + ": kubectl get pods -n berth-system"
		return false
	}
	r.Ready, r.Reason, r.Message = ready.Status == metav1.ConditionTrue, ready.Reason, ready.Message
	return true
}

// await says what is next of an object that names its replicas, unless something else comes first: what it lacks to be
// Ready, or that only some of the replicas are as they should be.
func (r *Report) await(n int32, are string) {
	switch {
	case !r.Ready:
		r.Next = r.Message
	case r.Next == "" && n < r.Replicas:
		r.Next = fmt.Sprintf("%d of %s %s", n, Pods(r.Replicas, "", ""), are)
	}
}

// Subset is one subset, or one cluster of a FederatedReplicaSet.
type Subset struct {
	Name string `json:"name"`
	// Cluster of the child of a UnitedDeployment. Empty is that of the UnitedDeployment.
	Cluster string `json:"cluster,omitempty"`
	// Pods that are bound in the subset, of all revisions. Of a child or a cluster: those that are ready or available.
	// Of a SidecarSet: those of the latest version.
	Pods int32 `json:"pods"`
	// Revisions divide the pods by rollout revision, if each revision has the quota for itself. Empty while there is
	// only one.
	Revisions []revision `json:"revisions,omitempty"`
	// Quota of each revision, or of all if the spread's quotaScope is Workload. Nil for no limit, and if it is not
	// known. Of a child or a cluster: the replicas that it is asked for.
	Quota *int32 `json:"quota,omitempty"`
	// Over is how many pods are above the quota, where each revision is compared with its own.
	Over int32 `json:"over,omitempty"`
	// Target is how many pods the subset holds when all have their place.
	Target int32 `json:"target"`
	// PodPrice is what a pod there costs an hour. Nil if that is not known, or was not asked for.
	PodPrice *float64 `json:"podPrice,omitempty"`
	// Schedulable is false if pods wait for a node of the subset, or the cluster is not ready.
	Schedulable bool `json:"schedulable"`
	// Message says why not, and what else is special.
	Message string `json:"message,omitempty"`
	// Wait is what keeps pods of later subsets from this one for now. Nil if no later subset holds pods for it, and if
	// nothing is known that keeps them.
	Wait *Wait `json:"wait,omitempty"`
}

// revision is the part of a subset that belongs to one rollout revision of the workload.
type revision struct {
	Name string `json:"name"`
	Pods int32  `json:"pods"`
}

func ofSpread(spread *v1beta1.WorkloadSpread, now time.Time) Report {
	status := &spread.Status
	r := reportOf(v1beta1.Kind, spread)
	r.Target = spread.Spec.TargetReference.Kind + "/" + spread.Spec.TargetReference.Name
	r.Strategy, r.Paused = cmp.Or(string(spread.Spec.ScheduleStrategy.Type), string(v1beta1.FixedScheduleStrategy)), moves.IsPaused(spread)
	r.Replicas, r.Pending, r.Unplaced, r.Adopted, r.Surplus = status.ObservedReplicas, status.PendingPods, status.UnplacedPods, status.AdoptedPods, status.SurplusPods
	r.Moves = slices.SortedStableFunc(slices.Values(status.Moves), func(a, b v1beta1.Move) int { return a.Time.Compare(b.Time.Time) })
	if maker, made := workload.MakerOf(spread); made {
		r.Notes = append(r.Notes, workload.RuleName(maker)+" has made the spread, and writes it back if somebody changes it")
	}
	if !r.judge(meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady), status.ObservedGeneration == spread.Generation,
		"berth-controller has not looked at this version of the spread; see that it runs") {
		return r
	}
	policy, _ := subset.Compile(spread, field.NewPath("spec"))
	if policy == nil || len(status.SubsetStatuses) != len(policy.Subsets) {
		r.Next = "no pod is placed until that is corrected: " + cmp.Or(r.Message, "the spec is invalid")
		return r
	}
	plan := policy.Plan(status.ObservedReplicas)
	pods := plan.Replicas
	if policy.IsPart {
		pods = status.Pods()
	}
	targets, _ := policy.Targets(&plan, pods)
	r.ByTarget = policy.IsRanked()
	kind := workload.TargetOf(spread).Kind
	byOrdinal, stays := workload.ByOrdinal(kind), workload.CountsDeletions(kind)
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
		if r.couldTake(i) > 0 && !stays {
			r.Subsets[i].Wait = Waits(spread, policy, i, time.Time{}, now)
			r.Wait = r.Subsets[i].Wait
		}
	}
	r.Next = nextStep(&r, policy, byOrdinal && policy.GoByOrdinal(), stays)
	return r
}

// couldTake is how many pods of other subsets could be in this one: it has fewer than it should hold, and others have
// more.
func (r *Report) couldTake(subset int) int32 {
	return max(min(r.Subsets[subset].Target-r.Subsets[subset].Pods, r.podsAbove()), 0)
}

// revisionsOf are the revisions that have pods, in order of their names, with their pods in one subset. There are none
// if there is only one revision, or if all revisions share the quota.
func revisionsOf(status *v1beta1.WorkloadSpreadStatus, index int) []revision {
	if len(status.VersionedSubsetStatuses) < 2 {
		return nil
	}
	var all []revision
	for _, name := range slices.Sorted(maps.Keys(status.VersionedSubsetStatuses)) {
		if in := status.VersionedSubsetStatuses[name]; index < len(in) {
			all = append(all, revision{Name: name, Pods: in[index].Replicas})
		}
	}
	return all
}

// over is how many pods of the subset are above its quota:
//
//	sum over all revisions of max(pods − quota, 0)
//
// Without revisions all pods are compared with the quota. The controller reports no surplus if it does not know the
// quotas.
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

// nextStep is the first thing that the system does or waits for, in the order in which a person would want to know. If
// the ordinals of the pods decide where they belong, the status does not say whether each pod is there: it counts pods.
// Pods that stay are those that the descheduler never moves.
func nextStep(r *Report, policy *subset.Policy, byOrdinal, stay bool) string {
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
	case r.Pending > 0 && stay && policy.WhenFull == v1beta1.WhenFullWait:
		return Pods(r.Pending, "is", "are") + " on the way to a node, or waiting as a gang for more slots than one subset has"
	case r.Pending > 0:
		return Pods(r.Pending, "is", "are") + " on the way to a node"
	case r.Surplus > 0 && stay:
		return Pods(r.Surplus, "is", "are") + " above quota: the descheduler moves no pod of a Job"
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
			if stay {
				return fmt.Sprintf("%s of %s subsets could be in %s, and stay: the descheduler moves no pod of a Job", Pods(pods, "", ""), others, r.Subsets[i].Name)
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

// descheduler names a strategy that moves pods of the spread, and says if it does not do so now because the spread is
// paused.
func (r *Report) descheduler(strategy string) string {
	if r.Paused {
		return "the descheduler's " + strategy + " (paused)"
	}
	return "the descheduler's " + strategy
}

// fullFor is for how many quota scopes every subset is full, and how many scopes there are.
func (r *Report) fullFor() (full, scopes int) {
	scopes = len(r.Subsets[0].Scopes())
	for scope := range scopes {
		if !slices.ContainsFunc(r.Subsets, func(in Subset) bool { return !in.isFull(in.Scopes()[scope]) }) {
			full++
		}
	}
	return full, scopes
}

// fullSubsets are the names of the subsets that are full for some quota scope.
func (r *Report) fullSubsets() (names []string) {
	for i := range r.Subsets {
		if in := &r.Subsets[i]; slices.ContainsFunc(in.Scopes(), in.isFull) {
			names = append(names, in.Name)
		}
	}
	return names
}

func (s *Subset) isFull(scope revision) bool { return s.Quota != nil && scope.Pods >= *s.Quota }

// Scopes are the parts of the subset that are compared with the quota: its revisions, or all pods under an empty name.
func (s *Subset) Scopes() []revision {
	if len(s.Revisions) > 0 {
		return s.Revisions
	}
	return []revision{{Pods: s.Pods}}
}

// Missing is what is left until the spread is placed, one line for each thing: until all pods that the workload asks
// for exist, have a node and are of one revision, and each subset holds as many as the plan wants. It is empty for a
// placed spread.
func (r *Report) Missing() (lines []string) {
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
func (r *Report) podsAbove() (n int32) {
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
