package integration

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

// askBothReplicas makes the API server call one webhook replica for the pods of ReplicaSet web-1, and the other replica for those of web-2.
func askBothReplicas(t *testing.T, cluster *harness.Cluster) {
	t.Helper()
	configurations := cluster.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	of := func(set string) admissionregistrationv1.MatchCondition {
		return admissionregistrationv1.MatchCondition{Name: "of-" + set, Expression: fmt.Sprintf("has(object.metadata.generateName) && object.metadata.generateName == '%s-'", set)}
	}
	second := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "second"}}
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // the controller writes the namespaces of spreads into it
		first, err := configurations.Get(t.Context(), "berth-webhook", getOptions)
		if err != nil {
			return err
		}
		second.Webhooks = []admissionregistrationv1.MutatingWebhook{*first.Webhooks[0].DeepCopy()}
		first.Webhooks[0].MatchConditions = append(first.Webhooks[0].MatchConditions, of("web-1"))
		_, err = configurations.Update(t.Context(), first, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w := &second.Webhooks[0]
	w.Name, w.MatchConditions = "second.berth.dev", append(w.MatchConditions, of("web-2"))
	address, err := url.Parse(*w.ClientConfig.URL) // including the path, which all replicas serve
	if err != nil {
		t.Fatal(err)
	}
	address.Host = net.JoinHostPort("localhost", webhookPortOf(t, cluster, 1))
	w.ClientConfig.URL = ptr.To(address.String())
	if _, err := configurations.Create(t.Context(), second, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

var webhookPort = regexp.MustCompile(`--webhook-port=(\d+)`)

// webhookPortOf returns the port on which a replica of the controller serves its webhooks.
func webhookPortOf(t *testing.T, cluster *harness.Cluster, replica int) string {
	t.Helper()
	for _, status := range cluster.Sandbox.Status() {
		if status.Name != product.Controller || status.Replica != replica {
			continue
		}
		arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", status.PID))
		if err != nil {
			t.Fatal(err)
		}
		if match := webhookPort.FindSubmatch(arguments); match != nil {
			return string(match[1])
		}
	}
	t.Fatalf("replica %d of the controller has no webhook", replica)
	return ""
}

// TestReplicasThatPickAtTheSameTimeKeepToTheQuota: a webhook replica does not know which subsets the other replica picked a moment ago. If both
// assign the last slots of a subset, pods are replaced before they run.
func TestReplicasThatPickAtTheSameTimeKeepToTheQuota(t *testing.T) {
	harness.Long(t)
	t.Parallel() // it has a cluster of its own
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "replicas", Dir: t.TempDir()}, product.Options{Replicas: map[string]int{product.Controller: 2}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	verdict, err := checker.Start(t.Context(), cluster.Dynamic)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []*corev1.Node
	for _, pool := range []string{"a", "b"} {
		nodes = append(nodes, sandbox.NewNode("node-"+pool, "zone-a", map[string]string{"pool": pool}, nil, nil))
	}
	if err := cluster.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	ns, err := cluster.CreateNamespace(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	fleet := &customKind{group: "example.com", plural: "fleets", kind: "Fleet", version: "v1", scale: scaleSubresource}
	spread := strings.Replace(earlySpread, "apiVersion: apps/v1, kind: Deployment", "apiVersion: example.com/v1, kind: Fleet", 1)
	if err := cluster.ApplyYAML(t.Context(), ns, fleet.definition()+"---"+fleet.reader()+"---"+spread); err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Fleet", "metadata": map[string]any{"name": "web"}, "spec": map[string]any{"replicas": int64(16)}}}
	object = applyOfNewKind(t, cluster, ns, object)
	askBothReplicas(t, cluster)

	var mu sync.Mutex
	var replaced, killed []string
	events, err := cluster.Client.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	go func() {
		for event := range events.ResultChan() {
			pod, isPod := event.Object.(*corev1.Pod)
			if !isPod || event.Type != watch.Deleted {
				continue
			}
			mu.Lock()
			if pod.Spec.NodeName == "" {
				replaced = append(replaced, pod.Name)
			} else {
				killed = append(killed, pod.Name)
			}
			mu.Unlock()
		}
	}()
	var template appsv1.Deployment
	documents, err := harness.Documents(plain("web", 8))
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(documents[0].Object, &template); err != nil {
		t.Fatal(err)
	}
	var making sync.WaitGroup
	for _, name := range []string{"web-1", "web-2"} {
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(object, object.GroupVersionKind())}},
			Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](8), Selector: template.Spec.Selector.DeepCopy(), Template: *template.Spec.Template.DeepCopy()}}
		set.Spec.Selector.MatchLabels["set"], set.Spec.Template.Labels["set"] = name, name
		making.Go(func() {
			if _, err := cluster.Client.AppsV1().ReplicaSets(ns).Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	making.Wait()
	if err := cluster.WaitFor(t.Context(), "8 pods in each subset", func(ctx context.Context) (string, error) {
		pods, err := cluster.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		placed := map[string]int{}
		for i := range pods {
			if pods[i].DeletionTimestamp == nil {
				placed[pods[i].Spec.NodeName]++
			}
		}
		if placed["node-a"] != 8 || placed["node-b"] != 8 || len(placed) != 2 {
			return fmt.Sprint(placed), nil
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
	pods, err := cluster.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if sidecars := len(pods[i].Spec.InitContainers); (sidecars == 1) != (pods[i].Spec.NodeName == "node-b") {
			t.Errorf("pod %s runs on %s with %d sidecars", pods[i].Name, pods[i].Spec.NodeName, sidecars)
		}
	}
	for _, violation := range verdict.Violations() {
		t.Error(violation)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(killed) > 0 {
		t.Errorf("pods %v were deleted after they had a node", killed)
	}
	t.Logf("%d pods were replaced before they had a node", len(replaced))
}
