package budget

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// Forecast estimates, from the status of a budget alone, for which pods an operation would be allowed. Callers that choose among pods use it first, and
// then send the request: a status can be old, so only the webhook's answer is binding. It is not safe for concurrent use.
//
//   - Pods in the ledger do not lower the number of available pods further. Pending, gone and exempt pods are free.
//   - A status of another generation of the budget allows only free pods.
type Forecast struct {
	policy    *Policy
	operation v1beta1.Operation
	protects  bool
	observed  bool
	recorded  sets.Set[types.UID]
	tally     Tally
	// replacing are the pods for which a new one is made first, and places is how many more may be.
	replacing sets.Set[types.UID]
	places    int
}

// Forecast starts from the status of pub, from which the policy was compiled.
func (p *Policy) Forecast(pub *v1beta1.PodUnavailableBudget, operation v1beta1.Operation) *Forecast {
	f := &Forecast{
		policy: p, operation: operation, protects: p.Protects(operation), observed: pub.Status.ObservedGeneration == pub.Generation,
		recorded: recordedIn(pub.Status.Ledger), replacing: sets.New[types.UID](), places: p.ReplaceFirst - len(pub.Status.Replacing),
		tally: Tally{Total: pub.Status.TotalReplicas, Desired: pub.Status.DesiredAvailable, Available: pub.Status.CurrentAvailable},
	}
	if p.perSubset != nil { // a pod does not tell its subset here, so the limits of the subsets count together
		f.tally.Desired = max(f.tally.Desired, f.tally.Available-pub.Status.UnavailableAllowed)
	}
	for i := range pub.Status.Replacing {
		f.replacing.Insert(pub.Status.Replacing[i].UID)
	}
	return f
}

// May is true if the operation would be allowed on the pod.
func (f *Forecast) May(pod *Pod) bool {
	return f.isFree(pod) || f.observed && f.policy.judge(f.operation, pod, f.recorded.Has(pod.UID), &f.tally).Allowed
}

// Replaces is true if the operation would be refused for want of room, and that has a new pod made first, which is not under way yet.
func (f *Forecast) Replaces(pod *corev1.Pod, observed *Pod) bool {
	return f.operation == v1beta1.OperationEvict && f.observed && f.places > 0 && !f.replacing.Has(pod.UID) && IsReplaceable(pod) && !f.May(observed)
}

// Replace counts a pod for which a new one is made first.
func (f *Forecast) Replace(uid types.UID) {
	f.replacing.Insert(uid)
	f.places--
}

// isFree is true if the operation is allowed on the pod whatever the numbers are.
func (f *Forecast) isFree(pod *Pod) bool {
	return !f.protects || pod.State == Exempt || pod.State == Gone || pod.State == Pending
}

// Take counts the operation on the pod. A second call for the same pod changes nothing.
func (f *Forecast) Take(pod *Pod) {
	if f.isFree(pod) || f.recorded.Has(pod.UID) {
		return
	}
	f.recorded.Insert(pod.UID)
	if pod.State == Available {
		f.tally.Available--
	}
}

// Refused records that the webhook refused the operation on the pod: no available pod may become unavailable, whatever the status says.
func (f *Forecast) Refused(pod *Pod) {
	if !f.isFree(pod) {
		f.tally.Available = min(f.tally.Available, f.tally.Desired-1)
	}
}
