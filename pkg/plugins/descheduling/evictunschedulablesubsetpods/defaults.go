package evictunschedulablesubsetpods

import (
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Default implements strategy.Args.
func (a *Args) Default() {
	if len(a.SchedulerNames) == 0 {
		a.SchedulerNames = []string{v1beta1.SchedulerName}
	}
	settings.Default(&a.SkewTolerance, 5*time.Second)
	if a.MaxPerSubset == nil {
		a.MaxPerSubset = ptr.To(intstr.FromString("100%"))
	}
	settings.DefaultBackoff(&a.Backoff, time.Minute, 30*time.Minute)
}
