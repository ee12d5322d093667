package lineage

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
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
		want whyUnwatchable
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

func TestKindsThatSomebodyInvents(t *testing.T) {
	invented := func(i int) schema.GroupKind {
		return schema.GroupKind{Group: "example.com", Kind: fmt.Sprintf("Invented%d", i)}
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{widget.GroupVersion()})
	mapper.Add(widget, meta.RESTScopeNamespace)
	setup := func() (*Kinds, *clocktesting.FakePassiveClock) {
		clock := clocktesting.NewFakePassiveClock(noon.Time)
		return NewKinds(mapper, &answer{}, clock), clock
	}
	remembered := func(k *Kinds) (n int) {
		k.known.Range(func(any, any) bool { n++; return true })
		return n
	}

	t.Run("a bounded number of them is remembered, and tried again", func(t *testing.T) {
		k, clock := setup()
		const kinds = 3 * maxAbsent
		for i := range kinds {
			k.seek("hostile", invented(i))
			k.grant(t.Context(), wish{kind: invented(i)})
		}
		if got := remembered(k); got != maxAbsent || len(k.absent) != maxAbsent {
			t.Errorf("remembers %d and lists %d, want %d", got, len(k.absent), maxAbsent)
		}
		if got := len(k.seenIn("hostile")); got > maxUnknown {
			t.Errorf("the namespace has %d kinds, want at most %d", got, maxUnknown)
		}
		clock.SetTime(noon.Add(RetryInterval))
		k.grant(t.Context(), wish{kind: invented(0), again: true})
		if _, found := k.look(invented(0)); found {
			t.Error("one that was forgotten is tried again")
		}
	})

	t.Run("they take no room from a kind that there is", func(t *testing.T) {
		k, _ := setup()
		for i := range 2 * maxUnknown {
			k.seek("hostile", invented(i))
			k.grant(t.Context(), wish{kind: invented(i)})
		}
		k.seek("hostile", widget.GroupKind())
		k.grant(t.Context(), wish{kind: widget.GroupKind()})
		for i := range 2 * maxAbsent {
			k.seek("hostile", invented(1000+i))
			k.grant(t.Context(), wish{kind: invented(1000 + i)})
		}
		if k.NewObject(widget.GroupKind()) == nil || !k.wasSeen("hostile", widget.GroupKind()) {
			t.Error("the kind is not watched, or the namespace has forgotten it")
		}
	})

	t.Run("one namespace has a bounded number of them waiting to be tried, and no other waits for more", func(t *testing.T) {
		k, clock := setup()
		for i := range 10 * maxUnknown {
			k.seek("hostile", invented(i))
		}
		if got := k.wanted.Len(); got != maxUnknown {
			t.Errorf("%d kinds wait, want %d", got, maxUnknown)
		}
		k.seek("other", widget.GroupKind())
		if got := k.wanted.Len(); got != maxUnknown+1 {
			t.Errorf("the kind of the other namespace does not wait")
		}
		clock.SetTime(noon.Add(RetryInterval)) // they were tried and forgotten long ago
		k.seek("hostile", widget.GroupKind())
		if !k.wasSeen("hostile", widget.GroupKind()) {
			t.Error("the namespace never has room again")
		}
	})

	t.Run("one that comes to be served is no longer one of them", func(t *testing.T) {
		k, clock := setup()
		if problem, err := k.Watch(t.Context(), gadget.GroupKind()); err != nil || problem == nil {
			t.Fatalf("got %v, %v", problem, err)
		}
		mapper.Add(gadget, meta.RESTScopeNamespace)
		clock.SetTime(noon.Add(RetryInterval))
		k.grant(t.Context(), wish{kind: gadget.GroupKind(), again: true})
		if k.NewObject(gadget.GroupKind()) == nil || len(k.absent) > 0 {
			t.Errorf("not watched, or still listed: %v", k.absent)
		}
	})
}

func TestPodsThatOwnPodsAreNotWatchedTwice(t *testing.T) {
	started := 0
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	k := NewKinds(mapper, &answer{}, clocktesting.NewFakePassiveClock(noon.Time))
	k.OnStart(func(context.Context, *metav1.PartialObjectMetadata) error { started++; return nil })
	if k.see("shop", podKind) {
		t.Error("it must be watched first")
	}
	if problem, err := k.Watch(t.Context(), podKind); problem != nil || err != nil || started > 0 {
		t.Errorf("got %v, %v, started %d", problem, err, started)
	}
	if _, typed := k.NewObject(podKind).(*corev1.Pod); !typed {
		t.Errorf("reads a pod into %T", k.NewObject(podKind))
	}
	lists := func(namespace string) (found bool) {
		for kind, list := range k.NewLists(namespace) {
			_, typed := list.(*corev1.PodList)
			found = found || kind == podKind && typed
		}
		return found
	}
	if !lists("shop") || lists("elsewhere") {
		t.Error("pods are looked for where pods own pods, and nowhere else")
	}
}

func TestADriverPodIsBetweenItsExecutorsAndTheirWorkload(t *testing.T) {
	s := spread("spark", "Widget", "spark", func(s *v1beta1.WorkloadSpread) { s.Spec.TargetReference.APIVersion = "example.com/v1" })
	driver := ownedBy(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "driver", UID: "driver"}}, "example.com/v1", "Widget", "spark")
	f := newFixture(t, s, driver)
	found, missing, err := f.SpreadOf(t.Context(), "shop", owner("", "Pod", "driver"), nil)
	if err != nil || missing != nil || found == nil || found.Name != "spark" {
		t.Errorf("got %v, %v, %v", found, missing, err)
	}
}
