package workloadspread

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientdiscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	restclient "k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
)

func TestAPodThatEndsWhileItIsBeingReadHoldsNoSlot(t *testing.T) {
	// Both reads show the pod before its end was reported. No later event of the pod will arrive.
	tests := map[string]struct {
		verb string
		read func(*testing.T, *world, storage, *corev1.Pod)
	}{
		"by the list of a take-over": {"list", func(t *testing.T, w *world, stored storage, _ *corev1.Pod) {
			t.Helper()
			takeover := newTakeover(clock.RealClock{}, &lease{clock: clock.RealClock{}}, stored.client, stored.lists, w.book, &listeners{})
			if err := takeover.complete(t.Context()); err != nil || !takeover.done {
				t.Fatalf("take-over done is %t, error %v", takeover.done, err)
			}
		}},
		"to settle its bind": {"get", func(t *testing.T, w *world, stored storage, pod *corev1.Pod) {
			t.Helper()
			binds := &binds{client: stored.client, book: w.book}
			if err := binds.settle(t.Context(), podKey{pod.Namespace, pod.Name, pod.UID}); err != nil {
				t.Fatal(err)
			}
		}},
	}
	ends := map[string]func(*world, *corev1.Pod){
		"deleted":     func(w *world, pod *corev1.Pod) { w.delete(pod) },
		"terminating": func(w *world, pod *corev1.Pod) { w.see(terminating(pod)) },
	}
	for name, tc := range tests {
		for how, end := range ends {
			t.Run(name+", "+how, func(t *testing.T) {
				w := newWorld(t, 4)
				w.spread(1, twoThenAny)
				ended, stays := w.pod("ended"), onNode(podOf("rs-uid", "stays"), "node-b", "b")
				w.schedule(ended)
				before := onNode(ended, "node-a", "a")
				stored := store(t, before, stays)
				happens := func(clienttesting.Action) (bool, runtime.Object, error) {
					w.see(onNode(ended, "node-a", "a"))
					end(w, before)
					return false, nil, nil
				}
				if tc.verb == "list" {
					stored.lists.PrependReactor(tc.verb, "pods", happens)
				} else {
					stored.client.PrependReactor(tc.verb, "pods", happens)
				}
				tc.read(t, w, stored, ended)
				if tc.verb == "get" {
					w.expectStages(map[string]int{})
				} else {
					w.expectStages(map[string]int{"bound": 1})
				}
			})
		}
	}
}

func TestATakeOverWaitsUnlessTheLeaseProvesThatItNeedNot(t *testing.T) {
	tests := map[string]struct {
		// lead makes the process lead. Nil means no leader election.
		lead func(*lease)
		// before is the time before the first pod.
		before time.Duration
		// bound is true if Berth has bound a pod.
		bound bool
		want  time.Duration
	}{
		"without leader election":                           {want: testUncertainPeriod},
		"of one that was killed":                            {lead: func(l *lease) { l.lead("killed", false) }, want: testUncertainPeriod},
		"of one that was killed some time ago":              {lead: func(l *lease) { l.lead("killed", false) }, before: testUncertainPeriod - time.Second, want: time.Second},
		"of one that was killed long ago":                   {lead: func(l *lease) { l.lead("killed", false) }, before: time.Hour},
		"of one that gave its lease up":                     {lead: func(l *lease) { l.lead("", false) }, want: testUncertainPeriod},
		"of one that stopped":                               {lead: func(l *lease) { l.lead("stopped"+stoppedSuffix, false) }, bound: true},
		"if there was no lease":                             {lead: func(l *lease) { l.lead("", true) }},
		"if there was no lease, but a pod that Berth bound": {lead: func(l *lease) { l.lead("", true) }, bound: true, want: testUncertainPeriod},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 4)
				w.spread(1, twoThenAny)
				bound := []*corev1.Pod{onNode(podOf("rs-uid", "somebody's"), "node-a", "-")}
				if tc.bound {
					bound = append(bound, onNode(podOf("rs-uid", "ours"), "node-a", "a"))
				}
				stored := store(t, bound...)
				l := &lease{clock: clock.RealClock{}, uncertainPeriod: uncertainPeriod(5 * time.Second)}
				if tc.lead != nil {
					tc.lead(l)
				}
				time.Sleep(tc.before)
				began := time.Now()
				takeover := newTakeover(clock.RealClock{}, l, stored.client, stored.lists, w.book, &listeners{spreadsSynced: always})
				if !takeover.concerns(w.pod("p")) {
					t.Error("the take-over does not concern a pod of the spread")
				}
				if err := takeover.complete(t.Context()); err != nil || !takeover.done {
					t.Fatalf("take-over done is %t, error %v", takeover.done, err)
				}
				if waited := time.Since(began); waited != tc.want {
					t.Errorf("waited %s, want %s", waited, tc.want)
				}
				if got, want := w.stages()["bound"], map[bool]int{false: 1, true: 2}[tc.bound]; got != want {
					t.Errorf("%d bound pods are counted, want %d", got, want)
				}
				// Each time it lists the pods with a node, and those without.
				if got, want := len(stored.listed()), map[bool]int{false: 2, true: 4}[strings.HasPrefix(name, "if there was no lease, but")]; got != want {
					t.Errorf("the pods were listed %d times, want %d", got, want)
				}
				if rest := l.uncertainFor(); rest > 0 {
					t.Errorf("its binds are in doubt for %s after it has waited", rest)
				}
			})
		})
	}
}

