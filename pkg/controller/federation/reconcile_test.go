package federation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/members"
)

// world is a reconciler on a hub and clusters whose API servers answer at once. Their caches are always up to date.
type world struct {
	*reconciler
	t        *testing.T
	hub      client.Client
	passed   *clocktesting.FakeClock
	clusters []*cluster
	// writes are the requests that changed something, in their order: "a Create", "hub Status".
	writes []string
	noting sync.Mutex
	// refuse answers a write instead of the API server, if it returns an error.
	refuse func(server, verb string) error
}

// cluster is a member with a ReplicaSet controller and a scheduler.
type cluster struct {
	name string
	room int
	away bool
	// unheard is true while a hub that has just started has not heard of it.
	unheard bool
	since   time.Time
	api     client.Client
	// server is what the hub reaches of it. Nil if that is api. The cache is not behind it.
	server client.Client
	pods   int
	// cordon is what its ClusterProfile says.
	cordon members.Cordon
}

var _ apply.Members = &world{}

func (w *world) Known(context.Context) bool {
	return !slices.ContainsFunc(w.clusters, func(c *cluster) bool { return c.unheard })
}

func (w *world) List() (all []members.Status) {
	for _, c := range w.clusters {
		if !c.unheard {
			status := members.Status{Name: c.name, State: members.Ready, Since: c.since, Cordon: c.cordon}
			if c.away {
				status.State = members.Unreachable
			}
			all = append(all, status)
		}
	}
	return all
}

func (w *world) Client(name string) (client.Client, error) {
	c := w.cluster(name)
	switch {
	case c.away:
		return nil, errors.New("away")
	case c.server != nil:
		return c.server, nil
	default:
		return c.api, nil
	}
}

func (w *world) Cache(name string) (client.Reader, error) {
	if _, err := w.Client(name); err != nil {
		return nil, err
	}
	return labelled{w.cluster(name).api}, nil
}

// labelled is the cache of a cluster: it has the ReplicaSets of a hub, and no others.
type labelled struct{ client.Client }

func (l labelled) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	err := l.Client.Get(ctx, key, into, options...)
	if err == nil && into.GetLabels()[v1alpha1.HubLabel] == "" {
		return apierrors.NewNotFound(appsv1.Resource("replicasets"), key.Name)
	}
	return err
}

func (w *world) cluster(name string) *cluster {
	return w.clusters[slices.IndexFunc(w.clusters, func(c *cluster) bool { return c.name == name })]
}

// note takes a request. Those to several clusters come at the same time.
func (w *world) note(server, verb string) {
	w.noting.Lock()
	defer w.noting.Unlock()
	w.writes = append(w.writes, server+" "+verb)
}

func newWorld(t *testing.T, spec string, rooms ...int) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, refuse: func(string, string) error { return nil }, passed: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))}
	build := func(server string) client.Client {
		note := func(verb string) error {
			if err := w.refuse(server, verb); err != nil {
				return err
			}
			w.note(server, verb)
			return nil
		}
		return fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.FederatedReplicaSet{}, &appsv1.ReplicaSet{}).WithReturnManagedFields().
			WithIndex(&corev1.Pod{}, members.OwnerIndex, func(object client.Object) []string {
				if owner := metav1.GetControllerOf(object); owner != nil {
					return []string{owner.Name}
				}
				return nil
			}).WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
				if _, isPod := object.(*corev1.Pod); !isPod {
					if err := note("Create"); err != nil {
						return err
					}
					if object.GetUID() == "" {
						object.SetUID(types.UID("made-in-" + server))
					}
				}
				return c.Create(ctx, object, opts...)
			},
			Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
				if err := note("Apply"); err != nil {
					return err
				}
				return c.Apply(ctx, object, opts...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
				if err := note("Patch"); err != nil {
					return err
				}
				return c.Patch(ctx, object, patch, opts...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
				if _, isPod := object.(*corev1.Pod); !isPod {
					if err := note("Delete"); err != nil {
						return err
					}
				}
				return c.Delete(ctx, object, opts...)
			},
			SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, object client.Object, opts ...client.SubResourceUpdateOption) error {
				if server == "hub" {
					if err := note("Status"); err != nil {
						return err
					}
				}
				return c.SubResource(sub).Update(ctx, object, opts...)
			},
		}).Build()
	}
	w.hub = build("hub")
	for i, room := range rooms {
		name := string(rune('a' + i))
		w.clusters = append(w.clusters, &cluster{name: name, room: room, api: build(name)})
	}
	frs := &v1alpha1.FederatedReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "frs", Generation: 1}}
	if err := yaml.UnmarshalStrict([]byte("{selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: i}]}}, "+spec+"}"), &frs.Spec); err != nil {
		t.Fatal(err)
	}
	w.do(w.hub.Create(t.Context(), frs))
	w.restart()
	return w
}

