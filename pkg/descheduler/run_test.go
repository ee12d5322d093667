package descheduler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

func TestOptionsThatCannotBe(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options)
		valid  bool
	}{
		"the defaults with a policy":    {func(*Options) {}, true},
		"no policy":                     {func(o *Options) { o.Server.PolicyConfigFile = "" }, false},
		"a plan in a form that is none": {func(o *Options) { o.Explain = "xml" }, false},
		"a plan as a table":             {func(o *Options) { o.Explain = "table" }, true},
		"no time at all":                {func(o *Options) { o.SyncTimeout = 0 }, false},
		"both dry runs":                 {func(o *Options) { o.ServerDryRun, o.Server.DryRun = true, true }, false},
		"a leader that runs once":       {func(o *Options) { o.Server.LeaderElection.LeaderElect = true }, false},
		"a leader that runs on and on": {func(o *Options) {
			o.Server.LeaderElection.LeaderElect, o.Server.DeschedulingInterval = true, time.Minute
		}, true},
		"a leader that retries too seldom": {func(o *Options) {
			o.Server.LeaderElection.LeaderElect, o.Server.DeschedulingInterval = true, time.Minute
			o.Server.LeaderElection.RetryPeriod.Duration = 9 * time.Second
		}, false},
		"a leader whose lease ends before it is renewed": {func(o *Options) {
			o.Server.LeaderElection.LeaderElect, o.Server.DeschedulingInterval = true, time.Minute
			o.Server.LeaderElection.LeaseDuration.Duration = 10 * time.Second
		}, false},
	} {
		o, err := NewOptions(nil)
		if err != nil {
			t.Fatal(err)
		}
		o.Server.PolicyConfigFile = "policy.yaml"
		tc.change(o)
		if err := o.Validate(); (err == nil) != tc.valid {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for err, want := range map[error]int{nil: 0, errors.New("any"): 1, fmt.Errorf("with more: %w", errNothingEvicted): 2} {
		if got := ExitCode(err); got != want {
			t.Errorf("%v: got %d, want %d", err, got, want)
		}
	}
}

// counting is a plugin that counts how often it runs.
type counting struct {
	runs int
	err  error
}

func (c *counting) Name() string { return "Counting" }
func (c *counting) Deschedule(context.Context, []*corev1.Node) *frameworktypes.Status {
	c.runs++
	return &frameworktypes.Status{Err: c.err}
}

func TestPluginsAreWatched(t *testing.T) {
	plugin, w := &counting{err: errors.New("broken")}, &watch{}
	registry := pluginregistry.NewRegistry()
	pluginregistry.Register("Counting", func(context.Context, runtime.Object, frameworktypes.Handle) (frameworktypes.Plugin, error) {
		return plugin, nil
	},
		plugin, nil, nil, nil, registry)
	built, err := watched(registry, cycle.NewClient(fake.NewClientset(), cycle.GuardOptions{Timeout: time.Second}), w)["Counting"].PluginBuilder(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	deschedule, ok := built.(frameworktypes.DeschedulePlugin)
	if !ok {
		t.Fatalf("it became a %T", built)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	w.begin(cancel)
	if w.started() {
		t.Error("it has started before it ran")
	}
	deschedule.Deschedule(ctx, nil)
	if !w.started() || plugin.runs != 1 || w.err() == nil {
		t.Errorf("it ran %d times, and its error became %v", plugin.runs, w.err())
	}
	deschedule.Deschedule(ctx, nil)
	if plugin.runs != 1 || !errors.Is(context.Cause(ctx), errAgain) {
		t.Errorf("it ran %d times in one cycle, which ended with %v", plugin.runs, context.Cause(ctx))
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	w.begin(cancel)
	if w.err() != nil {
		t.Errorf("the next cycle begins with %v", w.err())
	}
	cancel(errors.New("too late"))
	deschedule.Deschedule(ctx, nil)
	if plugin.runs != 1 || w.err() == nil {
		t.Errorf("it ran in a cycle that was over: %d, %v", plugin.runs, w.err())
	}
}
