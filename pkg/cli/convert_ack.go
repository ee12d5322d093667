package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// resourcePolicy is an ACK ResourcePolicy, as its documentation has it:
// https://www.alibabacloud.com/help/en/ack/ack-managed-and-ack-dedicated/user-guide/configure-priority-based-resource-scheduling
type resourcePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector             map[string]string                 `json:"selector"`
		MatchExpressions     []metav1.LabelSelectorRequirement `json:"matchExpressions"`
		ConsumerRef          map[string]any                    `json:"consumerRef"`
		Strategy             string                            `json:"strategy"`
		Units                []resourceUnit                    `json:"units"`
		PreemptPolicy        string                            `json:"preemptPolicy"`
		IgnorePreviousPod    bool                              `json:"ignorePreviousPod"`
		IgnoreTerminatingPod *bool                             `json:"ignoreTerminatingPod"`
		MatchLabelKeys       []string                          `json:"matchLabelKeys"`
		WhenTryNextUnits     struct {
			Policy  string           `json:"policy"`
			Timeout *metav1.Duration `json:"timeout"`
		} `json:"whenTryNextUnits"`
	} `json:"spec"`
	Status map[string]any `json:"status"`
}

type resourceUnit struct {
	Resource       string            `json:"resource"`
	NodeSelector   map[string]string `json:"nodeSelector"`
	Max            *int32            `json:"max"`
	MaxResources   map[string]any    `json:"maxResources"`
	PodLabels      map[string]string `json:"podLabels"`
	PodAnnotations map[string]string `json:"podAnnotations"`
	SpotInstance   bool              `json:"spotInstance"`
	ScaleInWeight  *int32            `json:"scaleInWeight"`
}

const (
	// Virtual nodes of ACK carry this label, and a taint with the key below.
	virtualNodeLabel, virtualNodeValue = "type", "virtual-kubelet"
	virtualNodeTaint                   = "virtual-kubelet.io/provider"
	// defaultTimeout of the policy TimeoutOrExceedMax.
	defaultTimeout = 15 * time.Minute
)

func (c *conversion) fromResourcePolicy(document []byte) error {
	var policy resourcePolicy
	if err := c.decode(document, &policy); err != nil {
		return err
	}
	spec, strategy := &policy.Spec, &c.spread.Spec.ScheduleStrategy
	if len(spec.Units) == 0 {
		return fmt.Errorf("spec.units: it is empty; add a unit for each group of nodes")
	}
	for i := range spec.Units {
		c.addUnit(&spec.Units[i], i)
	}
	strategy.WhenFull = v1beta1.WhenFullWait
	c.note("spec.selector, matchExpressions: replaced by the target; all of its pods are divided")
	strategy.QuotaScope = v1beta1.WorkloadQuotaScope
	switch {
	case slices.Equal(spec.MatchLabelKeys, []string{"pod-template-hash"}):
		strategy.QuotaScope = v1beta1.RevisionQuotaScope
	case len(spec.MatchLabelKeys) > 0:
		c.note("spec.matchLabelKeys: no equivalent for %s; quotas count all pods of the workload", strings.Join(spec.MatchLabelKeys, ", "))
	}
	strategy.Type = v1beta1.AdaptiveScheduleStrategy
	switch next := spec.WhenTryNextUnits; next.Policy {
	case "", "LackResourceOrExceedMax":
	case "ExceedMax":
		strategy.Type = v1beta1.FixedScheduleStrategy
	case "TimeoutOrExceedMax", "Timeout":
		timeout := defaultTimeout
		if next.Timeout != nil {
			timeout = next.Timeout.Duration
		}
		strategy.Adaptive = &v1beta1.AdaptiveStrategy{DisableSimulationSchedule: true, RescheduleCriticalSeconds: ptr.To(int32(timeout.Seconds()))}
	default:
		c.note("spec.whenTryNextUnits.policy: no equivalent for %s; pods go on when no node fits or the quota is full", next.Policy)
	}
	if spec.Strategy == "required" {
		c.note("spec.strategy: required has no equivalent of its own; no pod leaves the subsets, because of whenFull: Wait")
	}
	if spec.PreemptPolicy == "BeforeNextUnit" {
		c.note("spec.preemptPolicy: BeforeNextUnit has no equivalent; pods preempt after all subsets were tried, in order")
	}
	if spec.IgnorePreviousPod {
		c.note("spec.ignorePreviousPod: no equivalent; pods that exist are adopted by the subset of their node and counted")
	}
	if spec.IgnoreTerminatingPod != nil && !*spec.IgnoreTerminatingPod {
		c.note("spec.ignoreTerminatingPod: false has no equivalent; a terminating pod has given its slot back")
	}
	if len(spec.ConsumerRef) > 0 {
		c.note("spec.consumerRef: no equivalent")
	}
	return nil
}

func (c *conversion) addUnit(unit *resourceUnit, index int) {
	at := fmt.Sprintf("spec.units[%d]", index)
	s := v1beta1.Subset{Name: fmt.Sprintf("%s-%d", cmp.Or(unit.Resource, "unit"), index+1)}
	term := &corev1.NodeSelectorTerm{}
	for _, key := range slices.Sorted(maps.Keys(unit.NodeSelector)) {
		term.MatchExpressions = append(term.MatchExpressions, in(key, unit.NodeSelector[key]))
	}
	switch unit.Resource {
	case "ecs", "":
		term.MatchExpressions = append(term.MatchExpressions,
			corev1.NodeSelectorRequirement{Key: virtualNodeLabel, Operator: corev1.NodeSelectorOpNotIn, Values: []string{virtualNodeValue}})
	case "eci", "acs":
		term.MatchExpressions = append(term.MatchExpressions, in(virtualNodeLabel, virtualNodeValue))
		s.Tolerations = []corev1.Toleration{{Key: virtualNodeTaint, Operator: corev1.TolerationOpExists}}
	case "elastic":
		c.note("%s.resource: elastic has no equivalent; the subset has the nodes that its nodeSelector names", at)
	default:
		c.note("%s.resource: %q is not known; the subset has the nodes that its nodeSelector names", at, unit.Resource)
	}
	if len(term.MatchExpressions) > 0 {
		s.RequiredNodeSelector = term
	}
	if unit.Max != nil {
		s.MaxReplicas = ptr.To(intstr.FromInt32(*unit.Max))
	}
	if len(unit.PodLabels)+len(unit.PodAnnotations) > 0 {
		metadata := map[string]any{}
		if len(unit.PodLabels) > 0 {
			metadata["labels"] = unit.PodLabels
		}
		if len(unit.PodAnnotations) > 0 {
			metadata["annotations"] = unit.PodAnnotations
		}
		raw, err := json.Marshal(map[string]any{"metadata": metadata})
		if err != nil { // strings alone
			panic(err)
		}
		s.Patch = &runtime.RawExtension{Raw: raw}
	}
	if unit.PodLabels["k8s.aliyun.com/resource-policy-wait-for-ecs-scaling"] == "true" {
		c.note("%s.podLabels: no equivalent; to wait for the autoscaler, use strategy Fixed or set adaptive.rescheduleCriticalSeconds", at)
	}
	if len(unit.MaxResources) > 0 {
		c.note("%s.maxResources: no equivalent; a quota counts pods", at)
	}
	if unit.SpotInstance {
		c.note("%s.spotInstance: no equivalent; have the subset select nodes of spot instances", at)
	}
	if unit.ScaleInWeight != nil {
		c.note("%s.scaleInWeight: no equivalent; scaling down takes the last subset first", at)
	}
	c.spread.Spec.Subsets = append(c.spread.Spec.Subsets, s)
}
