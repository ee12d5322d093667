package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

var getOptions = metav1.GetOptions{}

// deployment is a Deployment whose pods name Berth's scheduler. more is YAML for the pod's spec.
func deployment(name string, replicas int, more string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      schedulerName: berth-scheduler
      containers: [{name: main, image: registry.k8s.io/pause:3.10}]
%[3]s`, name, replicas, more)
}

// pools creates a node for each pool. The node's name ends in the pool's name and is unique to the test.
func pools(t *testing.T, names ...string) {
	t.Helper()
	var all []*corev1.Node
	for _, name := range names {
		all = append(all, sandbox.NewNode(nodeIn(t, name), "zone-a", map[string]string{"pool": name}, nil, nil))
	}
	nodes(t, all...)
}

// nodeIn returns the name of the test's node in a pool.
func nodeIn(t *testing.T, pool string) string {
	t.Helper()
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(t.Name())) // never fails
	return fmt.Sprintf("node-%x-%s", hash.Sum32(), pool)
}

const twoPools = `
  subsets:
  - {name: a, maxReplicas: %s, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - {name: b, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
`

// expectPlaces waits until the bound, active pods of the namespace are in these pools, for example "a=2 b=1".
func expectPlaces(t *testing.T, ns, want string) {
	t.Helper()
	waitFor(t, "pods in "+want, func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		count := map[string]int{}
		for i := range pods {
			if pods[i].DeletionTimestamp == nil && pods[i].Spec.NodeName != "" {
				count[pods[i].Spec.NodeName[strings.LastIndex(pods[i].Spec.NodeName, "-")+1:]]++
			}
		}
		got := fmt.Sprintf("a=%d b=%d", count["a"], count["b"])
		if got != want {
			return got, nil
		}
		return "", nil
	})
	expectNoViolation(t)
}

func record(t *testing.T, pod *corev1.Pod) v1beta1.MatchedSubset {
	t.Helper()
	var matched v1beta1.MatchedSubset
	if err := json.Unmarshal([]byte(pod.Annotations[v1beta1.MatchedAnnotation]), &matched); err != nil {
		t.Fatalf("record of pod %s: %v", pod.Name, err)
	}
	return matched
}

func TestABindingCarriesTheSubsetItsMetadataAndTheDeletionCost(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadHeader+`
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - {name: a, maxReplicas: 1, patch: {metadata: {labels: {arch: x86}, annotations: {eip: id1}}}}
  - {name: b}
`)
	apply(t, ns, deployment("web", 2, ""))
	waitFor(t, "two bound pods", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		seen := map[string]bool{}
		for i := range pods {
			pod := &pods[i]
			if pod.Spec.NodeName == "" {
				return pod.Name + " is pending", nil
			}
			matched := record(t, pod)
			seen[matched.Subset] = true
			want := map[string]string{"a": "200", "b": "100"}[matched.Subset]
			if matched.Name != "web" || matched.UID != string(pod.UID) || pod.Labels[v1beta1.SubsetLabel] != matched.Subset || pod.Annotations[v1beta1.PodDeletionCostAnnotation] != want {
				t.Errorf("pod %s: labels %v, annotations %v", pod.Name, pod.Labels, pod.Annotations)
			}
			if isX86 := pod.Labels["arch"] == "x86" && pod.Annotations["eip"] == "id1"; isX86 != (matched.Subset == "a") {
				t.Errorf("pod %s of subset %s: labels %v, annotations %v", pod.Name, matched.Subset, pod.Labels, pod.Annotations)
			}
		}
		if !seen["a"] || !seen["b"] {
			return fmt.Sprint(seen), nil
		}
		return "", nil
	})
}

func TestAForgedRecordNeitherFreesNorTakesQuota(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "2"))
	// The template carries a record from the start. The record belongs to no pod, so Berth places all pods as if the record did not exist.
	forged := strings.Replace(deployment("web", 3, ""), "labels: {app: web}}\n    spec", "labels: {app: web}, annotations: {"+
		v1beta1.MatchedAnnotation+`: '{"name":"web","subset":"b","uid":"x"}'}}`+"\n    spec", 1)
	apply(t, ns, forged)
	expectPlaces(t, ns, "a=2 b=1")

	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		pod := &pods[i]
		if record(t, pod).Subset != "a" {
			continue
		}
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1beta1.MatchedAnnotation, fmt.Sprintf(`{"name":"web","subset":"b","uid":%q}`, pod.UID))
		for _, subresource := range [][]string{nil, {"status"}} {
			_, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot be changed") {
				t.Errorf("changing the record of pod %s through %v: %v", pod.Name, subresource, err)
			}
			// Without the label, the API server would not look at a change of the status.
			_, err = the.Client.CoreV1().Pods(ns).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"berth.dev/subset":null}}}`), metav1.PatchOptions{}, subresource...)
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot be changed") {
				t.Errorf("taking the label from pod %s through %v: %v", pod.Name, subresource, err)
			}
		}
	}
	// If a slot of a were free, the next pod would go there.
	scale(t, ns, "web", 4)
	expectPlaces(t, ns, "a=2 b=2")
}

