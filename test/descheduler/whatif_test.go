package descheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/whatif"
	"github.com/berth-project/berth/test/harness"
)

// For random spreads on nodes that fill, the pods end where the what-if says, and those that wait are said to wait.
func TestPodsEndWhereTheWhatIfSays(t *testing.T) {
	harness.Long(t)
	ns := newNamespace(t)
	r := rand.New(rand.NewPCG(18, 1))
	var nodes []*corev1.Node
	for i := range 9 {
		var taints []corev1.Taint
		if i%3 == 2 {
			taints = append(taints, corev1.Taint{Key: "spot", Effect: corev1.TaintEffectNoSchedule})
		}
		nodes = append(nodes, sandbox.NewNode(fmt.Sprintf("%s-whatif-%d", ns, i), fmt.Sprintf("zone-%d", i/3),
			map[string]string{"whatif": fmt.Sprintf("%s-%d", ns, i%3)}, taints, sandbox.Allocatable(quantity("4"), quantity("64Gi"))))
	}
	t.Cleanup(func() {
		if err := the.DeleteNodes(context.Background(), nodes); err != nil {
			t.Error(err)
		}
	})
	if err := the.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	zonalClaims(t, ns)
	var running []string
	podsIn, waiting := 0, 0
	for i := range max(*parityPods*2/15, 1) {
		name, replicas := fmt.Sprintf("w%d", i), 1+r.IntN(14)
		spread, deployment := randomSpread(r, ns, name), randomWorkload(r, ns, name)
		for _, text := range []string{spread, deployment} {
			if err := the.ApplyYAML(t.Context(), ns, text); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
		}
		bound := 0
		want := whatIf(t, ns, name, func(e *whatif.Engine, d *whatif.Divided) string {
			placed, err := e.Simulate(t.Context(), d, int32(replicas))
			if err != nil {
				t.Fatalf("%v\n%s\n%s", err, spread, deployment)
			}
			if placed.Note != "" {
				t.Error(placed.Note)
			}
			waiting += int(placed.Waiting)
			bound = len(placed.Bound)
			return inPlaces(placed.Bound, int(placed.Waiting))
		})
		podsIn += replicas
		scale(t, ns, name, replicas)
		if err := the.WaitFor(t.Context(), "the pods to be where the what-if says", func(ctx context.Context) (string, error) {
			got, settled, err := placesOf(ctx, ns, name, replicas)
			if err != nil || settled && got == want {
				return "", err
			}
			return fmt.Sprintf("%d pods: got %q, want %q", replicas, got, want), nil
		}); err != nil {
			t.Errorf("%v\n%s\n%s", err, spread, deployment)
		}
		whatIf(t, ns, name, func(e *whatif.Engine, d *whatif.Divided) string {
			for _, pod := range d.Pods {
				if pod.Spec.NodeName != "" {
					continue
				}
				if outcome, err := e.Try(t.Context(), d, pod); err != nil || outcome.Bound != nil {
					t.Errorf("pod %s waits, and the what-if binds it to %v (%v)\n%s\n%s", pod.Name, outcome.Bound, err, spread, deployment)
				}
			}
			return ""
		})
		// Pods that wait would take the room of the next workload, and the what-if is about one workload.
		shrink(t, ns, name, bound)
		if running = append(running, name); len(running) > 3 {
			at := r.IntN(len(running))
			shrink(t, ns, running[at], 0)
			running = slices.Delete(running, at, at+1)
		}
	}
	t.Logf("%d pods, of which %d wait", podsIn, waiting)
	if waiting == 0 || waiting > podsIn*3/4 {
		t.Error("the pods are not random enough")
	}
}

