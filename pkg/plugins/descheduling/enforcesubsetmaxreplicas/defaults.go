package enforcesubsetmaxreplicas

import (
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Default implements strategy.Args.
func (a *Args) Default() {
	settings.Default(&a.SettleTime, time.Minute)
	if a.MaxUnavailable == nil {
		a.MaxUnavailable = ptr.To(intstr.FromString("10%"))
	}
	settings.DefaultBackoff(&a.Backoff, time.Minute, 30*time.Minute)
}
