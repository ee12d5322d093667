package lineage

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	rulesv1alpha1 "github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	"github.com/berth-project/berth/pkg/workload"
)

var noon = metav1.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

var (
	widget = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	gadget = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}
)

// fixture is a lineage over a cache to which the test adds objects.
type fixture struct {
	*Lineage
	client client.Client
	clock  *clocktesting.FakeClock
	server *answer
}

func newFixture(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme, rulesv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{widget.GroupVersion()})
	mapper.Add(widget, meta.RESTScopeNamespace)
	mapper.Add(gadget, meta.RESTScopeNamespace)
	f := &fixture{
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithIndex(&v1beta1.WorkloadSpread{}, TargetField, TargetKeyOf).Build(),
		clock:  clocktesting.NewFakeClock(noon.Time),
		server: &answer{},
	}
	f.Lineage = Over(f.client, NewKinds(mapper, f.server, f.clock), f.clock)
	return f
}

// add puts an object into the cache, as its informer does: first it is there, then it is told.
func (f *fixture) add(t *testing.T, object client.Object) {
	t.Helper()
	if err := f.client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	f.ownerSeen(object)
}

func spread(name, kind, target string, change ...func(*v1beta1.WorkloadSpread)) *v1beta1.WorkloadSpread {
	s := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("spread-" + name)}}
	s.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: kind, Name: target}
	s.Spec.Subsets = []v1beta1.Subset{{Name: "a"}}
	for _, c := range change {
		c(s)
	}
	return s
}

func ownedBy[T client.Object](object T, apiVersion, kind, name string) T {
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(name), Controller: ptr.To(true)}})
	return object
}

func deployment(name string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
}

func replicaSet(name string) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
}

// custom is an object of a kind that is not built in, by its metadata.
func custom(kind schema.GroupVersionKind, name string) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
	object.SetGroupVersionKind(kind)
	return object
}

func owner(group, kind, name string) *workload.Owner {
	return &workload.Owner{Kind: schema.GroupKind{Group: group, Kind: kind}, Name: name, UID: types.UID(name)}
}

