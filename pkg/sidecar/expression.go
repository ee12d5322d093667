package sidecar

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// longestExpression bounds the expression that the API server evaluates for each new pod.
const longestExpression = 32 << 10

// Expression is a CEL expression that is true for the pods that one of the policies may pick, as far as their labels
// and the name of their namespace tell. Without policies it is "false". If it would be too long, it is "true".
func Expression(policies []*Policy) string {
	var any []string
	for _, p := range policies {
		if p.InjectionPaused {
			continue
		}
		var all []string
		if p.Namespace != "" {
			all = append(all, fmt.Sprintf("request.namespace == '%s'", p.Namespace))
		}
		requirements, _ := p.Selector.Requirements()
		for i := range requirements {
			all = append(all, expressionOf(&requirements[i]))
		}
		any = append(any, strings.Join(all, " && "))
	}
	if len(any) == 0 {
		return "false"
	}
	slices.Sort(any)
	text := "(" + strings.Join(slices.Compact(any), ") || (") + ")"
	if len(text) > longestExpression {
		return "true"
	}
	return text
}

// expressionOf needs no escapes: labels and names of namespaces have no quotes or backslashes, and those of a policy
// are valid.
func expressionOf(r *labels.Requirement) string {
	const all = "object.metadata.?labels.orValue({})"
	has := fmt.Sprintf("'%s' in %s", r.Key(), all)
	values := r.Values().UnsortedList()
	slices.Sort(values)
	in := fmt.Sprintf("(%s && %s['%s'] in ['%s'])", has, all, r.Key(), strings.Join(values, "', '"))
	switch r.Operator() {
	case selection.In, selection.Equals, selection.DoubleEquals:
		return in
	case selection.NotIn, selection.NotEquals:
		return "!" + in
	case selection.DoesNotExist:
		return "!(" + has + ")"
	default:
		return has
	}
}
