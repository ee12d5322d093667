package evictunschedulablesubsetpods

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Validate implements strategy.Args.
func (a *Args) Validate() field.ErrorList {
	errs := a.Scope.Validate()
	for i, name := range a.SchedulerNames {
		if name == "" {
			errs = append(errs, field.Required(field.NewPath("schedulerNames").Index(i), "must be the name of a scheduler"))
		}
	}
	errs = append(errs, settings.Between(field.NewPath("skewTolerance"), a.SkewTolerance, 0, 10*time.Minute)...)
	errs = append(errs, settings.Amount(field.NewPath("maxPerSubset"), a.MaxPerSubset)...)
	return append(errs, a.Backoff.Validate(field.NewPath("backoff"))...)
}
