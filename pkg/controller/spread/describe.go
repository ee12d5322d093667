package spread

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/autoscaler"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// facts are everything that a status is made of, besides the spread itself.
type facts struct {
	// policy is nil if the spec is invalid. invalid then says why.
	policy  *subset.Policy
	invalid field.ErrorList
	// older is the name of the spread that divides the workload instead of this one. Empty if this one does.
	older    string
	workload workloadFacts
	// account of the pods that the spread divides, with the plan for the workload's replicas. Nil without a policy.
	*account
	// podsUnknown is true if the pods could not be found, because the workload could not.
	podsUnknown bool
	now         metav1.Time
	// installation is its compatibility. Empty means none.
	installation v1beta1.Compatibility
	// autoscaler of the nodes. Empty means none.
	autoscaler autoscaler.Name
	// kruisePaths are those of OpenKruise's list for the kind of the workload, if they count. kindList is why the list cannot be read, and nil if it can, or
	// need not.
	kruisePaths []string
	kindList    error
	// podPrices are those of subset.PodPrices. Nil if nobody asks for them.
	podPrices []float64
}

// knowsWhoIsKept is false if it is not known which pods the spread divides, or how many pods the workload asks for.
func (f *facts) knowsWhoIsKept() bool {
	return f.policy != nil && f.older == "" && !f.podsUnknown && f.workload.problem == nil
}

// workloadFacts are what is known about the workload.
type workloadFacts struct {
	replicas int32
	// maxUnavailable is that of workload.MaxUnavailable.
	maxUnavailable *int32
	// selector of its pods. Nil if it is not known.
	selector labels.Selector
	// problem is why the replicas are not known. Nil if they are.
	problem *problem
}

// describe returns the new status of a spread. It keeps the transition times of conditions that do not change.
func describe(spread *v1beta1.WorkloadSpread, f *facts) v1beta1.WorkloadSpreadStatus {
	status := v1beta1.WorkloadSpreadStatus{
		ObservedGeneration: spread.Generation,
		Compatibility:      f.installation,
		NodeAutoscaler:     string(f.autoscaler),
		ReplicasPathList:   f.kruisePaths,
		Conditions:         slices.Clone(spread.Status.Conditions),
		// Only deschedulers write these.
		Moves:     spread.Status.Moves,
		Misplaced: spread.Status.Misplaced,
	}
	if f.policy != nil {
		status.Binding = f.policy.EffectiveBinding(f.autoscaler != "")
	}
	readiness(spread, f).Set(&status.Conditions, spread.Generation, f.now)
	if f.policy == nil || f.older != "" || f.podsUnknown {
		return status // it divides no pods, or their number is not known
	}
	if admitted, told := admission(spread, f); told {
		admitted.Set(&status.Conditions, spread.Generation, f.now)
	}
	plan, tally := f.roster.Plan(), f.roster.Tally()
	held, waiting, pending := tally, waitingFor(f, plan, tally), f.pending
	if f.policy.Kruise {
		held, waiting = f.roster.Held(), overdue(f)
		pending -= sum(held.Total()) - sum(tally.Total())
	}

	status.Summary = summary(f, plan, held.Total())
	status.ObservedReplicas = plan.Replicas
	status.PendingPods, status.UnplacedPods, status.AdoptedPods = pending, f.unplaced, f.adopted
	status.SurplusPods = surplus(f, plan, tally)
	status.SubsetStatuses = subsetStatuses(spread, f, plan, held.Total(), waiting.Total(), deletions(f, ""), spread.Status.SubsetStatuses)
	setTargets(&status, spread, f.policy, plan)
	for _, revision := range countedRevisions(f) {
		if status.VersionedSubsetStatuses == nil {
			status.VersionedSubsetStatuses = map[string][]v1beta1.SubsetStatus{}
		}
		status.VersionedSubsetStatuses[revision] = subsetStatuses(spread, f, plan, held.Kept(revision), waiting.Kept(revision),
			deletions(f, revision), spread.Status.VersionedSubsetStatuses[revision])
	}
	return status
}

func setTargets(status *v1beta1.WorkloadSpreadStatus, spread *v1beta1.WorkloadSpread, policy *subset.Policy, plan *subset.Plan) {
	pods := plan.Replicas
	if policy.IsPart {
		pods = status.Pods()
	}
	targets, _ := policy.Targets(plan, pods)
	if workload.ByOrdinal(workload.TargetOf(spread).Kind) {
		targets, _ = policy.TargetsByOrdinal(plan, pods)
	}
	for i := range status.SubsetStatuses {
		status.SubsetStatuses[i].TargetReplicas = targets[i]
	}
}

