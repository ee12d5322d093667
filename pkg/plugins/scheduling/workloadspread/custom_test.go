package workloadspread

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	restclient "k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
)

// training is a world in which spreads name the TFJob "job", with 2 replicas at spec.ps and 8 at spec.worker.
type training struct {
	*world
	client   *fake.Clientset
	custom   *customWorkloads
	metadata metadatafake.MetadataClient
	// reads counts the reads of the job so far. The other fields say what the next reads wait for, and with which error they fail.
	reads atomic.Int32
	hold  chan struct{}
	fails atomic.Pointer[error]
	// forbidden is true while the plugin may not list and watch the jobs, in version refuseOnly if that is set. watches are the open watches.
	forbidden  atomic.Bool
	refuseOnly string
	mu         sync.Mutex
	watches    []apiwatch.Interface
}

var jobKey = ledger.Workload{Namespace: "ns", Group: "kubeflow.org", Kind: "TFJob", Name: "job"}

// newTraining must be called in a bubble of synctest.
func newTraining(t *testing.T) *training {
	t.Helper()
	// One of these handlers waits a while after an error. It uses one clock for all bubbles.
	handlers := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = nil
	t.Cleanup(func() { utilruntime.ErrorHandlers = handlers })
	client := fake.NewClientset()
	j := &training{world: newWorld(t, 0), client: client}
	for _, version := range []string{"kubeflow.org/v1", "kubeflow.org/v2"} {
		client.Resources = append(client.Resources, &metav1.APIResourceList{GroupVersion: version,
			APIResources: []metav1.APIResource{{Name: "tfjobs", Kind: "TFJob", Namespaced: true}}})
	}
	client.Resources = append(client.Resources, &metav1.APIResourceList{GroupVersion: "apps/v1",
		APIResources: []metav1.APIResource{{Name: "deployments", Kind: "Deployment", Namespaced: true}}},
		&metav1.APIResourceList{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{Name: "pools", Kind: "Pool"}}})
	var err error
	if j.custom, err = newCustomWorkloads(&restclient.Config{}, client, clock.RealClock{}); err != nil {
		t.Fatal(err)
	}
	reader := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	reader.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		reads := j.reads.Add(1)
		object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"ps": int64(2), "worker": int64(8)}}}
		if j.hold != nil {
			<-j.hold
		}
		if err := j.fails.Load(); err != nil {
			return true, nil, *err
		}
		if reads > 100 {
			return true, nil, errors.New("too many reads") // this ends a loop
		}
		return true, object, nil
	})
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	watched := metadatafake.NewSimpleMetadataClient(scheme, j.object())
	refused := func(action clienttesting.Action) bool {
		return j.forbidden.Load() && (j.refuseOnly == "" || j.refuseOnly == action.GetResource().Version)
	}
	watched.PrependReactor("list", "tfjobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return refused(action), nil, errForbidden
	})
	watched.PrependWatchReactor("tfjobs", func(action clienttesting.Action) (bool, apiwatch.Interface, error) {
		if refused(action) {
			return true, nil, errForbidden
		}
		watcher, err := watched.Tracker().Watch(action.GetResource(), action.GetNamespace())
		j.mu.Lock()
		defer j.mu.Unlock()
		j.watches = append(j.watches, watcher)
		return true, watcher, err
	})
	j.custom.dynamic, j.custom.metadata = reader, watched
	j.metadata = watched.Resource(schema.GroupVersionResource{Group: "kubeflow.org", Version: "v1", Resource: "tfjobs"}).Namespace("ns").(metadatafake.MetadataClient)
	j.book.owners = j.custom
	j.custom.tell = func(event ledger.Event) { j.book.apply(event) }
	j.custom.run(t.Context())
	return j
}

func (j *training) object() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "kubeflow.org/v1", Kind: "TFJob"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "job-uid"}}
}

var errForbidden = apierrors.NewForbidden(schema.GroupResource{Group: "kubeflow.org", Resource: "tfjobs"}, "", errors.New("no RBAC policy matched"))

// forbid removes the right to read jobs, or grants it again. The API server ends the watches of clients without the right after a while.
func (j *training) forbid(forbidden bool) {
	j.forbidden.Store(forbidden)
	j.mu.Lock()
	for _, watcher := range j.watches {
		watcher.Stop()
	}
	j.watches = nil
	j.mu.Unlock()
	time.Sleep(2 * time.Minute) // in the bubble: the informer retries with growing intervals
	synctest.Wait()
}

