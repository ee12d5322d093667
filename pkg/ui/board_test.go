package ui

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// fixture is a board over a cache to which the test adds owners and spreads.
type fixture struct {
	*board
	client client.Client
}

func newFixture(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&v1beta1.WorkloadSpread{}, lineage.TargetField, lineage.TargetKeyOf).Build()
	clock := clocktesting.NewFakeClock(noon)
	f := &fixture{client: c, board: newBoard(lineage.Over(c, lineage.NewKinds(meta.NewDefaultRESTMapper([]schema.GroupVersion{}), c, clock), clock), clock)}
	for _, object := range objects {
		f.add(t, object)
	}
	return f
}

// add puts an object into the cache and on the board, as its informer does.
func (f *fixture) add(t *testing.T, object client.Object) {
	t.Helper()
	switch object.(type) {
	case *corev1.Node, *corev1.Pod:
		f.put(object)
	case *v1beta1.WorkloadSpread:
		f.create(t, object)
		f.put(object)
	default:
		f.create(t, object)
		f.seeOwner(object.GetUID())
	}
}

func (f *fixture) create(t *testing.T, object client.Object) {
	t.Helper()
	copied, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		t.Fatalf("%T is no object", object)
	}
	if err := f.client.Create(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
}

// expectNews fails the test if the news are not these, one word for each thing: pods as "name=spread/subset:phase",
// nodes as "name@group", spreads by their keys, what is gone with a minus.
func (f *fixture) expectNews(t *testing.T, want ...string) {
	t.Helper()
	news, err := f.news(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, words(news)); diff != "" {
		t.Errorf("news (-want +got):\n%s", diff)
	}
}

func words(news *pageNews) (words []string) {
	if news == nil {
		return nil
	}
	for _, n := range news.Nodes {
		var groups []string
		for _, group := range n.In {
			groups = append(groups, group)
		}
		words = append(words, n.Name+"@"+strings.Join(groups, ",")+n.State)
	}
	for _, p := range news.Pods {
		word := p.Name
		if p.Spread != "" {
			word += "=" + strings.TrimPrefix(p.Spread, "shop/") + "/" + p.Subset
		}
		if p.Adopted {
			word += ":adopted"
		}
		words = append(words, word+":"+string(p.Phase))
	}
	for _, s := range news.Spreads {
		words = append(words, s.Key)
	}
	if gone := news.Gone; gone != nil {
		for _, name := range gone.Nodes {
			words = append(words, "-"+name)
		}
		for _, uid := range gone.Pods {
			words = append(words, "-"+uid)
		}
		for _, key := range gone.Spreads {
			words = append(words, "-"+key)
		}
	}
	slices.Sort(words)
	return words
}

func node(name, pool string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool, "secret": "s3cret"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// spread divides Deployment web over subsets named as the values of the label "pool" that they select.
func spread(subsets ...string) *v1beta1.WorkloadSpread {
	s := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-spread", UID: "web-spread", Generation: 1}}
	s.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	for _, name := range subsets {
		s.Spec.Subsets = append(s.Spec.Subsets, v1beta1.Subset{Name: name, RequiredNodeSelector: &corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}})
	}
	return s
}

func owned[T client.Object](object T, kind, name string) T {
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(name), Controller: ptr.To(true)}})
	return object
}

func deployment() *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}}
}

func replicaSet() *appsv1.ReplicaSet {
	return owned(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "web-1"}}, "Deployment", "web")
}

// pod of Deployment web. Without a node it is pending; with a subset it carries a record.
func pod(name, node, subset string) *corev1.Pod {
	p := owned(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}}, "ReplicaSet", "web-1")
	p.Spec.NodeName = node
	if node != "" {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	if subset != "" {
		p.Annotations = map[string]string{v1beta1.MatchedAnnotation: fmt.Sprintf(`{"name": "web-spread", "subset": %q, "uid": %q}`, subset, p.UID)}
	}
	return p
}

