package webhook

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
)

// listed is a cache that can list.
type listed struct {
	cache.Cache
	client.Reader
}

func (l listed) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	return l.Reader.Get(ctx, key, object, opts...)
}

func (l listed) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return l.Reader.List(ctx, list, opts...)
}

// narrowed is a replica, with the shipped webhook configurations.
type narrowed struct {
	t *testing.T
	client.WithWatch
	*uses
	clock *clocktesting.FakeClock
	// conflicts is how many of the next writes fail.
	conflicts int
}

func newNarrowed(t *testing.T) *narrowed {
	t.Helper()
	n := &narrowed{t: t, clock: clocktesting.NewFakeClock(time.Now())}
	n.WithWatch = fake.NewClientBuilder().WithScheme(schemeOf(t)).WithObjects(shipped(t)...).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, under client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if n.conflicts > 0 {
				n.conflicts--
				return apierrors.NewConflict(schema.GroupResource{}, object.GetName(), nil)
			}
			return under.Patch(ctx, object, patch, opts...)
		},
	}).Build()
	n.uses = &uses{
		configuration: "berth-webhook", webhook: endpoint.PodWebhook, kind: &v1beta1.WorkloadSpreadList{}, example: &v1beta1.WorkloadSpread{},
		objects: listed{Reader: n.WithWatch}, configurations: listed{Reader: n.WithWatch}, live: n.WithWatch, writer: n.WithWatch, clock: n.clock,
	}
	return n
}

func (n *narrowed) addSpread(namespace string) {
	n.t.Helper()
	spread := spreadOf("web", "web", 1)
	spread.Namespace = namespace
	if err := n.Create(n.t.Context(), spread); err != nil {
		n.t.Fatal(err)
	}
}

func (n *narrowed) removeSpread(namespace string) {
	n.t.Helper()
	spread := spreadOf("web", "web", 1)
	spread.Namespace = namespace
	if err := n.Delete(n.t.Context(), spread); err != nil {
		n.t.Fatal(err)
	}
}

func (n *narrowed) look() {
	n.t.Helper()
	if err := n.keep(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
}

func (n *narrowed) expect(want ...string) {
	n.t.Helper()
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := n.Get(n.t.Context(), types.NamespacedName{Name: n.configuration}, c); err != nil {
		n.t.Fatal(err)
	}
	names, all := namespacesOf(c, n.webhook)
	if diff := cmp.Diff(want, names); diff != "" || all {
		n.t.Errorf("all is %v; namespaces, -want +got:\n%s", all, diff)
	}
	for i := range c.Webhooks {
		if w := &c.Webhooks[i]; w.Name != n.webhook && len(w.MatchConditions) != 2 {
			n.t.Errorf("webhook %s has %d conditions", w.Name, len(w.MatchConditions))
		}
	}
}

func TestAWebhookIsNarrowedToTheNamespacesWithSpreads(t *testing.T) {
	n := newNarrowed(t)
	n.include(t.Context(), "early")
	if !n.includes(t.Context(), "other") {
		t.Error("it is narrowed before anybody has seen the spreads")
	}
	n.look()
	n.expect()
	n.addSpread("b")
	n.addSpread("a")
	n.look()
	n.expect("a", "b")
	n.include(t.Context(), "c")
	n.expect("a", "b", "c")
	n.include(t.Context(), "c")
	n.look()
	n.expect("a", "b", "c") // its spread may be on the way
	n.clock.Step(unusedFor - time.Second)
	n.look()
	n.expect("a", "b", "c")
	n.clock.Step(time.Second)
	n.look()
	n.expect("a", "b")
	n.removeSpread("a")
	n.look()
	n.clock.Step(unusedFor / 2)
	n.look()
	n.expect("a", "b")
	n.addSpread("a") // it is used again, and its time begins anew
	n.look()
	n.removeSpread("a")
	n.clock.Step(unusedFor / 2)
	n.look()
	n.expect("a", "b")
	n.removeSpread("b")
	n.look()
	n.clock.Step(unusedFor)
	n.look()
	n.expect()
}

func TestTwoReplicasNarrowAWebhookAtOnce(t *testing.T) {
	n := newNarrowed(t)
	n.look()
	n.conflicts = 2
	n.include(t.Context(), "a")
	n.expect("a")
	n.addSpread("b")
	n.conflicts = 2
	n.look()
	n.expect("a", "b")
}

func TestAWebhookWithTooManyNamespacesIsCalledForAll(t *testing.T) {
	n := newNarrowed(t)
	for i := range 1001 {
		n.addSpread(fmt.Sprint("shop-", i))
	}
	n.look()
	if !n.includes(t.Context(), "another") {
		t.Error("it is narrowed to 1,001 namespaces")
	}
	n.include(t.Context(), "another")
	n.look()
	if !n.includes(t.Context(), "yet-another") {
		t.Error("a new namespace has narrowed it")
	}
	n.removeSpread("shop-0")
	n.look()
	if n.includes(t.Context(), "another") || !n.includes(t.Context(), "shop-1") {
		t.Error("it is not narrowed to 1,000 namespaces")
	}
}

func TestWithoutAWebhookConfigurationThereIsNothingToNarrow(t *testing.T) {
	n := newNarrowed(t)
	n.configuration = "berth-none"
	n.look()
	n.include(t.Context(), "a")
}

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) { return condition(), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// kubectl applies the webhook configurations last. On a slow machine the leader begins before that.
func TestAWebhookIsNarrowedWhenItsConfigurationAppears(t *testing.T) {
	n := newNarrowed(t)
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := n.Get(t.Context(), types.NamespacedName{Name: n.configuration}, configuration); err != nil {
		t.Fatal(err)
	}
	if err := n.Delete(t.Context(), configuration.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	informers := &informertest.FakeInformers{Scheme: schemeOf(t)}
	n.objects, n.configurations = listed{informers, n.WithWatch}, listed{informers, n.WithWatch}
	n.addSpread("a")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := n.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer cancel()
	until(t, "it waits for a change", n.clock.HasWaiters)

	configuration.ResourceVersion = ""
	if err := n.Create(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
	informer, err := informers.FakeInformerFor(t.Context(), configuration)
	if err != nil {
		t.Fatal(err)
	}
	informer.Add(configuration)
	until(t, "it is narrowed", func() bool { return !n.includes(t.Context(), "other") })
	n.expect("a")
}