// restart makes the hub forget everything.
func (w *world) restart() {
	w.reconciler = &reconciler{client: w.hub, live: w.hub, members: w, events: events.NewFakeRecorder(10_000), clock: w.passed, measures: newMeasures(func() []members.Status { return nil })}
	w.Reading.Patience, w.Writing.Patience, w.Visiting.Patience = time.Hour, time.Hour, time.Hour // on a machine with much to do
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) frs() *v1alpha1.FederatedReplicaSet {
	w.t.Helper()
	frs := &v1alpha1.FederatedReplicaSet{}
	w.do(w.hub.Get(w.t.Context(), types.NamespacedName{Namespace: "shop", Name: "web"}, frs))
	return frs
}

func (w *world) change(change func(*v1alpha1.FederatedReplicaSet)) {
	w.t.Helper()
	frs := w.frs()
	change(frs)
	frs.Generation++
	w.do(w.hub.Update(w.t.Context(), frs))
}

func (w *world) reconcile() error {
	_, err := w.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}})
	return err
}

func (w *world) set(name string) *appsv1.ReplicaSet {
	w.t.Helper()
	set := &appsv1.ReplicaSet{}
	err := w.cluster(name).api.Get(w.t.Context(), types.NamespacedName{Namespace: "shop", Name: "web"}, set)
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.do(err)
	return set
}

// layout is what the clusters are asked for.
func (w *world) layout() string {
	var parts []string
	for _, c := range w.clusters {
		n := int32(0)
		if set := w.set(c.name); set != nil {
			n = replicasOf(set)
		}
		parts = append(parts, fmt.Sprint(n))
	}
	return strings.Join(parts, " ")
}

func (w *world) expect(want string) {
	w.t.Helper()
	if got := w.layout(); got != want {
		w.t.Fatalf("got %s, want %s; %s; %v", got, want, w.frs().Status.Summary, w.writes)
	}
}

// live lets ReplicaSet controllers and schedulers act.
func (w *world) live() {
	w.t.Helper()
	ctx, now := w.t.Context(), metav1.NewTime(w.passed.Now())
	for _, c := range w.clusters {
		set := w.set(c.name)
		if set == nil {
			continue
		}
		var pods corev1.PodList
		w.do(c.api.List(ctx, &pods))
		slices.SortStableFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(b.Spec.NodeName, a.Spec.NodeName) }) // bound ones first
		for len(pods.Items) > int(replicasOf(set)) {
			last := len(pods.Items) - 1
			w.do(c.api.Delete(ctx, &pods.Items[last]))
			pods.Items = pods.Items[:last]
		}
		for len(pods.Items) < int(replicasOf(set)) {
			c.pods++
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: fmt.Sprint("web-", c.pods), Labels: set.Spec.Template.Labels,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, replicaSetKind)},
			}}
			w.do(c.api.Create(ctx, &pod))
			pods.Items = append(pods.Items, pod)
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			switch {
			case pod.Spec.NodeName != "" || i >= c.room && len(pod.Status.Conditions) > 0:
				continue
			case i < c.room:
				pod.Spec.NodeName = "node"
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}}
			default:
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: now}}
			}
			status := pod.Status
			w.do(c.api.Update(ctx, pod))
			pod.Status = status
			w.do(c.api.Status().Update(ctx, pod))
		}
		if n := int32(len(pods.Items)); set.Status.Replicas != n {
			set.Status.Replicas = n
			w.do(c.api.Status().Update(ctx, set))
		}
	}
}

// until reconciles every five seconds, with restarts of the hub in between.
func (w *world) until(d time.Duration) {
	w.t.Helper()
	for end := w.passed.Now().Add(d); w.passed.Now().Before(end); w.passed.Step(5 * time.Second) {
		w.do(w.reconcile())
		w.live()
		if w.passed.Now().Unix()%7 == 0 {
			w.restart()
		}
	}
	w.do(w.reconcile())
}

func (w *world) expectReason(of, want string) {
	w.t.Helper()
	if c := meta.FindStatusCondition(w.frs().Status.Conditions, of); c == nil || c.Reason != want {
		w.t.Fatalf("%s is %+v, want %s", of, c, want)
	}
}

const evenly = "replicas: 12, preferences: {rebalance: true, clusters: {'*': {weight: 1}}}"

func TestReplicasGoWhereThereIsRoom(t *testing.T) {
	w := newWorld(t, evenly, 100, 100, 2)
	w.until(3 * time.Minute)
	w.expect("5 5 2")
	w.expectReason(v1alpha1.ReadyCondition, v1alpha1.ReasonReady)
	w.cluster("c").room = 100
	w.until(10 * time.Minute)
	w.expect("4 4 4")
	status := w.frs().Status
	if status.Summary != "a 4/4, b 4/4, c 4/4" || status.Replicas != 12 || status.AvailableReplicas != 12 || status.ScheduledReplicas != 12 {
		t.Errorf("got %+v", status)
	}
	for _, name := range []string{"a", "b", "c"} {
		set := w.set(name)
		if set.Labels[v1alpha1.OwnerLabel] != "frs" || set.Labels[v1alpha1.HubLabel] == "" || set.Spec.Template.Labels[v1alpha1.HubLabel] == "" || len(set.OwnerReferences) > 0 {
			t.Errorf("got %+v", set.ObjectMeta)
		}
	}
	w.restart()
	w.do(w.reconcile())
	before := len(w.writes)
	w.do(w.reconcile())
	if len(w.writes) > before {
		t.Errorf("writes at rest: %v", w.writes[before:])
	}
}

