package lineage

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// answer is an API server that answers every list with the same error, or none.
type answer struct {
	client.Reader
	err error
}

func (a *answer) List(context.Context, client.ObjectList, ...client.ListOption) error { return a.err }

func TestKinds(t *testing.T) {
	region := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Region"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{widget.GroupVersion()})
	mapper.Add(widget, meta.RESTScopeNamespace)
	mapper.Add(region, meta.RESTScopeRoot)
	forbiddenList := apierrors.NewForbidden(schema.GroupResource{Group: "example.com", Resource: "widgets"}, "", errors.New("no"))

	type fixture struct {
		*Kinds
		server  *answer
		clock   *clocktesting.FakePassiveClock
		started []string
	}
	setup := func(err error) *fixture {
		f := &fixture{server: &answer{err: err}, clock: clocktesting.NewFakePassiveClock(noon.Time)}
		f.Kinds = NewKinds(mapper, f.server, f.clock)
		f.OnStart(func(_ context.Context, object *metav1.PartialObjectMetadata) error {
			f.started = append(f.started, object.GroupVersionKind().String())
			return nil
		})
		return f
	}

	t.Run("a kind is started once and can be read from then on", func(t *testing.T) {
		f := setup(nil)
		if f.NewObject(widget.GroupKind()) != nil {
			t.Error("readable before it is watched")
		}
		for range 2 {
			if problem, err := f.Watch(t.Context(), widget.GroupKind()); problem != nil || err != nil {
				t.Fatalf("got %v, %v", problem, err)
			}
		}
		if len(f.started) != 1 || f.NewObject(widget.GroupKind()).GetObjectKind().GroupVersionKind() != widget {
			t.Errorf("started %q, reads %v", f.started, f.NewObject(widget.GroupKind()))
		}
	})

	problems := map[string]struct {
		kind schema.GroupKind
		err  error
		want WhyUnwatchable
	}{
		"that may not be listed":    {widget.GroupKind(), forbiddenList, Forbidden},
		"that cannot be listed":     {widget.GroupKind(), apierrors.NewMethodNotSupported(schema.GroupResource{Group: "example.com", Resource: "widgets"}, "list"), NotListed},
		"that the API server lacks": {gadget.GroupKind(), nil, NotServed},
		"without namespaces":        {region.GroupKind(), nil, NotNamespaced},
	}
	for name, tc := range problems {
		t.Run("a kind "+name+" is not watched, and its objects end a chain", func(t *testing.T) {
			f := setup(tc.err)
			problem, err := f.Watch(t.Context(), tc.kind)
			if err != nil || problem == nil || problem.Why != tc.want || problem.Kind != tc.kind {
				t.Errorf("got %+v, %v", problem, err)
			}
			if len(f.started) > 0 || f.NewObject(tc.kind) != nil || !f.isUnwatchable(tc.kind) {
				t.Errorf("started %q", f.started)
			}
		})
	}

	t.Run("a kind that could not be watched is tried again after a while", func(t *testing.T) {
		f := setup(forbiddenList)
		f.see("default", widget.GroupKind())
		if err := f.WatchSeen(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		f.server.err = nil
		if problem, _ := f.Watch(t.Context(), widget.GroupKind()); problem == nil {
			t.Error("tried again at once")
		}
		f.clock.SetTime(noon.Add(RetryInterval))
		if problem, err := f.Watch(t.Context(), widget.GroupKind()); problem != nil || err != nil || len(f.started) != 1 {
			t.Errorf("got %v, %v, started %q", problem, err, f.started)
		}
	})

	t.Run("a failure is an error and is tried again at once", func(t *testing.T) {
		f := setup(apierrors.NewInternalError(errors.New("down")))
		if _, err := f.Watch(t.Context(), widget.GroupKind()); err == nil {
			t.Fatal("got no error")
		}
		f.server.err = nil
		if problem, err := f.Watch(t.Context(), widget.GroupKind()); problem != nil || err != nil {
			t.Errorf("got %v, %v", problem, err)
		}
	})

	t.Run("objects are listed of built-in kinds, and of others that were seen in the namespace and are watched", func(t *testing.T) {
		f := setup(nil)
		f.see("default", widget.GroupKind())
		f.see("default", region.GroupKind())
		if err := f.WatchSeen(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		for namespace, want := range map[string]int{"default": len(builtIn) + 1, "elsewhere": len(builtIn)} {
			got := 0
			for range f.NewLists(namespace) {
				got++
			}
			if got != want {
				t.Errorf("%d kinds in namespace %s, want %d", got, namespace, want)
			}
		}
	})
}