func TestTheNearestOwnerWithASpreadThatSelectsThePodCounts(t *testing.T) {
	selecting := func(s *v1beta1.WorkloadSpread) {
		s.Spec.TargetFilter = &v1beta1.TargetFilter{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "worker"}}}
	}
	younger := func(s *v1beta1.WorkloadSpread) { s.CreationTimestamp = noon }
	invalid := func(s *v1beta1.WorkloadSpread) { s.Spec.Subsets = nil }
	worker := map[string]string{"role": "worker"}
	web := ownedBy(replicaSet("r1"), "apps/v1", "Deployment", "web")
	const rs, apps = "ReplicaSet", "apps"
	tests := map[string]struct {
		cache   []client.Object
		owner   *workload.Owner
		labels  map[string]string
		want    string
		missing string
	}{
		"a spread of the owner's owner divides the pod":             {[]client.Object{web, deployment("web"), spread("s", "Deployment", "web")}, owner(apps, rs, "r1"), nil, "s", ""},
		"a spread of the owner itself comes first":                  {[]client.Object{web, deployment("web"), spread("s", "Deployment", "web"), spread("near", rs, "r1")}, owner(apps, rs, "r1"), nil, "near", ""},
		"a nearer spread that does not select it leaves it":         {[]client.Object{web, deployment("web"), spread("s", "Deployment", "web"), spread("near", rs, "r1", selecting)}, owner(apps, rs, "r1"), nil, "s", ""},
		"a nearer spread that selects it takes it":                  {[]client.Object{web, deployment("web"), spread("s", "Deployment", "web"), spread("near", rs, "r1", selecting)}, owner(apps, rs, "r1"), worker, "near", ""},
		"the older of two spreads of one workload divides":          {[]client.Object{web, deployment("web"), spread("a", "Deployment", "web", younger), spread("b", "Deployment", "web")}, owner(apps, rs, "r1"), nil, "b", ""},
		"a spread that cannot be used keeps its pods":               {[]client.Object{web, deployment("web"), spread("s", "Deployment", "web"), spread("near", rs, "r1", invalid)}, owner(apps, rs, "r1"), nil, "near", ""},
		"the versions of a reference do not matter":                 {[]client.Object{spread("s", rs, "r1", func(s *v1beta1.WorkloadSpread) { s.Spec.TargetReference.APIVersion = "apps/v1beta1" })}, owner(apps, rs, "r1"), nil, "s", ""},
		"the owner need not be known if it has a spread":            {[]client.Object{spread("s", rs, "r1")}, owner(apps, rs, "r1"), nil, "s", ""},
		"a workload of the same name and another group is another":  {[]client.Object{replicaSet("r1"), spread("s", rs, "r1", func(s *v1beta1.WorkloadSpread) { s.Spec.TargetReference.APIVersion = "example.com/v1" })}, owner(apps, rs, "r1"), nil, "", ""},
		"a workload of the same name and another namespace is too":  {[]client.Object{web, deployment("web"), spread("s", "Deployment", "web", func(s *v1beta1.WorkloadSpread) { s.Namespace = "farm" })}, owner(apps, rs, "r1"), nil, "", ""},
		"no owner, no spread":                                       {[]client.Object{spread("s", "Deployment", "web")}, nil, nil, "", ""},
		"above the pods of a DaemonSet nothing is looked for":       {[]client.Object{spread("s", "Deployment", "web")}, owner(apps, "DaemonSet", "d"), nil, "", ""},
		"an owner that is not in the cache is missing":              {[]client.Object{spread("s", "Deployment", "web")}, owner(apps, rs, "r1"), nil, "", "r1"},
		"an owner's owner that is not in the cache is missing":      {[]client.Object{web}, owner(apps, rs, "r1"), nil, "", "web"},
		"another object with the owner's name is not the owner":     {[]client.Object{web}, &workload.Owner{Kind: ReplicaSet, Name: "r1", UID: "r1-before"}, nil, "", "r1-before"},
		"an owner of a kind that is not watched yet is missing":     {[]client.Object{spread("s", "Deployment", "web")}, owner("example.com", "Widget", "w"), nil, "", "w"},
		"a chain without end is given up":                           {[]client.Object{ownedBy(replicaSet("r1"), "apps/v1", rs, "r1")}, owner(apps, rs, "r1"), nil, "", ""},
		"a spread of a kind that is not watched is found by name":   {[]client.Object{spread("s", "Widget", "w", func(s *v1beta1.WorkloadSpread) { s.Spec.TargetReference.APIVersion = "example.com/v1" })}, owner("example.com", "Widget", "w"), nil, "s", ""},
		"a Deployment that exists without a spread is nobody's pod": {[]client.Object{web, deployment("web")}, owner(apps, rs, "r1"), nil, "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, missing, err := newFixture(t, tc.cache...).SpreadOf(t.Context(), "shop", tc.owner, tc.labels)
			if err != nil {
				t.Fatal(err)
			}
			if name := nameOf(got); name != tc.want {
				t.Errorf("got spread %q, want %q", name, tc.want)
			}
			if uid := uidOf(missing); uid != tc.missing {
				t.Errorf("missing %q, want %q", uid, tc.missing)
			}
		})
	}
}

func nameOf(s *Spread) string {
	if s == nil {
		return ""
	}
	return s.Name
}

func uidOf(o *workload.Owner) string {
	if o == nil {
		return ""
	}
	return string(o.UID)
}

func TestAKindThatCannotBeWatchedEndsTheChain(t *testing.T) {
	f := newFixture(t)
	f.server.err = apierrors.NewForbidden(schema.GroupResource{Resource: "widgets"}, "", errors.New("no"))
	if _, err := f.Watch(t.Context(), widget.GroupKind()); err != nil {
		t.Fatal(err)
	}
	if s, missing, err := f.SpreadOf(t.Context(), "shop", owner("example.com", "Widget", "w"), nil); s != nil || missing != nil || err != nil {
		t.Errorf("got %v, missing %v, %v", s, missing, err)
	}
}

