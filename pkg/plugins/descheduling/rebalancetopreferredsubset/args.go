package rebalancetopreferredsubset

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Args configure the strategy. Every field is optional.
//
// +kubebuilder:object:root=true
type Args struct {
	metav1.TypeMeta `json:",inline"`
	settings.Scope  `json:",inline"`

	// StabilizationWindow is for how long no pod must have waited in a subset or been moved out of it, and its node must have been ready. Nil means
	// 10m; between 0s and 24h.
	StabilizationWindow *metav1.Duration `json:"stabilizationWindow,omitempty"`
	// MinResidence is how long a pod must have been on its node. Nil means 15m; between 0s and 24h.
	MinResidence *metav1.Duration `json:"minResidence,omitempty"`
	// Cooldown is the shortest time between two cycles that move pods of a spread. Nil means 5m; between 0s and 24h.
	Cooldown *metav1.Duration `json:"cooldown,omitempty"`
	// MaxMovesPerSpread is how many pods of a spread are moved in one cycle. Nil means 1.
	MaxMovesPerSpread *int32 `json:"maxMovesPerSpread,omitempty"`
	// Backoff if pods come back. Nil means base 5m and longest 4h.
	Backoff *settings.Backoff `json:"backoff,omitempty"`
}