// touch makes the watch report a change.
func (j *training) touch(label string) {
	j.t.Helper()
	object := j.object()
	object.Labels = map[string]string{"changed": label}
	if _, err := j.metadata.UpdateFake(object, metav1.UpdateOptions{}); err != nil {
		j.t.Fatal(err)
	}
	synctest.Wait()
}

// spread creates or changes a spread for half of the replicas at a path. The spread "older" was created before "younger".
func (j *training) spread(name string, generation int64, target, path string) {
	j.t.Helper()
	object := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Generation: generation}}
	object.CreationTimestamp = map[string]metav1.Time{"older": metav1.Unix(1, 0), "younger": metav1.Unix(2, 0)}[name]
	version, kind, _ := strings.Cut(target, " ")
	object.Spec.TargetReference = v1beta1.TargetReference{APIVersion: version, Kind: kind, Name: "job"}
	if path != "" {
		object.Spec.TargetFilter = &v1beta1.TargetFilter{ReplicasPathList: []string{path}}
	}
	if err := yaml.UnmarshalStrict([]byte(halves), &object.Spec); err != nil {
		j.t.Fatalf("parsing the spec: %v", err)
	}
	j.book.apply(ledger.SpreadSeen{Spread: object})
}

func (j *training) spreadGone(name string) {
	j.book.apply(ledger.SpreadGone{Key: types.NamespacedName{Namespace: "ns", Name: name}})
}

// worker creates a pending pod of the job.
func (j *training) worker(name string) *corev1.Pod {
	pod := podOf("job-uid", name)
	pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "kubeflow.org/v1", "TFJob", "job"
	j.see(pod)
	return pod
}

// expectReplicas waits until nothing is under way. Then it compares the replicas that divide the job's pods; -1 if they are not known.
func (j *training) expectReplicas(want int32) {
	j.t.Helper()
	synctest.Wait()
	j.book.mu.Lock()
	defer j.book.mu.Unlock()
	got, known := j.book.ledger.Replicas(jobKey)
	if !known {
		got = -1
	}
	if got != want {
		j.t.Errorf("%d replicas, want %d", got, want)
	}
}

func (j *training) expectHeld(pod *corev1.Pod) {
	j.t.Helper()
	if got := j.asks(pod); !strings.HasPrefix(got, "WorkloadNotObserved") {
		j.t.Errorf("%s: got %q", pod.Name, got)
	}
}

// expectReads compares the number of reads since the last check.
func (j *training) expectReads(least, most int32) {
	j.t.Helper()
	synctest.Wait()
	if got := j.reads.Swap(0); got < least || got > most {
		j.t.Errorf("%d reads, want %d to %d", got, least, most)
	}
}

// expectTargets compares how many workloads the plugin keeps.
func (j *training) expectTargets(want int) {
	j.t.Helper()
	synctest.Wait()
	j.custom.mu.Lock()
	defer j.custom.mu.Unlock()
	if got := len(j.custom.targets); got != want {
		j.t.Errorf("%d workloads are remembered, want %d", got, want)
	}
}

func TestOfTwoSpreadsForACustomWorkloadTheOlderHasItsReplicasRead(t *testing.T) {
	const v1, v2 = "kubeflow.org/v1 TFJob", "kubeflow.org/v2 TFJob"
	older := func(j *training) { j.spread("older", 1, v1, "spec.ps") }
	tests := map[string]struct {
		younger func(*training)
		want    int32 // after the older spread is deleted
	}{
		"the same paths":  {func(j *training) { j.spread("younger", 1, v1, "spec.ps") }, 2},
		"other paths":     {func(j *training) { j.spread("younger", 1, v1, "spec.worker") }, 8},
		"another version": {func(j *training) { j.spread("younger", 1, v2, "spec.ps") }, 2},
	}
	for name, tc := range tests {
		for order, creations := range map[string][]func(*training){
			"the older is seen first":   {older, tc.younger},
			"the younger is seen first": {tc.younger, older},
		} {
			t.Run(name+", and "+order, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					j := newTraining(t)
					for _, create := range creations {
						create(j)
						synctest.Wait()
					}
					j.expectReplicas(2)
					j.expectReads(1, 4)
					j.touch("once")
					j.expectReads(1, 1)
					time.Sleep(time.Hour)
					j.expectReads(0, 0)

					j.spreadGone("older")
					pod := j.worker("p")
					j.expectReplicas(tc.want)
					j.expectReads(0, 1)
					j.expectAnswer("a", pod)
					j.spreadGone("younger")
					j.expectTargets(0)
				})
			})
		}
	}
}

