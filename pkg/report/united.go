package report

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/united"
)

func ofUnited(ud *v1beta1.UnitedDeployment, now time.Time) Report {
	status := &ud.Status
	r := reportOf(v1beta1.Kind, ud)
	r.Strategy, r.Replicas = cmp.Or(string(ud.Spec.Topology.ScheduleStrategy.Type), string(v1beta1.FixedScheduleStrategy)), ptr.Deref(ud.Spec.Replicas, 1)
	r.Target = "no template"
	if template, err := united.TemplateOf(&ud.Spec.Template); err == nil && template != nil {
		r.Target = template.Kind.Kind + " in each subset"
	}
	var ready *metav1.Condition
	if c := united.ConditionIn(status.Conditions, v1beta1.ReadyCondition); c != nil {
		ready = &metav1.Condition{Status: metav1.ConditionStatus(c.Status), Reason: string(c.Reason), Message: c.Message}
	}
	if !r.judge(ready, status.ObservedGeneration == ud.Generation, "berth-united has not looked at this version of it; see that it runs") {
		return r
	}
	policy, _ := united.Compile(ud, field.NewPath("spec"))
	for i := range status.SubsetStatuses {
		is := &status.SubsetStatuses[i]
		of := Subset{Name: is.Name, Cluster: is.Cluster, Pods: is.ReadyReplicas, Quota: &is.Replicas, Target: is.Replicas, Schedulable: true}
		if c := united.ConditionIn(is.Conditions, v1beta1.SubsetSchedulable); c != nil && c.Status == corev1.ConditionFalse {
			of.Schedulable, of.Message = false, c.Message
			if policy != nil && policy.Adaptive != nil && r.Next == "" {
				if again := c.LastTransitionTime.Add(policy.Adaptive.Pause(is.FailedTrials)); again.After(now) {
					r.Next = fmt.Sprintf("%s gets replicas again at %s: %s", is.Name, stamp(again), c.Message)
				}
			}
		}
		if is.ReservedPods > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s in %s for a node, while another subset runs a pod in their place", Pods(is.ReservedPods, "waits", "wait"), is.Name))
		}
		if is.Partition > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s the previous template in %s (partition)", Pods(is.Partition, "keeps", "keep"), is.Name))
		}
		r.Subsets = append(r.Subsets, of)
	}
	r.await(status.UpdatedReplicas, "have the new template")
	r.await(status.ReadyReplicas, "are ready")
	r.Next = cmp.Or(r.Next, "nothing: every replica runs")
	return r
}
