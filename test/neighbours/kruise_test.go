package neighbours

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/test/harness"
)

// The versions of OpenKruise, by their directories in hack/tools: the one that most run, which CI builds, and the newest that is served.
const (
	stable = "kruise"
	newest = "kruise-next"
)

const (
	manager = "kruise-manager"
	system  = "kruise-system"
	account = "system:serviceaccount:" + system + ":" + manager

	// The nodes have no daemon of OpenKruise.
	gatesBefore = "KruiseDaemon=false"
	gatesOff    = gatesBefore + ",WorkloadSpread=false,PodUnavailableBudgetDeleteGate=false"
)

// berths are the definitions that Berth has too.
var berths = append([]string{endpoint.UnitedDefinition}, endpoint.Definitions...)

var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// openKruise is what an installation of OpenKruise consists of, besides its daemon, in the order in which to apply it. It is in the module that the manager is built from.
func openKruise(ctx context.Context, version string) ([]*unstructured.Unstructured, error) {
	module, err := harness.ModuleDir(ctx, version, "github.com/openkruise/kruise")
	if err != nil {
		return nil, err
	}
	read := func(patterns ...string) ([]*unstructured.Unstructured, error) {
		return objectsIn(filepath.Join(module, "config"), prefixed, patterns...)
	}
	objects, err := read("manager/manager.yaml", "rbac/role.yaml", "rbac/role_binding.yaml", "crd/bases/*.yaml", "webhook/manifests.yaml")
	if err != nil {
		return nil, err
	}
	var kustomization struct{ PatchesStrategicMerge []string }
	text, err := os.ReadFile(filepath.Join(module, "config", "crd", "kustomization.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &kustomization)
	}
	if err != nil {
		return nil, err
	}
	patterns := []string{"webhook/patch_manifests.yaml"}
	for _, name := range kustomization.PatchesStrategicMerge {
		patterns = append(patterns, filepath.Join("crd", name))
	}
	patches, err := read(patterns...)
	if err != nil {
		return nil, err
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "DaemonSet" })
	for _, object := range objects {
		for _, patch := range patches {
			if object.GetKind() != patch.GetKind() || object.GetName() != patch.GetName() {
				continue
			}
			if conversion, has, _ := unstructured.NestedMap(patch.Object, "spec", "conversion"); has {
				_ = unstructured.SetNestedMap(object.Object, conversion, "spec", "conversion") // a definition has a spec
			}
			webhooks, _ := object.Object["webhooks"].([]any)
			selectors, _ := patch.Object["webhooks"].([]any)
			for _, webhook := range webhooks {
				for _, selector := range selectors {
					if to, from := webhook.(map[string]any), selector.(map[string]any); to["name"] == from["name"] {
						for key, value := range from {
							to[key] = value
						}
					}
				}
			}
		}
		delete(object.Object, "status")
	}
	return objects, nil
}

// prefixed gives objects the names that kustomize gives them.
var prefixed = strings.NewReplacer("namespace: system", "namespace: "+system, "name: system\n", "name: "+system+"\n", "name: controller-manager\n", "name: kruise-controller-manager\n",
	"name: manager\n", "name: "+manager+"\n", "name: manager-role", "name: kruise-manager-role", "name: webhook-", "name: kruise-webhook-", "name: daemon\n", "name: kruise-daemon\n",
	"name: mutating-webhook-configuration", "name: kruise-mutating-webhook-configuration", "name: validating-webhook-configuration", "name: kruise-validating-webhook-configuration")

// kruise is OpenKruise on a cluster. Its Deployment there says with which gates it runs.
type kruise struct {
	process
	cluster *harness.Cluster
	ports   []int
}