func TestAPolicyIsCompiledOnceForEachGeneration(t *testing.T) {
	var p policies
	s := spread("s", "Deployment", "web")
	first := p.of(s)
	labelled := s.DeepCopy()
	labelled.Labels = map[string]string{"team": "shop"}
	if p.of(labelled) != first {
		t.Error("compiled again for a label")
	}
	changed := s.DeepCopy()
	changed.Generation++
	changed.Spec.Subsets[0].Name = "b"
	if got := p.of(changed); got == first || got.Policy.Subsets[0].Name != "b" {
		t.Error("not compiled again for a new generation")
	}
	again := s.DeepCopy()
	again.UID = "another"
	if got := p.of(again); got.Policy.Subsets[0].Name != "a" {
		t.Error("took a spread for the one that had its name before")
	}
	p.forget(s.UID)
	if p.of(s) == first {
		t.Error("remembered a spread that is gone")
	}
}

func TestANamespaceHasSpreadsAsLongAsOneIsLeft(t *testing.T) {
	f := newFixture(t)
	f.spreadsIn = &spreadsIn{byNamespace: map[string]sets.Set[types.UID]{}}
	first, second := spread("first", "Deployment", "web"), spread("second", "Deployment", "db")
	for i, step := range []struct {
		do   func()
		want bool
	}{
		{func() {}, false},
		{func() { f.spreadSeen(first) }, true},
		{func() { f.spreadSeen(first) }, true}, // an update
		{func() { f.spreadSeen(second) }, true},
		{func() { f.spreadGone(first) }, true},
		{func() { f.spreadGone(second) }, false},
		{func() { f.spreadGone(second) }, false},
	} {
		step.do()
		if got, err := f.HasSpreads(t.Context(), "shop"); got != step.want || err != nil {
			t.Errorf("step %d: got %t, %v", i, got, err)
		}
		if got, _ := f.HasSpreads(t.Context(), "farm"); got {
			t.Errorf("step %d: another namespace has spreads", i)
		}
	}
}

// result of AwaitSpreadOf.
type result struct {
	spread, missing string
	err             error
}

// ask asks for the spread of a pod of ReplicaSet r1 in the background, and returns when it waits on the clock or has an
// answer.
func (f *fixture) ask(ctx context.Context, t *testing.T, owner *workload.Owner) <-chan result {
	t.Helper()
	return f.background(t, func() result {
		s, missing, err := f.AwaitSpreadOf(ctx, "shop", owner, nil)
		return result{nameOf(s), uidOf(missing), err}
	})
}

// background returns when what it runs waits on the clock or has an answer.
func (f *fixture) background(t *testing.T, run func() result) <-chan result {
	t.Helper()
	answers := make(chan result, 1)
	waiting := f.timers()
	go func() { answers <- run() }()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		return f.timers() > waiting || len(answers) > 0, nil
	})
	if err != nil {
		t.Fatalf("neither an answer nor a wait: %v", err)
	}
	return answers
}

func (f *fixture) timers() int { return f.clock.Waiters() }

func expect(t *testing.T, answers <-chan result, want result) {
	t.Helper()
	select {
	case got := <-answers:
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no answer")
	}
}