func TestATakeOverReadsWholeOnlyThePodsThatItHasNotSeenBound(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	seen, unseen, late := onNode(podOf("rs-uid", "seen"), "node-a", "a"), onNode(podOf("rs-uid", "unseen"), "node-b", "b"), onNode(podOf("rs-uid", "late"), "node-b", "b")
	orphan, daemon := onNode(podOf("rs-uid", "orphan"), "node-b", ""), onNode(podOf("rs-uid", "daemon"), "node-b", "")
	orphan.OwnerReferences = nil
	daemon.OwnerReferences[0].Kind = "DaemonSet"
	w.see(seen)
	pending := late.DeepCopy()
	pending.Spec.NodeName, pending.Annotations = "", nil
	w.see(pending)
	replaced := podOf("rs-uid", "replaced")
	stored := store(t, seen, unseen, late, orphan, daemon, onNode(replaced, "node-a", "a"))
	replaced.UID = "another"
	if err := stored.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), replaced, "ns"); err != nil {
		t.Fatal(err)
	}
	if err := newTakeover(clock.RealClock{}, &lease{clock: clock.RealClock{}}, stored.client, stored.lists, w.book, &listeners{spreadsSynced: always}).complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	var read []string
	for _, action := range stored.client.Actions() {
		if get, ok := action.(clienttesting.GetAction); ok {
			read = append(read, get.GetName())
		}
	}
	slices.Sort(read)
	if want := []string{"late", "replaced", "unseen"}; !slices.Equal(read, want) {
		t.Errorf("read whole: %v, want %v", read, want)
	}
	w.expectStages(map[string]int{"bound": 3})
}

// storage is the storage of an API server, as a take-over reads it.
type storage struct {
	client *fake.Clientset
	lists  *metadatafake.FakeMetadataClient
}

func store(t *testing.T, pods ...*corev1.Pod) storage {
	t.Helper()
	var whole, metadata []runtime.Object
	for _, pod := range pods {
		whole = append(whole, pod)
		metadata = append(metadata, &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: *pod.ObjectMeta.DeepCopy()})
	}
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return storage{fake.NewClientset(whole...), metadatafake.NewSimpleMetadataClient(scheme, metadata...)}
}

func (s storage) listed() []clienttesting.ListAction {
	var lists []clienttesting.ListAction
	for _, action := range s.lists.Actions() {
		if list, ok := action.(clienttesting.ListAction); ok {
			lists = append(lists, list)
		}
	}
	return lists
}

func always() bool { return true }

func TestTheFirstCycleAloneIsHeldUpForTheInformers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		synced := false
		listening := &listeners{synced: []cache.InformerSynced{func() bool { return synced }}, spreadsSynced: func() bool { return synced }}
		s := w.Spread
		s.takeover = newTakeover(clock.RealClock{}, &lease{clock: clock.RealClock{}}, fake.NewClientset(), store(t).lists, w.book, listening)
		cycle := func(pod *corev1.Pod) (*fwk.Status, time.Duration) {
			began := time.Now()
			_, status := s.PreFilter(t.Context(), framework.NewCycleState(), pod, nil)
			return status, time.Since(began)
		}
		free := podOf("rs-uid", "free")
		free.OwnerReferences = nil
		w.pods[free.UID] = free
		for i, want := range []time.Duration{syncTimeout, 0, 0} {
			if status, took := cycle(w.pod(fmt.Sprint("p", i))); status.Code() != fwk.Error || took != want {
				t.Errorf("cycle %d took %s with %v, want %s and an error", i, took, status, want)
			}
			if status, took := cycle(free); !status.IsSkip() || took != 0 {
				t.Errorf("that of a pod without an owner took %s with %v", took, status)
			}
		}
		synced = true
		if status, took := cycle(w.pod("p")); !status.IsSkip() || took != 0 {
			t.Errorf("when the informers had synced a cycle took %s with %v", took, status)
		}
	})
}

