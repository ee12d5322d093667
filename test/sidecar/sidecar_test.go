package sidecar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/sandbox"
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

// set applies a SidecarSet for the namespace, and waits until new pods get its latest version.
func (w *world) set(name, version, spec string) {
	w.Helper()
	w.apply(fmt.Sprintf("{apiVersion: apps.kruise.io/%s, kind: SidecarSet, metadata: {name: %s-%s, labels: {of: %[3]s}}, spec: {namespace: %[3]s, selector: {matchLabels: {app: web}}, %[4]s}}", version, name, w.ns, spec))
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

func (w *world) deploy(replicas int) {
	w.Helper()
	w.apply(fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: %d, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}},
spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: 'registry.k8s.io/pause:3.10', env: [{name: TZ, value: Asia/Shanghai}]}]}}}}`, replicas))
	w.pods(func(pod *corev1.Pod) string { return notReady(pod) }, replicas)
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
func (w *world) pods(missing func(*corev1.Pod) string, count int) (all []corev1.Pod) {
	w.Helper()
	w.await(fmt.Sprint(count, " pods"), func(ctx context.Context) (string, error) {
		var err error
		if all, err = the.Pods(ctx, w.ns); err != nil {
			return "", err
		}
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
	list, err := the.Client.CoreV1().Pods(w.ns).List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	watcher, err := the.Client.CoreV1().Pods(w.ns).Watch(w.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		w.Fatal(err)
	}
	u := &unavailable{out: map[string]bool{}, was: map[string]bool{}, most: most}
	for i := range list.Items {
		u.see(&list.Items[i])
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range watcher.ResultChan() {
			if pod, is := event.Object.(*corev1.Pod); is && event.Type != watch.Deleted {
				u.see(pod)
			}
		}
	}()
	w.Cleanup(func() {
		watcher.Stop()
		<-ended
		for _, v := range u.violations {
			w.Error(v)
		}
		if len(u.was) == 0 {
			w.Error("the watch has seen no pod")
		}
	})
	return u
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

// TestTheArticlesLogAgent is injected, in both versions of the API, and only into pods that the set picks.
func TestTheArticlesLogAgent(t *testing.T) {
	w := newWorld(t)
	w.set("log", "v1alpha1", `containers: [{name: logtail, image: 'logtail:1.0.0', volumeMounts: [{name: web-log, mountPath: /var/log/web}], shareVolumePolicy: {type: disabled},
transferEnv: [{sourceContainerName: main, envName: TZ}]}], volumes: [{name: web-log, emptyDir: {}}], updateStrategy: {type: RollingUpdate, maxUnavailable: 10%}`)
	w.deploy(2)
	w.apply("{apiVersion: v1, kind: Pod, metadata: {name: other, labels: {app: other}}, spec: {containers: [{name: main, image: i}]}}")
	for _, pod := range w.pods(notReady, 3) {
		sidecar := container(&pod, "logtail")
		if pod.Name == "other" {
			if sidecar.Name != "" || len(pod.Annotations) > 0 {
				t.Errorf("the other pod got %+v, %v", sidecar, pod.Annotations)
			}
			continue
		}
		if pod.Spec.Containers[0].Name != "logtail" || !slices.ContainsFunc(sidecar.Env, func(e corev1.EnvVar) bool { return e.Name == "TZ" && e.Value == "Asia/Shanghai" }) {
			t.Errorf("got %+v", pod.Spec.Containers)
		}
		// The service account plugin has run again: the sidecar has its token too.
		if !slices.ContainsFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/var/run/secrets/kubernetes.io/serviceaccount" }) {
			t.Errorf("got %+v", sidecar.VolumeMounts)
		}
	}
	if status := w.expectReason("log", v1beta1.ReasonReady); status.LatestRevision == "" {
		t.Errorf("got %+v", status)
	}
	w.await("status", func(ctx context.Context) (string, error) {
		set, err := w.read(ctx, "log")
		if err != nil || set.Status.MatchedPods == 2 && set.Status.UpdatedReadyPods == 2 && set.Status.NotInjectedPods == 0 {
			return "", err
		}
		return fmt.Sprintf("%+v", set.Status), nil
	})
}

// TestImagesChangeInPlace under maxUnavailable, of containers and native sidecars, with one write for each pod, while leaders are killed.
func TestImagesChangeInPlace(t *testing.T) {
	w := newWorld(t)
	spec := func(version int) string {
		return fmt.Sprintf(`updateStrategy: {maxUnavailable: 2}, initContainers: [{name: native, image: 'native:%[1]d', restartPolicy: Always}], containers: [{name: log, image: 'log:%[1]d'}]`, version)
	}
	w.set("log", "v1beta1", spec(1))
	const replicas = 12
	w.deploy(replicas)
	before := map[types.UID]int64{}
	for _, pod := range w.pods(func(pod *corev1.Pod) string { return runs(pod, "log", "log:1") }, replicas) {
		before[pod.UID] = pod.Generation
	}
	w.watch(2)
	for version := 2; version <= 4; version++ {
		w.set("log", "v1beta1", spec(version))
		for i := range controllers {
			if version == 3 {
				if err := the.Sandbox.Signal(product.Controller, i, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				if err := the.Sandbox.WaitReady(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		image := fmt.Sprint(":", version)
		for _, pod := range w.pods(func(pod *corev1.Pod) string {
			return runs(pod, "log", "log"+image) + runs(pod, "native", "native"+image)
		}, replicas) {
			if writes := pod.Generation - before[pod.UID]; writes != 1 {
				t.Errorf("pod %s: %d writes of the spec", pod.Name, writes)
			}
			before[pod.UID] = pod.Generation
		}
	}
	w.expectReason("log", v1beta1.ReasonReady)
}

// TestABadImageStopsAtTheLimit, and a rollback mends it.
func TestABadImageStopsAtTheLimit(t *testing.T) {
	w := newWorld(t)
	spec := func(image string) string {
		return "updateStrategy: {maxUnavailable: 2}, containers: [{name: log, image: '" + image + "'}]"
	}
	w.set("log", "v1beta1", spec("log:1"))
	w.deploy(6)
	w.pods(func(pod *corev1.Pod) string { return runs(pod, "log", "log:1") }, 6)
	w.watch(2)
	w.set("log", "v1beta1", spec("log:fail"))
	w.await("two bad pods", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, w.ns)
		bad := 0
		for i := range pods {
			if notReady(&pods[i]) != "" {
				bad++
			}
		}
		if err != nil || bad == 2 {
			return "", err
		}
		return fmt.Sprint(bad), nil
	})
	status := w.expectReason("log", v1beta1.ReasonUpdating)
	if message := status.Conditions[0].Message; !strings.Contains(message, "2 were updated and are not available") {
		t.Errorf("got %s", message)
	}
	w.set("log", "v1beta1", spec("log:1"))
	w.pods(func(pod *corev1.Pod) string { return runs(pod, "log", "log:1") }, 6)
	w.expectReason("log", v1beta1.ReasonReady)
}

// TestTheArticlesHotUpgrade goes through the three steps, twice.
func TestTheArticlesHotUpgrade(t *testing.T) {
	w := newWorld(t)
	spec := func(image string) string {
		return `containers: [{name: sidecar, image: '` + image + `', imagePullPolicy: Always, lifecycle: {postStart: {exec: {command: [/bin/sh, /migrate.sh]}}},
upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: 'openkruise/hotupgrade-sample:empty'}}]`
	}
	const name, empty = "openkruise/hotupgrade-sample:sidecarv", "openkruise/hotupgrade-sample:empty"
	w.set("mesh", "v1alpha1", spec(name+"1"))
	w.deploy(3)
	w.pods(func(pod *corev1.Pod) string { return runs(pod, "sidecar-1", name+"1") + runs(pod, "sidecar-2", empty) }, 3)
	w.watch(1)
	w.set("mesh", "v1alpha1", spec(name+"2"))
	for _, pod := range w.pods(func(pod *corev1.Pod) string { return runs(pod, "sidecar-2", name+"2") + runs(pod, "sidecar-1", empty) }, 3) {
		if a := pod.Annotations; a["version.sidecarset.kruise.io/sidecar-2"] != "2" || a["versionalt.sidecarset.kruise.io/sidecar-2"] != "0" || a[v1beta1.WorkingContainerAnnotation] != `{"sidecar":"sidecar-2"}` {
			t.Errorf("got %v", a)
		}
	}
	w.set("mesh", "v1alpha1", spec(name+"3"))
	w.pods(func(pod *corev1.Pod) string { return runs(pod, "sidecar-1", name+"3") + runs(pod, "sidecar-2", empty) }, 3)
	w.expectReason("mesh", v1beta1.ReasonReady)
}

// TestResourcesAreResized without a restart, and what cannot change in place is left and reported.
func TestResourcesAreResized(t *testing.T) {
	w := newWorld(t)
	w.set("log", "v1beta1", "containers: [{name: log, image: 'log:1', resources: {requests: {cpu: 100m}}}]")
	w.deploy(2)
	w.set("log", "v1beta1", "containers: [{name: log, image: 'log:1', resources: {requests: {cpu: 200m}}}]")
	for _, pod := range w.pods(func(pod *corev1.Pod) string {
		if got := container(pod, "log").Resources.Requests.Cpu().String(); got != "200m" {
			return got
		}
		return runs(pod, "log", "log:1")
	}, 2) {
		if pod.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Errorf("%s restarted", pod.Name)
		}
	}
	w.expectReason("log", v1beta1.ReasonReady)
	w.set("log", "v1beta1", "containers: [{name: log, image: 'log:1', args: [x], resources: {requests: {cpu: 200m}}}]")
	status := w.expectReason("log", v1beta1.ReasonNotUpdatable)
	if status.NotUpdatablePods != 2 || !strings.Contains(status.Conditions[0].Message, "more than images and resources has changed") {
		t.Errorf("got %+v", status)
	}
}

// TestBudgetsAreAsked: a budget without room keeps its pods, and the round goes on with others.
func TestBudgetsAreAsked(t *testing.T) {
	w := newWorld(t)
	w.set("log", "v1beta1", "updateStrategy: {maxUnavailable: 100%}, containers: [{name: log, image: 'log:1'}]")
	w.apply("{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, minAvailable: 5}}")
	w.deploy(6)
	w.await("the budget", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, w.ns)
		if err != nil {
			return "", err
		}
		for i := range pods {
			if len(pods[i].Labels) < 3 {
				return "a pod is not protected yet", nil
			}
		}
		return "", nil
	})
	w.watch(1)
	w.set("log", "v1beta1", "updateStrategy: {maxUnavailable: 100%}, containers: [{name: log, image: 'log:2'}]")
	w.pods(func(pod *corev1.Pod) string { return runs(pod, "log", "log:2") }, 6)
}

// TestBadSetsAreRefused with all errors, and the name of the other set.
func TestBadSetsAreRefused(t *testing.T) {
	w := newWorld(t)
	w.set("log", "v1beta1", "containers: [{name: log, image: 'log:1'}]")
	object := func(spec string) string {
		return fmt.Sprintf("{apiVersion: apps.kruise.io/v1alpha1, kind: SidecarSet, metadata: {name: other-%s}, spec: {%s}}", w.ns, spec)
	}
	for spec, want := range map[string][]string{
		"namespace: " + w.ns + ", selector: {matchLabels: {app: web}}, containers: [{name: log, image: i}]": {"spec.containers[0].name", "SidecarSet log-" + w.ns},
		"selector: {matchLabels: {app: web2}}, containers: [{name: Log, image: '', volumeMounts: [{name: none, mountPath: /x}]}], updateStrategy: {maxUnavailable: 1}": {
			"spec.containers[0].name", "spec.containers[0].image", "spec.containers[0].volumeMounts[0].name"},
		"containers: [{name: log, image: i, imagee: j}]": {"spec.selector", `unknown field "imagee"`},
	} {
		err := the.ApplyYAML(t.Context(), "", object(spec))
		if err == nil {
			t.Errorf("%s: accepted", spec)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: got %v, want %s", spec, err, part)
			}
		}
	}
}
