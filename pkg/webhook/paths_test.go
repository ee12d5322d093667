package webhook

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/endpoint"
)

// told are the webhook configurations of a cluster, and how often they were written.
type told struct {
	t     *testing.T
	clock *clocktesting.FakeClock
	client.WithWatch
	mu     sync.Mutex
	writes int
	err    error // of the next writes
}

// tell applies the configurations that are shipped, as the API server keeps them.
func tell(t *testing.T) *told {
	t.Helper()
	c := &told{t: t, clock: clocktesting.NewFakeClock(time.Now())}
	c.WithWatch = fake.NewClientBuilder().WithScheme(schemeOf(t)).WithObjects(shipped(t)...).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, under client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			c.mu.Lock()
			c.writes++
			err := c.err
			c.mu.Unlock()
			if err != nil {
				return err
			}
			return under.Patch(ctx, object, patch, opts...)
		},
	}).Build()
	return c
}

func shipped(t *testing.T) []client.Object {
	t.Helper()
	configurations := []client.Object{
		&admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfiguration{},
		&admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfiguration{},
	}
	for i, content := range [][]byte{manifests.ValidatingWebhook, manifests.MutatingWebhook, manifests.BudgetWebhook, manifests.EvictionWebhook} {
		if err := yaml.UnmarshalStrict(content, configurations[i]); err != nil {
			t.Fatal(err)
		}
	}
	return configurations
}

// replica is one that sees all that is written at once.
func (c *told) replica() *paths {
	p := newPaths(nil, c, c.clock)
	p.cached = c
	return p
}

// late is a replica that sees nothing from now on.
func (c *told) late() *paths {
	objects, err := read(c.t.Context(), c)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, object := range objects {
		object.SetResourceVersion("")
	}
	p := c.replica()
	p.cached = fake.NewClientBuilder().WithScheme(schemeOf(c.t)).WithObjects(objects...).Build()
	return p
}

func (c *told) keep(replicas ...*paths) {
	c.t.Helper()
	for _, p := range replicas {
		if err := p.keep(c.t.Context()); err != nil {
			c.t.Fatal(err)
		}
	}
}

// paths are where the API server asks, by the webhook. Where it asks at none, its path is empty.
func (c *told) paths() map[string]string {
	c.t.Helper()
	configurations, err := read(c.t.Context(), c.WithWatch)
	if err != nil {
		c.t.Fatal(err)
	}
	all := map[string]string{}
	for _, configuration := range configurations {
		for _, w := range endpoint.WebhooksOf(configuration) {
			all[fmt.Sprintf("%T %s", configuration, w.Name)] = w.Path()
		}
	}
	return all
}

// change changes all webhooks of all configurations.
func (c *told) change(change func(endpoint.Webhook)) {
	c.t.Helper()
	configurations, err := read(c.t.Context(), c.WithWatch)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, configuration := range configurations {
		for _, w := range endpoint.WebhooksOf(configuration) {
			change(w)
		}
		if err := c.Update(c.t.Context(), configuration); err != nil {
			c.t.Fatal(err)
		}
	}
}

func takeAway(w endpoint.Webhook) { w.Client.Service.Path = nil }
func nameIt(w endpoint.Webhook)   { w.Client.Service.Path = ptr.To(w.Handler) }
func (c *told) never(err error)   { c.mu.Lock(); defer c.mu.Unlock(); c.err = err }
func (c *told) written() int      { c.mu.Lock(); defer c.mu.Unlock(); return c.writes }

// expectAnswered asks each replica at all of the paths.
func (c *told) expectAnswered(asked map[string]string, want bool, replicas ...*paths) {
	c.t.Helper()
	for name, path := range asked {
		for i, p := range replicas {
			if got := p.knows(path); got != want {
				c.t.Errorf("replica %d, %s at %q: answered %t, want %t", i, name, path, got, want)
			}
		}
	}
}

func (c *told) expectPaths() map[string]string {
	c.t.Helper()
	all := c.paths()
	for name, path := range all {
		if path == "" || strings.Count(path, "/") != 2 {
			c.t.Errorf("%s is asked at %q", name, path)
		}
	}
	if len(all) != 13 {
		c.t.Errorf("paths %v", all)
	}
	return all
}

func TestEveryReplicaAnswersWhereTheAPIServerAsks(t *testing.T) {
	c := tell(t)
	first, second := c.replica(), c.replica()
	if first.learned.Load() || first.ready(t.Context()) == nil {
		t.Error("it is ready before it has read anything")
	}
	c.keep(first, second)
	was := c.expectPaths()
	c.expectAnswered(was, true, first, second)
	if !first.learned.Load() || first.ready(t.Context()) != nil || second.ready(t.Context()) != nil {
		t.Error("they are not ready")
	}
	if writes := c.written(); writes != 4 {
		t.Errorf("%d writes", writes)
	}
	c.change(func(w endpoint.Webhook) { w.Client.CABundle = append(w.Client.CABundle, 'x') })
	c.keep(first, second)
	if same := c.expectPaths(); fmt.Sprint(same) != fmt.Sprint(was) {
		t.Errorf("with another authority the paths are %v, and were %v", same, was)
	}

	c.change(takeAway)
	c.expectAnswered(was, true, first, second)
	c.keep(first)
	now := c.expectPaths()
	for name, path := range now {
		if path == was[name] {
			t.Errorf("%s is still asked at %s", name, path)
		}
	}
	c.keep(second) // the watch has told it
	if diff := c.expectPaths(); fmt.Sprint(diff) != fmt.Sprint(now) {
		t.Errorf("the second replica has changed %v to %v", now, diff)
	}
	started := c.replica()
	c.keep(started)
	c.expectAnswered(now, true, first, second, started)
	c.expectAnswered(was, true, first, second) // some API server may not have heard of it
	c.clock.Step(formerFor)
	c.keep(first, second)
	c.expectAnswered(was, false, first, second)
	c.expectAnswered(now, true, first, second)
}

