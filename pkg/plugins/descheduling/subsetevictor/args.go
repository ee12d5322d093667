package subsetevictor

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Args configure the filter. Every field is optional.
//
// +kubebuilder:object:root=true
type Args struct {
	metav1.TypeMeta `json:",inline"`

	// Namespaces whose pods the filter checks. It accepts pods of all other namespaces. Nil means all namespaces.
	Namespaces *settings.Namespaces `json:"namespaces,omitempty"`
	// IgnoreBudgets leaves budgets to the API server, which is then asked about every pod.
	IgnoreBudgets bool `json:"ignoreBudgets,omitempty"`
	// IgnoreReturn lets pods go although their replacements come back to the same node, because it is the only one of their subset. Strategies that renew
	// pods want that, for instance PodLifeTime.
	IgnoreReturn bool `json:"ignoreReturn,omitempty"`
}
