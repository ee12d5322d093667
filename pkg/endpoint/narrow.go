package endpoint

import (
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The mutating webhooks that Berth narrows to the objects that use it, so that others cost nothing. See Narrow.
const (
	// PodWebhook gives pods their subset.
	PodWebhook = "pod.berth.dev"
	// SidecarWebhook injects sidecars into pods.
	SidecarWebhook = "pod.sidecar.berth.dev"
	// EvictionWebhook marks evictions.
	EvictionWebhook = "evictions.budget.berth.dev"
)

// The match conditions that Berth writes. The manifests do not have them: applying them again makes the API server call too often and not too rarely, and no tool that applies
// them sees a difference.
const (
	// NamespacesCondition is for PodWebhook and EvictionWebhook.
	NamespacesCondition = "namespace-uses-berth"
	// PickCondition is for SidecarWebhook: it has the selectors of all SidecarSets.
	PickCondition = "sidecarsets-pick-it"
)

// mostNamespaces bounds an expression. With more, the webhook is called for all namespaces.
const mostNamespaces = 1000

// Narrow makes the API server call a mutating webhook only for objects for which a CEL expression is true. It writes the expression into the match condition. It is true if that
// changes the configuration.
//
// For the expression "false" it also makes the object selector match no object: to evaluate a condition, the API server converts the object first. It keeps an object selector
// that somebody else has set.
func Narrow(configuration *admissionregistrationv1.MutatingWebhookConfiguration, webhook, condition, expression string) (changed bool) {
	for i := range configuration.Webhooks {
		w := &configuration.Webhooks[i]
		if w.Name != webhook {
			continue
		}
		if at := indexOf(w, condition); at < 0 {
			w.MatchConditions, changed = append(w.MatchConditions, admissionregistrationv1.MatchCondition{Name: condition, Expression: expression}), true
		} else if w.MatchConditions[at].Expression != expression {
			w.MatchConditions[at].Expression, changed = expression, true
		}
		switch none := matchesNone(w.ObjectSelector); {
		case expression != "false" && none:
			w.ObjectSelector, changed = &metav1.LabelSelector{}, true
		case expression == "false" && !none && matchesAll(w.ObjectSelector):
			w.ObjectSelector, changed = nothing(), true
		}
	}
	return changed
}

// nothing is a selector that no labels match. A tenant cannot make them match.
func nothing() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: NothingLabel, Operator: metav1.LabelSelectorOpExists},
		{Key: NothingLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
	}}
}

// NothingLabel is the label of the object selector that matches no object: it must exist, and must not exist. No object needs it.
const NothingLabel = "berth.dev/none"

func matchesAll(selector *metav1.LabelSelector) bool {
	return selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0
}

func matchesNone(selector *metav1.LabelSelector) bool {
	return selector != nil && slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == NothingLabel })
}

func indexOf(w *admissionregistrationv1.MutatingWebhook, condition string) int {
	return slices.IndexFunc(w.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool { return c.Name == condition })
}

const (
	beforeNames  = "request.namespace in ['"
	betweenNames = "', '"
	afterNames   = "']"
)

// InNamespaces is the expression for requests in these namespaces. It is "true" for more than 1,000. The names are valid, so they need no escapes.
func InNamespaces(names []string) string {
	switch {
	case len(names) == 0:
		return "false"
	case len(names) > mostNamespaces:
		return "true"
	}
	return beforeNames + strings.Join(slices.Sorted(slices.Values(names)), betweenNames) + afterNames
}

// NamespacesOf are the namespaces to which a webhook is narrowed. all is true if it is called for all: Berth has not narrowed it yet, or there are too many.
func NamespacesOf(configuration *admissionregistrationv1.MutatingWebhookConfiguration, webhook string) (names []string, all bool) {
	for i := range configuration.Webhooks {
		w := &configuration.Webhooks[i]
		if at := indexOf(w, NamespacesCondition); w.Name == webhook && at >= 0 {
			text := w.MatchConditions[at].Expression
			if text == "false" {
				return nil, false
			}
			if list, is := strings.CutPrefix(text, beforeNames); is {
				return strings.Split(strings.TrimSuffix(list, afterNames), betweenNames), false
			}
		}
	}
	return nil, true
}