func TestAClusterIsLostAndReturns(t *testing.T) {
	w := newWorld(t, "replicas: 12, preferences: {clusters: {'*': {weight: 1}}}", 100, 100, 100)
	w.until(time.Minute)
	w.expect("4 4 4")
	c := w.cluster("c")
	c.away, c.since = true, w.passed.Now()
	w.until(4 * time.Minute)
	w.expect("4 4 4")
	w.expectReason(v1alpha1.ReachableCondition, v1alpha1.ReasonUnreachable)
	w.until(2 * time.Minute)
	w.expect("6 6 4")
	if got := w.frs().Status.MayExceedBy; got != 4 {
		t.Errorf("may exceed by %d", got)
	}
	c.away, c.since = false, w.passed.Now()
	w.until(time.Minute)
	w.expect("6 6 0")
	w.expectReason(v1alpha1.ReachableCondition, v1alpha1.ReasonReachable)
}

// TestAHubThatStartsWaitsUntilItKnowsItsClusters: it was killed while it raised the ReplicaSets, so that its status does not know yet what they ask for. It hears of one cluster after the other.
func TestAHubThatStartsWaitsUntilItKnowsItsClusters(t *testing.T) {
	w := newWorld(t, "replicas: 20, preferences: {clusters: {'*': {weight: 1}}}", 100, 100, 100)
	w.until(time.Minute)
	w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Spec.Replicas = ptr.To[int32](40) })
	w.do(w.reconcile())
	before := w.layout()
	w.restart()
	for _, c := range w.clusters {
		c.unheard = true
	}
	w.writes = nil
	for _, c := range w.clusters {
		w.do(w.reconcile())
		c.unheard = false
	}
	w.expect(before)
	if len(w.writes) > 0 {
		t.Errorf("it has not heard of all clusters, and writes %v", w.writes)
	}
	w.until(time.Minute)
	w.expect(before)
}

// TestAHubThatStartsForgetsNoCluster: one is lost, and the FederatedReplicaSet is deleted. Neither ends before the hub has heard of its clusters.
func TestAHubThatStartsForgetsNoCluster(t *testing.T) {
	w := newWorld(t, "replicas: 12, preferences: {clusters: {'*': {weight: 1}}}", 100, 100, 100)
	w.change(func(frs *v1alpha1.FederatedReplicaSet) {
		frs.Annotations = map[string]string{v1alpha1.CascadeAnnotation: "true"}
	})
	w.until(time.Minute)
	c := w.cluster("c")
	c.away, c.since = true, w.passed.Now()
	w.until(7 * time.Minute)
	w.expect("6 6 4")
	start := func() {
		w.restart()
		for _, c := range w.clusters {
			c.unheard = true
		}
		w.do(w.reconcile())
		for _, c := range w.clusters {
			c.unheard = false
		}
	}
	start()
	if got := w.frs().Status.MayExceedBy; got != 4 {
		t.Errorf("may exceed by %d, want 4", got)
	}
	w.do(w.hub.Delete(t.Context(), w.frs()))
	start()
	if frs := w.frs(); len(frs.Finalizers) == 0 {
		t.Error("the finalizer is gone")
	}
	w.expect("6 6 4")
}

// TestWhatLowersComesFirst, and nothing is raised if that fails. The status comes before everything.
func TestWhatLowersComesFirst(t *testing.T) {
	w := newWorld(t, evenly, 100, 100)
	w.until(time.Minute)
	w.expect("6 6")
	w.change(func(frs *v1alpha1.FederatedReplicaSet) {
		frs.Spec.Preferences.Clusters["a"] = v1alpha1.ClusterPreferences{MaxReplicas: ptr.To[int32](2), Weight: 1}
	})
	w.until(30 * time.Second)
	w.expect("2 10")
	w.change(func(frs *v1alpha1.FederatedReplicaSet) {
		frs.Spec.Preferences.Clusters["a"] = v1alpha1.ClusterPreferences{Weight: 1}
		frs.Spec.Preferences.Clusters["b"] = v1alpha1.ClusterPreferences{MaxReplicas: ptr.To[int32](4), Weight: 1}
		frs.Spec.Replicas = ptr.To[int32](8)
	})
	w.writes = nil
	w.refuse = func(server, verb string) error {
		if server == "b" {
			return apierrors.NewInternalError(errors.New("no"))
		}
		return nil
	}
	if w.reconcile() == nil {
		t.Error("no error")
	}
	w.expect("2 10")
	if !slices.Equal(w.writes, []string{"hub Status"}) {
		t.Errorf("got %v", w.writes)
	}
	w.refuse = func(string, string) error { return nil }
	w.until(30 * time.Second)
	w.expect("4 4")
}

