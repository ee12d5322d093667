package rebalancetopreferredsubset

import (
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Default implements strategy.Args.
func (a *Args) Default() {
	limits := moves.DefaultReturnLimits()
	settings.Default(&a.StabilizationWindow, limits.Stable)
	settings.Default(&a.MinResidence, limits.Residence)
	settings.Default(&a.Cooldown, limits.Cooldown)
	if a.MaxMovesPerSpread == nil {
		a.MaxMovesPerSpread = &limits.AtMost
	}
	settings.DefaultBackoff(&a.Backoff, limits.Pace.Base, limits.Pace.Longest)
}