func TestPodsOfNamespacesWithoutASpreadDoNotWaitForATakeOver(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	s := w.Spread
	s.takeover = newTakeover(clock.RealClock{}, &lease{clock: clock.RealClock{}, uncertainPeriod: time.Hour}, fake.NewClientset(), store(t).lists, w.book, &listeners{spreadsSynced: always})
	pod := podOf("rs-uid", "p")
	pod.Namespace = "other"
	w.pods[pod.UID] = pod
	if _, status := s.PreFilter(t.Context(), framework.NewCycleState(), pod, nil); !status.IsSkip() {
		t.Errorf("status %v", status)
	}
}

// kindServer is an API server that serves WorkloadSpreads, or does not know them, or does not allow to list them.
type kindServer struct{ known, allowed atomic.Bool }

const oneSpread = `{"apiVersion": "apps.kruise.io/v1beta1", "kind": "WorkloadSpreadList", "metadata": {"resourceVersion": "1"}, "items": [{
	"apiVersion": "apps.kruise.io/v1beta1", "kind": "WorkloadSpread", "metadata": {"namespace": "ns", "name": "web", "uid": "web", "resourceVersion": "1", "generation": 1},
	"spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "subsets": [{"name": "a"}]}}]}`

func (s *kindServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(code int, body string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body)) // the client retries
	}
	const group = "/apis/apps.kruise.io/v1beta1"
	refusal := func(code int, reason metav1.StatusReason) {
		answer(code, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": %d, "reason": %q, "message": "it is %[2]s"}`, code, reason))
	}
	switch {
	case r.URL.Path == group+"/workloadspreads" && !s.allowed.Load():
		refusal(http.StatusForbidden, metav1.StatusReasonForbidden)
	case !s.known.Load():
		refusal(http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.URL.Path == group:
		answer(http.StatusOK, `{"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": "apps.kruise.io/v1beta1", "resources": [{"name": "workloadspreads"}]}`)
	case r.URL.Query().Has("sendInitialEvents"):
		refusal(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid) // so that the client lists
	case r.URL.Query().Has("watch"):
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		answer(http.StatusOK, oneSpread)
	}
}

func TestPodsWaitForSpreadsOnlyIfThereCanBeAny(t *testing.T) {
	tests := map[string]struct {
		known, allowed bool
		// message is for a pod with an owner. Empty if the pod may be scheduled.
		message string
	}{
		"the kind is not known":                          {allowed: true},
		"the kind is not known, nor would it be allowed": {},
		"the kind is known, but not allowed":             {known: true, message: "give it the ClusterRole berth-scheduler"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			served := &kindServer{}
			served.known.Store(tc.known)
			served.allowed.Store(tc.allowed)
			server := httptest.NewServer(served)
			t.Cleanup(server.CloseClientConnections)
			config := &restclient.Config{Host: server.URL, QPS: -1}
			spreads, err := newSpreadInformer(config, func(ledger.SpreadsWatched) {})
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, 4)
			factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
			listening, err := watch(t.Context(), w.book, factory, spreads, listOneSpread(dynamic.NewForConfigOrDie(config), clientdiscovery.NewDiscoveryClientForConfigOrDie(config)))
			if err != nil {
				t.Fatal(err)
			}
			factory.Start(t.Context().Done())
			s := w.Spread
			s.takeover = newTakeover(clock.RealClock{}, &lease{clock: clock.RealClock{}}, fake.NewClientset(), store(t).lists, w.book, listening)
			owned := w.pod("owned")
			free := podOf("rs-uid", "free")
			free.OwnerReferences = nil
			w.pods[free.UID] = free
			cycle := func(pod *corev1.Pod) (*fwk.Status, *decision) {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				state := framework.NewCycleState()
				_, status := s.PreFilter(ctx, state, pod, nil)
				return status, decisionIn(state)
			}
			await := func(what string, condition func() bool) {
				t.Helper()
				if wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return condition(), nil }) != nil {
					status, _ := cycle(owned)
					t.Fatalf("%s: not within a minute; the last cycle ended with %v", what, status)
				}
			}
			await("the answer to a pod with an owner", func() bool {
				status, _ := cycle(owned)
				return tc.message == "" && status.IsSkip() || tc.message != "" && strings.Contains(status.Message(), tc.message)
			})
			if status, _ := cycle(free); !status.IsSkip() {
				t.Errorf("a pod without an owner: %v", status)
			}
			served.allowed.Store(true)
			served.known.Store(true)
			await("the spread divides the pod", func() bool {
				_, d := cycle(owned)
				return d != nil && d.Name() == "a"
			})
		})
	}
}

