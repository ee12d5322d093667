package report

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/united"
)

// United says where the replicas of a UnitedDeployment are and what happens next.
type United struct {
	// Kind is UnitedDeployment. It tells the report from that of a spread.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Children is the kind of the children. Empty without a template.
	Children string `json:"children,omitempty"`
	Strategy string `json:"strategy"`
	// Ready, with the reason and what to do about it if it is false.
	Ready   bool           `json:"ready"`
	Reason  v1beta1.Reason `json:"reason,omitempty"`
	Message string         `json:"message,omitempty"`
	// Replicas that are asked for, pods that are ready, and pods with the newest template.
	Replicas      int32 `json:"replicas"`
	ReadyReplicas int32 `json:"readyReplicas"`
	Updated       int32 `json:"updatedReplicas"`
	// Subsets in order. Empty until the controller has looked at it.
	Subsets []UnitedSubset `json:"subsets,omitempty"`
	// Next is what the system does, or waits for.
	Next string `json:"next"`
}

// UnitedSubset is a subset with its child.
type UnitedSubset struct {
	Name string `json:"name"`
	// Cluster of the child. Empty is that of the UnitedDeployment.
	Cluster string `json:"cluster,omitempty"`
	// Replicas that its child asks for, and pods of it that are ready.
	Replicas int32 `json:"replicas"`
	Ready    int32 `json:"ready"`
	// Reserved are pods that wait for a node while another subset runs a pod in their place.
	Reserved int32 `json:"reserved,omitempty"`
	// Partition is how many replicas keep the previous template.
	Partition int32 `json:"partition,omitempty"`
	// Schedulable is false while the subset gets no new replicas, because pods found no node.
	Schedulable bool   `json:"schedulable"`
	Message     string `json:"message,omitempty"`
	// again is when it gets replicas again.
	again time.Time
}

// OfUnited reads the status of a UnitedDeployment as it is to be understood at a moment.
func OfUnited(ud *v1beta1.UnitedDeployment, now time.Time) United {
	status := &ud.Status
	r := United{
		Kind: v1beta1.Kind.Kind, Namespace: ud.Namespace, Name: ud.Name, Strategy: string(v1beta1.FixedScheduleStrategy),
		Replicas: ptr.Deref(ud.Spec.Replicas, 1), ReadyReplicas: status.ReadyReplicas, Updated: status.UpdatedReplicas,
	}
	if ud.Spec.Topology.ScheduleStrategy.Type != "" {
		r.Strategy = string(ud.Spec.Topology.ScheduleStrategy.Type)
	}
	if template, err := united.TemplateOf(&ud.Spec.Template); err == nil && template != nil {
		r.Children = template.Kind.Kind
	}
	var ready *v1beta1.Condition
	for i := range status.Conditions {
		if status.Conditions[i].Type == v1beta1.ReadyCondition {
			ready = &status.Conditions[i]
		}
	}
	if ready == nil || status.ObservedGeneration != ud.Generation {
		r.Next = "berth-united has not looked at this version of it; see that it runs: kubectl get pods -n berth-system"
		return r
	}
	r.Ready, r.Reason, r.Message = ready.Status == corev1.ConditionTrue, ready.Reason, ready.Message
	policy, _ := united.Compile(ud, field.NewPath("spec"))
	for i := range status.SubsetStatuses {
		is := &status.SubsetStatuses[i]
		of := UnitedSubset{Name: is.Name, Cluster: is.Cluster, Replicas: is.Replicas, Ready: is.ReadyReplicas, Reserved: is.ReservedPods, Partition: is.Partition, Schedulable: true}
		for _, c := range is.Conditions {
			if c.Type == v1beta1.SubsetSchedulable && c.Status == corev1.ConditionFalse {
				of.Schedulable, of.Message = false, c.Message
				if policy != nil && policy.Adaptive != nil {
					of.again = c.LastTransitionTime.Add(policy.Adaptive.Unschedulable)
				}
			}
		}
		r.Subsets = append(r.Subsets, of)
	}
	r.Next = r.next(now)
	return r
}

func (r *United) next(now time.Time) string {
	if !r.Ready {
		return r.Message
	}
	for _, s := range r.Subsets {
		if left := s.again.Sub(now); !s.Schedulable && left > 0 {
			return fmt.Sprintf("%s gets replicas again in %s: %s", s.Name, left.Round(time.Second), s.Message)
		}
	}
	switch {
	case r.Updated < r.Replicas:
		return fmt.Sprintf("%d of %s have the new template", r.Updated, Pods(r.Replicas, "", ""))
	case r.ReadyReplicas < r.Replicas:
		return fmt.Sprintf("%d of %s are ready", r.ReadyReplicas, Pods(r.Replicas, "", ""))
	default:
		return "nothing: every replica runs"
	}
}
