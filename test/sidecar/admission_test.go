package sidecar

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/cmd/sandbox/product"
	appsv1beta1 "github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// TestASubsetsPatchChangesASidecar: the sidecars come first, so that the patch of a subset can change them. What it has changed stays until the set changes the same.
func TestASubsetsPatchChangesASidecar(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	spec := func(image, cpu string) string {
		return fmt.Sprintf(`updateStrategy: {maxUnavailable: 4}, containers: [{name: log, image: '%s', env: [{name: LEVEL, value: info}], resources: {requests: {cpu: %s, memory: 10Mi}}}]`, image, cpu)
	}
	w.set("log", "v1beta1", spec("log:1", "100m"))
	w.apply(`{apiVersion: apps.kruise.io/v1alpha1, kind: WorkloadSpread, metadata: {name: web}, spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, subsets: [
{name: plain, maxReplicas: 2, requiredNodeSelectorTerm: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-a]}]}},
{name: edge, requiredNodeSelectorTerm: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-b]}]},
 patch: {spec: {containers: [{name: log, image: 'edge/log:1', env: [{name: LEVEL, value: debug}, {name: EDGE, value: 'yes'}], resources: {requests: {memory: 20Mi}, limits: {memory: 30Mi}}}]}}}]}}`)
	w.deploy(4)
	// expect waits until all pods run these images and resources, as "image cpu memory".
	expect := func(plain, edge string) {
		t.Helper()
		counts := map[string]int{}
		for _, pod := range w.pods(func(pod *corev1.Pod) string {
			want := map[string]string{"plain": plain, "edge": edge}[pod.Labels[appsv1beta1.SubsetLabel]]
			has := container(pod, "log")
			if got := fmt.Sprint(has.Image, " ", has.Resources.Requests.Cpu(), " ", has.Resources.Requests.Memory()); got != want {
				return fmt.Sprintf("subset %q has %s", pod.Labels[appsv1beta1.SubsetLabel], got)
			}
			return runs(pod, "log", has.Image)
		}, 4) {
			subset := pod.Labels[appsv1beta1.SubsetLabel]
			counts[subset]++
			want := []corev1.EnvVar{{Name: "LEVEL", Value: "info"}, {Name: v1beta1.InjectedEnv, Value: "true"}}
			if subset == "edge" {
				want = []corev1.EnvVar{{Name: "LEVEL", Value: "debug"}, {Name: "EDGE", Value: "yes"}, {Name: v1beta1.InjectedEnv, Value: "true"}}
			}
			got := container(&pod, "log").Env
			byName := func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) }
			slices.SortFunc(got, byName)
			slices.SortFunc(want, byName)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("pod %s of subset %s has %v, want %v", pod.Name, subset, got, want)
			}
		}
		if counts["plain"] != 2 || counts["edge"] != 2 {
			t.Errorf("got %v", counts)
		}
	}
	expect("log:1 100m 10Mi", "edge/log:1 100m 20Mi")
	w.set("log", "v1beta1", spec("log:1", "200m"))
	expect("log:1 200m 10Mi", "edge/log:1 200m 20Mi")
	if status := w.expectReason("log", v1beta1.ReasonReady); !strings.Contains(status.Conditions[0].Message, "others have changed the image of a sidecar in 2 pods") {
		t.Errorf("got %+v", status)
	}
	w.set("log", "v1beta1", spec("log:2", "200m"))
	expect("log:2 200m 10Mi", "log:2 200m 20Mi")
	w.expectReason("log", v1beta1.ReasonReady)
}

