package budget

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// Facts are the input of a decision. The caller reads all of them after it has read the budget with the ledger.
type Facts struct {
	// Pods that the budget covers, in any order.
	Pods []Pod
	// Workloads that own the pods.
	Workloads []Workload
	// Unread are the kinds of workloads that own some of the pods and whose number of replicas cannot be read.
	Unread []string
	// Elsewhere are the kinds of targets that have pods in other clusters too, and ask for a number in all of them.
	Elsewhere []string
	// Subsets are the workloads whose pods are all in one subset. Only budgets with perSubset have them.
	Subsets []SubsetWorkload
	// Unplaced is how many pods are missing of workloads that have pods in several subsets.
	Unplaced int32
	// Forgotten are the workloads in the status of the budget that are gone, or have no pods in the budget any more.
	Forgotten []types.UID
	// Ledger of the budget. This package does not change it.
	Ledger []v1beta1.LedgerEntry
	// Replacing are the pods that the budget replaces first. This package does not change it.
	Replacing []v1beta1.ReplacedPod
}

// Workload is an owner of pods and the number of pods that it asks for.
type Workload struct {
	// Name with kind, for messages.
	Name string
	// Replicas is 0 for a workload that is gone or being deleted: its pods will be deleted too.
	Replicas int32
	// Gone is true for a workload that is gone or being deleted.
	Gone bool
}

// Tally is the result of counting the pods of a budget.
type Tally struct {
	// Total is how many pods the workloads ask for. A sum that exceeds an int32 becomes the greatest int32.
	Total int32
	// Desired is how many must be available.
	Desired int32
	// Available is how many are available, without those in the ledger.
	Available int32
	// Allowed is how many more may become unavailable, as the status reports it.
	Allowed int32
	// Unmanaged is how many pods count in Total only because they exist: no workload asks for them.
	Unmanaged int32
	// Unknown says why nobody can tell how many pods there should be, and what to do. It is empty if the number is known, or if the budget does not
	// depend on it. Otherwise no pod that may serve may go.
	Unknown string
	// Subsets are the counts of the subsets, in order of their names. Nil without perSubset.
	Subsets []subsetTally
	// Unplaced is how many unavailable or missing pods may be of any subset.
	Unplaced int32
	// Declared are the workloads of Facts.Subsets, and Forgotten are Facts.Forgotten, for the status.
	Declared  []v1beta1.SubsetWorkload
	Forgotten []types.UID
}

// Tally counts the pods of the budget.
//
//	Total = replicas of the workloads + unmanaged pods, or Policy.Replicas unless all workloads are gone and no pod is unmanaged
//	Available = pods that are Available and not in the ledger
func (p *Policy) Tally(f Facts) Tally {
	var t Tally
	recorded := recordedIn(f.Ledger)
	var total int64
	for i := range f.Workloads {
		total += int64(max(f.Workloads[i].Replicas, 0))
	}
	for i := range f.Pods {
		pod := &f.Pods[i]
		if pod.Unmanaged && pod.State != Gone && pod.State != Exempt {
			t.Unmanaged++
		}
		if pod.State == Available && !recorded.Has(pod.UID) {
			t.Available++
		}
	}
	t.Total = int32(min(total+int64(t.Unmanaged), int64(maxReplicas)))
	if p.Replicas != nil && (t.Unmanaged > 0 || !allGone(f.Workloads)) {
		t.Total, t.Unmanaged = *p.Replicas, 0
	}
	t.Desired = p.Desired(t.Total)
	p.tallySubsets(&f, recorded, &t)
	t.Allowed = p.allowed(&t)
	if t.Unknown = p.unknown(f, t.Unmanaged); t.Unknown != "" {
		t.Desired, t.Allowed = t.Total, 0 // so that readers of the status expect the same answer
	}
	return t
}

// recordedIn are the pods that have an entry.
func recordedIn(ledger []v1beta1.LedgerEntry) sets.Set[types.UID] {
	recorded := make(sets.Set[types.UID], len(ledger))
	for i := range ledger {
		recorded.Insert(ledger[i].UID)
	}
	return recorded
}

