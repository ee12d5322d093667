package descheduling

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/pkg/moves"
)

// EvictUnschedulableSubsetPodsArgs configure the strategy EvictUnschedulableSubsetPods. Every field is optional.
//
// +kubebuilder:object:root=true
type EvictUnschedulableSubsetPodsArgs struct {
	metav1.TypeMeta `json:",inline"`
	Scope           `json:",inline"`

	// SchedulerNames are the schedulers whose pods are checked. Empty means berth-scheduler.
	SchedulerNames []string `json:"schedulerNames,omitempty"`
	// SkewTolerance is added to the waiting time of the spread, because clocks differ. Nil means 5s; between 0s and
	// 10m.
	SkewTolerance *metav1.Duration `json:"skewTolerance,omitempty"`
	// MaxPerSubset is how many of the pods that wait in a subset are evicted in one cycle: a count, or a percentage,
	// rounded up. Nil means 100%.
	MaxPerSubset *intstr.IntOrString `json:"maxPerSubset,omitempty"`
	// Backoff if pods come back to a subset that others have left. Nil means base 1m and longest 30m.
	Backoff *Backoff `json:"backoff,omitempty"`
}

// Validate implements Args.
func (a *EvictUnschedulableSubsetPodsArgs) Validate() field.ErrorList {
	errs := a.Scope.Validate()
	for i, name := range a.SchedulerNames {
		if name == "" {
			errs = append(errs, field.Required(field.NewPath("schedulerNames").Index(i), "must be the name of a scheduler"))
		}
	}
	errs = append(errs, between(field.NewPath("skewTolerance"), a.SkewTolerance, 0, 10*time.Minute)...)
	errs = append(errs, amount(field.NewPath("maxPerSubset"), a.MaxPerSubset)...)
	return append(errs, a.Backoff.Validate(field.NewPath("backoff"))...)
}

// Default implements Args.
func (a *EvictUnschedulableSubsetPodsArgs) Default() {
	if len(a.SchedulerNames) == 0 {
		a.SchedulerNames = []string{v1beta1.SchedulerName}
	}
	setDefault(&a.SkewTolerance, metav1.Duration{Duration: 5 * time.Second})
	setDefault(&a.MaxPerSubset, intstr.FromString("100%"))
	defaultBackoff(&a.Backoff, time.Minute, 30*time.Minute)
}

// Strategy implements Args.
func (a *EvictUnschedulableSubsetPodsArgs) Strategy() cycle.Strategy {
	limits := moves.LeaveLimits{Tolerance: a.SkewTolerance.Duration, AtMost: *a.MaxPerSubset, Pace: a.Backoff.Pace()}
	return cycle.Strategy{
		Direction:  moves.Away,
		Decide:     func(f *moves.Facts, c moves.Cluster) moves.Decision { return moves.Leave(f, limits, c) },
		Schedulers: a.SchedulerNames,
	}
}

// EnforceSubsetMaxReplicasArgs configure the strategy EnforceSubsetMaxReplicas. Every field is optional.
//
// +kubebuilder:object:root=true
type EnforceSubsetMaxReplicasArgs struct {
	metav1.TypeMeta `json:",inline"`
	Scope           `json:",inline"`

	// SettleTime is how long pods must have been misplaced. Nil means 1m; between 0s and 24h.
	SettleTime *metav1.Duration `json:"settleTime,omitempty"`
	// MaxUnavailable is how many pods of a workload may be missing or not ready, including evicted pods: a count, or a
	// percentage of the replicas, rounded up. Nil means 10%. Budgets apply in addition.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// DuringRollouts also evicts pods while the workload has several revisions, or more pods than it asks for.
	DuringRollouts bool `json:"duringRollouts,omitempty"`
	// WithoutRoom also evicts pods without room for their replacements, which then wait: the quota is more important
	// than running pods.
	WithoutRoom bool `json:"withoutRoom,omitempty"`
	// Backoff if pods come back. Nil means base 1m and longest 30m.
	Backoff *Backoff `json:"backoff,omitempty"`
}

// Validate implements Args.
func (a *EnforceSubsetMaxReplicasArgs) Validate() field.ErrorList {
	errs := a.Scope.Validate()
	errs = append(errs, between(field.NewPath("settleTime"), a.SettleTime, 0, moves.LongestPace)...)
	errs = append(errs, amount(field.NewPath("maxUnavailable"), a.MaxUnavailable)...)
	return append(errs, a.Backoff.Validate(field.NewPath("backoff"))...)
}