// TestACanaryIsExact: new pods get an older version, and exactly as many as the partition allows get the latest.
func TestACanaryIsExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("log", "v1beta1", "containers: [{name: log, image: 'log:1'}]")
	old := w.expectReason("log", v1beta1.ReasonReady).LatestRevision
	w.set("log", "v1beta1", "containers: [{name: log, image: 'log:2'}], injectionStrategy: {revision: {revisionName: "+old+", policy: Partial}}, updateStrategy: {partition: 70%}")
	for _, tc := range []struct{ replicas, latest int }{{10, 3}, {20, 6}} {
		w.deploy(tc.replicas)
		w.await("the canary", func(ctx context.Context) (string, error) {
			set, err := w.read(ctx, "log")
			if err != nil || int(set.Status.MatchedPods) == tc.replicas && int(set.Status.UpdatedReadyPods) == tc.latest {
				return "", err
			}
			return fmt.Sprintf("%+v", set.Status), nil
		})
		w.expectReason("log", v1beta1.ReasonReady)
		counts := map[string]int{}
		for _, pod := range w.pods(func(pod *corev1.Pod) string { return runs(pod, "log", container(pod, "log").Image) }, tc.replicas) {
			counts[container(&pod, "log").Image]++
		}
		if counts["log:2"] != tc.latest || counts["log:1"] != tc.replicas-tc.latest {
			t.Errorf("got %v", counts)
		}
	}
}

// TestPodsThatNoWebhookSawAreCounted, and kubectl berth says what to do about them.
func TestPodsThatNoWebhookSawAreCounted(t *testing.T) {
	w := newWorld(t)
	w.set("log", "v1beta1", "containers: [{name: log, image: 'log:1'}]")

	w.deploy(2)
	leads := leader(t.Context())
	resume, err := the.Sandbox.Halt(product.Controller, 0) // the API server asks this replica
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the next test needs this replica
		resume()
		if err := the.Sandbox.WaitReady(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if leads == 0 {
		w.lease(1)
	}
	w.deploy(4)
	w.counted("log", 2, 2)
	var said bytes.Buffer
	command := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir(), "kubectl-berth"), "--kubeconfig", the.Sandbox.Kubeconfig(), "status", "sidecarset/log-"+w.ns)
	command.Stdout, command.Stderr = &said, &said
	if err := command.Run(); err != nil {
		t.Errorf("%v: %s", err, said.String())
	}
	for _, want := range []string{"2 pods of its selector have no sidecars", "delete them to let their workloads make new ones"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%s lacks %q", said.String(), want)
		}
	}
	resume()
	if err := the.Sandbox.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pod := range w.pods(notReady, 4) {
		if container(&pod, "log").Name == "" {
			if err := the.Client.CoreV1().Pods(w.ns).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
	w.counted("log", 4, 0)
}

// TestPodsWithoutAdmissionAreNotCounted: Berth's webhooks stay away from a namespace, so that its pods lack nothing.
func TestPodsWithoutAdmissionAreNotCounted(t *testing.T) {
	t.Parallel()
	away, w := newWorld(t), newWorld(t)
	for ns, labels := range map[string]string{away.ns: `"world": "%s", "berth.dev/admission": "disabled"`, w.ns: `"world": "%s"`} {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{`+labels+`}}}`, w.ns)
		if _, err := the.Client.CoreV1().Namespaces().Patch(t.Context(), ns, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.apply(fmt.Sprintf("{apiVersion: apps.kruise.io/v1beta1, kind: SidecarSet, metadata: {name: log-%[1]s, labels: {of: %[1]s}}, spec: {namespaceSelector: {matchLabels: {world: %[1]s}}, selector: {matchLabels: {app: alone}}, containers: [{name: log, image: 'log:1'}]}}", w.ns))
	w.expectReason("log", v1beta1.ReasonReady)
	away.deployAs("alone", 2)
	w.deployAs("alone", 1)
	w.counted("log", 1, 0)
	for _, pod := range away.pods(notReady, 2) {
		if len(pod.Spec.Containers) != 1 {
			t.Errorf("pod %s has %+v", pod.Name, pod.Spec.Containers)
		}
	}
}

// counted waits until the status counts the pods that have the sidecars of a set, and those that lack them.
func (w *world) counted(set string, matched, notInjected int32) {
	w.Helper()
	w.await("the pods to be counted", func(ctx context.Context) (string, error) {
		set, err := w.read(ctx, set)
		if err != nil || set.Status.MatchedPods == matched && set.Status.NotInjectedPods == notInjected {
			return "", err
		}
		return fmt.Sprintf("%+v", set.Status), nil
	})
}