func TestAClusterThatRefusesIsFull(t *testing.T) {
	for name, tc := range map[string]struct {
		refusal error
		said    string
	}{
		"a policy":     {apierrors.NewForbidden(appsv1.Resource("replicasets"), "web", errors.New("policy")), `replicasets.apps "web" is forbidden: policy`},
		"no namespace": {apierrors.NewNotFound(corev1.Resource("namespaces"), "shop"), "namespace shop does not exist there; create it"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, evenly, 100, 100, 100)
			refused := tc.refusal
			w.refuse = func(server, verb string) error {
				if server == "c" {
					return refused
				}
				return nil
			}
			w.until(time.Minute)
			w.expect("6 6 0")
			c := w.frs().Status.Clusters[2]
			if c.State != v1alpha1.ClusterFull || !strings.Contains(c.Message, tc.said) || c.Capacity.Failures != 1 {
				t.Errorf("got %+v", c)
			}
			if at := slices.IndexFunc(w.writes, func(s string) bool { return s == "a Create" }); at < 0 || len(w.writes) > 30 {
				t.Errorf("got %v", w.writes)
			}
			w.refuse = func(string, string) error { return nil }
			w.until(6 * time.Minute)
			w.expect("4 4 4")
		})
	}
}

// storageIsFull answers writes to c as an API server whose etcd has no space. Reads and probes work.
func storageIsFull(server, _ string) error {
	if server == "c" {
		return apierrors.NewInternalError(errors.New("etcdserver: mvcc: database space exceeded"))
	}
	return nil
}

// untilWithErrors is until, if reconciles may fail.
func (w *world) untilWithErrors(d time.Duration) {
	w.t.Helper()
	for end := w.passed.Now().Add(d); w.passed.Now().Before(end); w.passed.Step(5 * time.Second) {
		_ = w.reconcile() // the queue tries again
		w.live()
	}
}

// TestAClusterThatFailsWritesIsFull after a minute: others make its replicas, and its message says why. When it can write, it gets them.
func TestAClusterThatFailsWritesIsFull(t *testing.T) {
	w := newWorld(t, evenly, 100, 100, 100)
	w.refuse = storageIsFull
	w.untilWithErrors(40 * time.Second)
	w.expect("4 4 0")
	w.untilWithErrors(10 * time.Minute)
	w.expect("6 6 0")
	if c := w.frs().Status.Clusters[2]; c.State != v1alpha1.ClusterFull || !strings.Contains(c.Message, "database space exceeded") {
		t.Errorf("got %+v", c)
	}
	w.refuse = func(string, string) error { return nil }
	w.until(20 * time.Minute)
	w.expect("4 4 4")
}

// TestAClusterThatFailsWritesKeepsNoOthersFromGrowing: two of its four replicas found no node and are to leave it. They stay, and others get what is left.
func TestAClusterThatFailsWritesKeepsNoOthersFromGrowing(t *testing.T) {
	w := newWorld(t, evenly, 100, 100, 2)
	w.do(w.reconcile())
	w.live()
	w.expect("4 4 4")
	w.refuse = storageIsFull
	w.untilWithErrors(3 * time.Minute)
	w.expect("4 4 4")
	w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Spec.Replicas = ptr.To[int32](60) })
	w.untilWithErrors(5 * time.Minute)
	var sum, here int32
	for _, name := range []string{"a", "b", "c"} {
		if n := replicasOf(w.set(name)); name == "c" {
			sum += n
		} else {
			sum, here = sum+n, here+n
		}
	}
	if here < 56 || sum > 60+15 {
		t.Errorf("a and b have %d of 56, and all %d of at most 75: %s", here, sum, w.layout())
	}
}

// TestAChangeThatAClusterRefusesIsNoLoop: it is tried again at the times of the back-off, or when something else changes.
func TestAChangeThatAClusterRefusesIsNoLoop(t *testing.T) {
	w := newWorld(t, evenly, 100, 100, 100)
	w.until(time.Minute)
	w.expect("4 4 4")
	refused := 0
	w.refuse = func(server, verb string) error {
		if server == "c" {
			refused++
			return apierrors.NewForbidden(appsv1.Resource("replicasets"), "web", errors.New("policy, request "+fmt.Sprint(refused)+strings.Repeat("x", 3<<20)))
		}
		return nil
	}
	w.change(func(frs *v1alpha1.FederatedReplicaSet) {
		frs.Spec.Template.Raw = []byte(strings.Replace(string(frs.Spec.Template.Raw), `"image":"i"`, `"image":"two"`, 1))
	})
	w.writes = nil
	for end := w.passed.Now().Add(time.Hour); w.passed.Now().Before(end); {
		before := w.frs().ResourceVersion
		result, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}})
		w.do(err)
		if w.frs().ResourceVersion == before { // otherwise an event follows
			if result.RequeueAfter == 0 {
				break
			}
			w.passed.Step(result.RequeueAfter)
		}
	}
	status := slices.DeleteFunc(slices.Clone(w.writes), func(s string) bool { return s != "hub Status" })
	if refused > 40 || len(status) > 40 {
		t.Errorf("in an hour %d refused writes, and %d of the status", refused, len(status))
	}
	if c := w.frs().Status.Clusters[2]; c.State != v1alpha1.ClusterFull || len(c.Message) > 400 || c.Share != 4 {
		t.Errorf("got %s with %d, and a message of %d bytes", c.State, c.Share, len(c.Message))
	}
}

