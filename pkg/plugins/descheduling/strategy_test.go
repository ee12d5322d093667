package descheduling

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
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

// handle is one of a descheduler whose API server does not answer.
type handle struct {
	frameworktypes.Handle
	client  kubernetes.Interface
	factory informers.SharedInformerFactory
}

func newHandle(t *testing.T) handle {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	return handle{client: guarded.New(client, guarded.Options{Timeout: time.Second}), factory: informers.NewSharedInformerFactory(client, 0)}
}

func (handle) Evictor() frameworktypes.Evictor                          { return noEvictor{} }
func (h handle) ClientSet() kubernetes.Interface                        { return h.client }
func (h handle) SharedInformerFactory() informers.SharedInformerFactory { return h.factory }

type noEvictor struct{ frameworktypes.Evictor }

func TestArgsAreValidatedAndDefaulted(t *testing.T) {
	registry := pluginregistry.NewRegistry()
	addStrategy("Mine", &args{}, deschedules, nil, registry)
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
	world, h := cycle.NewWorld(cycle.Options{}), newHandle(t)
	addStrategy("First", &args{}, deschedules, world, registry)
	addStrategy("Then", &args{}, balances, world, registry)
	for name, want := range map[string]struct{ deschedules, balances bool }{"First": {true, false}, "Then": {false, true}} {
		built, err := registry[name].PluginBuilder(t.Context(), &args{value: 7}, h)
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
		if s := &p.strategy; s.Stable != 7 || s.Direction != moves.Home || s.Name != name || s.Evictor != (noEvictor{}) {
			t.Errorf("%s: the strategy is %+v", name, s)
		}
	}
	broken := errors.New("broken")
	if _, err := registry["First"].PluginBuilder(t.Context(), &args{scope: broken}, h); !errors.Is(err, broken) {
		t.Errorf("a scope that is none: %v", err)
	}
	if _, err := registry["First"].PluginBuilder(t.Context(), &corev1.Pod{}, h); err == nil {
		t.Error("a strategy was built of args of another")
	}
}

func TestAStrategyThatCannotLookSaysSo(t *testing.T) {
	registry := pluginregistry.NewRegistry()
	world, h := cycle.NewWorld(cycle.Options{}), newHandle(t)
	addStrategy("First", &args{}, deschedules, world, registry)
	addStrategy("Then", &args{}, balances, world, registry)
	for _, name := range []string{"First", "Then"} {
		built, err := registry[name].PluginBuilder(t.Context(), &args{}, h)
		if err != nil {
			t.Fatal(err)
		}
		var status *frameworktypes.Status
		switch p := built.(type) {
		case frameworktypes.DeschedulePlugin:
			status = p.Deschedule(t.Context(), nil)
		case frameworktypes.BalancePlugin:
			status = p.Balance(t.Context(), nil)
		}
		if status == nil || status.Err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
