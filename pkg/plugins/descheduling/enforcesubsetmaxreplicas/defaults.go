package enforcesubsetmaxreplicas

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// SetDefaults sets what is left out of Args.
func SetDefaults(obj runtime.Object) {
	args, ok := obj.(*Args)
	if !ok {
		return // New says so
	}
	settings.Default(&args.SettleTime, time.Minute)
	if args.MaxUnavailable == nil {
		args.MaxUnavailable = ptr.To(intstr.FromString("10%"))
	}
	if args.Backoff == nil {
		args.Backoff = &settings.Backoff{}
	}
	args.Backoff.Default(time.Minute, 30*time.Minute)
}