// TestNoClusterHasMorePodsThanCanBeAddedUp: it says that its ReplicaSet has all the pods that a number can count.
func TestNoClusterHasMorePodsThanCanBeAddedUp(t *testing.T) {
	w := newWorld(t, evenly, 0, 0)
	w.do(w.reconcile())
	set := w.set("a")
	set.Status.Replicas = math.MaxInt32
	if told := w.localOf(set, nil).Pods; told > mostPods {
		t.Errorf("%d pods", told)
	}
}

// TestAConditionIsNotTooLong for the API server, however many clusters there are.
func TestAConditionIsNotTooLong(t *testing.T) {
	w := newWorld(t, evenly, 100)
	frs := w.frs()
	status := frs.Status.DeepCopy()
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInProgress, Message: strings.Repeat("x", 40_000)})
	_, err := w.publish(t.Context(), frs, status)
	w.do(err)
	if n := len(w.frs().Status.Conditions[0].Message); n > 32_768 {
		t.Errorf("%d bytes", n)
	}
}

// TestWhatIsNoLongerInTheTemplateGoes in every cluster, although the ReplicaSet was not made with server-side apply.
func TestWhatIsNoLongerInTheTemplateGoes(t *testing.T) {
	w := newWorld(t, evenly, 100)
	w.change(func(frs *v1alpha1.FederatedReplicaSet) {
		frs.Spec.Template.Raw = []byte(`{"metadata":{"labels":{"app":"web","old":"yes"}},"spec":{"priorityClassName":"high","nodeSelector":{"pool":"x"},"containers":[{"name":"main","image":"i","command":["sleep"]},{"name":"side","image":"s"}]}}`)
	})
	w.until(time.Minute)
	w.change(func(frs *v1alpha1.FederatedReplicaSet) {
		frs.Spec.Template.Raw = []byte(`{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"i"}]}}`)
	})
	w.until(time.Minute)
	template := w.set("a").Spec.Template
	if s := template.Spec; template.Labels["old"] != "" || s.PriorityClassName != "" || len(s.NodeSelector) > 0 || len(s.Containers) != 1 || len(s.Containers[0].Command) > 0 {
		t.Errorf("got labels %v, and %+v", template.Labels, s)
	}
}

func TestAnotherReplicaSetIsLeftAlone(t *testing.T) {
	w := newWorld(t, evenly, 100, 100, 100)
	other := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "other"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}},
	}
	w.do(w.cluster("c").api.Create(t.Context(), other))
	w.until(time.Minute)
	w.expect("6 6 3")
	if c := w.frs().Status.Clusters[2]; c.State != v1alpha1.ClusterNameTaken {
		t.Errorf("got %+v", c)
	}
	set := w.set("c")
	set.Labels = map[string]string{v1alpha1.AdoptLabel: "true"}
	w.do(w.cluster("c").api.Update(t.Context(), set))
	w.until(time.Minute)
	w.expect("4 4 4")
	if set = w.set("c"); set.UID != "other" || set.Labels[v1alpha1.OwnerLabel] != "frs" {
		t.Errorf("got %+v", set.ObjectMeta)
	}
}

// TestAHubThatIsSetUpAgain: objects with other UIDs find the ReplicaSets of the earlier ones. They take them over if they may, and no pod ends.
func TestAHubThatIsSetUpAgain(t *testing.T) {
	w := newWorld(t, evenly, 100, 100, 100)
	w.until(time.Minute)
	w.expect("4 4 4")
	again := w.frs()
	w.do(w.hub.Delete(t.Context(), again))
	again.UID, again.ResourceVersion, again.Status = "another", "", v1alpha1.FederatedReplicaSetStatus{}
	w.do(w.hub.Create(t.Context(), again))
	w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Spec.Replicas = ptr.To[int32](24) })
	w.until(time.Minute)
	w.expect("4 4 4") // they may be in use
	if c := w.frs().Status.Clusters[0]; c.State != v1alpha1.ClusterNameTaken || !strings.Contains(c.Message, v1alpha1.TakeOverAnnotation) {
		t.Errorf("got %+v", c)
	}
	made := w.cluster("a").pods
	w.change(func(frs *v1alpha1.FederatedReplicaSet) {
		frs.Annotations = map[string]string{v1alpha1.TakeOverAnnotation: "true"}
	})
	w.until(time.Minute)
	w.expect("8 8 8")
	if got := w.set("a").Labels[v1alpha1.OwnerLabel]; got != "another" || w.cluster("a").pods != made+4 {
		t.Errorf("the ReplicaSet is of %s, with %d more pods", got, w.cluster("a").pods-made)
	}
}

