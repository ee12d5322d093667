package cli

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// placementPolicy is an Azure PlacementPolicy, as github.com/Azure/placement-policy-scheduler-plugins defines it.
type placementPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Weight          int32                 `json:"weight"`
		EnforcementMode string                `json:"enforcementMode"`
		PodSelector     *metav1.LabelSelector `json:"podSelector"`
		NodeSelector    *metav1.LabelSelector `json:"nodeSelector"`
		Policy          struct {
			Action     string              `json:"action"`
			TargetSize *intstr.IntOrString `json:"targetSize"`
		} `json:"policy"`
	} `json:"spec"`
	Status map[string]any `json:"status"`
}

func (c *conversion) fromPlacementPolicy(document []byte) error {
	var policy placementPolicy
	if err := c.decode(document, &policy); err != nil {
		return err
	}
	spec := &policy.Spec
	requirements := requirementsOf(spec.NodeSelector)
	if len(requirements) == 0 {
		return fmt.Errorf("spec.nodeSelector: it selects every node and leaves no others to divide the pods over; select nodes by a label")
	}
	if spec.Policy.TargetSize == nil {
		return fmt.Errorf("spec.policy.targetSize: it is missing; say how many pods go to the selected nodes, for instance 40%%")
	}
	selected := v1beta1.Subset{Name: "selected", RequiredNodeSelector: &corev1.NodeSelectorTerm{MatchExpressions: requirements}}
	others := v1beta1.Subset{Name: "others"}
	if len(requirements) == 1 {
		others.RequiredNodeSelector = &corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{opposite(requirements[0])}}
	} else {
		c.note("spec.nodeSelector: one term cannot say \"any other node\" of several labels; subset others has every node, and its pods may also go to selected ones")
	}
	subsets := []v1beta1.Subset{selected, others}
	switch spec.Policy.Action {
	case "Must":
	case "MustNot":
		subsets[0], subsets[1] = others, selected
	default:
		return fmt.Errorf("spec.policy.action: %q is unknown; use Must or MustNot", spec.Policy.Action)
	}
	subsets[0].MaxReplicas = spec.Policy.TargetSize
	c.spread.Spec.Subsets = subsets
	if spec.Policy.TargetSize.Type == intstr.String {
		c.note("spec.policy.targetSize: a percentage of the workload's replicas, rounded up; there it was of the pods that existed, rounded down")
	}
	c.note("spec.podSelector: replaced by the target; all of its pods are divided")
	strategy := &c.spread.Spec.ScheduleStrategy
	if strategy.Type = v1beta1.FixedScheduleStrategy; spec.EnforcementMode != "Strict" {
		strategy.Type = v1beta1.AdaptiveScheduleStrategy
	}
	if spec.Weight != 0 {
		c.note("spec.weight: no equivalent; a workload has one spread")
	}
	return nil
}

// requirementsOf turns a label selector into requirements on nodes.
func requirementsOf(selector *metav1.LabelSelector) []corev1.NodeSelectorRequirement {
	if selector == nil {
		return nil
	}
	var requirements []corev1.NodeSelectorRequirement
	for _, key := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		requirements = append(requirements, in(key, selector.MatchLabels[key]))
	}
	for _, e := range selector.MatchExpressions {
		requirements = append(requirements, corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOperator(e.Operator), Values: e.Values})
	}
	return requirements
}

// opposite matches the nodes that a requirement does not match. Label selectors have these four operators.
func opposite(r corev1.NodeSelectorRequirement) corev1.NodeSelectorRequirement {
	r.Operator = map[corev1.NodeSelectorOperator]corev1.NodeSelectorOperator{
		corev1.NodeSelectorOpIn: corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpNotIn: corev1.NodeSelectorOpIn,
		corev1.NodeSelectorOpExists: corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpDoesNotExist: corev1.NodeSelectorOpExists,
	}[r.Operator]
	return r
}
