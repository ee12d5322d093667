package workloadspread

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeschedulerv1 "k8s.io/kube-scheduler/config/v1"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

// Args configure the plugin, in the form that the scheduler uses after defaulting.
//
// +kubebuilder:object:root=true
type Args struct {
	metav1.TypeMeta

	// BindTimeout is how long a bind request may take, on the client and on the API server. A new leader waits twice as long before it gives out
	// slots, if a bind of its predecessor may still be under way.
	BindTimeout time.Duration
	// ObservationTimeout is how long a pod waits for news: of its workload's replicas if there are more pods than replicas, and of its spread if
	// admission found one that the scheduler has not seen.
	ObservationTimeout time.Duration
}

// ArgsV1 configure the plugin in a scheduler configuration file, as kind WorkloadSpreadArgs of kubescheduler.config.k8s.io/v1.
//
// +kubebuilder:object:root=true
type ArgsV1 struct {
	metav1.TypeMeta `json:",inline"`

	// BindTimeout defaults to 5s; between 1s and 1m.
	BindTimeout *metav1.Duration `json:"bindTimeout,omitempty"`
	// ObservationTimeout defaults to 2s; between 0s, which never waits, and 1m.
	ObservationTimeout *metav1.Duration `json:"observationTimeout,omitempty"`
}

const (
	argsKind = Name + "Args"

	defaultBindTimeout        = 5 * time.Second
	defaultObservationTimeout = 2 * time.Second
	maxTimeout                = time.Minute
)

// The scheduler decodes, defaults and converts the Args of a plugin with its own schemes, so that a mistake in them stops the start. One scheme
// exists already; the other is built from these builders when it is first used.
func init() {
	schedulerconfig.SchemeBuilder.Register(addArgs)
	kubeschedulerv1.SchemeBuilder.Register(addArgs)
	utilruntime.Must(addArgs(scheme.Scheme))
}

func addArgs(s *runtime.Scheme) error {
	s.AddKnownTypeWithName(schedulerconfig.SchemeGroupVersion.WithKind(argsKind), &Args{})
	s.AddKnownTypeWithName(kubeschedulerv1.SchemeGroupVersion.WithKind(argsKind), &ArgsV1{})
	s.AddTypeDefaultingFunc(&ArgsV1{}, func(obj any) { setDefaults(obj.(*ArgsV1)) })
	if err := s.AddConversionFunc((*ArgsV1)(nil), (*Args)(nil), func(in, out any, _ conversion.Scope) error {
		fromV1(in.(*ArgsV1), out.(*Args))
		return nil
	}); err != nil {
		return err
	}
	return s.AddConversionFunc((*Args)(nil), (*ArgsV1)(nil), func(in, out any, _ conversion.Scope) error {
		toV1(in.(*Args), out.(*ArgsV1))
		return nil
	})
}

func setDefaults(args *ArgsV1) {
	if args.BindTimeout == nil {
		args.BindTimeout = &metav1.Duration{Duration: defaultBindTimeout}
	}
	if args.ObservationTimeout == nil {
		args.ObservationTimeout = &metav1.Duration{Duration: defaultObservationTimeout}
	}
}

func fromV1(in *ArgsV1, out *Args) {
	setDefaults(in)
	out.BindTimeout = in.BindTimeout.Duration
	out.ObservationTimeout = in.ObservationTimeout.Duration
}

func toV1(in *Args, out *ArgsV1) {
	out.BindTimeout = &metav1.Duration{Duration: in.BindTimeout}
	out.ObservationTimeout = &metav1.Duration{Duration: in.ObservationTimeout}
}

// Validate returns every error in the Args with its path.
func (a *Args) Validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if a.BindTimeout < time.Second || a.BindTimeout > maxTimeout {
		errs = append(errs, field.Invalid(path.Child("bindTimeout"), a.BindTimeout.String(), "must be between 1s and 1m"))
	}
	if a.ObservationTimeout < 0 || a.ObservationTimeout > maxTimeout {
		errs = append(errs, field.Invalid(path.Child("observationTimeout"), a.ObservationTimeout.String(), "must be between 0s and 1m"))
	}
	return errs
}

// argsFrom reads what the scheduler passes to the plugin's constructor: nil if the configuration does not name the plugin.
func argsFrom(obj runtime.Object) (*Args, error) {
	args, ok := obj.(*Args)
	if obj == nil {
		args, ok = &Args{BindTimeout: defaultBindTimeout, ObservationTimeout: defaultObservationTimeout}, true
	}
	if !ok {
		return nil, fmt.Errorf("pluginConfig[%s].args: want %s, got %T", Name, argsKind, obj)
	}
	if errs := args.Validate(field.NewPath("pluginConfig").Key(Name).Child("args")); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return args, nil
}