func TestASpreadThatTakesOverFromAnOlderOneHasItsPlan(t *testing.T) {
	for name, end := range map[string]func(*training){
		"the older is deleted":             func(j *training) { j.spreadGone("older") },
		"the older names another workload": func(j *training) { j.spread("older", 2, "kubeflow.org/v1 PyTorchJob", "spec.ps") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newTraining(t)
				j.spread("older", 1, "kubeflow.org/v1 TFJob", "spec.ps")
				j.spread("younger", 1, "kubeflow.org/v1 TFJob", "spec.worker")
				pods := []*corev1.Pod{j.worker("p0"), j.worker("p1")}
				j.expectReplicas(2)
				j.expectAnswer("a", pods[0])
				j.expectAnswer("b", pods[1])
				j.hold = make(chan struct{})
				j.awake = nil
				end(j)
				j.expectAwake("p0", "p1")
				j.expectReplicas(-1)
				j.expectHeld(pods[0])
				close(j.hold)
				j.expectReplicas(8)
				j.expectAwake("p0")
				j.expectAnswer("a", pods[0])
				j.expectAnswer("a", pods[1])
			})
		})
	}
}

func TestAnAnswerThatComesLateIsNotTakenForOtherPaths(t *testing.T) {
	for name, change := range map[string]func(*training){
		"the paths are edited": func(j *training) { j.spread("older", 2, "kubeflow.org/v1 TFJob", "spec.worker") },
		"the spread is replaced": func(j *training) {
			j.spreadGone("older")
			j.spread("older", 2, "kubeflow.org/v1 TFJob", "spec.worker")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newTraining(t)
				j.hold = make(chan struct{})
				j.spread("older", 1, "kubeflow.org/v1 TFJob", "spec.ps")
				j.expectReads(1, 1)
				change(j)
				j.hold <- struct{}{}
				j.expectReads(1, 1) // this one waits
				j.expectReplicas(-1)
				close(j.hold)
				j.expectReplicas(8)
			})
		})
	}
	t.Run("nor for a spread that is gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := newTraining(t)
			j.hold = make(chan struct{})
			j.spread("older", 1, "kubeflow.org/v1 TFJob", "spec.ps")
			synctest.Wait()
			j.spreadGone("older")
			close(j.hold)
			j.expectTargets(0)
			j.touch("once")
			j.expectReads(1, 1)
		})
	})
}

func TestAReadThatFailsIsRepeatedAtLongerAndLongerIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newTraining(t)
		err := errors.New("the API server does not answer")
		j.fails.Store(&err)
		j.spread("older", 1, "kubeflow.org/v1 TFJob", "spec.ps")
		time.Sleep(time.Minute)
		j.expectReads(8, 20)
		j.expectReplicas(-1)
		time.Sleep(time.Minute)
		j.expectReads(2, 4)
		j.fails.Store(nil)
		time.Sleep(time.Minute)
		j.expectReplicas(2)
		j.expectReads(1, 2)
	})
	t.Run("until nobody asks any more", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := newTraining(t)
			err := errors.New("the API server does not answer")
			j.fails.Store(&err)
			j.spread("older", 1, "kubeflow.org/v1 TFJob", "spec.ps")
			time.Sleep(time.Minute)
			j.spreadGone("older")
			j.expectTargets(0)
			j.reads.Store(0)
			time.Sleep(time.Hour)
			j.expectReads(0, 0)
			if n := j.custom.targetQueue.NumRequeues(jobKey); n != 0 {
				t.Errorf("%d failures are remembered", n)
			}
		})
	})
}

