package subsetevictor

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Args configure the filter. Everything may be left out.
//
// +kubebuilder:object:root=true
type Args struct {
	metav1.TypeMeta `json:",inline"`

	// Namespaces of the pods that the filter looks at. It lets all others pass. Nil is all.
	Namespaces *settings.Namespaces `json:"namespaces,omitempty"`
	// IgnoreBudgets leaves budgets to the API server, which is then asked for every pod.
	IgnoreBudgets bool `json:"ignoreBudgets,omitempty"`
}
