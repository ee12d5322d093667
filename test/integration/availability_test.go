package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

// TestTwoReplicasAreNeverOnOneNode has the default scheduler place the pods of Berth's own Deployments. It adds the nodes one after the other. The
// pods do not run.
func TestTwoReplicasAreNeverOnOneNode(t *testing.T) {
	harness.Long(t)
	ns := namespace(t)
	text, err := os.ReadFile(filepath.Join(harness.Root(), "manifests", "controller", "deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	shipped := &appsv1.Deployment{}
	if err := yaml.UnmarshalStrict(text, shipped); err != nil {
		t.Fatal(err)
	}
	shipped.Namespace = ""
	shipped.Spec.Template.Spec.ServiceAccountName = ""
	shipped.Spec.Template.Spec.NodeSelector = map[string]string{"pool": ns} // only the nodes of this test
	deployments := the.Client.AppsV1().Deployments(ns)
	if _, err := deployments.Create(t.Context(), shipped, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() { // before their nodes are deleted
		if err := deployments.Delete(t.Context(), shipped.Name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
			t.Error(err)
		}
		expectPods(t, ns, 0)
	}()
	addNode := func(zone string) {
		nodes(t, sandbox.NewNode(nodeIn(t, zone), zone, map[string]string{"pool": ns}, nil, nil))
	}
	// expect waits until all replicas have the latest revision and this number of them run, each on its own node.
	expect := func(what string, running int) {
		t.Helper()
		waitFor(t, what, func(ctx context.Context) (string, error) {
			d, err := deployments.Get(ctx, shipped.Name, getOptions)
			if err != nil {
				return "", err
			}
			pods, err := the.Pods(ctx, ns)
			if err != nil {
				return "", err
			}
			where := map[string]string{}
			for i := range pods {
				if pod := &pods[i]; pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil {
					revision := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] + " on " + pod.Spec.NodeName
					if other := where[revision]; other != "" {
						t.Fatalf("%s: pods %s and %s of revision %s", what, other, pod.Name, revision)
					}
					where[revision] = pod.Name
				}
			}
			s := d.Status
			if s.ObservedGeneration != d.Generation || s.Replicas != 2 || s.UpdatedReplicas != 2 || int(s.AvailableReplicas) != running || len(where) != running {
				return fmt.Sprintf("%+v: %v", s, where), nil
			}
			for _, c := range s.Conditions {
				if c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue {
					return "", nil
				}
			}
			return "the Deployment is not available", nil
		})
	}
	rollOut := func(revision string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"revision":%q}}}}}`, revision)
		if _, err := deployments.Patch(t.Context(), shipped.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	addNode("a")
	expect("one replica to run on the only node", 1)
	rollOut("2")
	expect("a rollout on the only node", 1)
	addNode("b")
	expect("the second replica on the second node", 2)
	rollOut("3")
	expect("a rollout on two nodes", 2)
}
