package cycle

import (
	"context"
	"errors"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/moves"
)

// Nobody says when a cycle begins. Strategies and filters share a look, until one of the strategies runs again, or the look is old.
func TestPluginsShareALook(t *testing.T) {
	w := begun(t, nil, spreadNamed("ns", "web", "apps/v1", "Deployment"), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}).world
	w.ctx = t.Context()
	reports := 0
	w.options.Report = func(*Report) { reports++ }
	look := func() *Cycle {
		t.Helper()
		c, err := w.Look()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	decided := 0
	deciding := func(while func()) *Strategy {
		return &Strategy{Decide: func(*moves.Facts, moves.Cluster) moves.Decision {
			decided++
			while()
			return moves.Decision{}
		}}
	}
	var during *Cycle
	first, second := deciding(func() {}), deciding(func() {
		w.current.taken = w.current.taken.Add(-time.Hour)
		during = look()
	})
	run := func(s *Strategy) {
		t.Helper()
		if err := w.Run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	before := look()
	run(first)
	run(second)
	if during != before {
		t.Error("strategies and filters of one cycle did not share the look, or it was replaced while a strategy used it")
	}
	old := look()
	if old == before {
		t.Error("a look of an hour ago was used")
	}
	run(first)
	if look() != old {
		t.Error("a strategy took another look although it had not used the one of the filter")
	}
	run(first)
	if look() == old {
		t.Error("a strategy used the look of its cycle before")
	}
	if decided != 4 || reports != 3+4 {
		t.Errorf("%d decisions and %d reports, want 4, and one for each of them and of three looks", decided, reports)
	}
}

func TestALookThatFailedIsNotUsed(t *testing.T) {
	w := begun(t, nil).world
	ctx, cancel := context.WithCancel(t.Context())
	w.ctx = ctx
	cancel()
	broken := errors.New("no clock")
	w.current = &Cycle{err: broken, taken: time.Now(), usedBy: map[*Strategy]bool{}}
	if err := w.Run(t.Context(), &Strategy{}); !errors.Is(err, broken) {
		t.Errorf("a strategy: %v", err)
	}
	if _, err := w.Look(); !errors.Is(err, broken) {
		t.Errorf("a filter: %v", err)
	}
}

type handle struct {
	frameworktypes.Handle
	client  kubernetes.Interface
	factory informers.SharedInformerFactory
}

func (h handle) ClientSet() kubernetes.Interface                        { return h.client }
func (h handle) SharedInformerFactory() informers.SharedInformerFactory { return h.factory }

func TestAWorldComesFromTheHandle(t *testing.T) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "https://127.0.0.1:1/clusters/one"})
	if err != nil {
		t.Fatal(err)
	}
	over := func(client kubernetes.Interface) handle {
		return handle{client: client, factory: informers.NewSharedInformerFactory(client, 0)}
	}
	first := over(client)
	w := NewWorld(Options{})
	if err := w.Join(t.Context(), over(fake.NewClientset())); !errors.Is(err, errNoServer) {
		t.Errorf("without a server: %v", err)
	}
	ctx, end := context.WithCancel(t.Context())
	for range 2 {
		if err := errors.Join(w.Join(ctx, first), w.LookForRoom()); err != nil {
			t.Fatal(err)
		}
	}
	if w.server.url != "https://127.0.0.1:1/clusters/one/version" {
		t.Errorf("it asks %s for the time", w.server.url)
	}
	next, server := over(client), w.server
	if err := w.Join(t.Context(), next); err != nil || w.informers != next.factory || w.server != server {
		t.Errorf("other informers: %v", err)
	}
	end()
	w.current = &Cycle{}
	w.leave(first.factory)
	if w.current == nil {
		t.Error("the plugins of before took the look of those after them")
	}
	if w.leave(next.factory); w.current != nil {
		t.Error("a look outlives its plugins")
	}
}
