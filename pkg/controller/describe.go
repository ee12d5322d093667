package controller

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// facts are all that a status is made of, besides the spread itself.
type facts struct {
	// policy is nil if the spec is invalid, and invalid then says why.
	policy  *subset.Policy
	invalid field.ErrorList
	// older is the name of the spread that divides the workload in place of this one. Empty if this one does.
	older    string
	workload workloadFacts
	// account of the pods of the workload that the spread divides, at the plan for its replicas. Nil without a policy.
	*account
	// podsUnknown: without the workload they could not be looked for.
	podsUnknown bool
	now         metav1.Time
}

// knowsWhoIsKept is false if it is not known which pods the spread divides, or how many there are to be.
func (f *facts) knowsWhoIsKept() bool {
	return f.policy != nil && f.older == "" && !f.podsUnknown && f.workload.problem == nil
}

// workloadFacts are what is known of the workload.
type workloadFacts struct {
	replicas int32
	// selector of its pods, nil if it is not known.
	selector labels.Selector
	// problem is why the replicas are not known. Nil if they are.
	problem *problem
}

// describe is the status of a spread. The status that it has is kept as far as it says since when a condition has been as it is.
func describe(spread *v1alpha1.WorkloadSpread, f *facts) v1alpha1.WorkloadSpreadStatus {
	status := v1alpha1.WorkloadSpreadStatus{
		ObservedGeneration: spread.Generation,
		Conditions:         slices.Clone(spread.Status.Conditions),
		// Deschedulers write these, and nobody else does.
		Moves:     spread.Status.Moves,
		Misplaced: spread.Status.Misplaced,
	}
	readiness(spread, f).set(&status.Conditions, v1alpha1.ConditionReady, spread.Generation, f.now)
	if f.policy == nil || f.older != "" || f.podsUnknown {
		return status // it divides no pods, or nobody knows how many
	}
	if admitted, told := admission(spread, f); told {
		admitted.set(&status.Conditions, v1alpha1.ConditionAdmitted, spread.Generation, f.now)
	}
	plan, tally := f.roster.Plan(), f.roster.Tally()
	waiting := waitingFor(f, plan, tally)

	status.Summary = summary(f, plan, tally.Total())
	status.ObservedReplicas = plan.Replicas
	status.PendingPods, status.UnplacedPods, status.AdoptedPods = f.pending, f.unplaced, f.adopted
	status.SurplusPods = surplus(f, plan, tally)
	deleting := deletions(f)
	status.SubsetStatuses = subsetStatuses(spread, f, plan, tally.Total(), waiting.Total(), deleting[total], spread.Status.SubsetStatuses)
	for _, revision := range countedRevisions(f) {
		if status.VersionedSubsetStatuses == nil {
			status.VersionedSubsetStatuses = map[string][]v1alpha1.SubsetStatus{}
		}
		status.VersionedSubsetStatuses[revision] = subsetStatuses(spread, f, plan, tally.Kept(revision), waiting.Kept(revision),
			deleting[revision], spread.Status.VersionedSubsetStatuses[revision])
	}
	return status
}

// readiness names the first thing that keeps the spread from doing all that it says, in the order in which the user has to mend them.
func readiness(spread *v1alpha1.WorkloadSpread, f *facts) condition {
	switch {
	case f.policy == nil:
		return invalidSpread(f.invalid)
	case f.older != "":
		return spreadConflict(spread, f.older)
	case f.workload.problem != nil:
		return f.workload.problem.condition
	}
	if broken := brokenLabels(f); len(broken) > 0 {
		return labelsNotApplied(spread, broken)
	}
	if f.withoutPatch > 0 {
		return specPatchNotApplied(f.withoutPatch)
	}
	return spreadReady(spread)
}

// admission says which pods Berth had no part in, and why. It is not told of a spread that never had any.
func admission(spread *v1alpha1.WorkloadSpread, f *facts) (_ condition, told bool) {
	if len(f.strangers) == 0 {
		return podsAdmitted(), meta.FindStatusCondition(spread.Status.Conditions, v1alpha1.ConditionAdmitted) != nil
	}
	return podsNotAdmitted(f.strangers), true
}

// brokenLabels are the paths of labels by which the workload would lose its pods, so that they are not set.
func brokenLabels(f *facts) (paths []string) {
	for i := range f.policy.Subsets {
		patch := f.policy.Subsets[i].Patch
		for _, key := range patch.Breaks(f.workload.selector) {
			paths = append(paths, field.NewPath("spec", "subsets").Index(i).Child("patch", "metadata", "labels").Key(key).String())
		}
	}
	return paths
}

// quotaKnown is false for a percentage of replicas that are not known.
func quotaKnown(f *facts, index int) bool {
	return f.workload.problem == nil || !f.policy.Subsets[index].Limit.IsPercent()
}

// summary is kept/max of each subset: "subset-a 3/3, subset-b 2/-". A quota that is not known is "?".
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

// surplus is how many pods are above the quotas that are known.
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

// waitingFor counts unschedulable pods by the subset in which they wait for a node. An early-bound pod can use the one only that admission picked for
// it. A late-bound pod has no subset before it has a node, but the first subset with quota left is one that has no node for it: if it had, the scheduler
// would have taken it. A pod that waits for a slot is in none.
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

const (
	// total is no revision, but all of them together.
	total = ""
	// mostDeletions bounds how many names of pods a status holds for a subset, so that it does not outgrow what the API server stores.
	mostDeletions = 500
)

// deletions are the pods on their way out, by revision and subset, with the time until which they may take. Nothing counts by them.
func deletions(f *facts) map[string]map[int]map[string]metav1.Time {
	all := map[string]map[int]map[string]metav1.Time{}
	for _, name := range slices.Sorted(maps.Keys(f.terminating)) {
		e := f.terminating[name]
		index := e.Subset
		if index == subset.None {
			continue
		}
		for _, revision := range slices.Compact([]string{total, e.Revision}) {
			if all[revision] == nil {
				all[revision] = map[int]map[string]metav1.Time{}
			}
			if all[revision][index] == nil {
				all[revision][index] = map[string]metav1.Time{}
			}
			if in := all[revision][index]; len(in) < mostDeletions {
				in[name] = *e.until
			}
		}
	}
	return all
}

// subsetStatuses has an entry for each subset, in order. Those that were there before say since when a condition has been as it is.
func subsetStatuses(spread *v1alpha1.WorkloadSpread, f *facts, plan *subset.Plan, kept, waiting subset.Counts,
	deleting map[int]map[string]metav1.Time, before []v1alpha1.SubsetStatus) []v1alpha1.SubsetStatus {
	statuses := make([]v1alpha1.SubsetStatus, len(f.policy.Subsets))
	for i := range statuses {
		name := f.policy.Subsets[i].Name
		statuses[i] = v1alpha1.SubsetStatus{
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
		verdict := schedulable()
		if pods := waiting.At(i); pods > 0 {
			verdict = unschedulable(pods, f.policy)
		}
		verdict.set(&statuses[i].Conditions, v1alpha1.ConditionSchedulable, spread.Generation, f.now)
	}
	return statuses
}

// countedRevisions hold pods and are counted each by itself, in order. None for a workload without revisions.
func countedRevisions(f *facts) []string {
	if f.policy.Scope != v1alpha1.RevisionQuotaScope {
		return nil
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.revisions)), func(revision string) bool { return revision == "" })
}