// unknown is Tally.Unknown. Pods without a controller count while they exist, beside pods of a workload that tells its replicas. If there is no such
// workload, they have probably lost theirs, and the budget holds them, as a PodDisruptionBudget does. Beside pods of a workload that is gone it does not: the
// garbage collector has to delete these.
func (p *Policy) unknown(f Facts, unmanaged int32) string {
	const remedy = "use minAvailable with a count, or set spec.protectTotalReplicas of the budget (in v1alpha1 the annotation " + v1beta1.ProtectTotalReplicasAnnotation +
		") to the number of replicas"
	switch {
	case !p.needsReplicas():
		return ""
	case len(f.Elsewhere) > 0:
		return fmt.Sprintf("the replicas of a %s are in other clusters too; recreate the budget with selector in place of targetRef, in each cluster, or %s", some(f.Elsewhere), remedy)
	case len(f.Unread) > 0:
		return fmt.Sprintf("Berth cannot read how many replicas %s asks for; let it read the kind and its scale subresource, if the API server serves them, or %s", some(f.Unread), remedy)
	case unmanaged > 0 && !slices.ContainsFunc(f.Workloads, func(w Workload) bool { return w.Gone || w.Replicas > 0 }):
		return "no controller says how many of the pods there should be; " + remedy
	default:
		return ""
	}
}

// some are the first names, in order, and how many more there are: messages have a limit.
func some(names []string) string {
	names = slices.Sorted(slices.Values(names))
	if len(names) <= mostNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), len(names)-mostNamed)
}

// allGone is true if there are workloads and all of them are gone. The number in the annotation is not valid any more then: nobody creates such pods,
// and the garbage collector deletes the existing ones.
func allGone(workloads []Workload) bool {
	return len(workloads) > 0 && !slices.ContainsFunc(workloads, func(w Workload) bool { return !w.Gone })
}

// Request asks whether an operation on a pod is allowed.
type Request struct {
	Name      string
	UID       types.UID
	Operation v1beta1.Operation
	// Generation that the pod will have after the operation.
	Generation int64
	// Revision is the resourceVersion of the pod in the request, for OperationUnready. It is empty for other operations.
	Revision string
	// Exempts is true if the operation sets NoProtectAnnotation, which takes the pod out of every budget.
	Exempts bool
	// Replaceable is true if a new pod can be made before this one goes, and whoever asks can wait for it.
	Replaceable bool
	// Obstacle says why none can be made although whoever asks could wait, empty if that is not known.
	Obstacle string
}

// Verdict is the answer to a Request.
type Verdict struct {
	Allowed bool
	Reason  v1beta1.Reason
	// Message names the budget and its numbers, and some of the pods that are missing.
	Message string
}

// Decision is the answer to several requests that arrived together.
type Decision struct {
	// Verdicts in the order of the requests.
	Verdicts []Verdict
	// Ledger includes an entry for every allowed operation.
	Ledger []v1beta1.LedgerEntry
	// Replacing has the pods that were refused and are replaced first.
	Replacing []v1beta1.ReplacedPod
	// Tally counts the pods with this ledger.
	Tally Tally
	// Changed is true if the caller must write the ledger, and Replacing, before it answers.
	Changed bool
}

// maxLedger is how many entries a ledger can have. If it is full, further operations are refused as LedgerFull until the controller removes entries.
//
// The API server stores objects of up to 1.5 MiB. An entry takes about 450 bytes of the budget for a pod name of 40 characters, and about 1,100 for the
// longest possible name of 253. This includes the entry itself, the name in DisruptedPods, and the managed fields. So a full ledger always fits.
const maxLedger = 1000

