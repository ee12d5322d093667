package spread

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/subset"
)

// condition is a condition of a spread, or of a subset.
type condition = frame.Condition[v1beta1.Reason]

// labelForReaders is the label by which a ClusterRole is aggregated into the roles of Berth's service accounts.
const labelForReaders = `rbac.berth.dev/aggregate-to-workload-reader: "true"`

func notReady(reason v1beta1.Reason, format string, args ...any) condition {
	return frame.False(v1beta1.ConditionReady, reason, format, args...)
}

// workloadName is a workload as messages name it: "Deployment default/web".
func workloadName(spread *v1beta1.WorkloadSpread) string {
	return fmt.Sprintf("%s %s/%s", spread.Spec.TargetReference.Kind, spread.Namespace, spread.Spec.TargetReference.Name)
}

func spreadReady(spread *v1beta1.WorkloadSpread) condition {
	return frame.True(v1beta1.ConditionReady, v1beta1.ReasonSpreadReady, "the pods of %s are divided over the subsets", workloadName(spread))
}

func invalidSpread(errs field.ErrorList) condition {
	return notReady(v1beta1.ReasonInvalidSpread, "%s", errs.ToAggregate())
}

func spreadConflict(spread *v1beta1.WorkloadSpread, older string) condition {
	return notReady(v1beta1.ReasonSpreadConflict, "%s is divided by WorkloadSpread %s/%s, which is older; delete one of the two",
		workloadName(spread), spread.Namespace, older)
}

func targetNotFound(spread *v1beta1.WorkloadSpread) condition {
	return notReady(v1beta1.ReasonTargetNotFound, "%s does not exist; create it or correct spec.targetRef", workloadName(spread))
}

// cannotWatch says why a kind of workload cannot be watched.
func cannotWatch(u *lineage.Unwatchable) condition {
	switch u.Why {
	case lineage.NotServed:
		return notReady(v1beta1.ReasonTargetNotFound, "the API server has no kind %s in group %q; install it or correct spec.targetRef", u.Kind.Kind, u.Kind.Group)
	case lineage.NotNamespaced:
		return notReady(v1beta1.ReasonTargetUnreadable, "%s is not namespaced; a spread divides a workload of its own namespace: correct spec.targetRef", u.Kind)
	case lineage.NotListed:
		return notReady(v1beta1.ReasonTargetUnreadable, "the API server does not list %s; correct spec.targetRef", u.Resource)
	default:
		return forbidden("list", u.Resource)
	}
}

func forbidden(verb string, resource schema.GroupResource) condition {
	return notReady(v1beta1.ReasonTargetUnreadable,
		"Berth may not %s %s; create a ClusterRole with get, list and watch on it and the label %s", verb, resource, labelForReaders)
}

func noScale(spread *v1beta1.WorkloadSpread) condition {
	return notReady(v1beta1.ReasonTargetUnreadable,
		"%s has no scale subresource; say in spec.targetFilter.replicasPathList where its replicas are", workloadName(spread))
}

func noReplicasAtPaths(spread *v1beta1.WorkloadSpread, err error) condition {
	said := strings.ReplaceAll(err.Error(), "\n", "; ")
	if filter := spread.Spec.TargetFilter; filter == nil || len(filter.ReplicasPathList) == 0 {
		return notReady(v1beta1.ReasonTargetUnreadable, "the replicasPath in ConfigMap %s does not fit %s: %s", frame.KruiseConfiguration, workloadName(spread), said)
	}
	return notReady(v1beta1.ReasonTargetUnreadable, "spec.targetFilter.replicasPathList does not fit %s: %s", workloadName(spread), said)
}

// kindListUnreadable: the spread works as without the list, if nothing else keeps it from that.
func kindListUnreadable(f *facts) condition {
	said := f.kindList.Error() + "; correct the list, which counts as empty until then"
	if f.workload.problem != nil {
		said += ": " + f.workload.problem.condition.Message
	}
	return notReady(v1beta1.ReasonKindListUnreadable, "%s", said)
}

// labelsNotApplied: the spread works, except for some labels of its patches.
func labelsNotApplied(spread *v1beta1.WorkloadSpread, paths []string) condition {
	return notReady(v1beta1.ReasonLabelsNotApplied, "these labels are not set: %s; %s selects its pods by them and would release the pods; remove the labels from the patch",
		strings.Join(paths, ", "), workloadName(spread))
}

// specPatchNotApplied: the spread works, except for pods whose spec was not patched at admission.
func specPatchNotApplied(pods int32) condition {
	return notReady(v1beta1.ReasonSpecPatchNotApplied,
		"pods that run without the patch of their subset: %d; they were created while the webhook did not answer, or before the patch; replace them to apply it", pods)
}

// rolloutBlocked: the spread works, until the workload gets a new template.
func rolloutBlocked(spread *v1beta1.WorkloadSpread, why string) condition {
	return notReady(v1beta1.ReasonRolloutBlocked, "%s", workloadName(spread)+": "+why)
}

// podsNotAdmitted takes the numbers of pods without a record, by the scheduler that they name.
func podsNotAdmitted(foreign map[string]int32) condition {
	var said, others []string
	reason := v1beta1.ReasonOtherScheduler
	for _, scheduler := range slices.Sorted(maps.Keys(foreign)) {
		if scheduler != corev1.DefaultSchedulerName {
			others = append(others, fmt.Sprintf("%s %d", scheduler, foreign[scheduler]))
		}
	}
	if pods := foreign[corev1.DefaultSchedulerName]; pods > 0 {
		reason = v1beta1.ReasonPodsNotAdmitted
		said = append(said, fmt.Sprintf("pods that the default scheduler placed: %d; the webhook did not answer when they were created, or does not see the namespace; "+
			"they count where they are, and the descheduler moves those that are in no subset or above a quota", pods))
	}
	if len(others) > 0 {
		said = append(said, fmt.Sprintf("pods that name a scheduler which does not divide them: %s; they count where they are; "+
			"to have them divided, take schedulerName out of the template, or run Berth's plugins in that scheduler", strings.Join(others, ", ")))
	}
	return frame.False(v1beta1.ConditionAdmitted, reason, "%s", strings.Join(said, "; "))
}

func podsAdmitted() condition {
	return frame.True(v1beta1.ConditionAdmitted, v1beta1.ReasonPodsAdmitted, "Berth has divided all pods that have a node")
}

func schedulable() condition {
	return frame.True(v1beta1.ConditionSchedulable, v1beta1.ReasonSufficient, "no pod waits for a node of the subset")
}

func unschedulable(pods int32, policy *subset.Policy) condition {
	why := "this is the first subset with quota left for them"
	if policy.BindsEarly() { // the webhook may not have answered
		why = "admission picked this subset for them, or it is the first with quota left"
	}
	return frame.False(v1beta1.ConditionSchedulable, v1beta1.ReasonPodUnschedulable, "pods that find no node: %d; %s", pods, why)
}
