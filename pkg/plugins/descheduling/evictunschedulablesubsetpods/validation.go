package evictunschedulablesubsetpods

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Validate returns every error in Args. It is called before SetDefaults.
func Validate(obj runtime.Object) error {
	args, ok := obj.(*Args)
	if !ok {
		return fmt.Errorf("%s: want %T, got %T", Name, args, obj)
	}
	errs := args.Validate()
	for i, name := range args.SchedulerNames {
		if name == "" {
			errs = append(errs, field.Required(field.NewPath("schedulerNames").Index(i), "must be the name of a scheduler"))
		}
	}
	errs = append(errs, settings.Between(field.NewPath("skewTolerance"), args.SkewTolerance, 0, 10*time.Minute)...)
	errs = append(errs, settings.Amount(field.NewPath("maxPerSubset"), args.MaxPerSubset)...)
	if args.Backoff != nil {
		errs = append(errs, args.Backoff.Validate(field.NewPath("backoff"))...)
	}
	if err := errs.ToAggregate(); err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	return nil
}