func TestThePageShowsEachPodWhereItIs(t *testing.T) {
	f := newFixture(t, deployment(), replicaSet(), spread("own", "cloud"), node("n1", "own"), node("n2", "cloud"))
	leaving := pod("leaving", "n1", "own")
	leaving.DeletionTimestamp = ptr.To(metav1.NewTime(noon))
	ended := pod("ended", "n1", "own")
	ended.Status.Phase = corev1.PodSucceeded
	starting := pod("starting", "n2", "cloud")
	starting.Status.Conditions = nil
	other := pod("other", "n2", "")
	other.OwnerReferences = nil
	for _, p := range []*corev1.Pod{pod("placed", "n1", "own"), pod("adopted", "n2", ""), pod("unplaced", "gone", ""), pod("pending", "", ""), leaving, ended, starting, other} {
		f.add(t, p)
	}
	f.expectNews(t,
		"adopted=web-spread/cloud:adopted:ready", "ended=web-spread/own:ended", "leaving=web-spread/own:leaving", "n1@own", "n2@cloud", "other:ready",
		"pending=web-spread/:pending", "placed=web-spread/own:ready", "shop/web-spread", "starting=web-spread/cloud:starting", "unplaced=web-spread/:ready")
	f.expectNews(t)
}

// TestThePageSaysWhatPodsCost goes through the transforms of the cache, which must leave what that needs.
func TestThePageSaysWhatPodsCost(t *testing.T) {
	priced, cloud, running := node("n1", "own"), node("n2", "cloud"), pod("a", "n2", "cloud")
	priced.Labels[v1beta1.HourlyPriceLabel], cloud.Labels[v1beta1.HourlyPriceLabel] = "0.40", "1.60"
	for _, n := range []*corev1.Node{priced, cloud} {
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	}
	running.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	divided := spread("own", "cloud")
	divided.Status = v1beta1.WorkloadSpreadStatus{ObservedGeneration: 1, ObservedReplicas: 1, SubsetStatuses: []v1beta1.SubsetStatus{{Name: "own"}, {Name: "cloud", Replicas: 1}},
		Conditions: []metav1.Condition{{Type: v1beta1.ConditionReady, Status: metav1.ConditionTrue}}}
	f := newFixture(t, deployment(), replicaSet(), divided)
	for keep, objects := range map[*func(any) (any, error)][]client.Object{ptr.To(keepOfNode): {priced, cloud}, ptr.To(keepOfPod): {running}} {
		for _, object := range objects {
			kept, err := (*keep)(object)
			if err != nil {
				t.Fatal(err)
			}
			f.add(t, kept.(client.Object))
		}
	}
	news, err := f.news(t.Context())
	if err != nil || len(news.Spreads) != 1 || !slices.Contains(news.Spreads[0].Notes, "cost: 0.40 an hour; 1 pod at home would save 0.30") {
		t.Errorf("%+v, %v", news.Spreads, err)
	}
}

func TestNewsAreWhatLooksDifferent(t *testing.T) {
	f := newFixture(t, deployment(), replicaSet(), spread("own", "cloud"), node("n1", "own"), pod("a", "", ""))
	f.expectNews(t, "a=web-spread/:pending", "n1@own", "shop/web-spread")

	f.add(t, pod("a", "n1", "own"))
	f.expectNews(t, "a=web-spread/own:ready")

	again := pod("a", "n1", "own")
	again.ResourceVersion = "2"
	f.add(t, again)
	heartbeat := node("n1", "own")
	heartbeat.ResourceVersion = "2"
	f.add(t, heartbeat)
	f.expectNews(t)

	cordoned := node("n1", "own")
	cordoned.Spec.Unschedulable = true
	f.add(t, cordoned)
	f.expectNews(t, "n1@owncordoned")

	another := pod("a", "", "") // of the same name, made after the first was gone
	another.UID = "another"
	f.add(t, another)
	f.expectNews(t, "-uid-a", "a=web-spread/:pending")

	f.drop(pod("a", "", ""))
	f.drop(node("n1", ""))
	f.expectNews(t, "-another", "-n1")
}

func TestAPodThatCameAndWentBetweenTwoLooksIsNoNews(t *testing.T) {
	f := newFixture(t)
	f.add(t, pod("a", "", ""))
	f.drop(pod("a", "", ""))
	f.expectNews(t)
}

func TestAPodIsOfASpreadAsSoonAsItsOwnersAreKnown(t *testing.T) {
	f := newFixture(t, spread("own"), pod("a", "", ""))
	f.expectNews(t, "a:pending", "shop/web-spread")
	f.add(t, replicaSet())
	f.expectNews(t, "a=web-spread/:pending") // its Deployment is named by the spread, and need not be known itself
}

