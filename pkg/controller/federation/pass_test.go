package federation

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/members"
)

// fleet is a hub with many clusters, without API servers. The caches of the clusters are real, and what is written is in them at once.
type fleet struct {
	mu       sync.Mutex
	all      map[types.NamespacedName]*v1alpha1.FederatedReplicaSet
	clusters map[string]*fleetMember
	list     []members.Status
	writes   atomic.Int64
	decoded  sync.Map
}

type fleetMember struct {
	client.Client
	fleet      *fleet
	cache      cache.Cache
	sets, pods toolscache.Indexer
}

var _ apply.Members = &fleet{}

func (f *fleet) Known(context.Context) bool                { return true }
func (f *fleet) List() []members.Status                    { return f.list }
func (f *fleet) Client(name string) (client.Client, error) { return f.clusters[name], nil }
func (f *fleet) Cache(name string) (client.Reader, error)  { return f.clusters[name].cache, nil }

// fleetHub is the API server of the hub, and its cache. Methods that are not here are not used.
type fleetHub struct {
	client.Client
	fleet *fleet
}

func (h fleetHub) Status() client.SubResourceWriter { return fleetStatus{fleet: h.fleet} }

func (h fleetHub) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	*into.(*v1alpha1.FederatedReplicaSet) = *h.fleet.all[key] // as the cache, which is asked for no copy
	return nil
}

func (h fleetHub) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	list := into.(*v1alpha1.FederatedReplicaSetList)
	for _, frs := range h.fleet.all {
		list.Items = append(list.Items, *frs)
	}
	return nil
}

type fleetStatus struct {
	client.SubResourceWriter
	fleet *fleet
}

func (s fleetStatus) Update(_ context.Context, object client.Object, _ ...client.SubResourceUpdateOption) error {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	s.fleet.writes.Add(1)
	s.fleet.all[client.ObjectKeyFromObject(object)] = object.DeepCopyObject().(*v1alpha1.FederatedReplicaSet)
	return nil
}

func (m *fleetMember) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	return m.cache.Get(ctx, key, into, options...)
}

func (m *fleetMember) List(ctx context.Context, into client.ObjectList, _ ...client.ListOption) error {
	return nil // nothing runs while the ReplicaSets are made
}

// Create makes the ReplicaSet with its pods, which are available.
func (m *fleetMember) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	m.fleet.writes.Add(1)
	decoded, known := m.fleet.decoded.Load(client.ObjectKeyFromObject(object)) // it is the same in all clusters
	if !known {
		set := &appsv1.ReplicaSet{}
		if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.(k8sruntime.Unstructured).UnstructuredContent(), set); err != nil {
			return err
		}
		decoded, _ = m.fleet.decoded.LoadOrStore(client.ObjectKeyFromObject(object), set)
	}
	set := ptr.To(*decoded.(*appsv1.ReplicaSet))
	object.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", m.fleet.writes.Load())))
	object.SetGeneration(1)
	set.UID, set.Generation, set.ResourceVersion = object.GetUID(), 1, "1000000"
	set.Status = appsv1.ReplicaSetStatus{ObservedGeneration: 1, Replicas: *set.Spec.Replicas, AvailableReplicas: *set.Spec.Replicas}
	if err := m.sets.Add(fresh(set, &appsv1.ReplicaSet{})); err != nil {
		return err
	}
	now := metav1.NewTime(time.Now().Add(-time.Minute))
	for i := range *set.Spec.Replicas {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: set.Namespace, Name: fmt.Sprint(set.Name, "-abcd", i), UID: types.UID(fmt.Sprint(set.UID, i)), ResourceVersion: "1000000", Labels: set.Spec.Template.Labels,
				CreationTimestamp: now, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, replicaSetKind)},
			},
			Spec: corev1.PodSpec{NodeName: "ip-10-0-0-1.example.internal", SchedulerName: corev1.DefaultSchedulerName},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
			}},
		}
		if err := m.pods.Add(fresh(pod, &corev1.Pod{})); err != nil {
			return err
		}
	}
	return nil
}

// fresh is an object as it comes from an API server, and as caches keep it: it shares no memory with others.
func fresh[T interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}](object, into T) T {
	content, err := object.Marshal()
	if err == nil {
		err = into.Unmarshal(content)
	}
	if err == nil {
		_, err = members.Trim(into)
	}
	if err != nil {
		panic(err)
	}
	return into
}

// still is an informer whose store the test fills.
type still struct{ toolscache.SharedIndexInformer }

func (still) Run(stop <-chan struct{})           { <-stop }
func (still) RunWithContext(ctx context.Context) { <-ctx.Done() }
func (still) HasSynced() bool                    { return true }

