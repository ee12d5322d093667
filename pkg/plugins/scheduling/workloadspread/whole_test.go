package workloadspread_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	configscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/plugins/scheduling/workloadspread"
)

// port is a whole kube-scheduler with the shipped profile. The test runs its cycles one by one. Its queue, cache, plugins and informers are real. The
// API server is client-go's object store.
type port struct {
	t         *testing.T
	ctx       context.Context
	client    *fake.Clientset
	scheduler *scheduler.Scheduler
	plugins   workloadspread.Family
	server    *apiServer
	// popped are the names of the pods that had a cycle, in this order.
	popped []string
	// taken is called when a pod leaves the queue for its cycle, and found when it has found a node, in Permit. failing is called when a cycle of the pod has failed,
	// before the pod goes back to the queue. Nil does nothing.
	taken, found, failing func(pod string)
	// strangers counts the pods that stranger created.
	strangers int
}

// The second error handler slows repeated errors down. Its clock does not belong to any bubble.
func init() { utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] }

// inBubble runs a test with its own clock. The clock advances when all goroutines wait.
func inBubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	// The scheduler listens for a signal. The runtime must create its own signal channel outside the bubble.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR2)
	defer signal.Stop(signals)
	synctest.Test(t, test)
}

// openPort creates a Deployment "web" with one ReplicaSet, a spread with this spec for it, and the nodes. Without a spec there is no spread yet. Call it in a bubble.
func openPort(t *testing.T, spec string, change func(*schedulerconfig.KubeSchedulerProfile), nodes ...*corev1.Node) *port {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	yes := true
	client := fake.NewClientset(
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web-uid"}},
		&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rs", UID: "rs-uid",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web-uid", Controller: &yes}}}})
	p := &port{t: t, ctx: ctx, client: client, server: &apiServer{client: client}}
	if spec != "" {
		p.server.spread(t, 1, spec)
	}
	for _, node := range nodes {
		p.create(node)
	}
	obj, _, err := configscheme.Codecs.UniversalDecoder().Decode(manifests.SchedulerConfig, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	profiles := obj.(*schedulerconfig.KubeSchedulerConfiguration).Profiles
	if change != nil {
		change(&profiles[0])
	}
	config := &restclient.Config{Host: "http://api", Transport: p.server}
	withBinds, err := restclient.RESTClientForConfigAndClient(&restclient.Config{Host: "http://api", APIPath: "/api", ContentConfig: restclient.ContentConfig{
		GroupVersion: &corev1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs.WithoutConversion()}}, &http.Client{Transport: p.server})
	if err != nil {
		t.Fatal(err)
	}
	clients := clientset{client, coreClient{client.CoreV1(), withBinds}}
	factory := informers.NewSharedInformerFactory(clients, 0)
	p.scheduler, err = scheduler.New(ctx, clients, factory, nil, recordNothing,
		scheduler.WithKubeConfig(config), scheduler.WithProfiles(profiles...),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{workloadspread.Name: p.plugins.Spread, workloadspread.GateName: p.plugins.Gate,
			permitName: func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return permit{p}, nil }}))
	if err != nil {
		t.Fatal(err)
	}
	eachCycle(p.scheduler, func(info *framework.QueuedPodInfo) {
		p.popped = append(p.popped, info.Pod.Name)
		if p.taken != nil {
			p.taken(info.Pod.Name)
		}
	})
	fail := p.scheduler.FailureHandler
	p.scheduler.FailureHandler = func(ctx context.Context, profile framework.Framework, info *framework.QueuedPodInfo, status *fwk.Status, nominating *fwk.NominatingInfo, start time.Time) {
		if p.failing != nil {
			p.failing(info.Pod.Name)
		}
		fail(ctx, profile, info, status, nominating, start)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := p.scheduler.WaitForHandlersSync(ctx); err != nil {
		t.Fatal(err)
	}
	p.scheduler.SchedulingQueue.Run(klog.FromContext(ctx))
	settle()
	t.Cleanup(func() {
		cancel()
		p.scheduler.SchedulingQueue.Close()
		factory.Shutdown()
		time.Sleep(2 * time.Second) // metrics recorders check once a second whether they must end
	})
	return p
}

// permit tells the test of each pod that has found a node.
type permit struct{ *port }

const permitName = "PermitOfTheTest"

func (permit) Name() string { return permitName }

func (p permit) Permit(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) (*fwk.Status, time.Duration) {
	if p.found != nil {
		p.found(pod.Name)
	}
	return nil, 0
}

// settle waits until all events have been processed. Unlike synctest.Wait, several goroutines may call it at the same time.
func settle() { time.Sleep(time.Microsecond) }

