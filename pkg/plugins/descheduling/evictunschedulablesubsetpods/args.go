package evictunschedulablesubsetpods

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Args configure the strategy. Every field is optional.
//
// +kubebuilder:object:root=true
type Args struct {
	metav1.TypeMeta `json:",inline"`
	settings.Scope  `json:",inline"`

	// SchedulerNames are the schedulers whose pods are checked. Empty means berth-scheduler.
	SchedulerNames []string `json:"schedulerNames,omitempty"`
	// SkewTolerance is added to the waiting time of the spread, because clocks differ. Nil means 5s; between 0s and 10m.
	SkewTolerance *metav1.Duration `json:"skewTolerance,omitempty"`
	// MaxPerSubset is how many of the pods that wait in a subset are evicted in one cycle: a count, or a percentage, rounded up. Nil means 100%.
	MaxPerSubset *intstr.IntOrString `json:"maxPerSubset,omitempty"`
	// Backoff if pods come back to a subset that others have left. Nil means base 1m and longest 30m.
	Backoff *settings.Backoff `json:"backoff,omitempty"`
}