func TestAWorkloadIsRememberedAsLongAsASpreadAsksForIt(t *testing.T) {
	for name, end := range map[string]func(*training){
		"until the spread is deleted":                        func(j *training) { j.spreadGone("older") },
		"until the spread names a workload of the scheduler": func(j *training) { j.spread("older", 2, "apps/v1 Deployment", "") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newTraining(t)
				j.spread("older", 1, "kubeflow.org/v1 TFJob", "spec.ps")
				j.expectTargets(1)
				end(j)
				j.expectTargets(0)
				j.reads.Store(0)
				j.touch("once")
				j.expectReads(0, 0)
			})
		})
	}
	t.Run("until the spread gives no paths any more", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := newTraining(t)
			j.spread("older", 1, "apps/v1 Deployment", "spec.worker")
			j.expectTargets(1)
			j.spread("older", 2, "apps/v1 Deployment", "")
			j.expectTargets(0)
		})
	})
	t.Run("not until a younger spread for it is gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j := newTraining(t)
			j.spread("older", 1, "kubeflow.org/v1 TFJob", "spec.ps")
			j.spread("younger", 1, "kubeflow.org/v1 TFJob", "spec.worker")
			j.expectReplicas(2)
			j.reads.Store(0)
			j.spreadGone("younger")
			j.expectReplicas(2)
			j.expectReads(0, 0)
			j.expectTargets(1)
		})
	})
}

// owned creates a pending pod. Its owner has a kind of the group example.com and is not in the training's world.
func (j *training) owned(name, kind string) *corev1.Pod {
	pod := podOf(types.UID(kind+"-uid"), name)
	pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "example.com/v1", kind, "owner"
	j.see(pod)
	return pod
}

// TestDiscoveryIsCalledSeldom has owners of kinds that do not exist, and asks for each of them several times.
func TestDiscoveryIsCalledSeldom(t *testing.T) {
	client := fake.NewClientset()
	client.Resources = append(client.Resources, &metav1.APIResourceList{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{Name: "pools", Kind: "Pool"}}})
	now := clocktesting.NewFakePassiveClock(time.Now())
	custom, err := newCustomWorkloads(&restclient.Config{}, client, now)
	if err != nil {
		t.Fatal(err)
	}
	custom.tell = func(ledger.Event) {}
	for interval := range 3 {
		client.ClearActions()
		for i := range 100 {
			kind := schema.GroupKind{Group: "example.com", Kind: fmt.Sprintf("Kind%d", i%20)}
			custom.want(kind)
			if err := custom.watchKind(t.Context(), kind); !meta.IsNoMatchError(err) {
				t.Fatalf("got %v, want that there is no such kind", err)
			}
		}
		lookups := 0
		for _, action := range client.Actions() {
			if action.GetResource().Resource == "group" {
				lookups++
			}
		}
		// The mapper calls discovery when it is asked first.
		if want := map[bool]int{true: 1 + discoveryBurst, false: 1}[interval == 0]; lookups != want {
			t.Errorf("interval %d: discovery was called %d times, want %d", interval, lookups, want)
		}
		now.SetTime(now.Now().Add(discoveryInterval))
	}
	for i := range 10_000 { // by a tenant who creates pods
		kind := schema.GroupKind{Group: "example.com", Kind: fmt.Sprintf("Other%d", i)}
		custom.want(kind)
		_ = custom.watchKind(t.Context(), kind) // there is no such kind
	}
	if kinds := len(custom.kinds); kinds > maxUnserved {
		t.Errorf("%d kinds that do not exist are tried again and again", kinds)
	}
}

// A pod whose owner is of a kind that the API server does not serve waits for a while only: the kind may be new, or gone for good.
func TestAKindThatIsNotServedEndsTheChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newTraining(t)
		j.spread("older", 1, "kubeflow.org/v1 TFJob", "spec.ps") // of another workload
		pod := j.owned("p", "Ghost")
		j.expectHeld(pod)
		time.Sleep(2 * unservedFor)
		synctest.Wait()
		if got := j.asks(pod); got != "no spread" {
			t.Errorf("after a minute: %s", got)
		}
	})
}

// The API server stops serving the version of a kind that the scheduler watches.
func TestAKindIsWatchedInAnotherVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		was := errForbidden
		defer func() { errForbidden = was }()
		j := newTraining(t)
		j.spread("older", 1, "kubeflow.org/v2 TFJob", "spec.ps")
		synctest.Wait()
		errForbidden = apierrors.NewNotFound(schema.GroupResource{Group: "kubeflow.org", Resource: "tfjobs"}, "")
		j.refuseOnly = "v1"
		j.client.Resources = slices.DeleteFunc(j.client.Resources, func(l *metav1.APIResourceList) bool { return l.GroupVersion == "kubeflow.org/v1" })
		j.forbid(true) // v1 is gone; v2 is served
		above := j.object()
		above.Name, above.UID, above.APIVersion = "new", "new-uid", "kubeflow.org/v2"
		second := j.custom.metadata.Resource(schema.GroupVersionResource{Group: "kubeflow.org", Version: "v2", Resource: "tfjobs"}).Namespace("ns").(metadatafake.MetadataClient)
		if _, err := second.CreateFake(above, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pod := podOf("new-uid", "p")
		pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "kubeflow.org/v2", "TFJob", "new"
		j.see(pod)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := j.asks(pod); got != "no spread" {
			t.Errorf("a pod of a job that is served in v2 alone: %s", got)
		}
	})
}

