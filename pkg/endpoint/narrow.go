package endpoint

import (
	"slices"

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

// PickCondition is the match condition that Berth writes into SidecarWebhook: it has the selectors of all SidecarSets. The manifests have no condition that Berth writes: applying
// them again makes the API server call too often and not too rarely, and no tool that applies them sees a difference.
const PickCondition = "sidecarsets-pick-it"

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
		{Key: nothingLabel, Operator: metav1.LabelSelectorOpExists},
		{Key: nothingLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
	}}
}

// nothingLabel is the label of the object selector that matches no object: it must exist, and must not exist. No object needs it.
const nothingLabel = "berth.dev/none"

func matchesAll(selector *metav1.LabelSelector) bool {
	return selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0
}

func matchesNone(selector *metav1.LabelSelector) bool {
	return selector != nil && slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == nothingLabel })
}

func indexOf(w *admissionregistrationv1.MutatingWebhook, condition string) int {
	return slices.IndexFunc(w.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool { return c.Name == condition })
}
