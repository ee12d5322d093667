package cycle

import (
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/subset"
)

func TestPluginsShareTheLookOfACycle(t *testing.T) {
	w := begun(t, nil, spreadNamed("ns", "web", "apps/v1", "Deployment"), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}).world
	w.ctx, w.report = t.Context(), &Report{}
	look := func() *Cycle {
		t.Helper()
		c, err := w.Look()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := look()
	for range 2 {
		if err := w.Run(t.Context(), Strategy{Decide: func(*moves.Facts, moves.Cluster) moves.Decision {
			if look() != before {
				t.Error("strategies and filters of one cycle did not share the look")
			}
			return moves.Decision{Held: []moves.Held{{From: subset.None}}}
		}}); err != nil {
			t.Fatal(err)
		}
	}
	if report := w.End(); len(report.Lines) != 2 {
		t.Errorf("two strategies held pods, and the report is %v", report.Lines)
	}
	if look() == before {
		t.Error("a cycle decides by what the previous one has seen")
	}
	if report := w.End(); len(report.Lines) != 0 {
		t.Errorf("the report of a cycle has what the previous one did: %v", report.Lines)
	}
}

func TestALookThatFailedIsNotUsed(t *testing.T) {
	w := begun(t, nil).world
	broken := errors.New("no clock")
	w.current = &Cycle{err: broken}
	if err := w.Run(t.Context(), Strategy{}); !errors.Is(err, broken) {
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
	for range 2 {
		if err := errors.Join(w.Join(t.Context(), first), w.LookForRoom()); err != nil {
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
}