func TestAnOwnerOfAClusterScopedKindEndsTheChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newTraining(t)
		j.spread("older", 1, "kubeflow.org/v1 TFJob", "spec.ps")
		j.owned("p0", "Pool")
		synctest.Wait() // the plugin did not know at first that the kind is cluster-scoped
		j.expectAnswer("no spread", j.owned("p1", "Pool"))
		j.expectAnswer("no spread", j.pods["p0-uid"])
	})
}

func TestOwnersOfAKindThatMayNotBeReadAnyMoreEndTheChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newTraining(t)
		j.spread("older", 1, "kubeflow.org/v1 TFJob", "spec.ps")
		of := func(uid, name string) *corev1.Pod {
			pod := j.worker(name)
			pod.OwnerReferences[0].UID, pod.OwnerReferences[0].Name = types.UID(uid), uid
			j.delete(pod) // the pod that worker has shown
			j.see(pod)
			return pod
		}
		above := j.object() // a Pool owns this job, but the spread does not name the Pool
		above.Name, above.UID = "other-uid", "other-uid"
		if _, err := j.metadata.CreateFake(above, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // in the bubble, for the end of the first list
		synctest.Wait()
		j.expectAnswer("no spread", of("other-uid", "below-a-known-one"))
		held := of("unseen-uid", "held")
		j.expectHeld(held)
		j.awake = nil

		j.forbid(true)
		j.expectAwake("held")
		j.expectAnswer("no spread", held)
		j.expectAnswer("no spread", of("unseen-uid", "late"))
		// The plugin keeps what it knows of a kind.
		j.expectAnswer("a", j.worker("p0"))

		j.forbid(false)
		j.expectHeld(of("unseen-uid", "later"))
		above.Name, above.UID = "unseen-uid", "unseen-uid"
		if _, err := j.metadata.CreateFake(above, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		j.expectAwake("later")
		j.expectAnswer("no spread", j.pods["later-uid"])
	})
}

// The conversion of an older version of a kind may drop the reserved ordinals. Replicas and ordinals are read apart, so neither waits for the other.
func TestOrdinalsAreReadInTheLatestVersion(t *testing.T) {
	client := fake.NewClientset()
	for _, version := range []string{"v1beta1", "v1alpha1"} { // the API server names the preferred one first
		client.Resources = append(client.Resources, &metav1.APIResourceList{GroupVersion: "apps.kruise.io/" + version,
			APIResources: []metav1.APIResource{{Name: "statefulsets", Kind: "StatefulSet", Namespaced: true}}})
	}
	custom, err := newCustomWorkloads(&restclient.Config{}, client, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("the API server does not answer")
	var failing string
	reader := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	reader.PrependReactor("get", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		spec, metadata := map[string]any{"replicas": int64(3)}, map[string]any{"name": "db", "uid": "db-uid", "generation": int64(4)}
		if action.GetSubresource() == failing {
			return true, nil, failed
		}
		if action.GetResource().Version == "v1beta1" && action.GetSubresource() == "" {
			spec["reserveOrdinals"] = []any{"0-2"}
		}
		return true, &unstructured.Unstructured{Object: map[string]any{"metadata": metadata, "spec": spec}}, nil
	})
	custom.dynamic = reader
	key := ledger.Workload{Namespace: "ns", Group: "apps.kruise.io", Kind: "StatefulSet", Name: "db"}
	for name, tc := range map[string]struct {
		failing      string
		want         ledger.ReplicasRead
		wantPosition int32
		wantErr      error
	}{
		"both are read":                  {failing: "none", want: ledger.ReplicasRead{Replicas: 3, Known: true}, wantPosition: 2},
		"the replicas cannot be read":    {failing: "scale", wantPosition: 2, wantErr: failed},
		"the StatefulSet cannot be read": {failing: "", want: ledger.ReplicasRead{Replicas: 3, Known: true}, wantErr: failed},
	} {
		t.Run(name, func(t *testing.T) {
			failing = tc.failing
			var told []ledger.ReplicasRead
			custom.tell = func(event ledger.Event) { told = append(told, event.(ledger.ReplicasRead)) }
			custom.kinds[schema.GroupKind{Group: key.Group, Kind: key.Kind}] = &customKind{watched: true}
			custom.targets[key] = &customTarget{version: "v1alpha1"}
			if err := custom.readTarget(t.Context(), key); !errors.Is(err, tc.wantErr) {
				t.Errorf("got %v, want %v", err, tc.wantErr)
			}
			if len(told) != 1 {
				t.Fatalf("%d events, want one", len(told))
			}
			got := told[0]
			if got.Replicas != tc.want.Replicas || got.Known != tc.want.Known {
				t.Errorf("%d replicas, known %t, want %d, %t", got.Replicas, got.Known, tc.want.Replicas, tc.want.Known)
			}
			if position := got.Ordinals.Position("db-4", "db"); position != tc.wantPosition {
				t.Errorf("db-4 has position %d, want %d", position, tc.wantPosition)
			}
			if got.Ordinals != nil && (got.Ordinals.UID != "db-uid" || got.Ordinals.Generation != 4) {
				t.Errorf("the ordinals are of %s, generation %d", got.Ordinals.UID, got.Ordinals.Generation)
			}
		})
	}
}

