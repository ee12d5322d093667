package webhook

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/autoscaler"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// ancestry answers questions about a pod's owners from the cache.
type ancestry interface {
	AwaitAnnounced(ctx context.Context, namespace string)
	MayHaveSpreads(ctx context.Context, namespace string) (bool, error)
	AwaitSpreadOf(ctx context.Context, namespace string, owner *workload.Owner, labels map[string]string) (*lineage.Spread, *workload.Owner, error)
}

// podAdmission prepares the pods of a workload with a spread, and leaves all others as they are. It refuses no pod. A pod about which something is
// unknown is admitted as it is, unless podReviews refuses it.
type podAdmission struct {
	owners ancestry
	early  func(context.Context, *podRequest, *lineage.Spread) answer
	// autoscaler of the nodes. Nil means none.
	autoscaler *autoscaler.Detector
}

// review finds the pod's spread, lets the model add its constraints, and answers with the difference.
func (a *podAdmission) review(ctx context.Context, request *podRequest) answer {
	before := request.Object.pod()
	if request.Operation != admissionv1.Create || !mayHaveSpread(before) {
		return answer{outcome: left}
	}
	spread, missing, err := a.spreadOf(ctx, request.Namespace, before)
	other := subset.ChoseOther(before.Spec.SchedulerName)
	switch {
	case other && (err != nil || missing != nil || spread == nil || spread.Policy == nil || spread.Policy.SchedulerOf(before.Spec.SchedulerName) == ""):
		return answer{outcome: left} // few spreads divide such a pod, and it counts where it runs
	case err != nil:
		klog.FromContext(ctx).Error(err, "Admitting a pod as it is", "namespace", request.Namespace)
		return answer{outcome: failed, warnings: []string{"Berth admits the pod as it is: " + err.Error()}}
	case missing != nil:
		klog.FromContext(ctx).Info("Admitting a pod as it is, because an owner is not known", "kind", missing.Kind, "owner", klog.KRef(request.Namespace, missing.Name))
		return answer{outcome: ownerUnknown, warnings: []string{ownerIsUnknown(missing, before)}}
	case spread == nil:
		return answer{outcome: left}
	}
	if spread.Policy != nil && spread.Policy.BindsEarly() {
		return a.early(ctx, request, spread)
	}
	after := *before
	after.Spec.SchedulerName = v1beta1.SchedulerName
	var warnings []string
	switch {
	case spread.Policy == nil:
		warnings = append(warnings, spreadIsInvalid(spread))
	case spread.Policy.EffectiveBinding(a.autoscaler.Name() != "") == v1beta1.GatedBinding:
		spread.Policy.Constraints.WithoutTerms().AddTo(&after)
		subset.Gate(&after)
	case spread.Policy.Constraints.AddTo(&after): // they are too many
		warnings = append(warnings, tooManyConstraints(spread))
	}
	if spread.Promised {
		subset.Await(&after, spread.Name)
	}
	patch, err := patchOf(before, &after)
	if err != nil {
		return answer{outcome: failed, warnings: []string{"Berth admits the pod as it is: " + err.Error()}}
	}
	klog.FromContext(ctx).V(4).Info("Admitting a pod of a spread", "workloadspread", klog.KRef(request.Namespace, spread.Name))
	return answer{outcome: constrained, patch: patch, warnings: warnings}
}

// mayHaveSpread is false for pods that no spread can divide.
func mayHaveSpread(pod *corev1.Pod) bool {
	owner := workload.ControllerOf(pod)
	return owner != nil && !workload.EndsChain(owner.Kind)
}

func (a *podAdmission) spreadOf(ctx context.Context, namespace string, pod *corev1.Pod) (*lineage.Spread, *workload.Owner, error) {
	a.owners.AwaitAnnounced(ctx, namespace)
	if divided, err := a.owners.MayHaveSpreads(ctx, namespace); err != nil || !divided {
		return nil, nil, err
	}
	return a.owners.AwaitSpreadOf(ctx, namespace, workload.ControllerOf(pod), pod.Labels)
}

// Warnings reach the client that created the pod. For most pods that is the log of a controller.

func ownerIsUnknown(missing *workload.Owner, pod *corev1.Pod) string {
	then := corev1.DefaultSchedulerName + " places the pod"
	if pod.Spec.SchedulerName == v1beta1.SchedulerName {
		then = "the scheduler holds the pod until then"
	}
	return fmt.Sprintf("Berth: %s %s is not known yet; if a WorkloadSpread divides the pod, %s", missing.Kind.Kind, missing.Name, then)
}

func spreadIsInvalid(spread *lineage.Spread) string {
	return fmt.Sprintf("Berth: WorkloadSpread %s is invalid; the scheduler holds the pod until the spread is corrected; see condition Ready of the spread", spread.Name)
}

func tooManyConstraints(spread *lineage.Spread) string {
	return fmt.Sprintf("Berth: the node affinity of the pod and of the subsets of WorkloadSpread %s is too large for one pod; only Berth's scheduler applies the subsets' part; use fewer terms", spread.Name)
}
