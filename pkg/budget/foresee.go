package budget

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// Foresee says which of the pods could be deleted, each with those before it counted, by nothing but the status of the budget that the policy was
// compiled from. Who has to choose among pods asks it, and then the API server: a status can be old, and what it promises binds nobody.
//
//   - What the ledger holds already costs nothing, and neither do pods that have not served yet or do not serve any more.
//   - A status of another generation of the budget promises nothing.
func (p *Policy) Foresee(pub *v1alpha1.PodUnavailableBudget, pods []Pod) []bool {
	recorded := make(sets.Set[types.UID], len(pub.Status.Ledger))
	for i := range pub.Status.Ledger {
		recorded.Insert(pub.Status.Ledger[i].UID)
	}
	tally := Tally{Total: pub.Status.TotalReplicas, Desired: pub.Status.DesiredAvailable, Available: pub.Status.CurrentAvailable}
	answers := make([]bool, len(pods))
	for i := range pods {
		switch pod := &pods[i]; {
		case !p.Protects(v1alpha1.OperationDelete), pod.State == Exempt, pod.State == Gone, pod.State == Pending, recorded.Has(pod.UID):
			answers[i] = true
		case pub.Status.ObservedGeneration != pub.Generation:
		default:
			answers[i] = p.judge(pod.State, tally).Allowed
			if answers[i] && pod.State == Available {
				tally.Available--
			}
		}
	}
	return answers
}
