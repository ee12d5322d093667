//go:build kubernetes_1_37

package workloadspread

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/utils/ptr"
)

func newSchedulerCache(ctx context.Context) cache.Cache {
	return cache.New(ctx, nil, false, false)
}

// preemptionThat calls a function in place of taking a pod. It returns what takes a pod.
func preemptionThat(takes func()) (*defaultpreemption.DefaultPreemption, func(context.Context, *corev1.Pod) error) {
	p := &defaultpreemption.DefaultPreemption{Evaluator: &preemption.Evaluator{}, Executor: &preemption.Executor{
		PreemptPod: func(context.Context, preemption.Candidate, preemption.ExecutorPreemptor, *corev1.Pod, string) (bool, error) {
			takes()
			return true, nil
		},
	}}
	return p, func(ctx context.Context, victim *corev1.Pod) error {
		inMemory, err := p.Executor.PreemptPod(ctx, nil, nil, victim, Name)
		if err == nil && !inMemory {
			return errors.New("the executor does not hear that the pod was taken in memory, and no event will wake the preemptor")
		}
		return err
	}
}

// takenFrom are the pods of a node that the pod may preempt, in the order in which they go.
func takenFrom(node fwk.NodeInfo, pod *corev1.Pod) []*corev1.Pod {
	var possible []preemption.Victim
	for _, info := range node.GetPods() {
		possible = append(possible, preemption.NewPodVictim(info, nil, nil))
	}
	return lowerPriorityPods(preempting(), pod, possible)
}

func preempting() *victims {
	return &victims{DefaultPreemption: &defaultpreemption.DefaultPreemption{MoreImportantVictim: preemption.MoreImportantVictim}}
}

// PodGroupStates and the others implement fwk.SharedLister.
func (b *batch) PodGroupStates() fwk.PodGroupStateLister { return b.snapshot.PodGroupStates() }
func (b *batch) PodGroups() fwk.PodGroupLister           { return b.snapshot.PodGroups() }
func (b *batch) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return b.snapshot.CompositePodGroupStates()
}
func (b *batch) CompositePodGroups() fwk.CompositePodGroupLister {
	return b.snapshot.CompositePodGroups()
}

func groupOf(t *testing.T, priority int32, names ...string) preemption.Victim {
	t.Helper()
	var infos []fwk.PodInfo
	for _, name := range names {
		info, err := framework.NewPodInfo(serving(name, "web"))
		if err != nil {
			t.Fatal(err)
		}
		infos = append(infos, info)
	}
	victim, err := preemption.NewVictim(infos, priority, fwk.PodGroupKeyType)
	if err != nil {
		t.Fatal(err)
	}
	return victim
}

func TestAPodGroupIsTakenAsAWholeOrNotAtAll(t *testing.T) {
	low, high, above := groupOf(t, 10, "low-a", "low-b"), groupOf(t, 30, "high-a", "high-b"), groupOf(t, 100, "above")
	var order []string
	for _, pod := range lowerPriorityPods(preempting(), &corev1.Pod{Spec: corev1.PodSpec{Priority: ptr.To[int32](50)}}, []preemption.Victim{high, above, low}) {
		order = append(order, pod.Name)
	}
	if want := []string{"low-a", "low-b", "high-a", "high-b"}; !slices.Equal(order, want) {
		t.Errorf("got %v, want %v", order, want)
	}
	p := &defaultpreemption.DefaultPreemption{IsEligiblePod: func(fwk.NodeInfo, preemption.Victim, *corev1.Pod) bool { return true }}
	spare(p, sets.New[types.UID](low.Pods()[1].GetPod().UID))
	if p.IsEligiblePod(nil, low, nil) {
		t.Error("a group with a pod that a budget needs is taken")
	}
	if !p.IsEligiblePod(nil, high, nil) {
		t.Error("a group without such a pod is left alone")
	}
}

func signPod(ctx context.Context, profile framework.Framework, pod *corev1.Pod) fwk.PodSignature {
	return profile.SignPod(ctx, pod)
}
