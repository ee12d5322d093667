package sidecar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// the is the cluster that all tests share.
var the *harness.Cluster

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "berth-sidecar-")
	if err != nil {
		return 1, err
	}
	defer func() {
		if code == 0 {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	the, err = harness.Start(context.Background(), sandbox.Config{Name: "sidecar", Dir: dir, Nodes: 3}, product.Options{SidecarSets: true, Replicas: map[string]int{product.Controller: controllers}})
	if err != nil {
		return 1, err
	}
	defer the.Sandbox.Stop()
	return m.Run(), nil
}

// controllers is how many replicas of the controller run. One leads.
const controllers = 3

// world is a namespace with a Deployment and SidecarSets of its own.
type world struct {
	*testing.T
	ns string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ns, err := the.CreateNamespace(t.Context(), "sidecar")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t, ns}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := the.Dynamic.Resource(v1beta1.Resource).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "of=" + ns}); err != nil {
			t.Error(err)
		}
		if err := the.DeleteNamespace(ctx, ns); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) apply(text string) {
	w.Helper()
	if err := the.ApplyYAML(w.Context(), w.ns, text); err != nil {
		w.Fatal(err)
	}
}

// set applies a SidecarSet for the pods of Deployment web, and waits until new pods get its latest version.
func (w *world) set(name, version, spec string) {
	w.Helper()
	w.setFor("web", name, version, spec)
}

// setFor applies a SidecarSet for the pods of a Deployment, and waits until new pods get its latest version.
func (w *world) setFor(app, name, version, spec string) {
	w.Helper()
	w.publish(app, name, version, spec)
	w.await("the set "+name, func(ctx context.Context) (string, error) {
		set, err := w.read(ctx, name)
		if err != nil {
			return "", err
		}
		if set.Status.ObservedGeneration == set.Generation {
			return "", nil
		}
		return "the status is of an older generation", nil
	})
}

// publish applies a SidecarSet for the pods of a Deployment.
func (w *world) publish(app, name, version, spec string) {
	w.Helper()
	if err := w.tryPublish(app, name, version, spec); err != nil {
		w.Fatal(err)
	}
}

func (w *world) tryPublish(app, name, version, spec string) error {
	return the.ApplyYAML(w.Context(), w.ns,
		fmt.Sprintf("{apiVersion: apps.kruise.io/%s, kind: SidecarSet, metadata: {name: %s-%s, labels: {of: %[3]s}}, spec: {namespace: %[3]s, selector: {matchLabels: {app: %[4]s}}, %[5]s}}", version, name, w.ns, app, spec))
}

func (w *world) read(ctx context.Context, name string) (*v1beta1.SidecarSet, error) {
	object, err := the.Dynamic.Resource(v1beta1.Resource).Get(ctx, name+"-"+w.ns, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	set := &v1beta1.SidecarSet{}
	return set, k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, set)
}

func (w *world) await(what string, condition func(context.Context) (string, error)) {
	w.Helper()
	if err := the.WaitFor(w.Context(), what, condition); err != nil {
		w.Fatal(err)
	}
}

// deploy applies Deployment web, and waits until its pods are ready.
func (w *world) deploy(replicas int) {
	w.Helper()
	w.deployAs("web", replicas)
}

