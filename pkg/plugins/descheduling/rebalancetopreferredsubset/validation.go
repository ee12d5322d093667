package rebalancetopreferredsubset

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Validate implements strategy.Args.
func (a *Args) Validate() field.ErrorList {
	errs := a.Scope.Validate()
	errs = append(errs, settings.Between(field.NewPath("stabilizationWindow"), a.StabilizationWindow, 0, moves.LongestPace)...)
	errs = append(errs, settings.Between(field.NewPath("minResidence"), a.MinResidence, 0, moves.LongestPace)...)
	errs = append(errs, settings.Between(field.NewPath("cooldown"), a.Cooldown, 0, moves.LongestPace)...)
	if n := a.MaxMovesPerSpread; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(field.NewPath("maxMovesPerSpread"), *n, "must be above 0"))
	}
	return append(errs, a.Backoff.Validate(field.NewPath("backoff"))...)
}
