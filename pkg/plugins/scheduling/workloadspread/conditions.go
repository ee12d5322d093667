package workloadspread

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// refusal is why PreFilter refuses a pod that no node would help.
type refusal struct {
	reason  v1beta1.Reason
	message string
}

func (r *refusal) Error() string { return string(r.reason) + ": " + r.message }

// Install makes the scheduler write into condition PodScheduled what a pod waits for, if that is not a node: the reason is SubsetsFull,
// AdmittedSubsetFull, WorkloadNotObserved or InvalidSpread. Without Install the reason is Unschedulable, and node autoscalers add nodes for such
// pods, which the pods cannot use. Call it once, before the scheduler runs.
func (f *Family) Install(sched *kubescheduler.Scheduler) {
	fail := sched.FailureHandler
	sched.FailureHandler = func(ctx context.Context, profile framework.Framework, info *framework.QueuedPodInfo, status *fwk.Status,
		nominating *fwk.NominatingInfo, start time.Time) {
		refused := refusalIn(status)
		if refused == nil && f.hasGate(info.Pod) {
			refused = &refusal{reason: v1beta1.Reason(corev1.PodReasonSchedulingGated)} // autoscalers look at the reason, and the pod has no terms yet
		}
		if refused != nil {
			profile = refusedBy{profile, writer{ctx: ctx, profile: profile, reason: string(refused.reason)}}
		}
		fail(ctx, profile, info, status, nominating, start)
	}
}

// hasGate is true if the pod has Berth's gate by now. The queue may hold an older pod: it learns of an event after the plugin, which wakes the pod.
func (f *Family) hasGate(pod *corev1.Pod) bool {
	c := f.core.Load()
	return subset.IsGated(pod) && (c == nil || subset.IsGated(c.latest(pod)))
}

// refusalIn is why PreFilter refused the pod. Nil if it did not.
func refusalIn(status *fwk.Status) (refused *refusal) {
	var fit *framework.FitError
	if errors.As(status.AsError(), &fit) {
		errors.As(fit.Diagnosis.NodeToStatus.AbsentNodesStatus().AsError(), &refused)
	}
	return refused
}

// refusedBy is a profile as the failure handler sees it for one pod. It writes the pod's condition in another way.
type refusedBy struct {
	framework.Framework
	writer writer
}

func (r refusedBy) APICacher() fwk.APICacher { return r.writer }

// writer writes the condition of a refused pod. It does what the failure handler does, with another reason.
type writer struct {
	fwk.APICacher                 // nil: the failure handler calls PatchPodStatus alone
	ctx           context.Context // of the cycle; the interface has no parameter for it
	profile       framework.Framework
	reason        string
}

// patch writes the conditions of a failure, which are PodScheduled.
func (w writer) patch(pod *corev1.Pod, conditions []*corev1.PodCondition, nominating *fwk.NominatingInfo) (<-chan error, error) {
	status := pod.Status.DeepCopy()
	changed := false
	for _, condition := range conditions {
		condition.Reason = w.reason
		changed = podutil.UpdatePodCondition(status, condition) || changed
	}
	if nominating.Mode() == fwk.ModeOverride && status.NominatedNodeName != nominating.NominatedNodeName {
		status.NominatedNodeName, changed = nominating.NominatedNodeName, true
	}
	if !changed {
		return nil, nil
	}
	return nil, schedutil.PatchPodStatus(w.ctx, w.profile.ClientSet(), pod.Name, pod.Namespace, &pod.Status, status)
}