// readiness names the first problem that keeps the spread from working completely, in the order in which the user has to solve them.
func readiness(spread *v1beta1.WorkloadSpread, f *facts) condition {
	switch {
	case f.policy == nil:
		return invalidSpread(f.invalid)
	case f.older != "":
		return spreadConflict(spread, f.older)
	case f.kindList != nil:
		return kindListUnreadable(f)
	case f.workload.problem != nil:
		return f.workload.problem.condition
	}
	if broken := brokenLabels(f); len(broken) > 0 {
		return labelsNotApplied(spread, broken)
	}
	if f.withoutPatch > 0 {
		return specPatchNotApplied(f.withoutPatch)
	}
	if blocked := f.policy.BlockedRollout(f.workload.replicas, f.workload.maxUnavailable); blocked != "" {
		return rolloutBlocked(spread, blocked)
	}
	return spreadReady(spread)
}

// admission says which pods Berth should have placed and did not, and why. There is no such condition for a spread that never had any.
func admission(spread *v1beta1.WorkloadSpread, f *facts) (_ condition, told bool) {
	if len(f.foreign) == 0 {
		return podsAdmitted(), meta.FindStatusCondition(spread.Status.Conditions, v1beta1.ConditionAdmitted) != nil
	}
	return podsNotAdmitted(f.foreign), true
}

// brokenLabels are the paths of labels that are not set, because the workload would lose its pods by them.
func brokenLabels(f *facts) (paths []string) {
	for i := range f.policy.Subsets {
		patch := f.policy.Subsets[i].Patch
		for _, key := range patch.Breaks(f.workload.selector) {
			paths = append(paths, field.NewPath("spec", "subsets").Index(i).Child("patch", "metadata", "labels").Key(key).String())
		}
	}
	return paths
}

// quotaKnown is false for a percentage of unknown replicas.
func quotaKnown(f *facts, index int) bool {
	return f.workload.problem == nil || !f.policy.Subsets[index].Limit.IsPercent()
}

// summary is kept/max of each subset: "subset-a 3/3, subset-b 2/-". An unknown quota is "?".
func summary(f *facts, plan *subset.Plan, kept subset.Counts) string {
	parts := make([]string, len(f.policy.Subsets))
	for i := range parts {
		quota := "?"
		if quotaKnown(f, i) {
			quota = subset.FormatQuota(plan.Quota[i])
		}
		parts[i] = f.policy.Subsets[i].Name + " " + subset.FormatQuota(kept.At(i)) + "/" + quota
	}
	return strings.Join(parts, ", ")
}

// surplus is how many pods are above the known quotas.
func surplus(f *facts, plan *subset.Plan, tally *subset.Tally) int32 {
	if f.workload.problem != nil && f.policy.UsesPercent() {
		return 0
	}
	var over int32
	for _, scope := range tally.Scopes() {
		over += f.policy.OverQuota(plan, tally.Kept(scope))
	}
	return over
}

// waitingFor counts unschedulable pods by the subset in which they wait for a node. An early-bound pod can use only the subset that admission picked.
// A late-bound pod has no subset before it has a node. But the first subset with quota left has no node for it, or the scheduler would have bound it
// there, so it counts in that one. A pod that waits for a slot counts in none.
func waitingFor(f *facts, plan *subset.Plan, tally *subset.Tally) *subset.Tally {
	waiting := f.policy.NewTally()
	if f.workload.problem != nil && f.policy.UsesPercent() {
		return waiting // the scheduler holds them until the replicas are known
	}
	for waiter, pods := range f.unschedulable {
		scope := f.policy.ScopeOf(waiter.revision)
		verdict := f.policy.Admit(plan, tally.Kept(scope), waiter.asks)
		for range pods {
			waiting.Add(scope, verdict.Subset)
		}
	}
	return waiting
}

func sum(counts subset.Counts) (n int32) {
	for _, pods := range counts {
		n += pods
	}
	return n
}

// overdue counts, for a spread that behaves as OpenKruise's, the pods that have waited rescheduleCriticalSeconds for a node of the subset that
// admission picked for them. Without the field, or with another strategy than Adaptive, and in the last subset, no pod is overdue.
func overdue(f *facts) *subset.Tally {
	late := f.policy.NewTally()
	for _, e := range f.searching {
		if in, at := f.overdueAt(e); in != subset.None && !f.now.Time.Before(at) {
			late.Add(f.policy.ScopeOf(e.Revision), in)
		}
	}
	return late
}

