//go:build !kubernetes_1_37

package workloadspread

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

func newSchedulerCache(ctx context.Context) cache.Cache {
	return cache.New(ctx, 0, nil)
}

// preemptionThat calls a function in place of taking a pod. It returns what takes a pod.
func preemptionThat(takes func()) (*defaultpreemption.DefaultPreemption, func(context.Context, *corev1.Pod) error) {
	p := &defaultpreemption.DefaultPreemption{IsEligiblePod: func(fwk.NodeInfo, fwk.PodInfo, *corev1.Pod) bool { return true }, Evaluator: &preemption.Evaluator{
		PreemptPod: func(context.Context, preemption.Candidate, *corev1.Pod, *corev1.Pod, string) error {
			takes()
			return nil
		},
	}}
	return p, func(ctx context.Context, victim *corev1.Pod) error {
		return p.Evaluator.PreemptPod(ctx, nil, nil, victim, Name)
	}
}

func signPod(ctx context.Context, profile framework.Framework, pod *corev1.Pod) fwk.PodSignature {
	return profile.SignPod(ctx, pod, false)
}
