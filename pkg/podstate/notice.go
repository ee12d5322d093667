package podstate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// nodeEnds is the key of a taint or a label that says that its node will end, for tools that are not among the
// defaults.
const nodeEnds = "berth.dev/node-ends"

// defaults announce the end of a node. Not among them is condition MaintenancePlanned of Kubernetes: it says neither
// when nor whether the node goes.
var defaults = []string{
	"taint:" + nodeEnds, "label:" + nodeEnds,
	"taint:karpenter.sh/disrupted",
	"taint:ToBeDeletedByClusterAutoscaler",
	// aws-node-termination-handler
	"taint:aws-node-termination-handler/spot-itn", "taint:aws-node-termination-handler/scheduled-maintenance",
	"taint:aws-node-termination-handler/asg-lifecycle-termination", "taint:aws-node-termination-handler/rebalance-recommendation",
	// GKE
	"taint:cloud.google.com/impending-node-termination", "label:cloud.google.com/active-node-maintenance=ONGOING",
	// AKS: its node-problem-detector and its cloud provider
	"condition:PreemptScheduled", "condition:TerminateScheduled", "condition:RedeployScheduled", "taint:cloudprovider.azure.microsoft.com/draining",
	// Kubernetes 1.37
	"condition:DrainInProgress", "condition:Drained", "condition:MaintenanceInProgress", "condition:GracefulNodeShutdownInProgress",
}

// allDefaults stands for the defaults in a list of notices.
const allDefaults = "defaults"

// Notices are what announces that a node will end. Nil announces nothing. It is the value of a flag, in which commas
// separate the notices.
type Notices []notice

type notice struct{ kind, key, value string }

// DefaultNotices are those of well-known tools, and nodeEnds.
func DefaultNotices() Notices {
	notices, err := ParseNotices(defaults)
	if err != nil {
		panic(err) // it is a constant
	}
	return notices
}

// ParseNotices reads notices: taint:KEY, condition:TYPE, which must be True, label:KEY or label:KEY=VALUE. "defaults"
// stands for DefaultNotices. The error says everything that is wrong.
func ParseNotices(texts []string) (notices Notices, _ error) {
	var errs []error
	for _, text := range texts {
		kind, rest, _ := strings.Cut(text, ":")
		key, value, hasValue := strings.Cut(rest, "=")
		switch {
		case text == allDefaults:
			notices = append(notices, DefaultNotices()...)
		case key == "" || !slices.Contains([]string{"taint", "condition", "label"}, kind) || hasValue && (kind != "label" || value == ""):
			errs = append(errs, fmt.Errorf("node notice %q: want taint:KEY, condition:TYPE, label:KEY, label:KEY=VALUE, or %s", text, allDefaults))
		default:
			notices = append(notices, notice{kind, key, value})
		}
	}
	return notices, errors.Join(errs...)
}

// Set implements flag.Value. Empty is none.
func (n *Notices) Set(text string) (err error) {
	*n, err = ParseNotices(strings.FieldsFunc(text, func(c rune) bool { return c == ',' }))
	return err
}

// String implements flag.Value.
func (n *Notices) String() string {
	if slices.Equal(*n, DefaultNotices()) {
		return allDefaults
	}
	texts := make([]string, len(*n))
	for i, one := range *n {
		texts[i] = strings.TrimSuffix(one.kind+":"+one.key+"="+one.value, "=")
	}
	return strings.Join(texts, ",")
}

// Type implements pflag.Value.
func (n *Notices) Type() string { return "notices" }

// NoticesUsage describes the flag.
const NoticesUsage = "What announces that a node will end, separated by commas: taint:KEY, condition:TYPE, label:KEY, label:KEY=VALUE, or defaults. Empty: nothing."

// Of is what announces the end of the node, such as "taint karpenter.sh/disrupted". It is empty if nothing does.
func (n Notices) Of(node *corev1.Node) string {
	for i := range n {
		if n[i].isOn(node) {
			return n[i].kind + " " + n[i].key
		}
	}
	return ""
}

func (n *notice) isOn(node *corev1.Node) bool {
	switch n.kind {
	case "taint":
		return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == n.key })
	case "condition":
		return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return string(c.Type) == n.key && c.Status == corev1.ConditionTrue
		})
	default:
		value, found := node.Labels[n.key]
		return found && (n.value == "" || value == n.value)
	}
}