// overdueAt is from when a pod without a node is overdue in a subset. The subset is None if it never is.
func (f *facts) overdueAt(e *entry) (in int, at time.Time) {
	in, picked := f.policy.AdmittedTo(e.Admitted, f.spread)
	if !picked || !reschedules(f.policy) || in == len(f.policy.Subsets)-1 {
		return subset.None, time.Time{}
	}
	return in, e.Created.Add(f.policy.Adaptive.Wait)
}

func reschedules(policy *subset.Policy) bool {
	return policy.Strategy == v1beta1.AdaptiveScheduleStrategy && policy.Adaptive.Wait > 0
}

// schedulableAsKruise sets the condition of a subset as OpenKruise does: False from when a pod is overdue, for at least as long as admission then skips
// the subset. There is no condition if pods are never overdue.
func schedulableAsKruise(status *v1beta1.SubsetStatus, f *facts, late int32, generation int64) {
	if !reschedules(f.policy) {
		meta.RemoveStatusCondition(&status.Conditions, v1beta1.ConditionSchedulable)
		return
	}
	verdict := schedulable()
	switch before := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionSchedulable); {
	case late > 0:
		verdict = unschedulable(late, f.policy)
	case before != nil && before.Status == metav1.ConditionFalse && f.now.Time.Before(before.LastTransitionTime.Add(f.policy.Adaptive.Skip)):
		verdict = frame.False(before.Type, v1beta1.Reason(before.Reason), "%s", before.Message)
	}
	verdict.Set(&status.Conditions, generation, f.now)
}

// turnsAt is when a status changes without any event: a pod becomes overdue, or a subset opens. Zero if it does not.
func turnsAt(status *v1beta1.WorkloadSpreadStatus, f *facts) (first time.Time) {
	if f.account == nil || !f.policy.Kruise || !reschedules(f.policy) {
		return first
	}
	consider := func(at time.Time) {
		if at.After(f.now.Time) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	for _, e := range f.searching {
		if in, at := f.overdueAt(e); in != subset.None {
			consider(at)
		}
	}
	for _, subsets := range append(slices.Collect(maps.Values(status.VersionedSubsetStatuses)), status.SubsetStatuses) {
		for i := range subsets {
			if c := meta.FindStatusCondition(subsets[i].Conditions, v1beta1.ConditionSchedulable); c != nil && c.Status == metav1.ConditionFalse {
				consider(c.LastTransitionTime.Add(f.policy.Adaptive.Skip))
			}
		}
	}
	return first
}

// mostDeletions bounds the pod names in the status of a subset, so that the status does not exceed what the API server stores.
const mostDeletions = 500

// deletions are the terminating pods of a revision, or of all for an empty name, by subset, with the time by which they should be gone. They are not
// counted anywhere.
func deletions(f *facts, revision string) map[int]map[string]metav1.Time {
	all := map[int]map[string]metav1.Time{}
	for _, name := range slices.Sorted(maps.Keys(f.terminating)) {
		e := f.terminating[name]
		if e.Subset == subset.None || revision != "" && e.Revision != revision {
			continue
		}
		if all[e.Subset] == nil {
			all[e.Subset] = map[string]metav1.Time{}
		}
		if in := all[e.Subset]; len(in) < mostDeletions {
			in[name] = *e.until
		}
	}
	return all
}

// subsetStatuses has an entry for each subset, in order. It keeps the transition times of conditions that do not change.
func subsetStatuses(spread *v1beta1.WorkloadSpread, f *facts, plan *subset.Plan, kept, waiting subset.Counts,
	deleting map[int]map[string]metav1.Time, before []v1beta1.SubsetStatus) []v1beta1.SubsetStatus {
	statuses := make([]v1beta1.SubsetStatus, len(f.policy.Subsets))
	for i := range statuses {
		name := f.policy.Subsets[i].Name
		statuses[i] = v1beta1.SubsetStatus{
			Name:            name,
			Replicas:        kept.At(i),
			MissingReplicas: subset.Free(plan.Quota[i], kept.At(i)),
			DeletingPods:    deleting[i],
		}
		for j := range before {
			if before[j].Name == name {
				statuses[i].Conditions = slices.Clone(before[j].Conditions)
			}
		}
		if f.policy.Kruise {
			schedulableAsKruise(&statuses[i], f, waiting.At(i), spread.Generation)
			continue
		}
		verdict := schedulable()
		if pods := waiting.At(i); pods > 0 {
			verdict = unschedulable(pods, f.policy)
		}
		verdict.Set(&statuses[i].Conditions, spread.Generation, f.now)
	}
	return statuses
}

// countedRevisions have pods and are counted separately, in order. There are none for a workload without revisions.
func countedRevisions(f *facts) []string {
	if f.policy.Scope != v1beta1.RevisionQuotaScope {
		return nil
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.revisions)), func(revision string) bool { return revision == "" })
}