// Decide judges requests in their order. Each verdict counts the operations that were allowed before it. If n more pods may become unavailable, the
// first n requests on available pods are allowed. Decide records every operation that it allows and the budget protects from, even if the pod is
// unavailable: it may become available before the operation happens.
//
// An entry alone approves nothing. The pod may serve by now although it did not when the entry was written, and other pods may have failed. So Decide
// judges every request by the pods. If the pod has an entry, it does not count as available already, and its operation takes nothing more.
//
// The result is exact if the pods are not older than those by which any entry of the ledger was written or removed, and not older than the pods in the
// requests, and if the caller writes the ledger only if the budget has not changed since.
func (p *Policy) Decide(f Facts, requests []Request, now metav1.Time) Decision {
	pods := make(map[types.UID]*Pod, len(f.Pods))
	for i := range f.Pods {
		pods[f.Pods[i].UID] = &f.Pods[i]
	}
	d := Decision{Ledger: slices.Clone(f.Ledger), Replacing: slices.Clone(f.Replacing), Tally: p.Tally(f), Verdicts: make([]Verdict, len(requests))}
	at := make(map[types.UID]int, len(f.Ledger)+len(requests))
	for i := range d.Ledger {
		at[d.Ledger[i].UID] = i
	}
	missing, counted := "", -1 // with as many entries as counted
	for i := range requests {
		r := &requests[i]
		pod, found := pods[r.UID]
		if !found {
			pod = &Pod{State: Gone} // the budget does not cover the pod, but may cover it before the operation happens
		}
		if !p.Protects(r.Operation) || pod.State == Exempt {
			d.Verdicts[i] = Verdict{Allowed: true, Reason: v1beta1.ReasonNotProtected}
			continue
		}
		index, recorded := at[r.UID]
		verdict := p.judge(r.Operation, pod, recorded, &d.Tally)
		if r.Exempts && !p.exemptingNeedsRoom {
			verdict = Verdict{Allowed: true, Reason: v1beta1.ReasonExempted} // recorded as well, so that the pod does not count as available for others
		}
		if !verdict.Allowed {
			if entries := len(d.Ledger); entries != counted && verdict.Reason != v1beta1.ReasonReplicasUnknown {
				missing, counted = Missing(Facts{Pods: f.Pods, Ledger: d.Ledger}), entries
			}
			noRoom := verdict.Reason == v1beta1.ReasonBudgetExhausted || verdict.Reason == v1beta1.ReasonHeldBySubset && pod.State != Unavailable
			if noRoom && p.replaces(&d, r) {
				verdict.Reason = v1beta1.ReasonReplacedFirst
			}
			verdict.Message = p.refusal(r, verdict.Reason, d.Tally, pod.Subset, len(d.Ledger), missing)
			d.Verdicts[i] = verdict
			continue
		}
		if recorded && index < len(f.Ledger) && f.Ledger[index].Renewals >= maxRenewals {
			d.Verdicts[i] = Verdict{Reason: v1beta1.ReasonApprovalUnused, Message: p.unused(r)}
			continue
		}
		if recorded {
			d.Ledger[index], d.Changed = renew(d.Ledger[index], r, now), true
			if index < len(f.Ledger) {
				d.Ledger[index].Renewals = f.Ledger[index].Renewals + 1 // once, however many requests there are
			}
			d.Verdicts[i] = Verdict{Allowed: true, Reason: v1beta1.ReasonApproved}
			continue
		}
		if len(d.Ledger) >= maxLedger {
			d.Verdicts[i] = Verdict{Reason: v1beta1.ReasonLedgerFull, Message: p.ledgerFull(r, len(d.Ledger))}
			continue
		}
		d.Verdicts[i] = verdict
		at[r.UID] = len(d.Ledger)
		d.Ledger = append(d.Ledger, v1beta1.LedgerEntry{UID: r.UID, Name: r.Name, Operation: r.Operation, Generation: r.Generation, Revision: r.Revision, Time: now})
		d.Changed = true
		if pod.State == Available {
			d.Tally.take(pod)
			d.Tally.Allowed = p.allowed(&d.Tally)
		}
	}
	return d
}

