package workloadspread

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeschedulerv1 "k8s.io/kube-scheduler/config/v1"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"github.com/berth-project/berth/pkg/podstate"
)

// Args configure the plugin in a scheduler configuration file, as kind WorkloadSpreadArgs of kubescheduler.config.k8s.io/v1. The scheduler uses the same type
// after defaulting.
//
// +kubebuilder:object:root=true
type Args struct {
	metav1.TypeMeta `json:",inline"`

	// BindTimeout is how long a bind request may take, on the client and on the API server. A new leader waits twice as long before it gives out
	// slots, if a bind of its predecessor may still be under way. It defaults to 5s; between 1s and 1m.
	BindTimeout *metav1.Duration `json:"bindTimeout,omitempty"`
	// ObservationTimeout is how long a pod waits for news: of its workload's replicas if there are more pods than replicas, which are read
	// afterwards, and of its spread if admission found one that the scheduler has not seen. It defaults to 2s; between 0s, which never waits and
	// reads nothing, and 1m.
	ObservationTimeout *metav1.Duration `json:"observationTimeout,omitempty"`
	// NodeNotices are the taints, conditions and labels that announce the end of a node: taint:KEY, condition:TYPE, label:KEY, label:KEY=VALUE, or
	// defaults. Such a node takes no new pod of a subset. It defaults to [defaults], which is those of well-known tools; [] is none.
	NodeNotices []string `json:"nodeNotices,omitempty"`
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
	s.AddKnownTypeWithName(kubeschedulerv1.SchemeGroupVersion.WithKind(argsKind), &Args{})
	s.AddTypeDefaultingFunc(&Args{}, func(obj any) { obj.(*Args).setDefaults() })
	return nil
}

func (a *Args) setDefaults() {
	if a.BindTimeout == nil {
		a.BindTimeout = &metav1.Duration{Duration: defaultBindTimeout}
	}
	if a.ObservationTimeout == nil {
		a.ObservationTimeout = &metav1.Duration{Duration: defaultObservationTimeout}
	}
	if a.NodeNotices == nil {
		a.NodeNotices = []string{"defaults"}
	}
}

// settings are Args after defaulting.
type settings struct {
	bind, observation time.Duration
	notices           podstate.Notices
}

// defaultSettings are those of a scheduler whose configuration does not name the plugin.
func defaultSettings() settings {
	defaults, err := settingsFrom(nil)
	utilruntime.Must(err)
	return defaults
}

// settingsFrom reads what the scheduler passes to the plugin's constructor: nil if the configuration does not name the plugin. An error says everything that is wrong, with its path.
func settingsFrom(obj runtime.Object) (settings, error) {
	path := field.NewPath("pluginConfig").Key(Name).Child("args")
	if obj == nil {
		obj = &Args{}
	}
	args, ok := obj.(*Args)
	if !ok {
		return settings{}, fmt.Errorf("pluginConfig[%s].args: want %s, got %T", Name, argsKind, obj)
	}
	args = args.DeepCopy()
	args.setDefaults()
	notices, err := podstate.ParseNotices(args.NodeNotices)
	t := settings{args.BindTimeout.Duration, args.ObservationTimeout.Duration, notices}
	var errs field.ErrorList
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("nodeNotices"), args.NodeNotices, err.Error()))
	}
	if t.bind < time.Second || t.bind > maxTimeout {
		errs = append(errs, field.Invalid(path.Child("bindTimeout"), t.bind.String(), "must be between 1s and 1m"))
	}
	if t.observation < 0 || t.observation > maxTimeout {
		errs = append(errs, field.Invalid(path.Child("observationTimeout"), t.observation.String(), "must be between 0s and 1m"))
	}
	return t, errs.ToAggregate()
}