// TestTwoReplicasThatWriteAtTheSameTime: the one that is late changes nothing, and answers where the other has the API server ask.
func TestTwoReplicasThatWriteAtTheSameTime(t *testing.T) {
	c := tell(t)
	first := c.replica()
	late := c.late() // from before the first one has written
	c.keep(first)
	now := c.expectPaths()
	c.keep(late)
	if after := c.expectPaths(); fmt.Sprint(after) != fmt.Sprint(now) {
		t.Errorf("paths %v, then %v", now, after)
	}
	late.cached = c // the watch has told it
	c.keep(late)
	c.expectAnswered(now, true, first, late)
}

func TestAPathThatSomebodyHasNamedIsAnsweredAndStays(t *testing.T) {
	c := tell(t)
	c.change(nameIt) // as before there were secret ones
	first, second := c.replica(), c.replica()
	c.keep(first, second)
	guessable := c.paths()
	c.expectAnswered(guessable, true, first, second)
	if writes := c.written(); writes != 0 {
		t.Errorf("%d writes", writes)
	}

	c.change(takeAway) // the manifests of this version are applied
	c.keep(first, second)
	c.expectAnswered(c.expectPaths(), true, first, second)
	c.clock.Step(formerFor)
	c.keep(first, second)
	c.expectAnswered(guessable, false, first, second)

	c.change(nameIt) // the configurations name the guessable path again
	c.keep(first, second)
	c.expectAnswered(guessable, true, first, second)
	if got := c.paths(); fmt.Sprint(got) != fmt.Sprint(guessable) {
		t.Errorf("paths %v", got)
	}
}

func TestStrangersAreNotAnswered(t *testing.T) {
	c := tell(t)
	p := c.replica()
	c.keep(p)
	for _, path := range []string{"", "/", endpoint.BudgetPods, fmt.Sprintf("/%032x%s", 1, endpoint.BudgetPods)} {
		if p.knows(path) {
			t.Errorf("%q is answered", path)
		}
	}
}

// TestAReviewWaitsForTheWatch of webhook configurations, if the API server has seen the new path before the replica. A stranger's review does not wait long.
func TestAReviewWaitsForTheWatch(t *testing.T) {
	c := tell(t)
	first, late := c.replica(), c.replica()
	c.keep(first)
	path := c.expectPaths()["*v1.ValidatingWebhookConfiguration pods.budget.berth.dev"]
	answered := make(chan bool)
	for range mostPatient {
		go func() { answered <- late.soonKnows(t.Context(), path) }()
	}
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, patience, true, func(context.Context) (bool, error) { return len(late.patient) == mostPatient, nil }); err != nil {
		t.Fatalf("%d reviews wait", len(late.patient))
	}
	if late.soonKnows(t.Context(), path) {
		t.Error("more reviews wait than may")
	}
	c.keep(late)
	for range mostPatient {
		if !<-answered {
			t.Error("a review that waits is refused")
		}
	}
	if late.soonKnows(t.Context(), "/strange"+endpoint.BudgetPods) {
		t.Error("a stranger is answered")
	}
}

func TestAConfigurationThatIsGoneIsForgotten(t *testing.T) {
	c := tell(t)
	p := c.replica()
	c.keep(p)
	was := c.paths()
	configurations, err := read(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, configuration := range configurations {
		if err := c.Delete(t.Context(), configuration); err != nil {
			t.Fatal(err)
		}
	}
	c.keep(p)
	c.expectAnswered(was, true, p) // some API server may still have it
	c.clock.Step(formerFor)
	c.keep(p)
	c.expectAnswered(was, false, p)
	for _, object := range shipped(t) {
		if err := c.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	c.keep(p)
	c.expectAnswered(c.expectPaths(), true, p)
}

func TestAWriteThatFailsIsTriedAgain(t *testing.T) {
	c := tell(t)
	p := c.replica()
	c.never(errors.New("etcd is away"))
	if err := p.keep(t.Context()); err == nil || !strings.Contains(err.Error(), "etcd is away") || !strings.Contains(err.Error(), "berth-budget") {
		t.Errorf("got %v", err)
	}
	if err := p.ready(t.Context()); err == nil {
		t.Error("it is ready")
	}
	c.never(nil)
	c.keep(p)
	c.expectAnswered(c.expectPaths(), true, p)
}

func TestAWebhookOfSomebodyElseInOurConfigurationIsLeftAlone(t *testing.T) {
	c := tell(t)
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "berth-webhook"}, configuration); err != nil {
		t.Fatal(err)
	}
	other := admissionregistrationv1.MutatingWebhook{Name: "other.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Name: "other"}}}
	configuration.Webhooks = append(configuration.Webhooks, other)
	if err := c.Update(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
	p := c.replica()
	c.keep(p)
	if err := c.Get(t.Context(), client.ObjectKey{Name: "berth-webhook"}, configuration); err != nil {
		t.Fatal(err)
	}
	if len(configuration.Webhooks) != 3 || configuration.Webhooks[2].ClientConfig.Service.Path != nil || len(configuration.Webhooks[0].MatchConditions) == 0 {
		t.Errorf("got %+v", configuration.Webhooks)
	}
	if err := p.ready(t.Context()); err != nil {
		t.Error(err)
	}
}
