package budget

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// forecast estimates, from the status of a budget alone, which pods may be evicted. Callers that choose among pods use it first, and then send the
// request: a status can be old, so only the webhook's answer is binding. It is not safe for concurrent use.
//
//   - Pods in the ledger do not lower the number of available pods further. Pending, gone and exempt pods are free.
//   - A status of another generation of the budget allows only free pods.
type forecast struct {
	policy   *Policy
	protects bool
	observed bool
	recorded sets.Set[types.UID]
	tally    Tally
	// replacing are the pods for which a new one is made first.
	replacing sets.Set[types.UID]
}

// Forecast starts from the status of pub, from which the policy was compiled.
func (p *Policy) Forecast(pub *v1beta1.PodUnavailableBudget) *forecast {
	f := &forecast{
		policy: p, protects: p.Protects(v1beta1.OperationEvict), observed: pub.Status.ObservedGeneration == pub.Generation,
		recorded: recordedIn(pub.Status.Ledger), replacing: sets.New[types.UID](),
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

// Has is true if the eviction of the pod would be allowed. It is true as well for a pod whose refused eviction has a new pod made first: the old one goes
// later.
func (f *forecast) Has(pod *corev1.Pod) bool {
	observed := f.expect(pod)
	return f.may(&observed) || f.replaces(pod)
}

// Take counts the eviction of the pod. A second call for the same pod changes nothing.
func (f *forecast) Take(pod *corev1.Pod) {
	if observed := f.expect(pod); f.may(&observed) || !f.replaces(pod) {
		f.take(&observed)
	} else {
		f.replacing.Insert(pod.UID)
	}
}

// Refused records that the webhook refused the eviction of the pod: no available pod may become unavailable, whatever the status says.
func (f *forecast) Refused(pod *corev1.Pod) {
	if observed := f.expect(pod); !f.isFree(&observed) {
		f.tally.Available = min(f.tally.Available, f.tally.Desired-1)
	}
}

// expect is Observe without a doubt that only time ends: it may have ended where the status was written.
func (f *forecast) expect(pod *corev1.Pod) Pod {
	observed, d := observe(pod, f.policy.Ignored, false)
	if d.change != 0 {
		observed.State, observed.Why = Available, ""
	}
	return observed
}

func (f *forecast) may(pod *Pod) bool {
	return f.isFree(pod) || f.observed && f.policy.judge(v1beta1.OperationEvict, pod, f.recorded.Has(pod.UID), &f.tally).Allowed
}

// replaces is true if the refusal of an eviction has a new pod made first, which is not under way yet.
func (f *forecast) replaces(pod *corev1.Pod) bool {
	return f.observed && f.replacing.Len() < f.policy.ReplaceFirst && !f.replacing.Has(pod.UID) && IsReplaceable(pod)
}

// isFree is true if the pod may be evicted whatever the numbers are.
func (f *forecast) isFree(pod *Pod) bool {
	return !f.protects || pod.State == Exempt || pod.State == Gone || pod.State == Pending
}

func (f *forecast) take(pod *Pod) {
	if f.isFree(pod) || f.recorded.Has(pod.UID) {
		return
	}
	f.recorded.Insert(pod.UID)
	if pod.State == Available {
		f.tally.Available--
	}
}
