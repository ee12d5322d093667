package sidecar

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// TestTheArticlesLogAgent is injected, in both versions of the API, and only into pods that the set picks.
func TestTheArticlesLogAgent(t *testing.T) {
	t.Parallel()
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
		if version == 3 {
			w.kill(1)
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
	t.Parallel()
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
	harness.Long(t)
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	w := newWorld(t)
	w.set("log", "v1beta1", "updateStrategy: {maxUnavailable: 100%}, containers: [{name: log, image: 'log:1'}]")
	w.apply("{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, minAvailable: 2}}")
	w.deploy(4)
	w.protected("web")
	w.watch(2)
	w.set("log", "v1beta1", "updateStrategy: {maxUnavailable: 100%}, containers: [{name: log, image: 'log:2'}]")
	w.pods(func(pod *corev1.Pod) string { return runs(pod, "log", "log:2") }, 4)
}

// TestARefusedUpdateChangesNothing: neither the image nor the resources of a pod whose budget has no room. Otherwise a rollback would leave the resources.
func TestARefusedUpdateChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	spec := func(version int) string {
		return fmt.Sprintf("updateStrategy: {maxUnavailable: 100%%}, containers: [{name: log, image: 'log:%[1]d', resources: {requests: {cpu: %[1]d00m}}}]", version)
	}
	old := func(pod *corev1.Pod) string {
		if got := container(pod, "log").Resources.Requests.Cpu().String(); got != "100m" {
			return got
		}
		return runs(pod, "log", "log:1")
	}
	w.set("log", "v1beta1", spec(1))
	w.apply("{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, minAvailable: 3}}")
	w.deploy(3)
	w.protected("web")
	w.set("log", "v1beta1", spec(2))
	w.expectReason("log", v1beta1.ReasonRefused)
	w.set("log", "v1beta1", spec(1))
	w.expectReason("log", v1beta1.ReasonReady)
	w.pods(old, 3)
}

// TestBadSetsAreRefused with all errors, and the name of the other set.
func TestBadSetsAreRefused(t *testing.T) {
	t.Parallel()
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