// TestAClusterIsCordonedAndDrained: it gets no more replicas, and gives up those that it has after others are available.
func TestAClusterIsCordonedAndDrained(t *testing.T) {
	w := newWorld(t, evenly, 100, 100, 100)
	w.until(time.Minute)
	c := w.cluster("c")
	c.cordon = members.Cordoned
	w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Spec.Replicas = ptr.To[int32](24) })
	w.until(time.Minute)
	w.expect("10 10 4")
	if got := w.frs().Status.Clusters[2]; got.State != v1alpha1.ClusterReady || !strings.Contains(got.Message, "cordoned") {
		t.Errorf("got %+v", got)
	}
	w.expectReason(v1alpha1.ReadyCondition, v1alpha1.ReasonReady)
	w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Spec.Replicas = ptr.To[int32](9) })
	w.until(time.Minute)
	w.expect("3 3 3")
	c.cordon = members.Drained
	for range 60 {
		before := w.frs().Status.AvailableReplicas
		w.do(w.reconcile())
		w.live()
		w.do(w.reconcile())
		if now := w.frs().Status.AvailableReplicas; now < min(before, 9) {
			t.Fatalf("%d are available, and %d were before", now, before)
		}
		if got := w.frs().Status.Clusters; len(got) == 3 && (got[2].State != v1alpha1.ClusterLeaving || !strings.Contains(got[2].Message, "drained")) {
			t.Fatalf("got %+v", got[2])
		}
	}
	if w.set("c") != nil {
		t.Error("its ReplicaSet stays")
	}
	w.expect("5 4 0")
	c.cordon = ""
	w.until(time.Minute)
	w.expect("3 3 3")
}

// TestTheUserForbidsALoss: with the longest lostSeconds nobody else ever runs the replicas of a cluster.
func TestTheUserForbidsALoss(t *testing.T) {
	w := newWorld(t, evenly+", pace: {lostSeconds: 2147483647}", 100, 100, 100)
	w.until(time.Minute)
	c := w.cluster("c")
	c.away, c.since = true, w.passed.Now()
	w.until(10 * time.Minute)
	w.expect("4 4 4")
}

func TestDeletionCascadesOnlyIfAsked(t *testing.T) {
	w := newWorld(t, evenly, 100, 100)
	w.until(time.Minute)
	w.do(w.hub.Delete(t.Context(), w.frs()))
	w.do(w.reconcile())
	w.expect("6 6")

	w = newWorld(t, evenly, 100, 100, 100)
	w.change(func(frs *v1alpha1.FederatedReplicaSet) {
		frs.Annotations = map[string]string{v1alpha1.CascadeAnnotation: "true"}
	})
	w.until(time.Minute)
	w.expect("4 4 4")
	w.do(w.hub.Delete(t.Context(), w.frs()))
	w.cluster("c").away = true
	w.do(w.reconcile())
	w.do(w.reconcile())
	w.expect("0 0 4")
	if w.frs().DeletionTimestamp.IsZero() {
		t.Error("it is not being deleted")
	}
	w.expectReason(v1alpha1.ReadyCondition, v1alpha1.ReasonDeletionWaits)
	if message := meta.FindStatusCondition(w.frs().Status.Conditions, v1alpha1.ReadyCondition).Message; !strings.Contains(message, "deletion: c; or") {
		t.Errorf("it says %q", message)
	}
	w.cluster("c").away = false
	w.do(w.reconcile())
	w.do(w.reconcile())
	w.expect("0 0 0")
	if err := w.hub.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "web"}, &v1alpha1.FederatedReplicaSet{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestASpecThatIsNotValidLeavesAllAsItIs(t *testing.T) {
	w := newWorld(t, evenly, 100, 100)
	w.until(time.Minute)
	w.change(func(frs *v1alpha1.FederatedReplicaSet) {
		frs.Annotations = map[string]string{v1alpha1.PreferencesAnnotation: "{}"}
		frs.Spec.Replicas = ptr.To[int32](40)
	})
	w.until(time.Minute)
	w.expect("6 6")
	w.expectReason(v1alpha1.ReadyCondition, v1alpha1.ReasonInvalid)
	w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Annotations = nil })
	w.until(time.Minute)
	w.expect("20 20")
}

