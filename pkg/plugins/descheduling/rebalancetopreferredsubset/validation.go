package rebalancetopreferredsubset

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Validate returns every error in Args. It is called before SetDefaults.
func Validate(obj runtime.Object) error {
	args, ok := obj.(*Args)
	if !ok {
		return fmt.Errorf("%s: want %T, got %T", Name, args, obj)
	}
	errs := args.Validate()
	errs = append(errs, settings.Between(field.NewPath("stabilizationWindow"), args.StabilizationWindow, 0, moves.LongestPace)...)
	errs = append(errs, settings.Between(field.NewPath("minResidence"), args.MinResidence, 0, moves.LongestPace)...)
	errs = append(errs, settings.Between(field.NewPath("cooldown"), args.Cooldown, 0, moves.LongestPace)...)
	if n := args.MaxMovesPerSpread; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(field.NewPath("maxMovesPerSpread"), *n, "must be above 0"))
	}
	if args.Backoff != nil {
		errs = append(errs, args.Backoff.Validate(field.NewPath("backoff"))...)
	}
	if err := errs.ToAggregate(); err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	return nil
}
