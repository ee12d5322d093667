package federation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// pools gives each member a node in each of two pools, with room for lots of pods.
func (w *world) pools(t *testing.T, ns string) {
	t.Helper()
	for i := range w.members {
		var nodes []*corev1.Node
		for _, pool := range []string{"on-demand", "spot"} {
			nodes = append(nodes, sandbox.NewNode(pool, "zone-a", map[string]string{"pool": pool}, nil, sandbox.Allocatable(resource.MustParse("32"), resource.MustParse("64Gi"))))
		}
		if err := w.Members()[i].CreateNodes(t.Context(), nodes); err != nil {
			t.Fatal(err)
		}
		if err := w.members[i].Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{v1alpha1.AllowedLabel: "true"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.hub.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
		t.Fatal(err)
	}
}

// united is a UnitedDeployment as the article about UnitedDeployments over clusters has it.
func united(ns string, replicas int, strategy string, subsets ...string) string {
	return unitedOf("deploymentTemplate", "web", ns, replicas, strategy, subsets...)
}

func unitedOf(template, name, ns string, replicas int, strategy string, subsets ...string) string {
	return fmt.Sprintf(`
apiVersion: apps.kruise.io/v1alpha1
kind: UnitedDeployment
metadata: {name: %[2]s, namespace: %[3]s}
spec:
  replicas: %[4]d
  selector: {matchLabels: {app: %[2]s}}
  template:
    %[1]s:
      spec:
        template:
          metadata: {labels: {app: %[2]s}}
          spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}
  topology:
    clusterRegistry:
      namespaces: [berth-members]
      selector: {x-k8s.io/cluster-manager: berth-sandbox}
      clusterType: {apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ClusterProfile}
    scheduleStrategy: {type: %[5]s}
    subsets: [%[6]s]
`, template, name, ns, replicas, strategy, strings.Join(subsets, ", "))
}

// in is a subset of a member, on a pool or on all nodes, with other fields.
func in(name, member, pool, more string) string {
	term := ""
	if pool != "" {
		term = ", nodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [" + pool + "]}]}"
	}
	return "{name: " + name + ", targetCluster: {name: " + member + "}" + term + more + "}"
}

func (w *world) applyUnited(t *testing.T, manifest string) {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &object.Object); err != nil {
		t.Fatal(err)
	}
	if err := w.hub.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.ForceOwnership, client.FieldOwner("test")); err != nil {
		t.Fatal(err)
	}
}

func (w *world) readUnited(ctx context.Context, ns string) (*v1beta1.UnitedDeployment, error) {
	ud := &v1beta1.UnitedDeployment{}
	return ud, w.hub.Get(ctx, types.NamespacedName{Namespace: ns, Name: "web"}, ud)
}

// childrenOf lists what the child of each subset asks for in each member, and in brackets how many pods are ready if that is another number. A pod outside of its pool is an error.
func (w *world) childrenOf(ctx context.Context, ns string) (string, error) {
	var all []string
	for i, member := range w.members {
		var list appsv1.DeploymentList
		if err := member.List(ctx, &list, client.InNamespace(ns), client.HasLabels{v1beta1.OwnerLabel}); err != nil {
			return "", err
		}
		for _, d := range list.Items {
			subset, ready := d.Labels[v1beta1.SubsetNameLabel], int32(0)
			var pods corev1.PodList
			if err := member.List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels{v1beta1.SubsetNameLabel: subset, v1beta1.OwnerLabel: d.Labels[v1beta1.OwnerLabel]}); err != nil {
				return "", err
			}
			for _, pod := range pods.Items {
				if pool := map[string]string{"a": "on-demand", "b": "spot"}[subset]; pool != "" && pod.Spec.NodeName != "" && pod.Spec.NodeName != pool {
					return "", fmt.Errorf("pod %s of subset %s is on %s", pod.Name, subset, pod.Spec.NodeName)
				}
				for _, c := range pod.Status.Conditions {
					if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
						ready++
					}
				}
			}
			one := fmt.Sprintf("%d/%s=%d", i+1, subset, *d.Spec.Replicas)
			if ready != *d.Spec.Replicas {
				one += fmt.Sprintf("(%d)", ready)
			}
			all = append(all, one)
		}
	}
	return strings.Join(all, " "), nil
}

func (w *world) awaitUnited(t *testing.T, ns, want string) {
	t.Helper()
	var got string
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(ctx context.Context) (_ bool, err error) {
		got, err = w.childrenOf(ctx, ns)
		return got == want, err
	})
	if err != nil {
		ud, _ := w.readUnited(context.WithoutCancel(t.Context()), ns)
		status, _ := yaml.Marshal(ud.Status)
		t.Fatalf("got %s, want %s: %v\n%s", got, want, err, status)
	}
}

// awaitSets waits until the StatefulSets in the members have so many ready pods.
func (w *world) awaitSets(t *testing.T, ns string, want ...int32) {
	t.Helper()
	var got []int32
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		got = make([]int32, memberCount)
		for i, member := range w.members {
			var list appsv1.StatefulSetList
			if err := member.List(ctx, &list, client.InNamespace(ns)); err != nil {
				return false, err
			}
			for _, set := range list.Items {
				got[i] += set.Status.ReadyReplicas
			}
		}
		return slices.Equal(got, want), nil
	})
	if err != nil {
		t.Fatalf("ready pods of StatefulSets %v, want %v: %v", got, want, err)
	}
}