// If pods asked between two objects of the first list, they would not know of siblings whose owners come later.
func TestTheFirstListOfAKindComesInOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newTraining(t)
		second := j.object()
		second.Name, second.UID = "second", "second-uid"
		if _, err := j.metadata.CreateFake(second, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var events []string
		tell := j.custom.tell
		j.custom.tell = func(event ledger.Event) {
			mu.Lock()
			switch ev := event.(type) {
			case ledger.OwnersListed:
				events = append(events, fmt.Sprintf("%d listed", len(ev.Objects)))
			case ledger.OwnerSeen:
				events = append(events, "seen "+ev.Object.GetName())
			}
			mu.Unlock()
			tell(event)
		}
		j.spread("older", 1, "kubeflow.org/v1 TFJob", "spec.worker")
		time.Sleep(time.Second) // in the bubble
		j.touch("yes")
		mu.Lock()
		defer mu.Unlock()
		if last := len(events) - 1; last < 1 || events[0] != "2 listed" || events[last] != "seen job" {
			t.Errorf("the ledger was told: %s", strings.Join(events, ", "))
		}
	})
}

// TestTheReplicasAreReadIfTheirNewsAreLate: a Deployment was scaled up, its pods are there, and the watch does not show it. The first read fails. Before the next one, somebody may edit the spread.
func TestTheReplicasAreReadIfTheirNewsAreLate(t *testing.T) {
	t.Run("", func(t *testing.T) { readLate(t, func(*training) {}) })
	t.Run("the spread is edited", func(t *testing.T) {
		readLate(t, func(j *training) { j.world.spread(2, strings.Replace(halves, `"50%"`, `"40%"`, 1)) })
	})
}

func readLate(t *testing.T, meanwhile func(*training)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		j := newTraining(t)
		fails := true
		reader := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
		reader.PrependReactor("get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
			if fails {
				fails = false
				return true, nil, errors.New("the API server does not answer")
			}
			return true, &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"namespace": "ns", "name": "web", "uid": "web-uid"},
				"spec": map[string]any{"replicas": int64(4)}}}, nil
		})
		j.custom.dynamic = reader
		j.scale(2)
		j.world.spread(1, halves)
		pods := j.podsNamed("p", 4)
		for _, pod := range pods {
			j.expectHeld(pod)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		j.expectAwake("p0", "p1", "p2", "p3")
		j.expectHeld(pods[0])
		synctest.Wait() // the read has failed
		meanwhile(j)
		for _, pod := range pods {
			j.expectHeld(pod)
		}
		j.awake = nil
		time.Sleep(time.Second)
		synctest.Wait()
		j.expectAwake("p0", "p1", "p2", "p3")
		for i, want := range []string{"a", "a", "b", "b"} {
			j.expectAnswer(want, pods[i])
		}
		j.custom.mu.Lock()
		defer j.custom.mu.Unlock()
		if n := len(j.custom.asked); n != 0 {
			t.Errorf("%d questions are left", n)
		}
	})
}
