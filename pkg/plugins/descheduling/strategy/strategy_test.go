package strategy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/pkg/descheduler/guarded"
	"github.com/berth-project/berth/pkg/moves"
)

// args have a single field. It must not be negative, and its default is 3.
type args struct {
	corev1.Pod // any object

	value int
	scope error
}

func (a *args) DeepCopyObject() runtime.Object { return &args{value: a.value, scope: a.scope} }
func (a *args) Default()                       { a.value = max(a.value, 3) }
func (a *args) Compile() (cycle.Scope, error)  { return cycle.Scope{}, a.scope }
func (a *args) Validate() field.ErrorList {
	if a.value < 0 {
		return field.ErrorList{field.Invalid(field.NewPath("value"), a.value, "must not be negative")}
	}
	return nil
}
func (a *args) Strategy() cycle.Strategy {
	return cycle.Strategy{Direction: moves.Home, Stable: time.Duration(a.value)}
}

type handle struct{ frameworktypes.Handle }

func (handle) Evictor() frameworktypes.Evictor { return evictor{} }

type evictor struct{ frameworktypes.Evictor }

func world(t *testing.T) *cycle.World {
	t.Helper()
	w, err := cycle.NewWorld(&rest.Config{Host: "http://127.0.0.1:1"}, guarded.New(fake.NewClientset(), guarded.Options{Timeout: time.Second}), cycle.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestArgsAreValidatedAndDefaulted(t *testing.T) {
	registry := pluginregistry.NewRegistry()
	Deschedule("Mine", &args{}, nil, registry)
	mine := registry["Mine"]
	for value, wantErr := range map[int]string{0: "", -1: "Mine: value: Invalid value"} {
		err := mine.PluginArgValidator(&args{value: value})
		if (err != nil) != (wantErr != "") || err != nil && !strings.HasPrefix(err.Error(), wantErr) {
			t.Errorf("%d: got %v, want %q", value, err, wantErr)
		}
	}
	if err := mine.PluginArgValidator(&corev1.Pod{}); err == nil {
		t.Error("the args of another plugin were taken")
	}
	given, other := &args{}, &corev1.Pod{}
	mine.PluginArgDefaulter(given)
	mine.PluginArgDefaulter(other)
	if given.value != 3 {
		t.Errorf("the default is %d", given.value)
	}
}

func TestAStrategyIsBuiltOfItsArgs(t *testing.T) {
	registry := pluginregistry.NewRegistry()
	Deschedule("First", &args{}, world(t), registry)
	Balance("Then", &args{}, world(t), registry)
	for name, want := range map[string]struct{ deschedules, balances bool }{"First": {true, false}, "Then": {false, true}} {
		built, err := registry[name].PluginBuilder(t.Context(), &args{value: 7}, handle{})
		if err != nil {
			t.Fatal(err)
		}
		for what, object := range map[string]any{"the plugin": built, "the type that the framework is told": registry[name].PluginType} {
			_, deschedules := object.(frameworktypes.DeschedulePlugin)
			_, balances := object.(frameworktypes.BalancePlugin)
			if deschedules != want.deschedules || balances != want.balances {
				t.Errorf("%s: %s deschedules: %t, balances: %t", name, what, deschedules, balances)
			}
		}
		if built.Name() != name {
			t.Errorf("%s is called %s", name, built.Name())
		}
		var p *plugin
		switch b := built.(type) {
		case *descheduling:
			p = &b.plugin
		case *balancing:
			p = &b.plugin
		}
		if s := &p.strategy; s.Stable != 7 || s.Direction != moves.Home || s.Name != name || s.Evictor != (evictor{}) {
			t.Errorf("%s: the strategy is %+v", name, s)
		}
	}
	broken := errors.New("broken")
	if _, err := registry["First"].PluginBuilder(t.Context(), &args{scope: broken}, handle{}); !errors.Is(err, broken) {
		t.Errorf("a scope that is none: %v", err)
	}
	if _, err := registry["First"].PluginBuilder(t.Context(), &corev1.Pod{}, handle{}); err == nil {
		t.Error("a strategy was built of args of another")
	}
}

func TestAStrategyThatRunsInNoCycleSaysSo(t *testing.T) {
	for name, run := range map[string]func(context.Context, []*corev1.Node) *frameworktypes.Status{
		"deschedule": (&descheduling{plugin{world: world(t)}}).Deschedule,
		"balance":    (&balancing{plugin{world: world(t)}}).Balance,
	} {
		if status := run(t.Context(), nil); status.Err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