// TestNamesThatNoClusterHas is a warning, once.
func TestNamesThatNoClusterHas(t *testing.T) {
	w := newWorld(t, "replicas: 2, preferences: {clusters: {a: {weight: 1}, eats: {weight: 1}}}", 100)
	for range 5 {
		w.do(w.reconcile())
	}
	recorder, warnings := w.events.(*events.FakeRecorder), 0
	for len(recorder.Events) > 0 {
		if strings.Contains(<-recorder.Events, "no cluster has the name eats") {
			warnings++
		}
	}
	if warnings != 1 {
		t.Errorf("%d warnings", warnings)
	}
	w.expect("2")
}

// reading notes all reads of an API server among the writes.
func (w *world) reading(server string, api client.Client) client.Client {
	return interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
			w.note(server, "Get")
			return c.Get(ctx, key, into, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, into client.ObjectList, opts ...client.ListOption) error {
			w.note(server, "List")
			return c.List(ctx, into, opts...)
		},
	})
}

// TestAScaleUpCostsOneWriteOfTheStatusAndOneInEachCluster if the hub has written all of it before. It reads nothing: each write fails if what it goes by is old.
func TestAScaleUpCostsOneWriteOfTheStatusAndOneInEachCluster(t *testing.T) {
	w := newWorld(t, evenly, 100, 100, 100)
	w.until(time.Minute)
	for _, replicas := range []int32{15, 18} { // what was made is upgraded once
		w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Spec.Replicas = ptr.To(replicas) })
		for _, c := range w.clusters {
			c.server = w.reading(c.name, c.api)
		}
		w.reconciler.live, w.writes = w.reading("hub", w.hub), nil
		w.do(w.reconcile())
	}
	w.expect("6 6 6")
	slices.Sort(w.writes)
	if got, want := strings.Join(w.writes, ", "), "a Apply, b Apply, c Apply, hub Status"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestAnOldCacheRaisesNothing: the hub has raised a cluster, whose cache does not have that yet.
func TestAnOldCacheRaisesNothing(t *testing.T) {
	w := newWorld(t, evenly, 100, 100, 100)
	w.until(time.Minute)
	set := w.set("a")
	set.Generation = 1
	w.do(w.cluster("a").api.Update(t.Context(), set))
	later := set.DeepCopy()
	later.Generation = 2
	w.appliedOf(types.NamespacedName{Namespace: "shop", Name: "web"}).Remember("a", later, apply.Hash{}, apply.Apply)
	w.cluster("a").server, w.writes = w.reading("a", w.cluster("a").api), nil
	w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Spec.Replicas = ptr.To[int32](15) })
	w.do(w.reconcile())
	if !slices.Contains(w.writes, "a Get") {
		t.Errorf("the hub believes the cache: %v", w.writes)
	}
}

// TestAReadThatFailsIsNoLoss: the state of a cluster does not change with one request. If none succeeds for a minute, nothing is known of it.
func TestAReadThatFailsIsNoLoss(t *testing.T) {
	w := newWorld(t, evenly, 100, 100, 100)
	w.until(time.Minute)
	w.restart() // one that remembers what it has applied needs no read
	w.cluster("c").server = interceptor.NewClient(w.cluster("c").api.(client.WithWatch), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return context.DeadlineExceeded
		},
	})
	w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Spec.Replicas = ptr.To[int32](18) })
	for range 11 {
		w.do(w.reconcile())
		w.live()
		w.passed.Step(5 * time.Second)
		if c := w.frs().Status.Clusters[2]; c.State != v1alpha1.ClusterReady || c.Wanted != 4 {
			t.Fatalf("got %+v", c)
		}
	}
	w.expect("6 6 4") // that is what the others do without it
	w.passed.Step(10 * time.Second)
	w.do(w.reconcile())
	if c := w.frs().Status.Clusters[2]; c.State != v1alpha1.ClusterUnreachable || c.Wanted != 4 {
		t.Errorf("got %+v", c)
	}
	w.cluster("c").server = nil
	w.until(time.Minute)
	w.expect("6 6 6")
}

