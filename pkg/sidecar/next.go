package sidecar

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
)

// Next are the pods that are updated now, in their order. Pods are all that the set picks and that have its containers.
//
// At most maxUnavailable pods are unavailable because of updates; see Pod.Out. A pod that is not ready can be updated
// in addition, because it has nothing to lose.
func (p *Policy) Next(pods []Pod) []Pod {
	if !p.Rolling || p.Paused {
		return nil
	}
	total, busy, _ := p.count(pods)
	old := 0
	var waiting []Pod
	for _, pod := range pods {
		if pod.Updated || pod.Over || pod.DeletionTimestamp != nil {
			continue
		}
		old++
		if p.UpdateSelector.Matches(labels.Set(pod.Labels)) && pod.Why == "" && !pod.Held {
			waiting = append(waiting, pod)
		}
	}
	waiting = p.sort(waiting, pods)
	allowed := min(len(waiting), old-p.Keep(total))
	return p.atMost(busy, total, waiting[:max(allowed, 0)], func(pod *Pod) bool { return !pod.Available() })
}

// Resets are the pods whose hot upgrades get their last step now. It ends the old container, and may make the pod
// unready for a moment. So the limit holds for it too, and nothing else does: what has begun ends.
func (p *Policy) Resets(pods []Pod) []Pod {
	total, busy, serving := p.count(pods)
	var due []Pod
	for _, pod := range pods {
		if pod.Migrated && pod.DeletionTimestamp == nil && !pod.Held {
			due = append(due, pod)
		}
	}
	return p.atMost(busy-serving, total, due, func(*Pod) bool { return false })
}

// count returns the number of pods, that of pods that are or will be unavailable because of updates, and how many of
// those only wait for their last step.
func (p *Policy) count(pods []Pod) (total, busy, serving int) {
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp != nil {
			continue
		}
		total++
		if pod.Out() {
			busy++
			if pod.Ready && pod.Migrated {
				serving++
			}
		}
	}
	return total, busy, serving
}

// atMost returns the pods that can go while busy pods are unavailable: those that are ready up to the limit, and all
// others. counted is true for pods among the busy ones.
func (p *Policy) atMost(busy, total int, pods []Pod, counted func(*Pod) bool) (can []Pod) {
	limit := scaled(p.MaxUnavailable, total)
	for i := range pods {
		if pods[i].Ready {
			with := busy
			if !counted(&pods[i]) {
				with++
			}
			if with > limit {
				continue
			}
			busy = with
		}
		can = append(can, pods[i])
	}
	return can
}

// Keep is how many of the pods keep an older version.
func (p *Policy) Keep(pods int) int {
	keep := scaled(p.Partition, pods)
	if p.Partition.Type == intstr.String && p.Partition.StrVal != "100%" && keep == pods {
		keep--
	}
	return min(max(keep, 0), pods)
}

// scaled rounds up. The value was validated.
func scaled(value intstr.IntOrString, of int) int {
	n, _ := intstr.GetScaledValueFromIntOrPercent(&value, of, true)
	return n
}

// sort returns pods in the order of their updates: by priority, then those first that have least to lose. Then
// scattered ones are spread over the whole update, of which all pods tell how far it is.
func (p *Policy) sort(pods, all []Pod) []Pod {
	slices.SortFunc(pods, func(a, b Pod) int {
		aLevel, aOrder := p.Priority(a.Labels)
		bLevel, bOrder := p.Priority(b.Labels)
		return cmp.Or(cmp.Compare(aLevel, bLevel), cmp.Compare(bOrder, aOrder), loss(&a, &b), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for _, term := range p.scatterTerms(pods) {
		pods = spread(pods, all, func(pod *Pod) bool { return pod.Labels[term.Key] == term.Value })
	}
	return pods
}

// loss is negative if a has less to lose: unscheduled before scheduled, pending before unknown before running, not
// ready before ready, ready for a shorter time, more restarts, newer.
func loss(a, b *Pod) int {
	phases := []corev1.PodPhase{corev1.PodPending, corev1.PodUnknown, corev1.PodRunning}
	order := func(is bool) int {
		if is {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(order(a.Spec.NodeName != ""), order(b.Spec.NodeName != "")),
		cmp.Compare(slices.Index(phases, a.Status.Phase), slices.Index(phases, b.Status.Phase)),
		cmp.Compare(order(a.Ready), order(b.Ready)),
		readySince(b).Compare(readySince(a)),
		cmp.Compare(restarts(b), restarts(a)),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
	)
}

func readySince(pod *Pod) time.Time {
	if ready, since := podstate.IsReady(pod.Pod); ready && pod.Ready {
		return since
	}
	return time.Time{}
}

func restarts(pod *Pod) (most int32) {
	for i := range pod.Status.ContainerStatuses {
		most = max(most, pod.Status.ContainerStatuses[i].RestartCount)
	}
	return most
}

// scatterTerms are the terms with a value, once each. "*" stands for every value of the label.
func (p *Policy) scatterTerms(pods []Pod) (terms []v1beta1.ScatterTerm) {
	add := func(term v1beta1.ScatterTerm) {
		if !slices.Contains(terms, term) {
			terms = append(terms, term)
		}
	}
	for _, term := range p.Scatter {
		if term.Value != "*" {
			add(term)
			continue
		}
		for i := range pods {
			if value, has := pods[i].Labels[term.Key]; has {
				add(v1beta1.ScatterTerm{Key: term.Key, Value: value})
			}
		}
	}
	return terms
}

// spread puts the pods that are picked at even distances among the others. Both keep their order. A rollout has many
// rounds: those of all pods that are updated already have the first places.
func spread(pods, all []Pod, picked func(*Pod) bool) []Pod {
	var n, of, i, k int // k of the first i places, and of all n places, have picked pods
	for at := range all {
		if all[at].DeletionTimestamp != nil {
			continue
		}
		n++
		if picked(&all[at]) {
			of++
		}
		if all[at].Updated {
			i++
			if picked(&all[at]) {
				k++
			}
		}
	}
	var some, others []Pod
	for i := range pods {
		if picked(&pods[i]) {
			some = append(some, pods[i])
		} else {
			others = append(others, pods[i])
		}
	}
	order := make([]Pod, 0, len(pods))
	for ; len(order) < len(pods); i++ {
		// The first of the picked pods stands in the middle of the first part of so many, and so on.
		if len(others) == 0 || len(some) > 0 && (2*k+1)*n <= (2*i+1)*of {
			order, some, k = append(order, some[0]), some[1:], k+1
		} else {
			order, others = append(order, others[0]), others[1:]
		}
	}
	return order
}
