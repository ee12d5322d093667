package whatif

import (
	"cmp"
	"slices"
	"sort"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/controller"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// remaining are the active pods that the workload's controller keeps at the replicas of a plan, and the others.
func (e *Engine) remaining(d *Divided, plan *subset.Plan) (remaining []*corev1.Pod, gone sets.Set[types.UID]) {
	gone = sets.New[types.UID]()
	for _, pod := range d.Pods {
		if subset.IsActive(pod) {
			remaining = append(remaining, pod)
		}
	}
	target, _ := e.Owner(d.Spread.Namespace, workload.TargetOf(d.Spread))
	if d.Ordinals.Known() {
		set := workload.TargetOf(d.Spread).Name
		return slices.DeleteFunc(remaining, func(pod *corev1.Pod) bool {
			_, found := workload.OrdinalOf(pod.Name, set)
			position := d.Ordinals.Position(pod.Name, set)
			goes := found && (position < 1 || position > plan.Replicas)
			if goes {
				gone.Insert(pod.UID)
			}
			return goes
		}), gone
	}
	if len(remaining) <= int(plan.Replicas) {
		return remaining, gone
	}
	costs, onNode := map[types.UID]int32{}, map[string]int{}
	if _, ok := target.(*batchv1.Job); !ok { // the Job controller reads no deletion costs, and does not look for pods that share a node
		var observed []subset.Pod
		for _, pod := range remaining {
			observed = append(observed, subset.Observe(pod, e.Node(pod.Spec.NodeName)))
			onNode[pod.Spec.NodeName]++
		}
		for _, c := range d.Policy.Costs(plan, observed, d.Spread.Name) {
			costs[c.Pod.UID] = c.Cost
		}
	}
	slices.SortFunc(remaining, func(a, b *corev1.Pod) int { return cmp.Compare(b.Name, a.Name) }) // of equal ones the last goes
	var order controller.ActivePodsWithRanks
	for _, pod := range remaining {
		costed := pod.DeepCopy()
		metav1.SetMetaDataAnnotation(&costed.ObjectMeta, v1beta1.PodDeletionCostAnnotation, strconv.Itoa(int(costs[pod.UID])))
		order.Pods, order.Rank = append(order.Pods, costed), append(order.Rank, onNode[pod.Spec.NodeName])
	}
	sort.Stable(order)
	for _, pod := range order.Pods[:len(order.Pods)-int(plan.Replicas)] {
		gone.Insert(pod.UID)
	}
	return slices.DeleteFunc(remaining, func(pod *corev1.Pod) bool { return gone.Has(pod.UID) }), gone
}
