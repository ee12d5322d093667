package rebalancetopreferredsubset

import (
	"time"

	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Default implements strategy.Args.
func (a *Args) Default() {
	settings.Default(&a.StabilizationWindow, 10*time.Minute)
	settings.Default(&a.MinResidence, 15*time.Minute)
	settings.Default(&a.Cooldown, 5*time.Minute)
	if a.MaxMovesPerSpread == nil {
		a.MaxMovesPerSpread = ptr.To[int32](1)
	}
	settings.DefaultBackoff(&a.Backoff, 5*time.Minute, 4*time.Hour)
}