// install installs a version of OpenKruise, but for some definitions and their webhooks. Start starts it.
func install(ctx context.Context, cluster *harness.Cluster, version, dir string, without ...string) (*kruise, error) {
	k := &kruise{process: process{name: version + "-manager", dir: dir}, cluster: cluster}
	var err error
	if err = os.MkdirAll(dir, 0o700); err == nil {
		k.ports, err = freePorts(2)
	}
	if err == nil {
		err = cluster.WriteKubeconfigAs(account, filepath.Join(dir, "kubeconfig"))
	}
	if err != nil {
		return nil, err
	}
	objects, err := openKruise(ctx, version)
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		if object.GetKind() == "CustomResourceDefinition" && slices.Contains(without, object.GetName()) {
			continue
		}
		if webhooks, has := object.Object["webhooks"].([]any); has {
			object.Object["webhooks"] = slices.DeleteFunc(webhooks, func(webhook any) bool {
				rules, _, _ := unstructured.NestedSlice(webhook.(map[string]any), "rules")
				resources, _, _ := unstructured.NestedStringSlice(rules[0].(map[string]any), "resources")
				return slices.ContainsFunc(without, func(name string) bool { return strings.HasPrefix(name, resources[0]+".") })
			})
		}
		if err := cluster.Apply(ctx, object.GetNamespace(), object); err != nil {
			return nil, fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return k, nil
}

// start starts OpenKruise's manager with these gates in place of the one that runs, and returns when it is ready. It reads how the API server reaches it from the environment.
func (k *kruise) start(ctx context.Context, gates string, environment ...string) error {
	args := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":%q,"args":["--feature-gates=%s"]}]}}}}`, manager, gates)
	if _, err := k.cluster.Client.AppsV1().Deployments(system).Patch(ctx, "kruise-controller-manager", types.StrategicMergePatchType, []byte(args), metav1.PatchOptions{}); err != nil {
		return err
	}
	return k.process.start(ctx, k.cluster, fmt.Sprintf("http://127.0.0.1:%d/readyz", k.ports[1]),
		append(environment, "POD_NAMESPACE="+system, "WEBHOOK_HOST=localhost", fmt.Sprintf("WEBHOOK_PORT=%d", k.ports[0]), "WEBHOOK_CERT_DIR="+filepath.Join(k.dir, "certs")),
		[]string{"--kubeconfig=" + filepath.Join(k.dir, "kubeconfig"), "--feature-gates=" + gates, "--enable-leader-election=false", "--enable-pprof=false", "--metrics-addr=0",
			fmt.Sprintf("--health-probe-addr=127.0.0.1:%d", k.ports[1]), "--protection-log-path=" + k.dir, "--rest-config-qps=1000", "--rest-config-burst=1000"})
}

// awaitControllers waits until OpenKruise has started its controllers, one after the other. It returns its log.
func (k *kruise) awaitControllers(ctx context.Context) (log string, err error) {
	err = k.cluster.WaitFor(ctx, "the controllers of OpenKruise", func(context.Context) (string, error) {
		text, err := os.ReadFile(k.log())
		log = string(text)
		if !strings.Contains(log, `"controller"="persistentpodstate-controller"`) { // one of the last, and of a kind that is always served
			return "they do not run", err
		}
		return "", err
	})
	return log, err
}

// expectControllers fails if one of these controllers runs that should not, or does not and should.
func (k *kruise) expectControllers(t *testing.T, others map[string]bool) {
	t.Helper()
	log, err := k.awaitControllers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range others {
		if runs := strings.Contains(log, fmt.Sprintf(`"controller"="%s-controller"`, name)); runs != want {
			t.Errorf("the controller of %ss runs: %t, want %t", name, runs, want)
		}
	}
}

// leaveToBerth keeps OpenKruise away from a definition of Berth: its converter, by a first version that it does not know, and its controller, if v1alpha1 is not served.
func leaveToBerth(ctx context.Context, cluster *harness.Cluster, name string, served bool) error {
	return changeVersions(ctx, cluster, name, "v1alpha1", served, fmt.Sprintf(`{"op":"test","path":"/spec/versions/0/name","value":"v1alpha1"},{"op":"replace","path":"/spec/versions/0/served","value":%t},
		{"op":"add","path":"/spec/versions/0","value":{"name":"v1alpha0","served":false,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}}`, served))
}

// serve serves a version of a definition after leaveToBerth, or does not.
func serve(ctx context.Context, cluster *harness.Cluster, name, version string, served bool) error {
	at := map[string]int{"v1alpha1": 1, "v1beta1": 2}[version]
	return changeVersions(ctx, cluster, name, version, served, fmt.Sprintf(`{"op":"test","path":"/spec/versions/%[1]d/name","value":%[2]q},
		{"op":"replace","path":"/spec/versions/%[1]d/served","value":%[3]t}`, at, version, served))
}

// changeVersions patches a definition, and returns once the API server serves a version of it, or does not.
func changeVersions(ctx context.Context, cluster *harness.Cluster, name, version string, served bool, operations string) error {
	definition, err := cluster.Dynamic.Resource(definitions).Patch(ctx, name, types.JSONPatchType, []byte("["+operations+"]"), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	return cluster.WaitFor(ctx, fmt.Sprintf("%s of %s served is %t", version, name, served), func(context.Context) (string, error) {
		list, err := cluster.Client.Discovery().ServerResourcesForGroupVersion(group + "/" + version)
		if err != nil && !apierrors.IsNotFound(err) {
			return "", err
		}
		if is := err == nil && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name+"."+group == name }); is != served {
			return "not yet", nil
		}
		return "", nil
	})
}