func TestAChangedSpreadDividesItsPodsAnew(t *testing.T) {
	f := newFixture(t, deployment(), replicaSet(), node("n1", "own"), pod("a", "n1", "own"))
	f.expectNews(t, "a:ready", "n1@")

	f.add(t, spread("own"))
	f.expectNews(t, "a=web-spread/own:ready", "n1@own", "shop/web-spread")

	changed := spread("elsewhere")
	changed.Generation = 2
	stored := changed.DeepCopy()
	stored.ResourceVersion = "1"
	if err := f.client.Update(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	f.put(changed)
	f.expectNews(t, "a=web-spread/:ready", "shop/web-spread")

	if err := f.client.Delete(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	f.drop(changed)
	f.expectNews(t, "-shop/web-spread", "a:ready", "n1@")
}

func TestNodesAreGroupedByWhatMostSubsetsSelect(t *testing.T) {
	f := newFixture(t, node("n1", "own"))
	for _, tc := range []struct {
		change func()
		want   []string
	}{
		{func() {}, []string{corev1.LabelTopologyZone}},
		{func() { f.add(t, spread("own", "cloud")) }, []string{"pool own cloud", corev1.LabelTopologyZone}},
		{func() { f.drop(node("n1", "")) }, []string{"pool own cloud", corev1.LabelTopologyZone}}, // no node has any of them
		{func() {
			zoned := node("n2", "")
			zoned.Labels = map[string]string{corev1.LabelTopologyZone: "a"}
			f.add(t, zoned)
		}, []string{corev1.LabelTopologyZone, "pool own cloud"}},
	} {
		tc.change()
		if _, err := f.news(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, key := range f.keys {
			got = append(got, strings.Join(append([]string{key.Label}, key.Values...), " "))
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("keys and the values that subsets select, in their order (-want +got):\n%s", diff)
		}
	}
}

func TestWhyAPodWaitsIsWhatItsSchedulerSaid(t *testing.T) {
	p := pod("a", "", "")
	if _, why := phaseOf(p); why != "its scheduler has not reported yet" {
		t.Errorf("before it was tried: %q", why)
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "every subset is full"}}
	if _, why := phaseOf(p); why != "every subset is full" {
		t.Errorf("after it was tried: %q", why)
	}
}

// TestNewsAddUpToEverything changes a board at random, takes the news at random times, and puts them together as a
// browser does.
func TestNewsAddUpToEverything(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		f := newFixture(t, deployment(), replicaSet(), spread("own", "cloud"))
		nodes, pods := map[string]pageNode{}, map[types.UID]pagePod{}
		for step := range 300 {
			name, on := fmt.Sprint("p", random.IntN(20)), fmt.Sprint("n", random.IntN(5))
			switch random.IntN(6) {
			case 0:
				f.add(t, node(on, []string{"own", "cloud"}[random.IntN(2)]))
			case 1:
				f.drop(node(on, ""))
			case 2:
				f.drop(pod(name, "", ""))
			default:
				p := pod(name, []string{"", on}[random.IntN(2)], []string{"", "own", "cloud"}[random.IntN(3)])
				p.UID += types.UID(fmt.Sprint(random.IntN(2)))
				f.add(t, p)
			}
			if random.IntN(4) > 0 && step < 299 {
				continue
			}
			news, err := f.news(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if news == nil {
				continue
			}
			if news.Gone != nil {
				for _, name := range news.Gone.Nodes {
					delete(nodes, name)
				}
				for _, uid := range news.Gone.Pods {
					delete(pods, types.UID(uid))
				}
			}
			for _, n := range news.Nodes {
				nodes[n.Name] = n
			}
			for _, p := range news.Pods {
				pods[p.UID] = p
			}
		}
		all := f.everything()
		wantNodes, wantPods := map[string]pageNode{}, map[types.UID]pagePod{}
		for _, n := range all.Nodes {
			wantNodes[n.Name] = n
		}
		for _, p := range all.Pods {
			wantPods[p.UID] = p
		}
		if diff := cmp.Diff(wantNodes, nodes); diff != "" {
			t.Fatalf("seed %d: nodes (-everything +news):\n%s", seed, diff)
		}
		if diff := cmp.Diff(wantPods, pods); diff != "" {
			t.Fatalf("seed %d: pods (-everything +news):\n%s", seed, diff)
		}
		if len(all.Pods) != len(f.pods) || len(all.Nodes) != len(f.nodes) {
			t.Fatalf("seed %d: the page shows %d pods and %d nodes, there are %d and %d", seed, len(all.Pods), len(all.Nodes), len(f.pods), len(f.nodes))
		}
	}
}

func TestASpreadIsNewsWhenItsWaitIsOver(t *testing.T) {
	f := newFixture(t)
	synctest.Test(t, func(t *testing.T) {
		f.clock = clock.RealClock{}
		stream := newStream(f.board, Title{}, f.clock.(clock.RealClock))
		ctx, cancel := context.WithCancel(t.Context())
		go stream.run(ctx)
		r, err := stream.join()
		if err != nil {
			t.Fatal(err)
		}
		next := func() string { return string(<-r) }
		next() // the snapshot of an empty board
		s := spread("own", "cloud")
		s.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		s.Status = v1beta1.WorkloadSpreadStatus{
			ObservedGeneration: 1, ObservedReplicas: 2, SubsetStatuses: []v1beta1.SubsetStatus{{Name: "own"}, {Name: "cloud", Replicas: 2}},
			Conditions: []metav1.Condition{{Type: v1beta1.ConditionReady, Status: metav1.ConditionTrue}},
			Moves:      []v1beta1.Move{{From: "cloud", To: "own", Remaining: 2, Time: metav1.Now()}},
		}
		stream.change(func(b *board) { b.putSpread(s) })
		if got := next(); !strings.Contains(got, `"wait":{"reason":"CoolingDown","until":"2000-01-01T00:05:00Z"`) {
			t.Fatalf("after a move: %s", got)
		}
		if got, after := next(), time.Since(s.Status.Moves[0].Time.Time); strings.Contains(got, `"wait"`) || after > 5*time.Minute+2*waitCheckInterval {
			t.Errorf("%s after it: %s", after, got)
		}
		cancel()
		synctest.Wait()
	})
}

func TestUnitedDeploymentsAreShownWithTheirPods(t *testing.T) {
	owned := func(group, kind, owner string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: group, Kind: kind, Name: owner, UID: types.UID(owner), Controller: ptr.To(true)}}
	}
	f := newFixture(t, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-a", UID: "web-a", OwnerReferences: owned("apps.kruise.io/v1beta1", "UnitedDeployment", "web")}},
		&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-a-1", UID: "web-a-1", OwnerReferences: owned("apps/v1", "Deployment", "web-a")}})
	ud := &unitedv1beta1.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}}
	ud.Spec.Topology.Subsets = []unitedv1beta1.Subset{{Name: "a"}}
	f.put(ud)
	f.add(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", UID: "p", Labels: map[string]string{unitedv1beta1.SubsetNameLabel: "a"}, OwnerReferences: owned("apps/v1", "ReplicaSet", "web-a-1")}})
	f.expectNews(t, "p=web (UnitedDeployment)/a:pending", "shop/web (UnitedDeployment)")
	f.drop(ud)
	f.expectNews(t, "-shop/web (UnitedDeployment)")
}