func scale(t *testing.T, ns, name string, replicas int) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	if _, err := the.Client.AppsV1().Deployments(ns).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "scale"); err != nil {
		t.Fatal(err)
	}
}

func TestAllProfilesShareTheQuota(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "3")+"\n  scheduleStrategy: {quotaScope: Workload}")
	apply(t, ns, strings.Replace(deployment("web", 4, ""), "schedulerName: berth-scheduler", "schedulerName: "+secondProfile, 1))
	expectPlaces(t, ns, "a=3 b=1")
	// The next revision names the other profile. Berth counts old and new pods together, whichever profile schedules them.
	apply(t, ns, strings.Replace(deployment("web", 4, ""), "spec:\n  replicas", "spec:\n  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}\n  replicas", 1))
	waitFor(t, "the roll-out", func(ctx context.Context) (string, error) {
		d, err := the.Client.AppsV1().Deployments(ns).Get(ctx, "web", getOptions)
		if err != nil {
			return "", err
		}
		if d.Status.ObservedGeneration != d.Generation || d.Status.UpdatedReplicas != 4 || d.Status.AvailableReplicas != 4 || d.Status.Replicas != 4 {
			return fmt.Sprintf("%+v", d.Status), nil
		}
		return "", nil
	})
	// The exact result is a race between the termination of the old pod and the arrival of the new one. The total is certain.
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	kept := map[string]int{}
	for i := range pods {
		if pods[i].DeletionTimestamp == nil {
			kept[pods[i].Labels[v1beta1.SubsetLabel]]++
		}
	}
	if kept["a"] > 3 || kept["a"]+kept["b"] != 4 {
		t.Errorf("after the roll-out: %v, want 4 pods and at most 3 of them in a", kept)
	}
	expectNoViolation(t)
}

// A licence is in use as long as the process runs. Finalizers keep the deleted pods for as long as that.
func TestAPodThatEndsHoldsItsLicence(t *testing.T) {
	pools(t, "a")
	const finalizer = "example.com/process"
	ns := namespace(t)
	apply(t, ns, spreadHeader+`
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: a, maxReplicas: 3}]
  scheduleStrategy: {whenFull: Wait, quotaScope: Workload}
`)
	apply(t, ns, strings.Replace(deployment("web", 3, ""), "metadata: {labels:", "metadata: {finalizers: ["+finalizer+"], labels:", 1))
	expectPlaces(t, ns, "a=3 b=0")
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	ending := pods[0].Name
	if err := the.Client.CoreV1().Pods(ns).Delete(t.Context(), ending, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	next := ""
	waitFor(t, "the next pod to be refused", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		for i := range pods {
			if pods[i].Spec.NodeName == "" && slices.ContainsFunc(pods[i].Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && strings.Contains(c.Message, "a: 3/3 kept")
			}) {
				next = pods[i].Name
				return "", nil
			}
		}
		return fmt.Sprintf("%d pods, and none was refused", len(pods)), nil
	})
	waitFor(t, "the status to count the pod that ends", func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, "web")
		if err != nil || len(spread.Status.SubsetStatuses) == 0 {
			return "there is no status", err
		}
		if s := spread.Status.SubsetStatuses[0]; s.Replicas != 3 || s.MissingReplicas != 0 || len(s.DeletingPods) != 1 {
			return fmt.Sprintf("%+v", s), nil
		}
		return "", nil
	})
	if _, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), ending, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the next pod to get a node", func(ctx context.Context) (string, error) {
		pod, err := the.Client.CoreV1().Pods(ns).Get(ctx, next, getOptions)
		if err != nil || pod.Spec.NodeName != "" {
			return "", err
		}
		return "it has none", nil
	})
	expectNoViolation(t)
	removeFinalizers(t, ns)
}

// removeFinalizers lets the pods of a namespace go.
func removeFinalizers(t *testing.T, ns string) {
	t.Helper()
	scale(t, ns, "web", 0)
	waitFor(t, "the pods to go", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		for i := range pods {
			_, err := the.Client.CoreV1().Pods(ns).Patch(ctx, pods[i].Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return "", err
			}
		}
		if len(pods) > 0 {
			return fmt.Sprintf("%d are left", len(pods)), nil
		}
		return "", nil
	})
}

func TestPodsThatAreHeldSayWhy(t *testing.T) {
	pools(t, "a")
	ns := namespace(t)
	apply(t, ns, spreadHeader+`
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: a, maxReplicas: 1}]
  scheduleStrategy: {whenFull: Wait}
`)
	apply(t, ns, deployment("web", 2, ""))
	waitFor(t, "the message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, `SubsetsFull: WorkloadSpread "web": a: 1/1 kept`)
	})
	expectPlaces(t, ns, "a=1 b=0")
}

