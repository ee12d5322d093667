package enforcesubsetmaxreplicas

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Args configure the strategy. Every field is optional.
//
// +kubebuilder:object:root=true
type Args struct {
	metav1.TypeMeta `json:",inline"`
	settings.Scope  `json:",inline"`

	// SettleTime is how long pods must have been misplaced. Nil means 1m; between 0s and 24h.
	SettleTime *metav1.Duration `json:"settleTime,omitempty"`
	// MaxUnavailable is how many pods of a workload may be missing or not ready, including evicted pods: a count, or a percentage of the replicas,
	// rounded up. Nil means 10%. Budgets apply in addition.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// DuringRollouts also evicts pods while the workload has several revisions, or more pods than it asks for.
	DuringRollouts bool `json:"duringRollouts,omitempty"`
	// WithoutRoom also evicts pods without room for their replacements, which then wait: the quota is more important than running pods.
	WithoutRoom bool `json:"withoutRoom,omitempty"`
	// Backoff if pods come back. Nil means base 1m and longest 30m.
	Backoff *settings.Backoff `json:"backoff,omitempty"`
}