func TestFederatedReplicaSetsAreShownWithTheirClusters(t *testing.T) {
	f := newFixture(t)
	frs := &federationv1alpha1.FederatedReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	frs.Status.Conditions = []metav1.Condition{{Type: federationv1alpha1.ReadyCondition, Status: metav1.ConditionTrue}}
	frs.Status.Clusters = []federationv1alpha1.ClusterStatus{
		{Name: "east", Wanted: 25, AvailableReplicas: 24, State: federationv1alpha1.ClusterReady}, {Name: "west", Wanted: 17, State: federationv1alpha1.ClusterLost, Message: "does not answer"},
	}
	f.put(frs)
	f.expectNews(t, "shop/web (FederatedReplicaSet)")
	shown := f.everything().Spreads[0]
	if !slices.Equal(shown.Order, []string{"east", "west"}) || shown.Of.Kind != "FederatedReplicaSet" || len(shown.Subsets) != 2 {
		t.Fatalf("shown as %+v", shown)
	}
	if east, west := shown.Subsets[0], shown.Subsets[1]; east.Pods != 24 || *east.Quota != 25 || !east.Schedulable || west.Schedulable || west.Message != "Lost: does not answer" {
		t.Errorf("clusters %+v, %+v", east, west)
	}
	f.drop(frs)
	f.expectNews(t, "-shop/web (FederatedReplicaSet)")
}