// awaitReason waits for the reason of condition Ready, and returns its message.
func (w *world) awaitReason(t *testing.T, ns string, want v1beta1.Reason) (message string) {
	t.Helper()
	var ud *v1beta1.UnitedDeployment
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(ctx context.Context) (_ bool, err error) {
		if ud, err = w.readUnited(ctx, ns); err != nil {
			return false, err
		}
		for _, c := range ud.Status.Conditions {
			if c.Type == v1beta1.ReadyCondition && c.Reason == want && (ud.Status.ObservedGeneration == ud.Generation || ud.DeletionTimestamp != nil) {
				message = c.Message
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		status, _ := yaml.Marshal(ud.Status)
		t.Fatalf("want reason %s: %v\n%s", want, err, status)
	}
	return message
}

// TestUnitedDeploymentOverClusters has one UnitedDeployment over two node pools of one member and another member: it scales, a member is cut off and returns, a subset is removed, and it
// is deleted while a member is away.
func TestUnitedDeploymentOverClusters(t *testing.T) {
	w := startWorld(t)
	const ns = "united"
	w.pools(t, ns)
	stranger := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "other", Labels: map[string]string{v1beta1.SubsetNameLabel: "a", "app": "web"}}}
	stranger.Spec.Replicas, stranger.Spec.Selector = new(int32), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", v1beta1.SubsetNameLabel: "a"}}
	stranger.Spec.Template.Labels, stranger.Spec.Template.Spec.Containers = stranger.Spec.Selector.MatchLabels, containers
	if err := w.members[0].Create(t.Context(), stranger); err != nil {
		t.Fatal(err)
	}
	a, c, b := in("a", "member-1", "on-demand", ", maxReplicas: 4"), in("c", "member-2", "", ", maxReplicas: 3"), in("b", "member-1", "spot", "")
	w.applyUnited(t, united(ns, 10, "Adaptive", a, c, b))
	w.applyUnited(t, unitedOf("statefulSetTemplate", "sets", ns, 3, "Fixed", in("c", "member-2", "", ""), in("d", "member-3", "", "")))
	w.awaitUnited(t, ns, "1/a=4 1/b=3 2/c=3")
	w.awaitSets(t, ns, 0, 2, 1)
	w.awaitReason(t, ns, v1beta1.ReasonReady)
	w.applyUnited(t, united(ns, 12, "Adaptive", a, c, b))
	w.awaitUnited(t, ns, "1/a=4 1/b=5 2/c=3")

	w.setAway(t, false, true, false)
	if message := w.awaitReason(t, ns, v1beta1.ReasonUnreachable); !strings.Contains(message, "cluster member-2 has not answered since") || strings.Contains(message, "more than spec.replicas") {
		t.Errorf("message %s", message)
	}
	w.awaitUnited(t, ns, "1/a=4 1/b=5 2/c=3") // its replicas stay its own
	ud, err := w.readUnited(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	// The status is the memory: it has been away for long.
	before := client.MergeFrom(ud.DeepCopy())
	for i := range ud.Status.Clusters {
		if one := &ud.Status.Clusters[i]; one.Name == "member-2" {
			one.Since = metav1.NewTime(time.Now().Add(-time.Hour))
		}
	}
	if err := w.hub.Status().Patch(t.Context(), ud, before); err != nil {
		t.Fatal(err)
	}
	w.awaitUnited(t, ns, "1/a=4 1/b=8 2/c=3")
	if message := w.awaitReason(t, ns, v1beta1.ReasonUnreachable); !strings.Contains(message, "up to 3 replicas more than spec.replicas may run") {
		t.Errorf("message %s", message)
	}
	w.setAway(t, false, false, false)
	w.awaitUnited(t, ns, "1/a=4 1/b=5 2/c=3")
	w.awaitReason(t, ns, v1beta1.ReasonReady)

	w.applyUnited(t, united(ns, 12, "Adaptive", a, in("d", "member-3", "", ", maxReplicas: 2"), b))
	w.awaitUnited(t, ns, "1/a=4 1/b=6 3/d=2")

	w.setAway(t, false, false, true)
	w.awaitReason(t, ns, v1beta1.ReasonUnreachable)
	if err := w.hub.Delete(t.Context(), ud); err != nil {
		t.Fatal(err)
	}
	w.awaitUnited(t, ns, "3/d=2")
	if message := w.awaitReason(t, ns, v1beta1.ReasonDeletionWaits); !strings.Contains(message, "children: member-3;") {
		t.Errorf("message %s", message)
	}
	w.setAway(t, false, false, false)
	w.awaitUnited(t, ns, "")
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		_, err := w.readUnited(ctx, ns)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}); err != nil {
		t.Errorf("the UnitedDeployment is still there: %v", err)
	}
	live := &appsv1.Deployment{}
	if err := w.members[0].Get(t.Context(), client.ObjectKeyFromObject(stranger), live); err != nil || live.Generation != 1 || len(live.Labels) != 2 {
		t.Errorf("the Deployment of others: %v, %+v", err, live.ObjectMeta)
	}
}