func TestATakeOverReadsManyNamespacesAtOnce(t *testing.T) {
	for n, lists := range map[int]int{1: 1, manyNamespaces: manyNamespaces, manyNamespaces + 1: 1, 500: 1} {
		t.Run(fmt.Sprintf("%d namespaces", n), func(t *testing.T) {
			w := newWorld(t, 4)
			var pods []*corev1.Pod
			boundIn := func(namespace string) {
				pod := onNode(podOf("rs-uid", namespace), "node-a", "a")
				pod.Namespace = namespace
				pods = append(pods, pod)
			}
			boundIn("no-spread")
			for i := range n {
				namespace := fmt.Sprintf("ns-%d", i)
				object := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", UID: types.UID(namespace), Generation: 1}}
				object.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs"}
				object.Spec.Subsets = []v1beta1.Subset{{Name: "a"}}
				w.book.apply(ledger.SpreadSeen{Spread: object})
				boundIn(namespace)
			}
			stored := store(t, pods...)
			if err := newTakeover(clock.RealClock{}, &lease{clock: clock.RealClock{}}, stored.client, stored.lists, w.book, &listeners{spreadsSynced: always}).complete(t.Context()); err != nil {
				t.Fatal(err)
			}
			sent := map[string]int{}
			for _, list := range stored.listed() {
				sent[list.GetListRestrictions().Fields.String()]++
			}
			const unended = "status.phase!=Failed,status.phase!=Succeeded"
			if want := map[string]int{"spec.nodeName!=," + unended: lists, "spec.nodeName=," + unended: lists}; !maps.Equal(sent, want) {
				t.Errorf("lists %v, want %v", sent, want)
			}
			if bound := w.stages()["bound"]; bound != n {
				t.Errorf("%d bound pods, want %d", bound, n)
			}
		})
	}
}

// handle has the parts of the scheduler that Bind needs.
type handle struct{ fwk.Handle }

func TestABindIsNotBrokenOffWhenTheProcessIsToldToEnd(t *testing.T) {
	arrived, answer := make(chan struct{}, 9), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-answer
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"apiVersion": "v1", "kind": "Status", "status": "Success"}`)) // without an answer the test fails
	}))
	defer server.Close()
	client := kubernetes.NewForConfigOrDie(&restclient.Config{Host: server.URL})
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	l := &lease{clock: clock.RealClock{}, uncertainPeriod: testUncertainPeriod}
	s := &Spread{core: &core{book: w.book, lease: l, binds: newBinds(t.Context(), client, w.book, time.Minute)}, handle: handle{}}
	bind := func(ctx context.Context, name string) *fwk.Status {
		pod, state := w.pod(name), framework.NewCycleState()
		d, _ := w.ask(ledger.PodAsks{Pod: pod}, nil)
		if !w.book.apply(ledger.NodeFound{UID: pod.UID, Decision: d.Decision}).OK {
			t.Fatal("not reserved")
		}
		state.Write(stateKey, d)
		return s.Bind(ctx, state, pod, "node-a")
	}
	ctx, terminate := context.WithCancel(t.Context())
	status := make(chan *fwk.Status)
	go func() { status <- bind(ctx, "p") }()
	<-arrived
	terminate()
	settled := make(chan bool)
	go func() { settled <- l.stop(t.Context()) }()
	close(answer)
	if got := <-status; !got.IsSuccess() {
		t.Errorf("the bind ended with %v", got)
	}
	if !<-settled {
		t.Error("its outcome is not certain")
	}
	if got := bind(t.Context(), "q"); got.IsSuccess() || len(arrived) != 0 {
		t.Errorf("a bind was sent after the lease was given up: %v", got)
	}
}