// TestASlowClusterDelaysNoOther measures how much longer the others wait for their replicas if a cluster takes 4.9 s for each request. The others answer at once, so without it that is no time.
func TestASlowClusterDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 300 * time.Millisecond
		w := newWorld(t, evenly, 100, 100, 100)
		c, again := w.cluster("c"), make(chan struct{}, 100)
		w.Reading.Patience, w.Writing.Patience, w.Visiting.Patience = 0, 0, 0
		w.Reading.Ended = func(members.Errand) { again <- struct{}{} }
		w.Writing.Ended, w.Visiting.Ended = w.Reading.Ended, w.Reading.Ended
		wait := func(ctx context.Context) error {
			select {
			case <-time.After(4900 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		c.server = interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
				if err := wait(ctx); err != nil {
					return err
				}
				return c.Get(ctx, key, into, options...)
			},
			Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
				if err := wait(ctx); err != nil {
					return err
				}
				return c.Create(ctx, object, options...)
			},
			Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, options ...client.ApplyOption) error {
				if err := wait(ctx); err != nil {
					return err
				}
				return c.Apply(ctx, object, options...)
			},
		})
		for _, step := range []struct {
			total            int32
			others, all      string
			patience, slowly time.Duration
		}{{12, "4 4 0", "4 4 4", most, 30 * time.Second}, {30, "10 10 4", "10 10 10", 0, 30 * time.Second}, {6, "2 2 10", "2 2 2", 0, 30 * time.Second}, {24, "8 8 2", "8 8 8", 0, 30 * time.Second}} {
			w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Spec.Replicas = &step.total })
			began := time.Now()
			w.do(w.reconcile())
			if took := time.Since(began); took > step.patience {
				t.Errorf("%d replicas: the others and the worker waited for %s", step.total, took)
			}
			w.expect(step.others)
			for w.layout() != step.all && time.Since(began) < 2*step.slowly {
				select {
				case <-again:
				case <-time.After(time.Second): // something has happened in a cluster
				}
				w.live()
				before := time.Now()
				w.do(w.reconcile())
				if took := time.Since(before); took > step.patience {
					t.Errorf("%d replicas: a worker waited for %s", step.total, took)
				}
			}
			if took := time.Since(began); w.layout() != step.all || took > step.slowly {
				t.Errorf("%d replicas: %s after %s", step.total, w.layout(), took)
			}
			w.live()
			w.do(w.reconcile())
			w.expectReason(v1alpha1.ReadyCondition, v1alpha1.ReasonReady)
		}
	})
}

// TestADeletionReachesASlowCluster: it takes longer for a request than anybody waits.
func TestADeletionReachesASlowCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, evenly, 100, 100, 100)
		w.change(func(frs *v1alpha1.FederatedReplicaSet) {
			frs.Annotations = map[string]string{v1alpha1.CascadeAnnotation: "true"}
		})
		w.do(w.reconcile())
		w.do(w.reconcile())
		w.expect("4 4 4")
		again := make(chan struct{}, 100)
		w.Reading.Patience, w.Writing.Patience, w.Visiting.Patience = 0, 0, 0
		w.Visiting.Ended = func(members.Errand) { again <- struct{}{} }
		w.cluster("c").server = interceptor.NewClient(w.cluster("c").api.(client.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
				time.Sleep(time.Second)
				return c.Get(ctx, key, into, options...)
			},
		})
		w.do(w.hub.Delete(t.Context(), w.frs()))
		for began := time.Now(); time.Since(began) < time.Minute; {
			w.do(w.reconcile())
			select {
			case <-again:
			case <-time.After(apply.CascadeInterval):
			}
		}
		w.live()
		frs := &v1alpha1.FederatedReplicaSet{}
		if err := w.hub.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "web"}, frs); w.layout() != "0 0 0" || !apierrors.IsNotFound(err) {
			t.Errorf("got %s, finalizers %v, %v", w.layout(), frs.Finalizers, err)
		}
	})
}

func TestANameThatIsTakenStaysSo(t *testing.T) {
	w := newWorld(t, "replicas: 4, preferences: {clusters: {'*': {weight: 1}}}", 100, 100, 100)
	a := w.cluster("a").api
	stranger := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](0)}}
	w.do(a.Create(t.Context(), stranger))
	w.until(2 * time.Minute)
	w.expect("0 2 2")
	if c := w.frs().Status.Clusters[0]; c.State != v1alpha1.ClusterNameTaken || !strings.Contains(c.Message, "delete it, or let Berth take it over with the labels") {
		t.Errorf("got %+v", c)
	}
	result, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}})
	if w.do(err); result.RequeueAfter == 0 || result.RequeueAfter > time.Minute {
		t.Errorf("nobody looks again: %+v", result)
	}
	w.do(a.Delete(t.Context(), stranger))
	w.change(func(frs *v1alpha1.FederatedReplicaSet) { frs.Spec.Replicas = ptr.To[int32](6) })
	w.until(time.Minute)
	w.expect("2 2 2")
	if c := w.frs().Status.Clusters[0]; c.State != v1alpha1.ClusterReady {
		t.Errorf("got %+v", c)
	}
}

func TestPodsAreReadBeforeAnyEnds(t *testing.T) {
	w := newWorld(t, "replicas: 4, preferences: {rebalance: true, clusters: {a: {weight: 1}}}", 100, 0)
	w.until(time.Minute)
	w.expect("4 0")
	w.change(func(frs *v1alpha1.FederatedReplicaSet) {
		frs.Spec.Preferences.Clusters = map[string]v1alpha1.ClusterPreferences{"b": {Weight: 1}}
	})
	w.do(w.reconcile())
	w.live()
	w.expect("4 1")
	// The status of the ReplicaSet is older than its pods.
	set := w.set("b")
	set.Status.AvailableReplicas = 1
	w.do(w.cluster("b").api.Status().Update(t.Context(), set))
	for range 3 {
		w.do(w.reconcile())
	}
	w.expect("4 1")
	w.cluster("b").room = 100
	w.until(time.Minute)
	w.expect("0 4")
}