// Default implements Args.
func (a *EnforceSubsetMaxReplicasArgs) Default() {
	setDefault(&a.SettleTime, metav1.Duration{Duration: time.Minute})
	setDefault(&a.MaxUnavailable, intstr.FromString("10%"))
	defaultBackoff(&a.Backoff, time.Minute, 30*time.Minute)
}

// Strategy implements Args.
func (a *EnforceSubsetMaxReplicasArgs) Strategy() cycle.Strategy {
	limits := moves.TrimLimits{Settle: a.SettleTime.Duration, MaxUnavailable: *a.MaxUnavailable, DuringRollouts: a.DuringRollouts,
		WithoutRoom: a.WithoutRoom, Pace: a.Backoff.Pace()}
	return cycle.Strategy{
		Direction: moves.Away,
		Decide:    func(f *moves.Facts, c moves.Cluster) moves.Decision { return moves.Trim(f, limits, c) },
	}
}

// RebalanceToPreferredSubsetArgs configure the strategy RebalanceToPreferredSubset. Every field is optional.
//
// +kubebuilder:object:root=true
type RebalanceToPreferredSubsetArgs struct {
	metav1.TypeMeta `json:",inline"`
	Scope           `json:",inline"`

	// StabilizationWindow is for how long no pod must have waited in a subset or been moved out of it, and its node
	// must have been ready. Nil means 10m; between 0s and 24h.
	StabilizationWindow *metav1.Duration `json:"stabilizationWindow,omitempty"`
	// MinResidence is how long a pod must have been on its node. Nil means 15m; between 0s and 24h.
	MinResidence *metav1.Duration `json:"minResidence,omitempty"`
	// Cooldown is the shortest time between two cycles that move pods of a spread. Nil means 5m; between 0s and 24h.
	Cooldown *metav1.Duration `json:"cooldown,omitempty"`
	// MaxMovesPerSpread is how many pods of a spread are moved in one cycle, less those that are not ready: a count, or
	// a percentage of the replicas, rounded up. Nil means 10%.
	MaxMovesPerSpread *intstr.IntOrString `json:"maxMovesPerSpread,omitempty"`
	// Backoff if pods come back. Nil means base 5m and longest 4h.
	Backoff *Backoff `json:"backoff,omitempty"`
}

// Validate implements Args.
func (a *RebalanceToPreferredSubsetArgs) Validate() field.ErrorList {
	errs := a.Scope.Validate()
	errs = append(errs, between(field.NewPath("stabilizationWindow"), a.StabilizationWindow, 0, moves.LongestPace)...)
	errs = append(errs, between(field.NewPath("minResidence"), a.MinResidence, 0, moves.LongestPace)...)
	errs = append(errs, between(field.NewPath("cooldown"), a.Cooldown, 0, moves.LongestPace)...)
	errs = append(errs, amount(field.NewPath("maxMovesPerSpread"), a.MaxMovesPerSpread)...)
	return append(errs, a.Backoff.Validate(field.NewPath("backoff"))...)
}

// Default implements Args.
func (a *RebalanceToPreferredSubsetArgs) Default() {
	limits := moves.DefaultReturnLimits()
	setDefault(&a.StabilizationWindow, metav1.Duration{Duration: limits.Stable})
	setDefault(&a.MinResidence, metav1.Duration{Duration: limits.Residence})
	setDefault(&a.Cooldown, metav1.Duration{Duration: limits.Cooldown})
	setDefault(&a.MaxMovesPerSpread, limits.AtMost)
	defaultBackoff(&a.Backoff, limits.Pace.Base, limits.Pace.Longest)
}

// Strategy implements Args.
func (a *RebalanceToPreferredSubsetArgs) Strategy() cycle.Strategy {
	limits := moves.ReturnLimits{Stable: a.StabilizationWindow.Duration, Residence: a.MinResidence.Duration, Cooldown: a.Cooldown.Duration,
		AtMost: *a.MaxMovesPerSpread, Pace: a.Backoff.Pace()}
	return cycle.Strategy{
		Direction: moves.Home,
		Decide:    func(f *moves.Facts, c moves.Cluster) moves.Decision { return moves.Return(f, limits, c) },
		Stable:    a.StabilizationWindow.Duration,
	}
}
