package workload

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// Wins is true if a, and not b, divides the workload when both spreads name it. One that somebody has written wins
// against one that a rule has made. Else the older one wins. Of two created in the same second, the one whose name
// sorts first does. A spread does not win against itself.
func Wins(a, b *v1beta1.WorkloadSpread) bool {
	if MadeByRule(a) != MadeByRule(b) {
		return MadeByRule(b)
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// MadeByRule is true if the spread has the label of a rule.
func MadeByRule(spread *v1beta1.WorkloadSpread) bool {
	_, made := MakerOf(spread)
	return made
}

// MakerOf is the rule that has made a spread, by its labels. It is false for a spread that somebody has written.
func MakerOf(spread *v1beta1.WorkloadSpread) (types.NamespacedName, bool) {
	if name := spread.Labels[v1beta1.RuleLabel]; name != "" {
		return types.NamespacedName{Namespace: spread.Namespace, Name: name}, true
	}
	name := spread.Labels[v1beta1.ClusterRuleLabel]
	return types.NamespacedName{Name: name}, name != ""
}

// RuleName is the kind and the name of a rule, for messages. A cluster-wide one has no namespace.
func RuleName(rule types.NamespacedName) string {
	if rule.Namespace == "" {
		return "ClusterSpreadRule " + rule.Name
	}
	return "SpreadRule " + rule.Name
}
