package controller

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

// answer is an API server that answers every list with the same error, or none.
type answer struct {
	client.Reader
	err error
}

func (a *answer) List(context.Context, client.ObjectList, ...client.ListOption) error { return a.err }

func TestKinds(t *testing.T) {
	widget := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	region := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Region"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{widget.GroupVersion()})
	mapper.Add(widget, meta.RESTScopeNamespace)
	mapper.Add(region, meta.RESTScopeRoot)
	forbiddenList := apierrors.NewForbidden(schema.GroupResource{Group: "example.com", Resource: "widgets"}, "", errors.New("no"))

	type fixture struct {
		*kinds
		server  *answer
		clock   *clocktesting.FakePassiveClock
		started []string
	}
	setup := func(err error) *fixture {
		f := &fixture{server: &answer{err: err}, clock: clocktesting.NewFakePassiveClock(noon.Time)}
		f.kinds = newKinds(mapper, f.server, f.clock)
		f.start = func(_ context.Context, object *metav1.PartialObjectMetadata) error {
			f.started = append(f.started, object.GroupVersionKind().String())
			return nil
		}
		return f
	}

	t.Run("a kind is started once and can be read from then on", func(t *testing.T) {
		f := setup(nil)
		if f.newObject(widget.GroupKind()) != nil {
			t.Error("readable before it is watched")
		}
		for range 2 {
			if problem, err := f.watch(t.Context(), widget.GroupKind()); problem != nil || err != nil {
				t.Fatalf("got %v, %v", problem, err)
			}
		}
		if len(f.started) != 1 || f.newObject(widget.GroupKind()).GetObjectKind().GroupVersionKind() != widget {
			t.Errorf("started %q, reads %v", f.started, f.newObject(widget.GroupKind()))
		}
	})

	problems := map[string]struct {
		kind   schema.GroupKind
		err    error
		reason v1alpha1.Reason
		says   string
	}{
		"a kind that may not be listed needs a role":    {widget.GroupKind(), forbiddenList, v1alpha1.ReasonTargetUnreadable, "ClusterRole"},
		"a kind that the API server lacks is not found": {schema.GroupKind{Group: "example.com", Kind: "Gadget"}, nil, v1alpha1.ReasonTargetNotFound, "no kind Gadget"},
		"a kind without namespaces cannot be divided":   {region.GroupKind(), nil, v1alpha1.ReasonTargetUnreadable, "not namespaced"},
	}
	for name, tc := range problems {
		t.Run(name, func(t *testing.T) {
			f := setup(tc.err)
			problem, err := f.watch(t.Context(), tc.kind)
			if err != nil || problem == nil || problem.condition.reason != tc.reason || !strings.Contains(problem.condition.message, tc.says) || !problem.silent {
				t.Errorf("got %+v, %v", problem, err)
			}
			if len(f.started) > 0 || f.newObject(tc.kind) != nil {
				t.Errorf("started %q", f.started)
			}
		})
	}

	t.Run("a kind that could not be watched is tried again after a while", func(t *testing.T) {
		f := setup(forbiddenList)
		f.see("default", widget.GroupKind())
		if err := f.watchSeen(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		f.server.err = nil
		if problem, _ := f.watch(t.Context(), widget.GroupKind()); problem == nil {
			t.Error("tried again at once")
		}
		f.clock.SetTime(noon.Add(retryInterval))
		if problem, err := f.watch(t.Context(), widget.GroupKind()); problem != nil || err != nil || len(f.started) != 1 {
			t.Errorf("got %v, %v, started %q", problem, err, f.started)
		}
	})

	t.Run("a failure is an error and is tried again at once", func(t *testing.T) {
		f := setup(apierrors.NewInternalError(errors.New("down")))
		if _, err := f.watch(t.Context(), widget.GroupKind()); err == nil {
			t.Fatal("got no error")
		}
		f.server.err = nil
		if problem, err := f.watch(t.Context(), widget.GroupKind()); problem != nil || err != nil {
			t.Errorf("got %v, %v", problem, err)
		}
	})

	t.Run("objects are listed of built-in kinds, and of others that were seen in the namespace and are watched", func(t *testing.T) {
		f := setup(nil)
		f.see("default", widget.GroupKind())
		f.see("default", region.GroupKind())
		if err := f.watchSeen(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		for namespace, want := range map[string]int{"default": len(builtIn) + 1, "elsewhere": len(builtIn)} {
			got := 0
			for range f.newLists(namespace) {
				got++
			}
			if got != want {
				t.Errorf("%d kinds in namespace %s, want %d", got, namespace, want)
			}
		}
	})
}