func newFleet(tb testing.TB, clusters, workloads, replicasInEach int) (*fleet, *reconciler) {
	tb.Helper()
	scheme := k8sruntime.NewScheme()
	for _, add := range []func(*k8sruntime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			tb.Fatal(err)
		}
	}
	f := &fleet{all: map[types.NamespacedName]*v1alpha1.FederatedReplicaSet{}, clusters: map[string]*fleetMember{}}
	podKind := corev1.SchemeGroupVersion.WithKind("Pod")
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(replicaSetKind, meta.RESTScopeNamespace)
	mapper.Add(podKind, meta.RESTScopeNamespace)
	since := time.Now()
	for i := range clusters {
		name := fmt.Sprintf("cluster-%03d", i)
		m := &fleetMember{fleet: f}
		var err error
		m.cache, err = cache.New(&rest.Config{Host: "https://" + name}, cache.Options{Scheme: scheme, Mapper: mapper, NewInformer: func(lw toolscache.ListerWatcher, object k8sruntime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			return still{toolscache.NewSharedIndexInformer(lw, object, resync, indexers)}
		}})
		if err != nil {
			tb.Fatal(err)
		}
		if err := m.cache.IndexField(tb.Context(), &corev1.Pod{}, members.OwnerIndex, func(object client.Object) []string {
			return []string{metav1.GetControllerOfNoCopy(object).Name}
		}); err != nil {
			tb.Fatal(err)
		}
		go func() { _ = m.cache.Start(tb.Context()) }() // its context ends with the test
		for kind, store := range map[client.Object]*toolscache.Indexer{&appsv1.ReplicaSet{}: &m.sets, &corev1.Pod{}: &m.pods} {
			informer, err := m.cache.GetInformer(tb.Context(), kind)
			if err != nil {
				tb.Fatal(err)
			}
			*store = informer.(still).GetIndexer()
		}
		if !m.cache.WaitForCacheSync(tb.Context()) { // a cache that has not started is a cluster that does not answer
			tb.Fatal("the cache does not start")
		}
		f.clusters[name] = m
		f.list = append(f.list, members.Status{Name: name, State: members.Ready, Since: since})
	}
	for i := range workloads {
		frs := &v1alpha1.FederatedReplicaSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprint("team-", i%50), Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprintf("00000000-0000-4000-9000-%012d", i)), Generation: 1,
		}}
		if err := yaml.Unmarshal(fmt.Appendf(nil, `
selector: {matchLabels: {app: web-%[1]d}}
preferences: {rebalance: true, clusters: {"*": {weight: 1}, cluster-000: {minReplicas: 1, weight: 1}}}
template:
  metadata: {labels: {app: web-%[1]d, tier: front}}
  spec:
    containers:
    - {name: main, image: registry.example.com/web:1, resources: {requests: {cpu: %[1]dm, memory: 128Mi}}, ports: [{containerPort: 8080}], env: [{name: A, value: b}]}
    - {name: proxy, image: registry.example.com/proxy:1, resources: {requests: {cpu: 10m, memory: 32Mi}}}
`, i+1), &frs.Spec); err != nil {
			tb.Fatal(err)
		}
		frs.Spec.Replicas = ptr.To(int32(clusters * replicasInEach))
		f.all[client.ObjectKeyFromObject(frs)] = frs
	}
	hub := fleetHub{fleet: f}
	r := &reconciler{client: hub, live: hub, members: f, events: events.NewFakeRecorder(0), clock: clock.RealClock{}, measures: newMeasures(func() []members.Status { return nil })}
	r.events.(*events.FakeRecorder).Events = nil // drop them
	return f, r
}

// pass reconciles all FederatedReplicaSets once, with as many workers as the controller has.
func (f *fleet) pass(tb testing.TB, r *reconciler) {
	tb.Helper()
	requests := make(chan reconcile.Request)
	var workers sync.WaitGroup
	for range frame.Workers {
		workers.Go(func() {
			for request := range requests {
				if _, err := r.Reconcile(tb.Context(), request); err != nil {
					tb.Error(err)
				}
			}
		})
	}
	f.mu.Lock()
	keys := slices.Collect(maps.Keys(f.all))
	f.mu.Unlock()
	for _, key := range keys {
		requests <- reconcile.Request{NamespacedName: key}
	}
	close(requests)
	workers.Wait()
}

// settle passes until nothing is written. In many clusters, what a pass begins takes longer than it waits, and the next ones see the end.
func (f *fleet) settle(tb testing.TB, r *reconciler) {
	tb.Helper()
	for range 30 {
		before := f.writes.Load()
		f.pass(tb, r)
		if f.writes.Load() == before {
			return
		}
	}
	tb.Fatal("a pass writes again and again")
}

// TestAPassAtRest writes nothing, for many FederatedReplicaSets in many clusters.
func TestAPassAtRest(t *testing.T) {
	f, r := newFleet(t, 20, 40, 2)
	f.settle(t, r)
	for key, frs := range f.all {
		if s := frs.Status; s.AvailableReplicas != 40 || len(s.Clusters) != 20 || !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ReadyCondition) {
			t.Errorf("%s: %+v", key, s)
		}
	}
}

// BenchmarkPass is one reconciliation of each FederatedReplicaSet in all clusters, with nothing to write. Each has a pod in each cluster.
func BenchmarkPass(b *testing.B) {
	for _, size := range []struct {
		name                string
		clusters, workloads int
	}{{"short", 500, 100}, {"full", 500, 2000}} {
		b.Run(size.name, func(b *testing.B) {
			f, r := newFleet(b, size.clusters, size.workloads, 1)
			f.settle(b, r)
			f.decoded.Clear()
			runtime.GC() // what settling has left behind is not part of a pass
			before := cpu(b)
			for b.Loop() {
				f.pass(b, r)
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/pass")
			b.ReportMetric((cpu(b)-before)/float64(b.N), "cpu-s/pass")
			before = cpu(b)
			b.ReportMetric(heap(), "MiB")
			b.ReportMetric(cpu(b)-before, "cpu-s/gc") // with Go's defaults there is one whenever passes have allocated as much as the heap has
			runtime.KeepAlive(f)
			runtime.KeepAlive(r)
		})
	}
}

// cpu is how many seconds of CPU this process has used.
func cpu(b *testing.B) float64 {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

// heap is what is in use, in MiB.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}