func TestAPodOfStrategyFixedSaysWhyItsSubsetHasNoNode(t *testing.T) {
	pools(t, "b")
	ns := namespace(t)
	apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "1"))
	apply(t, ns, deployment("web", 1, ""))
	waitFor(t, "the message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, `WorkloadSpread "web": a: no node belongs to it; b: 0/- kept`)
	})
	// The pod waits for a node that joins the subset.
	patch := []byte(`{"metadata":{"labels":{"pool":"a"}}}`)
	if _, err := the.Client.CoreV1().Nodes().Patch(t.Context(), nodeIn(t, "b"), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the pod to be bound", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil || len(pods) == 1 && pods[0].Spec.NodeName != "" {
			return "", err
		}
		return "it is pending", nil
	})
}

func TestPreferredTermsRankTheNodesOfASubset(t *testing.T) {
	var all []*corev1.Node
	for i := range 4 {
		labels := map[string]string{"pool": "a", "disk": "hdd"}
		if i == 2 {
			labels["disk"] = "ssd"
		}
		all = append(all, sandbox.NewNode(fmt.Sprintf("pref-%d-a", i), "zone-a", labels, nil, nil))
	}
	nodes(t, all...)
	ns := namespace(t)
	apply(t, ns, spreadHeader+`
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: a, preferredNodeSelectorTerms: [{weight: 100, preference: {matchExpressions: [{key: disk, operator: In, values: [ssd]}]}}]}]
`)
	apply(t, ns, deployment("web", 1, ""))
	waitFor(t, "the pod on the preferred node", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil || len(pods) == 1 && pods[0].Spec.NodeName == "pref-2-a" {
			return "", err
		}
		return fmt.Sprintf("%d pods", len(pods)), nil
	})
}

// This kind is unknown to Berth. The test acts as its controller.
const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: widget-reader, labels: {rbac.berth.dev/aggregate-to-workload-reader: "true"}}
rules: [{apiGroups: [example.com], resources: [widgets], verbs: [get, list, watch]}]
`

func widgetPods(t *testing.T, ns string, owner *unstructured.Unstructured, role string, n int) {
	t.Helper()
	for i := range n {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "widget-", Labels: map[string]string{"role": role},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())}},
			Spec: corev1.PodSpec{SchedulerName: v1beta1.SchedulerName, Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}},
		}
		if _, err := the.Client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
	}
}

func TestAnyKindWithAScaleSubresourceIsATarget(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, widgets)
	apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: example.com/v1, kind: Widget, name: big}"+fmt.Sprintf(twoPools, "40%"))
	var widget *unstructured.Unstructured
	waitFor(t, "the new kind", func(ctx context.Context) (string, error) {
		widget = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "big"}, "spec": map[string]any{"size": int64(5)}}}
		if err := the.Apply(ctx, ns, widget); err != nil {
			return err.Error(), nil // the API server serves the kind a moment after the definition is applied
		}
		return "", nil
	})
	widget = get(t, ns, widget)
	widgetPods(t, ns, widget, "", 5)
	expectPlaces(t, ns, "a=2 b=3")
	if err := unstructured.SetNestedField(widget.Object, int64(10), "spec", "size"); err != nil {
		t.Fatal(err)
	}
	widget.SetManagedFields(nil)
	if err := the.Apply(t.Context(), ns, widget); err != nil {
		t.Fatal(err)
	}
	widgetPods(t, ns, widget, "", 5)
	expectPlaces(t, ns, "a=4 b=6")
}

func TestATargetFilterPicksPodsAndWhereTheirReplicasAre(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, strings.ReplaceAll(strings.Replace(widgets, ", scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}", "", 1), "idget", "adget"))
	apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: example.com/v1, kind: Wadget, name: job}\n  targetFilter: {selector: {matchLabels: {role: worker}}, replicasPathList: [spec.groups.0.size, spec.extra]}"+fmt.Sprintf(twoPools, "50%"))
	var gadget *unstructured.Unstructured
	waitFor(t, "the new kind", func(ctx context.Context) (string, error) {
		gadget = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Wadget", "metadata": map[string]any{"name": "job"},
			"spec": map[string]any{"groups": []any{map[string]any{"size": int64(3)}}, "extra": int64(1)}}}
		if err := the.Apply(ctx, ns, gadget); err != nil {
			return err.Error(), nil // the API server serves the kind a moment after the definition is applied
		}
		return "", nil
	})
	gadget = get(t, ns, gadget)
	widgetPods(t, ns, gadget, "worker", 4)
	expectPlaces(t, ns, "a=2 b=2")
}