// zonalClaims creates a bound claim in each zone.
func zonalClaims(t *testing.T, ns string) {
	t.Helper()
	for zone := range 3 {
		name := fmt.Sprintf("%s-disk-%d", ns, zone)
		if err := the.ApplyYAML(t.Context(), ns, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: none
  local: {path: /data}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-%[2]d]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data-%[2]d, annotations: {pv.kubernetes.io/bind-completed: "yes"}}
spec: {accessModes: [ReadWriteMany], storageClassName: none, volumeName: %[1]s, resources: {requests: {storage: 1Gi}}}
`, name, zone)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := the.Client.CoreV1().PersistentVolumes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		waitFor(t, "the claim to be bound", func(ctx context.Context) (string, error) {
			claim, err := the.Client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, fmt.Sprintf("data-%d", zone), metav1.GetOptions{})
			if err != nil || claim.Status.Phase == corev1.ClaimBound {
				return "", err
			}
			return string(claim.Status.Phase), nil
		})
	}
}

func randomSpread(r *rand.Rand, ns, name string) string {
	var subsets []string
	early := r.IntN(4) == 0
	pools := r.Perm(3)
	for i := range 2 + r.IntN(2) {
		text := fmt.Sprintf("  - name: s%d\n    requiredNodeSelectorTerm: {matchExpressions: [{key: whatif, operator: In, values: [%s-%d]}]}\n", i, ns, pools[i])
		if r.IntN(4) > 0 {
			text += fmt.Sprintf("    maxReplicas: %d\n", r.IntN(7))
		}
		if r.IntN(2) == 0 {
			text += "    tolerations: [{key: spot, operator: Exists}]\n"
		}
		if early {
			text += fmt.Sprintf("    patch: {spec: {containers: [{name: main, env: [{name: POOL, value: s%d}]}]}}\n", i)
		}
		subsets = append(subsets, text)
	}
	strategy, whenFull := "type: "+[]string{"Fixed", "Adaptive"}[r.IntN(2)], []string{"Schedule", "Wait"}[r.IntN(2)]
	if early {
		whenFull = "Wait" // pods outside of all subsets would race for nodes with those that are still in one
	}
	return fmt.Sprintf(`
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: %s}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: %s}
  subsets:
%s  scheduleStrategy: {%s, whenFull: %s}
`, name, name, strings.Join(subsets, ""), strategy, whenFull)
}

// randomWorkload is a Deployment without pods. Its pods may use the nodes of the test only.
func randomWorkload(r *rand.Rand, ns, name string) string {
	volumes := ""
	if r.IntN(4) == 0 {
		volumes = fmt.Sprintf("      volumes: [{name: data, persistentVolumeClaim: {claimName: data-%d}}]\n", r.IntN(3))
	}
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: 0
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 0
      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: whatif, operator: In, values: [%[2]s-0, %[2]s-1, %[2]s-2]}]}]}}}
      containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: %[3]dm}}}]
%[4]s`, name, ns, 200+r.IntN(1800), volumes)
}

func scale(t *testing.T, ns, name string, replicas int) {
	t.Helper()
	patch := []byte(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
	if _, err := the.Client.AppsV1().Deployments(ns).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// shrink scales a workload down, and waits until no more pods are there. Its controller deletes pods without a node first.
func shrink(t *testing.T, ns, name string, replicas int) {
	t.Helper()
	scale(t, ns, name, replicas)
	waitFor(t, "the pods to be gone", func(ctx context.Context) (string, error) {
		pods, err := the.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil || len(pods.Items) <= replicas {
			return "", err
		}
		return fmt.Sprintf("%d of %d are to go", len(pods.Items)-replicas, len(pods.Items)), nil
	})
}

// whatIf asks an engine with a new look at the cluster.
func whatIf(t *testing.T, ns, name string, ask func(*whatif.Engine, *whatif.Divided) string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	scheme := k8sruntime.NewScheme()
	for _, add := range []func(*k8sruntime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	live, err := client.New(the.Sandbox.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	taken, err := lineage.Take(ctx, live, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(the.Client, 0)
	e, err := whatif.NewEngine(ctx, taken, live, the.Client, factory, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for i := range taken.Spreads {
		if spread := &taken.Spreads[i]; spread.Namespace == ns && spread.Name == name {
			d, err := e.Divide(ctx, spread, taken.Lineage.Compiled(spread))
			if err != nil {
				t.Fatal(err)
			}
			return ask(e, d)
		}
	}
	t.Fatalf("spread %s is not there", name)
	return ""
}

// inPlaces is "s0=2 s1=1 -=3, 4 wait", where "-" is no subset.
func inPlaces(bound []*corev1.Pod, waiting int) string {
	counts := map[string]int{}
	for _, pod := range bound {
		in := "-"
		if record := subset.RecordOf(pod); record != nil && record.Subset != "" {
			in = record.Subset
		}
		counts[in]++
	}
	var parts []string
	for _, in := range []string{"s0", "s1", "s2", "-"} {
		if counts[in] > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", in, counts[in]))
		}
	}
	return fmt.Sprintf("%s, %d wait", strings.Join(parts, " "), waiting)
}

// placesOf says the same of a workload's pods. They have settled if there are as many as there should be, and each has a node or was told to wait.
func placesOf(ctx context.Context, ns, name string, replicas int) (_ string, settled bool, _ error) {
	pods, err := the.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return "", false, err
	}
	var bound []*corev1.Pod
	waiting := 0
	settled = len(pods.Items) == replicas
	for i := range pods.Items {
		pod := &pods.Items[i]
		switch {
		case pod.Spec.NodeName != "":
			bound = append(bound, pod)
		case slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled }):
			waiting++
		default:
			settled = false
		}
	}
	return inPlaces(bound, waiting), settled, nil
}
