package workloadspread

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/budget"
)

// guardVictims makes an instance of DefaultPreemption respect PodUnavailableBudgets. The API server asks Berth's webhook about every protected victim, so the
// scheduler need not know budgets. It asks before it takes a victim, and leaves alone for a while those that were refused.
func guardVictims(p *defaultpreemption.DefaultPreemption, handle fwk.Handle, refused *refusals) {
	sparing(p, refused.spare)
	takenLast(p)
	aroundPreemption(p, func(ctx context.Context, victim *corev1.Pod, take func() error) error {
		if !budget.IsProtected(victim) || handle.GetWaitingPod(victim.UID) != nil { // a waiting pod goes back to the queue and is not deleted
			return take()
		}
		err := mayDelete(ctx, handle, victim)
		if err == nil {
			err = take()
		}
		if err != nil {
			refused.add(victim.UID) // whatever the reason: no answer is no permission
		}
		return err
	})
}

// isTaken is true if a preemption has chosen the pod before.
func isTaken(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// moreImportant is true if a preemption spares pod a before pod b. A pod that is taken already comes last, and each pod that preempts on a node takes
// one victim. The UID decides between pods that more and less, which are kube-scheduler's answers for (a, b) and (b, a), do not tell apart: their order on
// the node changes whenever one of them is updated, and a second preemption would take others than the first.
func moreImportant(more, less bool, a, b *corev1.Pod) bool {
	switch taken := isTaken(a); {
	case taken != isTaken(b):
		return !taken
	case more != less:
		return more
	}
	return a.UID < b.UID
}

// mayDelete asks the API server whether the pod may be deleted. The scheduler writes DisruptionTarget into a victim before it deletes it. If the
// deletion is refused after that, the condition stays for minutes, and clients that count failures count one that did not happen.
func mayDelete(ctx context.Context, handle fwk.Handle, pod *corev1.Pod) error {
	err := handle.ClientSet().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		DryRun: []string{metav1.DryRunAll}, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if apierrors.IsNotFound(err) {
		return nil // no preemption is needed any more
	}
	if err != nil {
		return fmt.Errorf("asking whether pod %s/%s may be preempted: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// refusals are the victims that the API server has refused. All profiles share them. It is safe for concurrent use.
type refusals struct {
	clock clock.WithDelayedExecution
	// activate makes the scheduling queue try pods soon. Pods that are not in the queue do not matter.
	activate func(map[string]*corev1.Pod)

	mu sync.Mutex
	// waiting are, for each refused victim, the pods that would preempt it.
	waiting map[types.UID]map[string]*corev1.Pod
}

// refusalPeriod is how long a refused victim is left alone. After it the pods that would preempt it are tried again.
const refusalPeriod = 30 * time.Second

func newRefusals(clock clock.WithDelayedExecution, activate func(map[string]*corev1.Pod)) *refusals {
	return &refusals{clock: clock, activate: activate, waiting: map[types.UID]map[string]*corev1.Pod{}}
}

func (r *refusals) add(victim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[victim] != nil {
		return
	}
	r.waiting[victim] = map[string]*corev1.Pod{}
	r.clock.AfterFunc(refusalPeriod, func() {
		r.mu.Lock()
		waiting := r.waiting[victim]
		delete(r.waiting, victim)
		r.mu.Unlock()
		r.activate(waiting)
	})
}

// spare is true if the pod was refused of late. The preemptor then waits until it may be asked about again.
func (r *refusals) spare(victim, preemptor *corev1.Pod) bool {
	if !budget.IsProtected(victim) {
		return false // without the lock: nodes are tried in parallel
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	waiting := r.waiting[victim.UID]
	if waiting != nil {
		waiting[string(preemptor.UID)] = preemptor
	}
	return waiting != nil
}

// hold is true if the pod would preempt one that was refused.
func (r *refusals) hold(preemptor *corev1.Pod) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, waiting := range r.waiting {
		if waiting[string(preemptor.UID)] != nil {
			return true
		}
	}
	return false
}
