package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/retry"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

const adaptiveSpread = spreadHeader + `
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  scheduleStrategy: {type: Adaptive}
  subsets:
  - {name: a, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - {name: b, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
`

func allocatable(cpu, memory, gpus string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		corev1.ResourcePods: resource.MustParse("110"), "example.com/gpu": resource.MustParse(gpus)}
}

// setAllocatable sets the allocatable resources of a node.
func setAllocatable(t *testing.T, node string, list corev1.ResourceList) {
	t.Helper()
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := the.Client.CoreV1().Nodes().Get(t.Context(), node, getOptions)
		if err != nil {
			return err
		}
		object.Status.Allocatable, object.Status.Capacity = list, list
		_, err = the.Client.CoreV1().Nodes().UpdateStatus(t.Context(), object, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func patchNode(t *testing.T, node, patch string) {
	t.Helper()
	if _, err := the.Client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// blocker is a pod that another client has bound to a node.
func blocker(t *testing.T, ns, node, labels, spec string) {
	t.Helper()
	apply(t, ns, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: blocker, labels: {%s}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: registry.k8s.io/pause:3.10%s}]
`, labels, node, spec))
}

func removeBlocker(t *testing.T, ns, _ string) {
	t.Helper()
	if err := the.Client.CoreV1().Pods(ns).Delete(t.Context(), "blocker", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the blocker to be gone", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		for i := range pods {
			if pods[i].Name == "blocker" {
				return "it is there", nil
			}
		}
		return "", nil
	})
}

// TestEveryPredicateSpillsToTheNextSubset makes the first subset infeasible for exactly one reason, so the pod runs in the second subset. Then it
// removes the reason, and the next pod runs in the first subset. No pod is deleted.
func TestEveryPredicateSpillsToTheNextSubset(t *testing.T) {
	tests := map[string]struct {
		// list is the initial allocatable of node a. Nil means the same as node b.
		list corev1.ResourceList
		// container and spec are added to the pod.
		container, spec string
		block           func(t *testing.T, ns, a, b string)
		restore         func(t *testing.T, ns, a string)
	}{
		"cpu": {
			list: allocatable("100m", "4Gi", "4"), container: ", resources: {requests: {cpu: 500m}}",
			restore: func(t *testing.T, _, a string) { t.Helper(); setAllocatable(t, a, allocatable("4", "4Gi", "4")) },
		},
		"memory": {
			list: allocatable("4", "100Mi", "4"), container: ", resources: {requests: {memory: 500Mi}}",
			restore: func(t *testing.T, _, a string) { t.Helper(); setAllocatable(t, a, allocatable("4", "4Gi", "4")) },
		},
		"an extended resource": {
			list: allocatable("4", "4Gi", "0"), container: ", resources: {limits: {example.com/gpu: 1}}",
			restore: func(t *testing.T, _, a string) { t.Helper(); setAllocatable(t, a, allocatable("4", "4Gi", "4")) },
		},
		"a host port": {
			container: ", ports: [{containerPort: 80, hostPort: 8080}]",
			block: func(t *testing.T, ns, a, _ string) {
				t.Helper()
				blocker(t, ns, a, "app: blocker", ", ports: [{containerPort: 80, hostPort: 8080}]")
			},
			restore: removeBlocker,
		},
		"a taint": {
			block: func(t *testing.T, _, a, _ string) {
				t.Helper()
				patchNode(t, a, `{"spec":{"taints":[{"key":"x","effect":"NoSchedule"}]}}`)
			},
			restore: func(t *testing.T, _, a string) { t.Helper(); patchNode(t, a, `{"spec":{"taints":null}}`) },
		},
		"a node that is cordoned": {
			block: func(t *testing.T, _, a, _ string) {
				t.Helper()
				patchNode(t, a, `{"spec":{"unschedulable":true}}`)
			},
			restore: func(t *testing.T, _, a string) {
				t.Helper()
				patchNode(t, a, `{"spec":{"unschedulable":null}}`)
				waitForTaint(t, a, false) // the node lifecycle controller adds and removes this taint
			},
		},
		"a node that is lost": {
			block: func(t *testing.T, _, a, _ string) {
				t.Helper()
				patchNode(t, a, `{"metadata":{"annotations":{"`+sandbox.NotReadyAnnotation+`":"true"}}}`)
				waitForTaint(t, a, true)
			},
			restore: func(t *testing.T, _, a string) {
				t.Helper()
				patchNode(t, a, `{"metadata":{"annotations":{"`+sandbox.NotReadyAnnotation+`":null}}}`)
				waitForTaint(t, a, false)
			},
		},
		"the pod's own node affinity": {
			spec: "\n      nodeSelector: {disk: ssd}",
			block: func(t *testing.T, _, _, b string) {
				t.Helper()
				patchNode(t, b, `{"metadata":{"labels":{"disk":"ssd"}}}`)
			},
			restore: func(t *testing.T, _, a string) { t.Helper(); patchNode(t, a, `{"metadata":{"labels":{"disk":"ssd"}}}`) },
		},
		"anti-affinity between pods": {
			spec:    "\n      affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: enemy}}}]}}",
			block:   func(t *testing.T, ns, a, _ string) { t.Helper(); blocker(t, ns, a, "app: enemy", "") },
			restore: removeBlocker,
		},
		"topology spread": {
			spec:    "\n      topologySpreadConstraints: [{maxSkew: 1, topologyKey: pool, nodeAffinityPolicy: Ignore, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {crowd: here}}}]",
			block:   func(t *testing.T, ns, a, _ string) { t.Helper(); blocker(t, ns, a, "crowd: here", "") },
			restore: removeBlocker,
		},
		"the overhead of a runtime class": {
			list: allocatable("1", "4Gi", "4"), container: ", resources: {requests: {cpu: 600m}}", spec: "\n      runtimeClassName: heavy",
			block: func(t *testing.T, ns, _, _ string) {
				t.Helper()
				apply(t, ns, "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: heavy}, handler: heavy, overhead: {podFixed: {cpu: 600m}}}")
			},
			restore: func(t *testing.T, _, a string) { t.Helper(); setAllocatable(t, a, allocatable("4", "4Gi", "4")) },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			first := tc.list
			if first == nil {
				first = allocatable("4", "4Gi", "4")
			}
			prefix := "spill-" + strings.ToLower(strings.NewReplacer(" ", "-", "'", "").Replace(name))
			a, b := prefix+"-a", prefix+"-b"
			nodes(t, sandbox.NewNode(a, "zone-a", map[string]string{"pool": "a"}, nil, first),
				sandbox.NewNode(b, "zone-b", map[string]string{"pool": "b"}, nil, allocatable("4", "4Gi", "4")))
			ns := namespace(t)
			if tc.block != nil {
				tc.block(t, ns, a, b)
			}
			apply(t, ns, adaptiveSpread)
			text := strings.Replace(deployment("web", 1, ""), "pause:3.10}", "pause:3.10"+tc.container+"}", 1)
			if strings.Contains(tc.spec, "topologySpread") {
				text = strings.Replace(text, "labels: {app: web}}\n    spec", "labels: {app: web, crowd: here}}\n    spec", 1)
			}
			apply(t, ns, strings.TrimRight(text, "\n")+tc.spec+"\n")
			expectSpilled(t, ns, 0, 1)
			tc.restore(t, ns, a)
			scale(t, ns, "web", 2)
			expectSpilled(t, ns, 1, 1)
			expectNoDeletion(t, ns)
		})
	}
}

// waitForTaint waits until the node has the taint, or until it does not have it.
func waitForTaint(t *testing.T, node string, want bool) {
	t.Helper()
	waitFor(t, "the taint to come or go", func(ctx context.Context) (string, error) {
		object, err := the.Client.CoreV1().Nodes().Get(ctx, node, getOptions)
		if err != nil {
			return "", err
		}
		has := len(object.Spec.Taints) > 0
		if has == want {
			return "", nil
		}
		return fmt.Sprint(object.Spec.Taints), nil
	})
}

// expectSpilled waits until this many pods of the Deployment run in each subset.
func expectSpilled(t *testing.T, ns string, inA, inB int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d pods in a and %d in b", inA, inB), func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		kept := map[string]int{}
		for i := range pods {
			if pods[i].Labels["app"] == "web" && pods[i].DeletionTimestamp == nil {
				kept[pods[i].Labels["berth.dev/subset"]]++
			}
		}
		if kept["a"] != inA || kept["b"] != inB {
			return fmt.Sprint(kept), nil
		}
		return "", nil
	})
	expectNoViolation(t)
}

// expectNoDeletion fails unless Kubernetes created exactly as many pods as the Deployment asks for. More pods would mean that one was deleted to be
// placed again.
func expectNoDeletion(t *testing.T, ns string) {
	t.Helper()
	d, err := the.Client.AppsV1().Deployments(ns).Get(t.Context(), "web", getOptions)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the checker to see all pods", func(context.Context) (string, error) {
		created := watcher.Created(ns, "web")
		if created > int(*d.Spec.Replicas) {
			return "", fmt.Errorf("%d pods were created for %d replicas", created, *d.Spec.Replicas)
		}
		if created < int(*d.Spec.Replicas) {
			return fmt.Sprintf("%d of %d", created, *d.Spec.Replicas), nil
		}
		return "", nil
	})
}

func TestABurstFillsTheFirstSubsetAndSpillsTheRest(t *testing.T) {
	harness.Long(t)
	var all []*corev1.Node
	for i := range 4 {
		all = append(all, sandbox.NewNode(fmt.Sprintf("burst-%d-a", i), "zone-a", map[string]string{"pool": "a"}, nil, allocatable("2500m", "64Gi", "0")),
			sandbox.NewNode(fmt.Sprintf("burst-%d-b", i), "zone-b", map[string]string{"pool": "b"}, nil, allocatable("64", "256Gi", "0")))
	}
	nodes(t, all...)
	ns := namespace(t)
	apply(t, ns, adaptiveSpread)
	apply(t, ns, strings.Replace(deployment("web", 300, ""), "pause:3.10}", "pause:3.10, resources: {requests: {cpu: 100m}}}", 1))
	expectSpilled(t, ns, 100, 200)
	expectNoDeletion(t, ns)
}

func TestAnExhaustedPodIsWokenByRoomInAnySubset(t *testing.T) {
	nodes(t, sandbox.NewNode("full-a", "zone-a", map[string]string{"pool": "a"}, nil, allocatable("1", "4Gi", "0")),
		sandbox.NewNode("full-b", "zone-b", map[string]string{"pool": "b"}, []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}, allocatable("4", "4Gi", "0")))
	ns := namespace(t)
	blocker(t, ns, "full-a", "app: blocker", ", resources: {requests: {cpu: 800m}}")
	apply(t, ns, adaptiveSpread)
	apply(t, ns, strings.Replace(deployment("web", 1, ""), "pause:3.10}", "pause:3.10, resources: {requests: {cpu: 500m}}}", 1))
	waitFor(t, "the pod's own message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, "NoNodeFits", "a: 0/1 nodes fit: 1 Insufficient cpu", "b: 0/1 nodes fit: 1 node(s) had untolerated taint(s)")
	})
	// The pod's last attempt was in b. The filters there do not see room in a.
	started := time.Now()
	removeBlocker(t, ns, "full-a")
	expectSpilled(t, ns, 1, 0)
	t.Logf("woken and bound after %s", time.Since(started))
}

func TestPreemptionComesAfterSpilling(t *testing.T) {
	nodes(t, sandbox.NewNode("prio-a", "zone-a", map[string]string{"pool": "a"}, nil, allocatable("1", "4Gi", "0")),
		sandbox.NewNode("prio-b", "zone-b", map[string]string{"pool": "b"}, nil, allocatable("1", "4Gi", "0")))
	ns := namespace(t)
	apply(t, ns, "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}")
	blocker(t, ns, "prio-a", "app: blocker", ", resources: {requests: {cpu: 800m}}")
	apply(t, ns, adaptiveSpread)
	apply(t, ns, strings.Replace(deployment("web", 1, "      priorityClassName: high\n"), "pause:3.10}", "pause:3.10, resources: {requests: {cpu: 800m}}}", 1))
	expectSpilled(t, ns, 0, 1) // b has room, so no pod in a is preempted
	scale(t, ns, "web", 2)
	expectSpilled(t, ns, 1, 1) // b is full now, so the pod preempts the victim in the first subset
	expectNoDeletion(t, ns)
}

// Placeholders keep room on the preferred nodes. Pods of the workload take their place, and do not go to the next subset.
func TestPlaceholdersGiveWayBeforeTheNextSubset(t *testing.T) {
	nodes(t, sandbox.NewNode("kept-a", "zone-a", map[string]string{"pool": "a"}, nil, allocatable("2", "4Gi", "0")),
		sandbox.NewNode("kept-b", "zone-b", map[string]string{"pool": "b"}, nil, allocatable("2", "4Gi", "0")))
	ns := namespace(t)
	apply(t, ns, "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: placeholder}, value: -10}")
	apply(t, ns, strings.Replace(strings.Replace(deployment("placeholder", 2, "      priorityClassName: placeholder\n      nodeSelector: {pool: a}\n"),
		"pause:3.10}", "pause:3.10, resources: {requests: {cpu: 800m}}}", 1), "berth-scheduler", "default-scheduler", 1))
	expectPlaces(t, ns, "a=2 b=0")
	apply(t, ns, strings.Replace(adaptiveSpread, "type: Adaptive", "type: Adaptive, adaptive: {preemption: BeforeNextSubset}", 1))
	apply(t, ns, strings.Replace(deployment("web", 3, ""), "pause:3.10}", "pause:3.10, resources: {requests: {cpu: 800m}}}", 1))
	expectSpilled(t, ns, 2, 1)
}

// Two spreads share the nodes of pool a. The pods of the important one take the place of as many others, which go to their next subset and are left alone there.
func TestAnImportantSpreadTakesOneVictimForEachPod(t *testing.T) {
	nodes(t, sandbox.NewNode("own-a", "zone-a", map[string]string{"pool": "a"}, nil, allocatable("3", "4Gi", "0")),
		sandbox.NewNode("own-b", "zone-b", map[string]string{"pool": "b"}, nil, allocatable("9", "4Gi", "0")))
	ns := namespace(t)
	large := func(name string, replicas int, more string) string {
		return strings.Replace(deployment(name, replicas, more), "pause:3.10}", "pause:3.10, resources: {requests: {cpu: 900m}}}", 1)
	}
	apply(t, ns, "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}")
	apply(t, ns, adaptiveSpread)
	apply(t, ns, large("web", 3, ""))
	expectSpilled(t, ns, 3, 0)
	before := uids(t, ns)
	apply(t, ns, spreadOverPools("high", "  subsets:\n  - {name: a, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}\n"))
	apply(t, ns, large("high", 2, "      priorityClassName: high\n"))
	expectPlaces(t, ns, "a=3 b=2")
	expectSpilled(t, ns, 1, 2)
	left := slices.DeleteFunc(uids(t, ns), func(uid types.UID) bool { return !slices.Contains(before, uid) })
	if len(left) != 1 {
		t.Errorf("%d of three pods were preempted for two", len(before)-len(left))
	}
	waitFor(t, "two victims", func(ctx context.Context) (string, error) {
		events, err := the.Client.EventsV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=Preempted"})
		if err != nil {
			return "", err
		}
		victims := sets.New[types.UID]()
		for i := range events.Items { // both pods may take one victim, before the scheduler sees that it ends
			victims.Insert(events.Items[i].Regarding.UID)
		}
		if len(victims) != 2 {
			return fmt.Sprintf("%d victims", len(victims)), nil
		}
		return "", nil
	})
}

func TestAPodWhoseVictimsTakeTheirTimeTakesNoneInTheNextSubset(t *testing.T) {
	nodes(t, sandbox.NewNode("slow-a", "zone-a", map[string]string{"pool": "a"}, nil, allocatable("1", "4Gi", "0")),
		sandbox.NewNode("slow-b", "zone-b", map[string]string{"pool": "b"}, nil, allocatable("1", "4Gi", "0")))
	ns := namespace(t)
	apply(t, ns, "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}")
	for _, node := range []string{"slow-a", "slow-b"} {
		apply(t, ns, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: victim-%s, finalizers: [test.berth.dev/slow]}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: 800m}}}]
`, node))
	}
	release := func() {
		for _, node := range []string{"slow-a", "slow-b"} {
			if _, err := the.Client.CoreV1().Pods(ns).Patch(context.WithoutCancel(t.Context()), "victim-"+node, types.MergePatchType,
				[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	}
	t.Cleanup(release)
	blocker(t, ns, "slow-b", "app: blocker", "") // when it terminates, the scheduler tries the pod again
	apply(t, ns, adaptiveSpread)
	apply(t, ns, strings.Replace(deployment("web", 1, "      priorityClassName: high\n"), "pause:3.10}", "pause:3.10, resources: {requests: {cpu: 800m}}}", 1))
	waitFor(t, "a victim in the first subset", func(ctx context.Context) (string, error) {
		victim, err := the.Client.CoreV1().Pods(ns).Get(ctx, "victim-slow-a", getOptions)
		if err != nil || victim.DeletionTimestamp != nil {
			return "", err
		}
		return "it stays", nil
	})
	removeBlocker(t, ns, "slow-b")
	waitFor(t, "the pod to be tried again", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, "a terminating pod on the nominated node")
	})
	expectUntouched := func(name string) {
		t.Helper()
		if pod, err := the.Client.CoreV1().Pods(ns).Get(t.Context(), name, getOptions); err != nil || pod.DeletionTimestamp != nil {
			t.Errorf("%s was to be left alone: deleted at %v, error %v", name, pod.DeletionTimestamp, err)
		}
	}
	expectUntouched("victim-slow-b")
	if _, err := the.Client.CoreV1().Pods(ns).Patch(t.Context(), "victim-slow-a", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	expectSpilled(t, ns, 1, 0)
	expectUntouched("victim-slow-b")
	expectNoDeletion(t, ns)
}