func TestAPodWaitsForItsOwner(t *testing.T) {
	r1 := owner("apps", "ReplicaSet", "r1")
	web := func() *appsv1.ReplicaSet { return ownedBy(replicaSet("r1"), "apps/v1", "Deployment", "web") }
	found := result{spread: "s"}

	t.Run("the pod goes on as soon as its owner arrives", func(t *testing.T) {
		f := newFixture(t, deployment("web"), spread("s", "Deployment", "web"))
		answers := f.ask(t.Context(), t, r1)
		f.add(t, web())
		expect(t, answers, found)
	})
	t.Run("all pods of the owner do", func(t *testing.T) {
		f := newFixture(t, deployment("web"), spread("s", "Deployment", "web"))
		var all []<-chan result
		for range 5 {
			all = append(all, f.ask(t.Context(), t, r1))
		}
		f.add(t, web())
		for _, answers := range all {
			expect(t, answers, found)
		}
		if left := f.arrivals.open.Load(); left != 0 {
			t.Errorf("%d windows are open", left)
		}
	})
	t.Run("one owner after the other may arrive", func(t *testing.T) {
		f := newFixture(t, spread("s", "Deployment", "web"))
		answers := f.ask(t.Context(), t, r1)
		f.add(t, web())
		f.add(t, deployment("web"))
		expect(t, answers, found)
	})
	t.Run("the arrival of others ends no wait", func(t *testing.T) {
		f := newFixture(t, deployment("web"), spread("s", "Deployment", "web"))
		answers := f.ask(t.Context(), t, r1)
		f.add(t, replicaSet("r2"))
		f.add(t, web())
		expect(t, answers, found)
	})
	t.Run("an owner that does not arrive is given up when the window is over", func(t *testing.T) {
		f := newFixture(t, spread("s", "Deployment", "web"))
		answers := f.ask(t.Context(), t, r1)
		f.clock.Step(OwnerTimeout)
		expect(t, answers, result{missing: "r1"})
	})
	t.Run("later pods of that owner do not wait again", func(t *testing.T) {
		f := newFixture(t, spread("s", "Deployment", "web"))
		answers := f.ask(t.Context(), t, r1)
		f.clock.Step(OwnerTimeout)
		expect(t, answers, result{missing: "r1"})
		expect(t, f.ask(t.Context(), t, r1), result{missing: "r1"})
	})
	t.Run("owners that did not arrive are forgotten after a while", func(t *testing.T) {
		f := newFixture(t, spread("s", "Deployment", "web"))
		for _, name := range []string{"r1", "r2", "r3"} {
			answers := f.ask(t.Context(), t, owner("apps", "ReplicaSet", name))
			f.clock.Step(OwnerTimeout)
			expect(t, answers, result{missing: name})
		}
		f.clock.Step(windowKept - time.Millisecond)
		answers := f.ask(t.Context(), t, owner("apps", "ReplicaSet", "r4"))
		f.clock.Step(OwnerTimeout)
		expect(t, answers, result{missing: "r4"})
		if left := f.arrivals.open.Load(); left != 2 {
			t.Errorf("%d are remembered, want the last two", left)
		}
	})
	t.Run("and if it arrives after all, they go on at once", func(t *testing.T) {
		f := newFixture(t, deployment("web"), spread("s", "Deployment", "web"))
		answers := f.ask(t.Context(), t, r1)
		f.clock.Step(OwnerTimeout)
		expect(t, answers, result{missing: "r1"})
		f.add(t, web())
		expect(t, f.ask(t.Context(), t, r1), found)
	})
	t.Run("a request that ends waits no longer", func(t *testing.T) {
		f := newFixture(t, spread("s", "Deployment", "web"))
		ctx, cancel := context.WithCancel(t.Context())
		answers := f.ask(ctx, t, r1)
		cancel()
		expect(t, answers, result{missing: "r1"})
	})
	t.Run("an owner of a new kind is found when the kind is watched", func(t *testing.T) {
		s := spread("s", "Gadget", "g")
		s.Spec.TargetReference.APIVersion = "example.com/v1"
		f := newFixture(t, s)
		f.OnStart(func(_ context.Context, object *metav1.PartialObjectMetadata) error {
			if object.GroupVersionKind() == widget { // its informer tells of what there is before the kind counts as watched
				f.add(t, ownedBy(custom(widget, "w"), "example.com/v1", "Gadget", "g"))
			}
			return nil
		})
		answers := f.ask(t.Context(), t, owner("example.com", "Widget", "w"))
		go func() { _ = f.Start(t.Context()) }() // it ends with the test
		expect(t, answers, found)
	})
	t.Run("an owner of a kind that cannot be watched has nothing above it", func(t *testing.T) {
		f := newFixture(t, spread("s", "Deployment", "web"))
		f.server.err = apierrors.NewForbidden(schema.GroupResource{Resource: "widgets"}, "", errors.New("no"))
		answers := f.ask(t.Context(), t, owner("example.com", "Widget", "w"))
		go func() { _ = f.Start(t.Context()) }() // it ends with the test
		expect(t, answers, result{})
	})
}