// cycle runs the next pod's cycle, which takes a millisecond.
func (p *port) cycle() {
	p.t.Helper()
	time.Sleep(time.Millisecond)
	if queue := p.scheduler.SchedulingQueue; len(queue.PodsInActiveQ())+len(queue.PodsInBackoffQ()) == 0 {
		p.t.Fatalf("no pod in the queue; cycles: %v", p.popped)
	}
	p.scheduler.ScheduleOne(p.ctx)
	settle()
}

// cycles runs the cycles of all pods in the active queue, and of those that join it meanwhile.
func (p *port) cycles() {
	p.t.Helper()
	for len(p.scheduler.SchedulingQueue.PodsInActiveQ()) > 0 {
		p.cycle()
	}
}

func (p *port) create(object runtime.Object) {
	p.t.Helper()
	if err := p.client.Tracker().Add(object); err != nil {
		p.t.Fatal(err)
	}
	settle()
}

// pod creates a pod of the Deployment.
func (p *port) pod(name string, change ...func(*corev1.Pod)) {
	p.t.Helper()
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Labels: map[string]string{"pod-template-hash": "v1"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: "rs-uid", Controller: &yes}}},
		Spec: corev1.PodSpec{SchedulerName: "berth-scheduler", Containers: []corev1.Container{{
			Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}}}
	for _, f := range change {
		if f != nil {
			f(pod)
		}
	}
	p.create(pod)
}

// spread creates or changes the spread.
func (p *port) spread(generation int64, spec string) {
	p.t.Helper()
	p.server.spread(p.t, generation, spec)
	settle()
}

func (p *port) delete(name string) {
	p.t.Helper()
	if err := p.client.CoreV1().Pods("ns").Delete(p.ctx, name, metav1.DeleteOptions{}); err != nil {
		p.t.Fatal(err)
	}
	settle()
}

// relabel sets a label of a pod.
func (p *port) relabel(name, key, value string) {
	p.t.Helper()
	pod := p.get(name).DeepCopy()
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[key] = value
	if _, err := p.client.CoreV1().Pods("ns").Update(p.ctx, pod, metav1.UpdateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	settle()
}

// stranger creates a pod without a spread. It fits on no node.
func (p *port) stranger(name string) {
	p.t.Helper()
	p.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")},
		Spec: corev1.PodSpec{SchedulerName: "berth-scheduler", NodeSelector: map[string]string{"no": "where"}}})
}

func (p *port) get(name string) *corev1.Pod {
	p.t.Helper()
	pod, err := p.client.CoreV1().Pods("ns").Get(p.ctx, name, metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return pod
}

// cyclesOf returns how many cycles the pod had.
func (p *port) cyclesOf(name string) (n int) {
	for _, popped := range p.popped {
		if popped == name {
			n++
		}
	}
	return n
}

func (p *port) expectNode(name, want string) {
	p.t.Helper()
	if got := p.get(name).Spec.NodeName; got != want {
		p.t.Errorf("%s is on node %q, want %q; cycles: %v", name, got, want, p.popped)
	}
}

// withoutGate removes WorkloadSpreadGate from the shipped profile.
func withoutGate(profile *schedulerconfig.KubeSchedulerProfile) {
	profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(profile.Plugins.MultiPoint.Enabled, func(p schedulerconfig.Plugin) bool {
		return p.Name == workloadspread.GateName
	})
}

// nodeOf creates a node of a zone with room for ten pods of the Deployment.
func nodeOf(zone string) *corev1.Node {
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("110")}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + zone, Labels: map[string]string{"zone": zone, corev1.LabelHostname: "node-" + zone}},
		Status: corev1.NodeStatus{Allocatable: room, Capacity: room}}
}

// clientset sends binds to the API server as requests, because client-go's object store has no REST client for them.
type clientset struct {
	*fake.Clientset
	core coreClient
}

func (c clientset) CoreV1() typedv1.CoreV1Interface { return c.core }

type coreClient struct {
	typedv1.CoreV1Interface
	binds restclient.Interface
}

func (c coreClient) RESTClient() restclient.Interface { return c.binds }

// apiServer answers requests for WorkloadSpreads and binds.
type apiServer struct {
	client *fake.Clientset
	mu     sync.Mutex
	object *v1beta1.WorkloadSpread
	watch  *io.PipeWriter
	// refuse is the name of a pod whose next bind is refused.
	refuse string
	// refuseNode is the name of a node to which all binds are refused.
	refuseNode string
	// interrupted is true while no watch of spreads is allowed. catchesUp is true if the next one shows first what is there.
	interrupted, catchesUp bool
}