// restartContainers does what a kubelet does after the image of a container has changed: it restarts the container, and reports that. KWOK does not. Like a kubelet it watches again
// when a watch ends, and repeats a report that the API server did not take. It runs until the context ends.
func restartContainers(ctx context.Context, cluster *harness.Cluster) {
	pods := cache.NewListWatchFromClient(cluster.Client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.Everything())
	latest, _, watcher, ended := watchtools.NewIndexerInformerWatcher(pods, &corev1.Pod{})
	context.AfterFunc(ctx, watcher.Stop)
	for {
		var event watch.Event
		select {
		case <-ended:
			return
		case event = <-watcher.ResultChan():
		}
		known, exists, err := latest.Get(event.Object)
		if err != nil || !exists { // the store finds the key of each pod
			continue
		}
		pod := known.(*corev1.Pod)
		if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning || pod.Status.ObservedGeneration >= pod.Generation {
			continue
		}
		// It ends with the context only.
		_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (done bool, _ error) {
			err := restart(ctx, cluster, pod.DeepCopy())
			if done = err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err); !done {
				klog.ErrorS(err, "Could not report containers, tries again", "pod", klog.KObj(pod))
			}
			return done, nil
		})
	}
}

// restart reports, as the pod's kubelet, that its containers run the images that it names now. Images of a registry "invalid." do not exist.
func restart(ctx context.Context, cluster *harness.Cluster, pod *corev1.Pod) error {
	ready := corev1.ConditionTrue
	for i := range pod.Status.ContainerStatuses {
		status := &pod.Status.ContainerStatuses[i]
		at := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == status.Name })
		if image := pod.Spec.Containers[at].Image; image != status.Image {
			status.RestartCount++
			status.Image, status.ImageID, status.Ready = image, "sandbox://"+image, !strings.HasPrefix(image, "invalid.")
			status.ContainerID = fmt.Sprintf("kwok://%s-%s-%d", pod.UID, status.Name, status.RestartCount)
			status.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
			if !status.Ready {
				status.ImageID, status.ContainerID = "", ""
				status.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}
			}
		}
		if !status.Ready {
			ready = corev1.ConditionFalse
		}
	}
	var conditions []map[string]any
	for _, condition := range pod.Status.Conditions {
		// The sandbox looks after the readiness of pods with gates.
		if (condition.Type == corev1.ContainersReady || condition.Type == corev1.PodReady && len(pod.Spec.ReadinessGates) == 0) && condition.Status != ready {
			conditions = append(conditions, map[string]any{"type": condition.Type, "status": ready, "lastTransitionTime": metav1.Now()})
		}
	}
	status := map[string]any{"observedGeneration": pod.Generation, "containerStatuses": pod.Status.ContainerStatuses}
	if len(conditions) > 0 { // null would remove all
		status["conditions"] = conditions
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return err
	}
	kubelet, err := cluster.AsKubelet(pod.Spec.NodeName)
	if err != nil {
		return err
	}
	_, err = kubelet.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
