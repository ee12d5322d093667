package webhook

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/berth-project/berth/pkg/endpoint"
)

func TestNamespacesThatAreWrittenCanBeRead(t *testing.T) {
	many := make([]string, mostNamespaces+1)
	for i := range many {
		many[i] = fmt.Sprintf("namespace-%04d", i)
	}
	for name, tc := range map[string]struct {
		names []string
		all   bool
	}{
		"none":     {},
		"one":      {names: []string{"a"}},
		"two":      {names: []string{"a", "b-1"}},
		"most":     {names: many[:mostNamespaces]},
		"too many": {many, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: endpoint.EvictionWebhook}}}
			if _, all := namespacesOf(c, endpoint.EvictionWebhook); !all {
				t.Error("a webhook without a condition is not called for all namespaces")
			}
			endpoint.Narrow(c, endpoint.EvictionWebhook, namespacesCondition, inNamespaces(tc.names))
			names, all := namespacesOf(c, endpoint.EvictionWebhook)
			want := tc.names
			if tc.all {
				want = nil
			}
			if diff := cmp.Diff(want, names); diff != "" || all != tc.all {
				t.Errorf("all is %v; -want +got:\n%s", all, diff)
			}
		})
	}
}
