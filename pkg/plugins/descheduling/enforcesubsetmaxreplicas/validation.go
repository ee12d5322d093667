package enforcesubsetmaxreplicas

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Validate implements strategy.Args.
func (a *Args) Validate() field.ErrorList {
	errs := a.Scope.Validate()
	errs = append(errs, settings.Between(field.NewPath("settleTime"), a.SettleTime, 0, moves.LongestPace)...)
	errs = append(errs, settings.Amount(field.NewPath("maxUnavailable"), a.MaxUnavailable)...)
	return append(errs, a.Backoff.Validate(field.NewPath("backoff"))...)
}
