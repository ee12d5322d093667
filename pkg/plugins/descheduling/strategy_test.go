package descheduling

import (
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
	"github.com/berth-project/berth/pkg/moves"
)

// args have a single field. It must not be negative, and its default is 3.
type args struct {
	corev1.Pod // any object

	value int
}

func (a *args) DeepCopyObject() runtime.Object { return &args{value: a.value} }
func (a *args) Default()                       { a.value = max(a.value, 3) }
func (a *args) Has(string) bool                { return true }
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
	return handle{client: cycle.NewClient(client, cycle.GuardOptions{Timeout: time.Second}), factory: informers.NewSharedInformerFactory(client, 0)}
}

func (handle) Evictor() frameworktypes.Evictor                          { return noEvictor{} }
func (h handle) ClientSet() kubernetes.Interface                        { return h.client }
func (h handle) SharedInformerFactory() informers.SharedInformerFactory { return h.factory }

type noEvictor struct{ frameworktypes.Evictor }

func TestArgsAreValidatedAndDefaulted(t *testing.T) {
	registry := pluginregistry.NewRegistry()
	addStrategy("Mine", &args{}, nil, registry)
	mine := registry["Mine"]
	for value, wantErr := range map[int]string{0: "", -1: "Mine: value: Invalid value"} {
		err := mine.PluginArgValidator(&args{value: value})
		if (err != nil) != (wantErr != "") || err != nil && !strings.HasPrefix(err.Error(), wantErr) {
			t.Errorf("%d: got %v, want %q", value, err, wantErr)
		}
	}
	given := &args{}
	mine.PluginArgDefaulter(given)
	if given.value != 3 {
		t.Errorf("the default is %d", given.value)
	}
}

func TestAStrategyIsBuiltOfItsArgs(t *testing.T) {
	registry := pluginregistry.NewRegistry()
	world, h := cycle.NewWorld(cycle.Options{}), newHandle(t)
	addStrategy("First", &args{}, world, registry)
	addStrategy("Then", &args{}, world, registry)
	for _, name := range []string{"First", "Then"} {
		built, err := registry[name].PluginBuilder(t.Context(), &args{value: 7}, h)
		if err != nil {
			t.Fatal(err)
		}
		if p, is := built.(*plugin); !is || p.Name() != name || p.strategy.Stable != 7 || p.strategy.Direction != moves.Home || p.strategy.Evictor != (noEvictor{}) {
			t.Errorf("%s: the plugin is %+v", name, built)
		}
	}
}

func TestAStrategyThatCannotLookSaysSo(t *testing.T) {
	registry := pluginregistry.NewRegistry()
	world, h := cycle.NewWorld(cycle.Options{}), newHandle(t)
	addStrategy("First", &args{}, world, registry)
	addStrategy("Then", &args{}, world, registry)
	for _, name := range []string{"First", "Then"} {
		built, err := registry[name].PluginBuilder(t.Context(), &args{}, h)
		if err != nil {
			t.Fatal(err)
		}
		status := built.(*plugin).Balance(t.Context(), nil)
		if status == nil || status.Err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
