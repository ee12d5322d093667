package enforcesubsetmaxreplicas

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Args configure the strategy. Everything may be left out.
//
// +kubebuilder:object:root=true
type Args struct {
	metav1.TypeMeta `json:",inline"`
	settings.Scope  `json:",inline"`

	// SettleTime is how long pods must have been misplaced. Nil is 1m; between 0s and 24h.
	SettleTime *metav1.Duration `json:"settleTime,omitempty"`
	// MaxUnavailable is how many pods of a workload may be missing or not ready, those that are moved included: a count, or a percentage of the
	// replicas, rounded up. Nil is 10%. Budgets hold in addition.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// DuringRollouts moves pods also while the workload has several revisions, or more pods than it asks for.
	DuringRollouts bool `json:"duringRollouts,omitempty"`
	// WithoutRoom moves pods also if there is no room for those made in their place, which then wait: the quota counts for more than the pods.
	WithoutRoom bool `json:"withoutRoom,omitempty"`
	// Backoff if pods come back. Nil is 1m, at most 30m.
	Backoff *settings.Backoff `json:"backoff,omitempty"`
}
