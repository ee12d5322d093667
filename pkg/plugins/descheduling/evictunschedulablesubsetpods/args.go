package evictunschedulablesubsetpods

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Args configure the strategy. Everything may be left out.
//
// +kubebuilder:object:root=true
type Args struct {
	metav1.TypeMeta `json:",inline"`
	settings.Scope  `json:",inline"`

	// SchedulerNames are the schedulers whose pods are looked at. Empty is berth-scheduler.
	SchedulerNames []string `json:"schedulerNames,omitempty"`
	// SkewTolerance is waited for in addition to the time of the spread, for clocks that differ. Nil is 5s; between 0s and 10m.
	SkewTolerance *metav1.Duration `json:"skewTolerance,omitempty"`
	// MaxPerSubset is how many of the pods that wait in a subset leave it in one cycle: a count, or a percentage, rounded up. Nil is 100%.
	MaxPerSubset *intstr.IntOrString `json:"maxPerSubset,omitempty"`
	// Backoff if pods come back to a subset that others left. Nil is 1m, at most 30m.
	Backoff *settings.Backoff `json:"backoff,omitempty"`
}
