package budget

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

const zoneLabel = corev1.LabelTopologyZone

// inZones puts one node into each zone, and returns the nodes by zone.
func inZones(t *testing.T, zones ...string) map[string]string {
	t.Helper()
	nodes, err := the.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) < len(zones) {
		t.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	of := map[string]string{}
	label := func(ctx context.Context, node, value string) error {
		body := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, zoneLabel, value)
		_, err := the.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	for i, zone := range zones {
		node, before := nodes.Items[i].Name, "null"
		if value, had := nodes.Items[i].Labels[zoneLabel]; had {
			before = fmt.Sprintf("%q", value)
		}
		if err := label(t.Context(), node, fmt.Sprintf("%q", zone)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := label(context.Background(), node, before); err != nil {
				t.Error(err)
			}
		})
		of[zone] = node
	}
	return of
}

// zoneSet is a StatefulSet of pods in one zone. The label rollout tells the zone of its pods.
const zoneSet = `
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web-%[1]s}
spec:
  replicas: %[2]d
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: web, zone: %[1]s}}
  template:
    metadata: {labels: {app: web, zone: %[1]s}}
    spec:
      nodeSelector: {topology.kubernetes.io/zone: %[1]s}
      containers: [{name: main, image: "web:1"}]
`

// watchZones notes at every revision which zones have fewer available pods than replicas. It fails the test if an available pod of a zone goes while
// another zone misses some.
func watchZones(t *testing.T, namespace, label string, zones []string, replicas int) {
	t.Helper()
	options := metav1.ListOptions{LabelSelector: "app=web"}
	list, err := the.Client.CoreV1().Pods(namespace).List(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	current, taken := map[types.UID]*corev1.Pod{}, 0
	available := func() map[string]int {
		counts := map[string]int{}
		for _, pod := range current {
			if isAvailable(pod) {
				counts[pod.Labels[label]]++
			}
		}
		return counts
	}
	for i := range list.Items {
		current[list.Items[i].UID] = &list.Items[i]
	}
	if counts := available(); len(counts) != len(zones) {
		t.Fatalf("at the start %v are available", counts)
	}
	options.ResourceVersion = list.ResourceVersion
	ctx, cancel := context.WithCancel(context.Background())
	events, err := the.Client.CoreV1().Pods(namespace).Watch(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	var watching sync.WaitGroup
	var violations []string
	watching.Go(func() {
		for e := range events.ResultChan() {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			before := available()
			if current[pod.UID] = pod; e.Type == apiwatch.Deleted {
				delete(current, pod.UID)
			}
			after, missing := available(), []string(nil)
			for _, zone := range zones {
				if after[zone] < replicas {
					missing = append(missing, zone)
				}
			}
			if after[pod.Labels[label]] < before[pod.Labels[label]] {
				taken++
				if len(missing) > 1 {
					violations = append(violations, fmt.Sprintf("%s %s at revision %s: %v miss pods: %v", e.Type, pod.Name, pod.ResourceVersion, missing, after))
				}
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		watching.Wait()
		for _, violation := range violations {
			t.Error(violation)
		}
		t.Logf("%d pods were taken", taken)
	})
}

// TestZonesAreDrainedOneAfterTheOther drains the nodes of three zones at once. Each zone has a workload. A drained node takes pods again when its drain has
// ended.
func TestZonesAreDrainedOneAfterTheOther(t *testing.T) {
	zones := []string{"a", "b", "c"}
	nodes := inZones(t, zones...)
	namespace := newNamespace(t)
	text := fmt.Sprintf(pub, "perSubset: {label: zone, oneAtATime: true}")
	for _, zone := range zones {
		text += fmt.Sprintf(zoneSet, zone, 4)
	}
	apply(t, namespace, text)
	inForce(t, namespace, 12)
	watchZones(t, namespace, "zone", zones, 4)
	before := map[types.UID]bool{}
	for _, pod := range pods(t, namespace) {
		before[pod.UID] = true
	}
	var draining sync.WaitGroup
	for zone, node := range nodes {
		draining.Go(func() {
			defer func() {
				expectAllowed(t, "uncordon "+zone, kubectl(context.WithoutCancel(t.Context()), "uncordon", node))
			}()
			if err := kubectl(t.Context(), "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app=web", "--timeout=90s"); err != nil {
				t.Errorf("draining zone %s: %v", zone, err)
			}
		})
	}
	draining.Wait()
	inForce(t, namespace, 12)
	for _, pod := range pods(t, namespace) {
		if before[pod.UID] {
			t.Errorf("pod %s was not drained", pod.Name)
		}
	}
	b, err := read(t.Context(), namespace)
	if err != nil || len(b.Status.Subsets) != 3 || len(b.Status.SubsetWorkloads) != 3 || b.Status.Subsets[0] != (v1beta1.SubsetStatus{Name: "a", TotalReplicas: 4, CurrentAvailable: 4}) {
		t.Errorf("the status has %+v, %+v, %v", b.Status.Subsets, b.Status.SubsetWorkloads, err)
	}
}

// TestNoStormTakesPodsOfTwoZones has many clients delete and evict pods of zones so small that each is without any pod at times.
func TestNoStormTakesPodsOfTwoZones(t *testing.T) {
	zones := []string{"a", "b", "c"}
	inZones(t, zones...)
	namespace := newNamespace(t)
	text := fmt.Sprintf(pub, "perSubset: {label: zone, oneAtATime: true}")
	for _, zone := range zones {
		text += fmt.Sprintf(zoneSet, zone, 2)
	}
	apply(t, namespace, text)
	inForce(t, namespace, 6)
	watchZones(t, namespace, "zone", zones, 2)
	allowed, refused := storm(t, namespace, remove, evict, patchImage)
	if allowed == 0 || refused == 0 {
		t.Errorf("%d operations were allowed and %d refused, so the storm shows nothing", allowed, refused)
	}
}

// twoZones has two pods in each of the zones a and b.
const twoZones = `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [a, b]}]}]}}}
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]
      containers: [{name: main, image: "web:1"}]
`

// TestTheZoneOfANodeIsASubset: the API server copies the zone of the node to the pod. The pods are of one workload.
func TestTheZoneOfANodeIsASubset(t *testing.T) {
	harness.Long(t)
	nodes := inZones(t, "a", "b")
	namespace := newNamespace(t)
	apply(t, namespace, fmt.Sprintf(pub, "perSubset: {label: topology.kubernetes.io/zone, maxUnavailable: 1, oneAtATime: true}")+twoZones)
	inForce(t, namespace, 4)
	noReplacements(t)
	of := map[string][]corev1.Pod{}
	for _, pod := range pods(t, namespace) {
		of[pod.Spec.NodeName] = append(of[pod.Spec.NodeName], pod)
	}
	first, second := of[nodes["a"]], of[nodes["b"]]
	if len(first) != 2 || len(second) != 2 || first[0].Labels[zoneLabel] != "a" {
		t.Fatalf("%d pods are in zone a and %d in b, with the label %q", len(first), len(second), first[0].Labels[zoneLabel])
	}
	expectAllowed(t, "a pod of zone a", evict(t.Context(), &first[0]))
	for what, pod := range map[string]*corev1.Pod{"a second pod of zone a": &first[1], "a pod of zone b": &second[0]} {
		err := evict(t.Context(), pod)
		expectRefused(t, what, err)
		if !strings.Contains(err.Error(), "subset a") && !strings.Contains(err.Error(), "any subset") {
			t.Errorf("%s: %v, want it to name what holds the pod", what, err)
		}
	}
	poll(t, 10*time.Second, "a condition that names what holds", func(ctx context.Context) (string, error) {
		b, err := read(ctx, namespace)
		if err != nil {
			return "", err
		}
		for _, c := range b.Status.Conditions {
			if c.Type == v1beta1.ConditionDisruptionAllowed && c.Reason == string(v1beta1.ReasonHeldBySubset) {
				return "", nil
			}
		}
		return fmt.Sprintf("%+v", b.Status.Conditions), nil
	})
}

// TestTheSchemaKnowsPerSubset: both versions have the field, with the same rules.
func TestTheSchemaKnowsPerSubset(t *testing.T) {
	namespace := newNamespace(t)
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		text := strings.Replace(pub, "v1alpha1", version, 1)
		for rule, want := range map[string]string{
			"perSubset: {label: zone}":                                         "spec.perSubset: Invalid value",
			"perSubset: {label: a b, oneAtATime: true}":                        "must be the key of a label",
			"perSubset: {label: zone, maxUnavailable: -1}":                     "must not be negative",
			"perSubset: {label: zone, maxUnavailable: 101%}":                   "must be a count or a percentage from 0% to 100%",
			"perSubset: {label: zone, maxUnavailable: 50%, oneAtATime: false}": "",
			"keepPodDisruptionBudget: true":                                    "needs maxUnavailable, minAvailable or perSubset",
		} {
			err := the.ApplyYAML(t.Context(), namespace, fmt.Sprintf(text, rule))
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s, %s: got %v, want %q", version, rule, err, want)
			}
		}
	}
}
