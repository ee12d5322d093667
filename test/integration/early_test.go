package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

const earlySpread = spreadHeader + `
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - name: x86
    maxReplicas: 8
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}
  - name: arm
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}
    patch:
      metadata: {labels: {sidecar-injection: "true"}}
      spec:
        containers: [{name: main, resources: {limits: {cpu: 800m}}, env: [{name: ARCH, value: arm64}]}]
        initContainers: [{name: proxy, image: registry.k8s.io/pause:3.10, restartPolicy: Always}]
`

// plain is a Deployment that names no scheduler.
func plain(name string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {limits: {cpu: "1"}}}]}
`, name, replicas)
}

// expectPatched fails unless exactly the pods of arm have the patch.
func expectPatched(t *testing.T, ns string) {
	t.Helper()
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp != nil {
			continue
		}
		arm := pod.Labels[v1beta1.SubsetLabel] == "arm"
		limit, sidecars := pod.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU], len(pod.Spec.InitContainers)
		if (pod.Labels["sidecar-injection"] == "true") != arm || (limit.String() == "800m") != arm || (sidecars == 1) != arm || (len(pod.Spec.Containers[0].Env) == 1) != arm {
			t.Errorf("pod %s of subset %q: labels %v, limit %s, %d sidecars", pod.Name, pod.Labels[v1beta1.SubsetLabel], pod.Labels, limit.String(), sidecars)
		}
	}
}

func TestASubsetsPatchOfTheSpecIsAppliedAtAdmission(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, earlySpread)
	apply(t, ns, plain("web", 12))
	expectPlaces(t, ns, "a=8 b=4")
	expectPatched(t, ns)
	expectCondition(t, ns, "web", "True", v1beta1.ReasonSpreadReady)
	// One replica keeps the exact count, so no pod had to be replaced.
	waitFor(t, "the checker to see all pods", func(context.Context) (string, error) {
		if created := watcher.Created(ns, "web"); created != 12 {
			return fmt.Sprintf("%d pods were created for 12 replicas", created), nil
		}
		return "", nil
	})
	scale(t, ns, "web", 20)
	expectPlaces(t, ns, "a=8 b=12")
	scale(t, ns, "web", 6)
	expectPlaces(t, ns, "a=6 b=0")
	scale(t, ns, "web", 10)
	expectPlaces(t, ns, "a=8 b=2")
	expectPatched(t, ns)
	expectNoViolation(t)
}

// The API server mounts the service account's token into the containers that the patches add. Because of that it calls the webhook again.
func TestAPodWhosePatchAddsAContainerIsPickedForOnce(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadHeader+`
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - name: a
    maxReplicas: 2
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}
    patch: {spec: {containers: [{name: of-a, image: registry.k8s.io/pause:3.10}]}}
  - name: b
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}
    patch: {spec: {containers: [{name: of-b, image: registry.k8s.io/pause:3.10}]}}
