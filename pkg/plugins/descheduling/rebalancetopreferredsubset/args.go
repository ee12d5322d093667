package rebalancetopreferredsubset

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Args configure the strategy. Everything may be left out.
//
// +kubebuilder:object:root=true
type Args struct {
	metav1.TypeMeta `json:",inline"`
	settings.Scope  `json:",inline"`

	// StabilizationWindow is how long a subset must have been without a pod that waits in it or had to leave it, and its node ready. Nil is 10m;
	// between 0s and 24h.
	StabilizationWindow *metav1.Duration `json:"stabilizationWindow,omitempty"`
	// MinResidence is how long a pod must have been where it is. Nil is 15m; between 0s and 24h.
	MinResidence *metav1.Duration `json:"minResidence,omitempty"`
	// Cooldown is the least time between two cycles that move pods of a spread. Nil is 5m; between 0s and 24h.
	Cooldown *metav1.Duration `json:"cooldown,omitempty"`
	// MaxMovesPerSpread in one cycle. Nil is 1.
	MaxMovesPerSpread *int32 `json:"maxMovesPerSpread,omitempty"`
	// Backoff if pods come back. Nil is 5m, at most 4h.
	Backoff *settings.Backoff `json:"backoff,omitempty"`
}
