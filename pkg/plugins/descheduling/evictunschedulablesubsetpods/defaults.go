package evictunschedulablesubsetpods

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// SetDefaults sets what is left out of Args.
func SetDefaults(obj runtime.Object) {
	args, ok := obj.(*Args)
	if !ok {
		return // New says so
	}
	if len(args.SchedulerNames) == 0 {
		args.SchedulerNames = []string{v1alpha1.SchedulerName}
	}
	settings.Default(&args.SkewTolerance, 5*time.Second)
	if args.MaxPerSubset == nil {
		args.MaxPerSubset = ptr.To(intstr.FromString("100%"))
	}
	if args.Backoff == nil {
		args.Backoff = &settings.Backoff{}
	}
	args.Backoff.Default(time.Minute, 30*time.Minute)
}