// deployAs applies a Deployment, and waits until its pods are ready.
func (w *world) deployAs(app string, replicas int) {
	w.Helper()
	w.apply(fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s}, spec: {replicas: %[2]d, selector: {matchLabels: {app: %[1]s}}, template: {metadata: {labels: {app: %[1]s}},
spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: 'registry.k8s.io/pause:3.10', env: [{name: TZ, value: Asia/Shanghai}]}]}}}}`, app, replicas))
	w.podsOf(app, notReady, replicas)
}

func notReady(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return "not ready"
}

// pods waits until there are that many pods, and nothing is missing for any of them.
func (w *world) pods(missing func(*corev1.Pod) string, count int) []corev1.Pod {
	w.Helper()
	return w.podsOf("", missing, count)
}

// podsOf is the same for the pods of a Deployment.
func (w *world) podsOf(app string, missing func(*corev1.Pod) string, count int) (all []corev1.Pod) {
	w.Helper()
	w.await(fmt.Sprint(count, " pods"), func(ctx context.Context) (string, error) {
		var err error
		if all, err = the.Pods(ctx, w.ns); err != nil {
			return "", err
		}
		all = slices.DeleteFunc(all, func(pod corev1.Pod) bool { return app != "" && pod.Labels["app"] != app })
		if len(all) != count {
			return fmt.Sprint("there are ", len(all)), nil
		}
		for i := range all {
			if m := missing(&all[i]); m != "" {
				return all[i].Name + ": " + m, nil
			}
		}
		return "", nil
	})
	return all
}

func container(pod *corev1.Pod, name string) *corev1.Container {
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		if at := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name }); at >= 0 {
			return &containers[at]
		}
	}
	return &corev1.Container{}
}

// runs says what is missing until a container of the pod runs an image.
func runs(pod *corev1.Pod, name, image string) string {
	if got := container(pod, name).Image; got != image {
		return fmt.Sprintf("%s has image %s", name, got)
	}
	for _, s := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if s.Name == name && s.Image == image && s.Ready {
			return notReady(pod)
		}
	}
	return name + " does not run"
}

// expectReason waits for the reason of condition Ready.
func (w *world) expectReason(name, reason string) (status v1beta1.SidecarSetStatus) {
	w.Helper()
	w.await(name+" "+reason, func(ctx context.Context) (string, error) {
		set, err := w.read(ctx, name)
		if err != nil {
			return "", err
		}
		status = set.Status
		if c := meta.FindStatusCondition(status.Conditions, v1beta1.ReadyCondition); c == nil || c.Reason != reason || status.ObservedGeneration != set.Generation {
			return fmt.Sprintf("status is %+v", status), nil
		}
		return "", nil
	})
	return status
}

// unavailable watches how many pods of the namespace are not ready at a time. It counts those that were ready once.
type unavailable struct {
	mu         sync.Mutex
	out        map[string]bool
	was        map[string]bool
	most       int
	violations []string
}

func (w *world) watch(most int) *unavailable {
	w.Helper()
	u := &unavailable{out: map[string]bool{}, was: map[string]bool{}, most: most}
	w.Cleanup(func() {
		for _, v := range u.violations {
			w.Error(v)
		}
		if len(u.was) == 0 {
			w.Error("the watch has seen no pod")
		}
	})
	w.follow(func(kind watch.EventType, pod *corev1.Pod) {
		if kind != watch.Deleted {
			u.see(pod)
		}
	})
	return u
}

// follow calls see with every revision of every pod of the namespace, one after another, until the test ends. The test fails if the watch ends earlier.
func (w *world) follow(see func(watch.EventType, *corev1.Pod)) {
	w.Helper()
	list, err := the.Client.CoreV1().Pods(w.ns).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	watcher, err := the.Client.CoreV1().Pods(w.ns).Watch(context.WithoutCancel(w.Context()), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		w.Fatal(err)
	}
	for i := range list.Items {
		see(watch.Added, &list.Items[i])
	}
	ending, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for event := range watcher.ResultChan() {
			pod, is := event.Object.(*corev1.Pod)
			if !is { // an error, after which it ends
				break
			}
			see(event.Type, pod)
		}
		select {
		case <-ending:
		default:
			w.Error("the watch of pods has ended")
		}
	}()
	w.Cleanup(func() {
		close(ending)
		watcher.Stop()
		<-ended
	})
}

func (u *unavailable) see(pod *corev1.Pod) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if notReady(pod) == "" {
		u.was[pod.Name] = true
		delete(u.out, pod.Name)
	} else if u.was[pod.Name] {
		u.out[pod.Name] = true
	}
	if len(u.out) > u.most {
		u.violations = append(u.violations, fmt.Sprintf("at revision %s %d pods are unavailable, at most %d may be", pod.ResourceVersion, len(u.out), u.most))
	}
}