`)
	apply(t, ns, plain("web", 4))
	expectPlaces(t, ns, "a=2 b=2")
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		pod := &pods[i]
		var names []string
		for j := range pod.Spec.Containers {
			names = append(names, pod.Spec.Containers[j].Name)
			if mounts := pod.Spec.Containers[j].VolumeMounts; len(mounts) != 1 {
				t.Errorf("container %s of pod %s mounts %v, and not the token alone", names[j], pod.Name, mounts)
			}
		}
		if want := "[of-" + pod.Labels[v1beta1.SubsetLabel] + " main]"; fmt.Sprint(names) != want {
			t.Errorf("pod %s has containers %v, want %s", pod.Name, names, want)
		}
	}
	waitFor(t, "the checker to see all pods", func(context.Context) (string, error) {
		if created := watcher.Created(ns, "web"); created != 4 {
			return fmt.Sprintf("%d pods were created for 4 replicas", created), nil
		}
		return "", nil
	})
	expectNoViolation(t)
}

func TestAPodPickedForASubsetThatHasNoSlotForItIsReplacedBeforeItRuns(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	patchNode(t, nodeIn(t, "a"), `{"spec":{"unschedulable":true}}`)
	apply(t, ns, earlySpread)
	apply(t, ns, plain("web", 8))
	waitFor(t, "all pods to be picked for x86", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		picked := 0
		for i := range pods {
			if strings.Contains(pods[i].Annotations[v1beta1.AdmittedAnnotation], `"subset":"x86"`) {
				picked++
			}
		}
		if picked != 8 {
			return fmt.Sprintf("%d of %d", picked, len(pods)), nil
		}
		return "", nil
	})
	// This has the same effect as if other pods had taken three of the slots meanwhile.
	apply(t, ns, strings.Replace(earlySpread, "maxReplicas: 8", "maxReplicas: 5", 1))
	expectPlaces(t, ns, "a=0 b=3")
	waitFor(t, "an event on each replaced pod", func(ctx context.Context) (string, error) {
		events, err := the.Client.EventsV1().Events(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		replaced := 0
		for i := range events.Items {
			if e := &events.Items[i]; e.Reason == string(v1beta1.ReasonAdmittedSubsetFull) && e.Regarding.Kind == "Pod" {
				replaced++
			}
		}
		if replaced != 3 {
			return fmt.Sprintf("%d, want 3", replaced), nil
		}
		return "", nil
	})
	patchNode(t, nodeIn(t, "a"), `{"spec":{"unschedulable":false}}`)
	expectPlaces(t, ns, "a=5 b=3")
	expectPatched(t, ns)
	expectNoViolation(t)
}

// TestALoweredQuotaFailsNoJob: a Job counts each pod that somebody deletes as failed, so its pods wait where a Deployment's are replaced.
func TestALoweredQuotaFailsNoJob(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	patchNode(t, nodeIn(t, "a"), `{"spec":{"unschedulable":true}}`)
	spread := spreadFor("web", "batch/v1", "Job", "web", fmt.Sprintf(twoPools, "8")+"  scheduleStrategy: {binding: Early}\n")
	apply(t, ns, spread)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](8), Completions: ptr.To[int32](8), BackoffLimit: ptr.To[int32](0),
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}}}}}
	if _, err := the.Client.BatchV1().Jobs(ns).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expectPods(t, ns, 8)
	apply(t, ns, strings.Replace(spread, "maxReplicas: 8", "maxReplicas: 5", 1))
	patchNode(t, nodeIn(t, "a"), `{"spec":{"unschedulable":false}}`)
	expectPlaces(t, ns, "a=5 b=0")
	waitFor(t, "three pods to wait", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		waiting := 0
		for i := range pods {
			for _, c := range pods[i].Status.Conditions {
				if c.Type == corev1.PodScheduled && strings.Contains(c.Message, string(v1beta1.ReasonAdmittedSubsetFull)) {
					waiting++
				}
			}
		}
		if waiting != 3 {
			return fmt.Sprint(waiting), err
		}
		return "", err
	})
	apply(t, ns, spread)
	expectPlaces(t, ns, "a=8 b=0")
	if now, err := the.Client.BatchV1().Jobs(ns).Get(t.Context(), "web", getOptions); err != nil || now.Status.Failed > 0 {
		t.Errorf("the Job counts %d failures, %v", now.Status.Failed, err)
	}
	expectNoViolation(t)
}

func TestAPatchCannotTakePodsFromTheirWorkload(t *testing.T) {
	for name, patch := range map[string]string{
		"late":  `{metadata: {labels: {app: other, tier: elastic}}}`,
		"early": `{metadata: {labels: {app: other, tier: elastic}}, spec: {terminationGracePeriodSeconds: 7}}`,
	} {
		t.Run(name, func(t *testing.T) {
			pools(t, "a", "b")
			ns := namespace(t)
			// No Deployment exists yet, so the webhook has no selector by which it could refuse the patch.
			apply(t, ns, spreadFor("web", "apps/v1", "Deployment", "web", fmt.Sprintf("  subsets: [{name: a, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}, patch: %s}]", patch)))
			apply(t, ns, plain("web", 3))
			expectPlaces(t, ns, "a=3 b=0")
			expectCondition(t, ns, "web", "False", v1beta1.ReasonLabelsNotApplied)
			pods, err := the.Pods(t.Context(), ns)
			if err != nil {
				t.Fatal(err)
			}
			for i := range pods {
				if labels := pods[i].Labels; labels["app"] != "web" || labels["tier"] != "elastic" {
					t.Errorf("pod %s has labels %v", pods[i].Name, labels)
				}
			}
			waitFor(t, "the checker to see all pods", func(context.Context) (string, error) {
				if created := watcher.Created(ns, "web"); created != 3 {
					return fmt.Sprintf("%d pods were created for 3 replicas", created), nil
				}
				return "", nil
			})
		})
	}
}
