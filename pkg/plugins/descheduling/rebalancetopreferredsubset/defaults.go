package rebalancetopreferredsubset

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// SetDefaults sets what is left out of Args.
func SetDefaults(obj runtime.Object) {
	args, ok := obj.(*Args)
	if !ok {
		return // New says so
	}
	settings.Default(&args.StabilizationWindow, 10*time.Minute)
	settings.Default(&args.MinResidence, 15*time.Minute)
	settings.Default(&args.Cooldown, 5*time.Minute)
	if args.MaxMovesPerSpread == nil {
		args.MaxMovesPerSpread = ptr.To[int32](1)
	}
	if args.Backoff == nil {
		args.Backoff = &settings.Backoff{}
	}
	args.Backoff.Default(5*time.Minute, 4*time.Hour)
}