func TestKindsAreWatchedWhereThereAreSpreads(t *testing.T) {
	setup := func(t *testing.T, objects ...client.Object) (*fixture, func() string) {
		t.Helper()
		f := newFixture(t, objects...)
		started := make(chan string, 10)
		f.OnStart(func(_ context.Context, object *metav1.PartialObjectMetadata) error {
			started <- object.Kind
			return nil
		})
		return f, func() string {
			go func() { _ = f.Start(t.Context()) }() // it ends with the test
			select {
			case kind := <-started:
				return kind
			case <-time.After(200 * time.Millisecond):
				return ""
			}
		}
	}
	target := func(s *v1beta1.WorkloadSpread) { s.Spec.TargetReference.APIVersion = "example.com/v1" }
	t.Run("the kind of a target is watched as soon as the spread is seen", func(t *testing.T) {
		f, started := setup(t)
		f.spreadSeen(spread("s", "Gadget", "g", target))
		if got := started(); got != "Gadget" {
			t.Errorf("started %q", got)
		}
	})
	t.Run("the kind of an owner in a namespace with a spread is watched", func(t *testing.T) {
		f, started := setup(t, spread("s", "Deployment", "web"))
		f.seeOwnerOf(ownedBy(replicaSet("r1"), "example.com/v1", "Widget", "w"))
		if got := started(); got != "Widget" {
			t.Errorf("started %q", got)
		}
	})
	t.Run("in a namespace without a spread it is not", func(t *testing.T) {
		f, started := setup(t)
		f.seeOwnerOf(ownedBy(replicaSet("r1"), "example.com/v1", "Widget", "w"))
		if got := started(); got != "" {
			t.Errorf("started %q", got)
		}
	})
	t.Run("and is when one is made there", func(t *testing.T) {
		f, started := setup(t)
		f.seeOwnerOf(ownedBy(replicaSet("r1"), "example.com/v1", "Widget", "w"))
		f.spreadSeen(spread("s", "Deployment", "web"))
		if got := started(); got != "Widget" {
			t.Errorf("started %q", got)
		}
	})
}

