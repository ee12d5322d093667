package whatif

import (
	"cmp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/podstate"
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
	slices.SortFunc(remaining, func(a, b *corev1.Pod) int {
		return -cmp.Or(cmp.Compare(stageOf(a), stageOf(b)), cmp.Compare(costs[a.UID], costs[b.UID]), -cmp.Compare(onNode[a.Spec.NodeName], onNode[b.Spec.NodeName]),
			-readySince(a).Compare(readySince(b)), -cmp.Compare(restartsOf(a), restartsOf(b)), -a.CreationTimestamp.Compare(b.CreationTimestamp.Time), -cmp.Compare(a.Name, b.Name))
	})
	for _, pod := range remaining[plan.Replicas:] {
		gone.Insert(pod.UID)
	}
	return remaining[:plan.Replicas], gone
}

// stageOf is higher for a pod that controllers delete later: without a node, pending, unknown, running, ready.
func stageOf(pod *corev1.Pod) int {
	switch {
	case pod.Spec.NodeName == "":
		return 0
	case !readySince(pod).IsZero():
		return 4
	case pod.Status.Phase == corev1.PodRunning:
		return 3
	case pod.Status.Phase == corev1.PodUnknown:
		return 2
	default:
		return 1
	}
}

// readySince is zero for a pod that is not ready.
func readySince(pod *corev1.Pod) time.Time {
	if ready, since := podstate.IsReady(pod); ready {
		return since
	}
	return time.Time{}
}

func restartsOf(pod *corev1.Pod) (most int32) {
	for i := range pod.Status.ContainerStatuses {
		most = max(most, pod.Status.ContainerStatuses[i].RestartCount)
	}
	return most
}
