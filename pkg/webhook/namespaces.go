package webhook

import (
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// namespacesCondition is the match condition that Berth writes into endpoint.PodWebhook and endpoint.EvictionWebhook.
const namespacesCondition = "namespace-uses-berth"

// mostNamespaces bounds an expression. With more, the webhook is called for all namespaces.
const mostNamespaces = 1000

const (
	beforeNames  = "request.namespace in ['"
	betweenNames = "', '"
	afterNames   = "']"
)

// inNamespaces is the expression for requests in these namespaces. It is "true" for more than 1,000. The names are valid, so they need no escapes.
func inNamespaces(names []string) string {
	switch {
	case len(names) == 0:
		return "false"
	case len(names) > mostNamespaces:
		return "true"
	}
	return beforeNames + strings.Join(slices.Sorted(slices.Values(names)), betweenNames) + afterNames
}

// namespacesOf are the namespaces to which a webhook is narrowed. all is true if it is called for all: Berth has not narrowed it yet, or there are too many.
func namespacesOf(configuration *admissionregistrationv1.MutatingWebhookConfiguration, webhook string) (names []string, all bool) {
	for i := range configuration.Webhooks {
		w := &configuration.Webhooks[i]
		at := slices.IndexFunc(w.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool { return c.Name == namespacesCondition })
		if w.Name == webhook && at >= 0 {
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