func TestPodsWaitForAnAnnouncedSpread(t *testing.T) {
	await := func(ctx context.Context, t *testing.T, f *fixture) <-chan result {
		t.Helper()
		return f.background(t, func() result { f.AwaitAnnounced(ctx, "shop"); return result{} })
	}
	announced := func(t *testing.T) *fixture {
		t.Helper()
		f := newFixture(t)
		f.Announce("shop", "s")
		return f
	}
	s, other := spread("s", "Deployment", "web"), spread("other", "Deployment", "api")
	s.UID, other.UID = "s", "other"
	left := func(t *testing.T, f *fixture, want int64) {
		t.Helper()
		if got := f.announced.open.Load(); got != want || len(f.announced.windows) != int(want) {
			t.Errorf("%d and %d spreads are expected, want %d", got, len(f.announced.windows), want)
		}
	}

	t.Run("until it is known", func(t *testing.T) {
		f := announced(t)
		first, second := await(t.Context(), t, f), await(t.Context(), t, f)
		f.spreadSeen(other)
		if len(first)+len(second) != 0 {
			t.Error("another spread ended the wait")
		}
		f.spreadSeen(s)
		expect(t, first, result{})
		expect(t, second, result{})
		left(t, f, 0)
	})
	t.Run("until all of them are", func(t *testing.T) {
		f := announced(t)
		f.Announce("shop", "other")
		answers := await(t.Context(), t, f)
		f.spreadSeen(s)
		f.spreadSeen(other)
		expect(t, answers, result{})
		left(t, f, 0)
	})
	t.Run("until it is gone", func(t *testing.T) {
		f := announced(t)
		answers := await(t.Context(), t, f)
		f.spreadGone(s)
		expect(t, answers, result{})
		left(t, f, 0)
	})
	t.Run("not for ever", func(t *testing.T) {
		f := announced(t)
		answers := await(t.Context(), t, f)
		f.clock.Step(OwnerTimeout)
		expect(t, answers, result{})
	})
	t.Run("not longer than the request", func(t *testing.T) {
		f := announced(t)
		ctx, cancel := context.WithCancel(t.Context())
		answers := await(ctx, t, f)
		cancel()
		expect(t, answers, result{})
	})
	t.Run("not for one that did not come", func(t *testing.T) {
		f := announced(t)
		f.clock.Step(announcementKept)
		expect(t, await(t.Context(), t, f), result{})
		left(t, f, 0)
	})
	t.Run("of those that did not come none is kept", func(t *testing.T) {
		f := announced(t)
		for _, namespace := range []string{"bank", "shop", "bank"} {
			f.clock.Step(announcementKept)
			f.Announce(namespace, types.UID(f.clock.Now().String()))
			left(t, f, 1)
		}
	})
	t.Run("one that is announced twice is one", func(t *testing.T) {
		f := announced(t)
		answers := await(t.Context(), t, f)
		f.Announce("shop", "s")
		f.spreadSeen(s)
		expect(t, answers, result{})
		left(t, f, 0)
	})
	t.Run("not in other namespaces", func(t *testing.T) {
		f := newFixture(t)
		f.Announce("bank", "s")
		expect(t, await(t.Context(), t, f), result{})
		left(t, f, 1)
	})
}

// TestTheSpreadThatARuleMakes is found before the cache has it, unless admission must pick the subset; then the pod waits for it.
func TestTheSpreadThatARuleMakes(t *testing.T) {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d", Labels: map[string]string{"tier": "web"}}}
	replicaSet := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "r", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: ptr.To(true)}}}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	late, early := ruleOf(t, valid), ruleOf(t, strings.Replace(valid, "{name: b}", `{name: b, patch: {spec: {priorityClassName: low}}}`, 1))
	compiled, errs := CompileRule(late)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	made := compiled.SpreadFor(deployment)
	made.UID = "s"
	other := made.DeepCopy()
	other.Name, other.UID, other.Labels = "mine", "m", nil
	other.Spec.TargetFilter = &v1beta1.TargetFilter{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "worker"}}}

	for name, tc := range map[string]struct {
		objects        []client.Object
		found, missing string
	}{
		"no rule":                 {nil, "", ""},
		"it need not be awaited":  {[]client.Object{late}, made.Name + ", promised", ""},
		"admission picks":         {[]client.Object{early}, "", "WorkloadSpread " + made.Name},
		"it is there":             {[]client.Object{late, made}, made.Name, ""},
		"another one is for pods": {[]client.Object{late, other}, "", ""}, // that are not these
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, append(tc.objects, deployment, replicaSet, namespace)...)
			f.Rules = &Rules{Reader: f.client}
			spread, not, err := f.SpreadOf(t.Context(), "shop", &workload.Owner{Kind: ReplicaSet, Name: "web-1", UID: "r"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			found, missing := nameOf(spread), ""
			if spread != nil && spread.Promised {
				found += ", promised"
			}
			if not != nil {
				missing = not.Kind.Kind + " " + not.Name
			}
			if found != tc.found || missing != tc.missing {
				t.Errorf("found %q, missing %q, want %q and %q", found, missing, tc.found, tc.missing)
			}
		})
	}

	// The wait ends when the spread is seen.
	f := newFixture(t)
	news, _ := f.arrivals.expect("shop", madeBy("shop", made.Name), ruledTimeout)
	f.spreadSeen(made)
	select {
	case <-news:
	default:
		t.Error("a pod still waits for the spread")
	}
}
