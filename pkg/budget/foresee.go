package budget

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// Forecast says which pods an operation could be done to, by nothing but the status of a budget. Who has to choose among pods asks it, and then the
// API server: a status can be old, and what it promises binds nobody. It is not safe for concurrent use.
//
//   - What the ledger holds already costs nothing, and neither do pods that have not served yet or do not serve any more.
//   - A status of another generation of the budget promises nothing.
type Forecast struct {
	policy   *Policy
	protects bool
	observed bool
	recorded sets.Set[types.UID]
	tally    Tally
}

// Forecast is that of the budget that the policy was compiled from.
func (p *Policy) Forecast(pub *v1alpha1.PodUnavailableBudget, operation v1alpha1.Operation) *Forecast {
	f := &Forecast{
		policy: p, protects: p.Protects(operation), observed: pub.Status.ObservedGeneration == pub.Generation,
		recorded: make(sets.Set[types.UID], len(pub.Status.Ledger)),
		tally:    Tally{Total: pub.Status.TotalReplicas, Desired: pub.Status.DesiredAvailable, Available: pub.Status.CurrentAvailable},
	}
	for i := range pub.Status.Ledger {
		f.recorded.Insert(pub.Status.Ledger[i].UID)
	}
	return f
}

// May is true if the operation could be done to the pod.
func (f *Forecast) May(pod *Pod) bool {
	return f.isFree(pod) || f.observed && f.policy.judge(pod.State, f.tally).Allowed
}

// isFree is true for a pod that may go whatever the numbers are.
func (f *Forecast) isFree(pod *Pod) bool {
	return !f.protects || pod.State == Exempt || pod.State == Gone || pod.State == Pending || f.recorded.Has(pod.UID)
}

// Take counts the operation on the pod. A second time it counts for nothing.
func (f *Forecast) Take(pod *Pod) {
	if f.isFree(pod) {
		return
	}
	f.recorded.Insert(pod.UID)
	if pod.State == Available {
		f.tally.Available--
	}
}

// Refused takes in that the operation was refused for the pod: there is no room, whatever the status says.
func (f *Forecast) Refused(pod *Pod) {
	if !f.isFree(pod) {
		f.tally.Available = min(f.tally.Available, f.tally.Desired-1)
	}
}

// Foresee says which of the pods could be deleted, each with those before it counted.
func (p *Policy) Foresee(pub *v1alpha1.PodUnavailableBudget, pods []Pod) []bool {
	f := p.Forecast(pub, v1alpha1.OperationDelete)
	answers := make([]bool, len(pods))
	for i := range pods {
		if answers[i] = f.May(&pods[i]); answers[i] {
			f.Take(&pods[i])
		}
	}
	return answers
}