// judge says whether a pod may become unavailable. A recorded pod has an entry in the ledger, so it is not one of the available ones. IfHealthyBudget holds no
// deletion of an unavailable pod, as in Kubernetes: by it the pods of a lost node go, without which nobody replaces them, so the budget would never be healthy
// again. The controller that deletes them does not try again for long.
func (p *Policy) judge(operation v1beta1.Operation, pod *Pod, recorded bool, t *Tally) Verdict {
	state := pod.State
	held := p.ifHealthy && !recorded && operation != v1beta1.OperationDelete
	others := t.Available
	if state == Available && !recorded {
		others--
	}
	enough := others >= t.Desired
	switch {
	case state == Gone, state == Pending:
		return Verdict{Allowed: true, Reason: v1beta1.ReasonPodUnavailable}
	case t.Unknown != "" && (state != Unavailable || held):
		return Verdict{Reason: v1beta1.ReasonReplicasUnknown}
	case (state != Unavailable || held) && !pod.Unwanted && p.heldBySubset(pod.Subset, state == Available && !recorded, t) != "":
		return Verdict{Reason: v1beta1.ReasonHeldBySubset}
	case t.Desired == 0 && len(t.Subsets) == 0:
		return Verdict{Allowed: true, Reason: v1beta1.ReasonNothingDesired}
	case state == Unavailable && (!held || enough):
		return Verdict{Allowed: true, Reason: v1beta1.ReasonPodUnavailable}
	case state == Unavailable:
		return Verdict{Reason: v1beta1.ReasonBudgetUnhealthy}
	case enough:
		return Verdict{Allowed: true, Reason: v1beta1.ReasonWithinBudget}
	default:
		return Verdict{Reason: v1beta1.ReasonBudgetExhausted}
	}
}

var verbs = map[v1beta1.Operation]string{
	v1beta1.OperationDelete:  "deleted",
	v1beta1.OperationEvict:   "evicted",
	v1beta1.OperationUpdate:  "restarted by an update",
	v1beta1.OperationResize:  "restarted by a resize",
	v1beta1.OperationLeave:   "taken out of the budget",
	v1beta1.OperationUnready: "made unready",
}

func (p *Policy) refusal(r *Request, reason v1beta1.Reason, t Tally, subset string, entries int, missing string) string {
	if reason == v1beta1.ReasonReplicasUnknown {
		dependent := "maxUnavailable or a percentage"
		if p.perSubset != nil {
			dependent = "perSubset"
		}
		return fmt.Sprintf("pod %s cannot be %s: PodUnavailableBudget %s has %s, and %s", r.Name, verbs[r.Operation], p.Name, dependent, t.Unknown)
	}
	why := "try again when more are available"
	if t.Desired >= t.Total {
		why = "no pod may go while the budget needs all of them: raise maxUnavailable, lower minAvailable, or scale up"
	}
	underWay := ""
	if entries > 0 {
		underWay = fmt.Sprintf(", with %d operations under way", entries)
	}
	needs := fmt.Sprintf(" needs %d available pods of %d and has %d%s", t.Desired, t.Total, t.Available, underWay)
	if held := p.heldBySubset(subset, true, &t); held != "" && (reason == v1beta1.ReasonHeldBySubset || reason == v1beta1.ReasonReplacedFirst) {
		needs, why = ": "+held, "try again when more are available"
	}
	switch {
	case reason == v1beta1.ReasonReplacedFirst:
		why = "a new pod is made first; try again"
	case reason == v1beta1.ReasonBudgetUnhealthy:
		why = "until enough are available, unavailable pods are kept as well (unhealthyPodPolicy)"
	case p.ReplaceFirst > 0 && r.Replaceable:
		why = "other pods are replaced first; try again"
	case p.ReplaceFirst > 0 && r.Obstacle != "":
		why += "; no new pod is made first, because " + r.Obstacle
	}
	return fmt.Sprintf("pod %s cannot be %s now: PodUnavailableBudget %s%s%s; %s", r.Name, verbs[r.Operation], p.Name, needs, missing, why)
}

func (p *Policy) unused(r *Request) string {
	return fmt.Sprintf("pod %s cannot be %s now: PodUnavailableBudget %s has allowed this more than %d times and it never happened, so something else refuses it; look for another webhook or policy, and "+
		"try again when the approval has expired", r.Name, verbs[r.Operation], p.Name, maxRenewals)
}

func (p *Policy) ledgerFull(r *Request, entries int) string {
	return fmt.Sprintf("pod %s cannot be %s now: PodUnavailableBudget %s has %d operations under way, as many as its status can hold; "+
		"try again when some of them are over", r.Name, verbs[r.Operation], p.Name, entries)
}
