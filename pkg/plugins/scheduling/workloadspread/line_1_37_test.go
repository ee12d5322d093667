//go:build kubernetes_1_37

package workloadspread

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

func newSchedulerCache(ctx context.Context) cache.Cache {
	return cache.New(ctx, nil, false, false)
}

// preemptionThat calls a function in place of taking a pod. It returns what takes a pod.
func preemptionThat(takes func()) (*defaultpreemption.DefaultPreemption, func(context.Context, *corev1.Pod) error) {
	p := &defaultpreemption.DefaultPreemption{IsEligiblePod: func(fwk.NodeInfo, preemption.Victim, *corev1.Pod) bool { return true }, Evaluator: &preemption.Evaluator{}, Executor: &preemption.Executor{
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

func groupOf(t *testing.T, priority int32, names ...string) preemption.Victim {
	t.Helper()
	var infos []fwk.PodInfo
	for _, name := range names {
		info, err := framework.NewPodInfo(protected(name))
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
	taken, left := groupOf(t, 10, "taken-a", "taken-b"), groupOf(t, 10, "left-a", "left-b")
	p := &defaultpreemption.DefaultPreemption{IsEligiblePod: func(fwk.NodeInfo, preemption.Victim, *corev1.Pod) bool { return true }}
	sparing(p, func(victim, _ *corev1.Pod) bool { return victim.Name == "left-b" })
	if p.IsEligiblePod(nil, left, nil) {
		t.Error("a group with a pod that was refused is taken")
	}
	if !p.IsEligiblePod(nil, taken, nil) {
		t.Error("a group without such a pod is left alone")
	}
}

func signPod(ctx context.Context, profile framework.Framework, pod *corev1.Pod) fwk.PodSignature {
	return profile.SignPod(ctx, pod)
}
