package autoscaler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestAnyScalingEndsWithAllPodsRunning scales, rolls out, takes nodes away and lets pools run out, at random. After each step all pods that can run must
// run promptly, in the subset that the quota says, and no pod may be evicted without a place to go.
func TestAnyScalingEndsWithAllPodsRunning(t *testing.T) {
	t.Logf("seed %d", *seed)
	s, random := newShop(t), rand.New(rand.NewPCG(*seed, 1))
	s.ownNodes(3, "8")
	s.nodePool("elastic", "")
	replicas := 15
	s.open(replicas, "", "500m")
	s.expect(layoutOf(replicas))
	steps := map[string]func(){
		"scale":         func() { replicas = random.IntN(40); s.scale(replicas) },
		"scale to zero": func() { replicas = 0; s.scale(replicas) },
		"roll out":      s.rollOut,
		"lose a node":   s.loseAnElasticNode,
		"stock-out": func() {
			s.limit("elastic", "0")
			replicas = 10 + random.IntN(20)
			s.scale(replicas)
			s.expectAtLeast(min(replicas, 10))
			s.limit("elastic", "100")
		},
		"no such machine": func() {
			s.require("elastic", `,{"key":"node.kubernetes.io/instance-type","operator":"In","values":["none"]}`)
			replicas = 10 + random.IntN(20)
			s.scale(replicas)
			s.expectAtLeast(min(replicas, 10))
			s.require("elastic", "")
		},
	}
	names := []string{"scale", "scale", "scale", "roll out", "lose a node", "stock-out", "no such machine", "scale to zero"}
	for n, until := 0, time.Now().Add(*disturbed); n == 0 || time.Now().Before(until); n++ {
		name := names[random.IntN(len(names))]
		steps[name]()
		t.Logf("%s, %d replicas", name, replicas)
		began := time.Now()
		s.expectRolledOut()
		s.expect(layoutOf(replicas))
		t.Logf("all run after %s", time.Since(began).Round(time.Second))
	}
	s.expectNothingHalfDrained()
	t.Logf("Karpenter evicted %d pods", s.expectEvictionsToHaveRemovedNodes())
}

// layoutOf is where the pods belong: the first 10 on the own nodes.
func layoutOf(replicas int) map[string]int {
	want := map[string]int{}
	if replicas > 0 {
		want["normal"] = min(replicas, 10)
	}
	if replicas > 10 {
		want["elastic"] = replicas - 10
	}
	return want
}

// limit is how many CPUs Karpenter may have in a subset.
func (s *shop) limit(subset, cpu string) {
	s.t.Helper()
	s.patchPool(subset, fmt.Sprintf(`{"spec":{"limits":{"cpu":%q}}}`, cpu))
}

// require adds to what the nodes of a subset must be.
func (s *shop) require(subset, more string) {
	s.t.Helper()
	s.patchPool(subset, `{"spec":{"template":{"spec":{"requirements":[{"key":"kubernetes.io/arch","operator":"In","values":["amd64"]},
		{"key":"kubernetes.io/os","operator":"In","values":["linux"]},{"key":"karpenter.sh/capacity-type","operator":"In","values":["on-demand"]}`+more+`]}}}}`)
}

func (s *shop) patchPool(subset, patch string) {
	s.t.Helper()
	if _, err := the.Dynamic.Resource(nodePools).Patch(s.t.Context(), s.namespace+"-"+subset, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// loseAnElasticNode deletes the claim of a node, as if the cloud had taken it back. Its pods end with it.
func (s *shop) loseAnElasticNode() {
	s.t.Helper()
	claims, err := the.Dynamic.Resource(nodeClaims).List(s.t.Context(), metav1.ListOptions{LabelSelector: "karpenter.sh/nodepool=" + s.namespace + "-elastic"})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(claims.Items) == 0 {
		return
	}
	lost := claims.Items[0].GetName()
	if err := the.Dynamic.Resource(nodeClaims).Delete(s.t.Context(), lost, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) { // Karpenter may have removed it
		s.t.Fatal(err)
	}
	if err := the.WaitFor(s.t.Context(), "the node to go", func(ctx context.Context) (string, error) {
		_, err := the.Dynamic.Resource(nodeClaims).Get(ctx, lost, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return lost + " is there", err
	}); err != nil {
		s.t.Fatal(err)
	}
}

// expectRolledOut waits until all pods are of the latest template.
func (s *shop) expectRolledOut() {
	s.t.Helper()
	if err := the.WaitFor(s.t.Context(), "the rollout", func(ctx context.Context) (string, error) {
		d, err := the.Client.AppsV1().Deployments(s.namespace).Get(ctx, "shop", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if is := d.Status; is.ObservedGeneration < d.Generation || is.UpdatedReplicas != *d.Spec.Replicas || is.Replicas != *d.Spec.Replicas {
			return fmt.Sprintf("%d of %d pods are updated, and there are %d", is.UpdatedReplicas, *d.Spec.Replicas, is.Replicas), nil
		}
		return "", nil
	}); err != nil {
		s.t.Fatalf("%v\n%s", err, s.state())
	}
}

// expectAtLeast waits until this many pods of the subset normal are ready.
func (s *shop) expectAtLeast(normal int) {
	s.t.Helper()
	if err := the.WaitFor(s.t.Context(), fmt.Sprintf("%d pods in normal", normal), func(ctx context.Context) (string, error) {
		got, err := s.layout(ctx)
		if err != nil || got["normal"] >= normal {
			return "", err
		}
		return fmt.Sprint(got), nil
	}); err != nil {
		s.t.Fatalf("%v\n%s", err, s.state())
	}
}