// remove deletes the spread "web".
func (a *apiServer) remove(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := json.NewEncoder(a.watch).Encode(map[string]any{"type": "DELETED", "object": a.object}); err != nil {
		t.Fatal(err)
	}
}

// interrupt ends the watch of spreads, and refuses others until resume.
func (a *apiServer) interrupt() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.watch != nil { // the scheduler may not have begun to watch again
		_ = a.watch.Close()
	}
	a.watch, a.interrupted = nil, true
}

// resume allows watches, of which the first shows that the spread "web" was created meanwhile.
func (a *apiServer) resume() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.interrupted, a.catchesUp = false, true
}

// spread creates or changes the spread "web".
func (a *apiServer) spread(t *testing.T, generation int64, spec string) {
	t.Helper()
	object := &v1beta1.WorkloadSpread{TypeMeta: metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "WorkloadSpread"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "spread-uid", Generation: generation, ResourceVersion: fmt.Sprint(generation)}}
	object.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	if err := yaml.UnmarshalStrict([]byte(spec), &object.Spec); err != nil {
		t.Fatalf("parsing the spec: %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.object = object
	if a.watch != nil {
		if err := json.NewEncoder(a.watch).Encode(map[string]any{"type": "MODIFIED", "object": object}); err != nil {
			t.Fatal(err)
		}
	}
}

func (a *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(code int, body any) (*http.Response, error) {
		text, err := json.Marshal(body)
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), Request: r}, err
	}
	switch name, isBind := strings.CutSuffix(r.URL.Path, "/binding"); {
	case isBind:
		return answer(a.bind(r.Context(), name[strings.LastIndex(name, "/")+1:], r.Body))
	case r.URL.Path == "/api/v1/namespaces/ns/pods":
		return answer(a.bound(r.Context()))
	case !strings.HasSuffix(r.URL.Path, "/workloadspreads"):
		return answer(failure(http.StatusNotFound, metav1.StatusReasonNotFound))
	case r.URL.Query().Get("sendInitialEvents") != "":
		return answer(failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid))
	case r.URL.Query().Get("watch") != "":
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.interrupted {
			return answer(failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests))
		}
		reader, writer := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(r.Context().Err()) })
		a.watch = writer
		if a.catchesUp {
			a.catchesUp = false
			go func() { // when the client reads
				a.mu.Lock()
				defer a.mu.Unlock()
				if a.object != nil {
					_ = json.NewEncoder(writer).Encode(map[string]any{"type": "ADDED", "object": a.object})
				}
			}()
		}
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: reader, Request: r}, nil
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		list := v1beta1.WorkloadSpreadList{TypeMeta: metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "WorkloadSpreadList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		if a.object != nil {
			list.Items = append(list.Items, *a.object)
		}
		return answer(http.StatusOK, list)
	}
}

// bound returns the metadata of the pods that have a node.
func (a *apiServer) bound(ctx context.Context) (int, any) {
	pods, err := a.client.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{})
	if err != nil {
		return failure(http.StatusInternalServerError, metav1.StatusReasonInternalError)
	}
	found := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
	for _, pod := range pods.Items {
		if pod.Spec.NodeName != "" {
			found.Items = append(found.Items, metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta})
		}
	}
	return http.StatusOK, found
}

func (a *apiServer) bind(ctx context.Context, name string, body io.Reader) (int, any) {
	if a.refuse == name {
		a.refuse = ""
		return failure(http.StatusForbidden, metav1.StatusReasonForbidden)
	}
	var binding corev1.Binding
	if err := json.NewDecoder(body).Decode(&binding); err != nil {
		return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest)
	}
	if a.refuseNode != "" && binding.Target.Name == a.refuseNode {
		return failure(http.StatusForbidden, metav1.StatusReasonForbidden)
	}
	pods := a.client.CoreV1().Pods(binding.Namespace)
	pod, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err == nil && len(pod.Spec.SchedulingGates) > 0 {
		return failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	}
	if err == nil && pod.DeletionTimestamp != nil {
		return failure(http.StatusConflict, metav1.StatusReasonConflict)
	}
	if err == nil {
		if pod.Spec.NodeName = binding.Target.Name; pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		maps.Copy(pod.Annotations, binding.Annotations)
		maps.Copy(pod.Labels, binding.Labels)
		_, err = pods.Update(ctx, pod, metav1.UpdateOptions{})
	}
	if err != nil {
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
	return http.StatusCreated, metav1.Status{TypeMeta: statusType, Status: metav1.StatusSuccess}
}

var statusType = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}

func failure(code int32, reason metav1.StatusReason) (int, any) {
	return int(code), metav1.Status{TypeMeta: statusType, Status: metav1.StatusFailure, Reason: reason, Code: code}
}
