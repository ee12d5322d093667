package subset

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// TestOthersReadTheNodesOfOneSubset: who reads a pod whose gate is open, with the filters of kube-scheduler alone,
// comes to the nodes that the pod wanted and its subset selects. What the gate brought can be taken back, because the
// replacement of the pod may get another subset.
func TestOthersReadTheNodesOfOneSubset(t *testing.T) {
	nodes, now := allNodes(), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 6))
		policy, own := compile(t, randomSpread(r)), podWith(t, randomPod(r))
		own.UID = "uid"
		pod := own.DeepCopy()
		policy.Constraints.WithoutTerms().AddTo(pod)
		Gate(pod)
		before := pod.DeepCopy()
		for i := range policy.Subsets {
			s := &policy.Subsets[i]
			open, err := policy.Open(pod, "web", i, now)
			if err != nil {
				t.Fatal(err)
			}
			if admitted := AdmittedOf(open); IsGated(open) || admitted == nil || !admitted.Opened || admitted.Subset != s.Name || !admitted.Since.Equal(now) {
				t.Fatalf("seed %d: opened in %s, and the pick is %+v", seed, s.Name, admitted)
			}
			for _, node := range nodes {
				wants, err := nodeaffinity.GetRequiredNodeAffinity(own).Match(node)
				if err != nil {
					t.Fatal(err)
				}
				may, err := nodeaffinity.GetRequiredNodeAffinity(open).Match(node)
				if err != nil {
					t.Fatal(err)
				}
				if want := wants && s.Holds(node); may != want {
					t.Fatalf("seed %d: opened in %s, it may use node %v: %t, want %t\n%+v\n%+v", seed, s.Name, node.Labels, may, want, own.Spec, open.Spec)
				}
				if s.Fits(node, own.Spec.Tolerations) == v1beta1.ReasonAdmitted && !(&Subset{}).Tolerates(node, open.Spec.Tolerations) {
					t.Fatalf("seed %d: opened in %s, it does not tolerate node %v", seed, s.Name, node.Spec.Taints)
				}
			}
			replacement := open.DeepCopy()
			(&Constraints{}).AddTo(replacement)
			delete(replacement.Annotations, v1beta1.AdmittedAnnotation)
			if diff := cmp.Diff(own, replacement, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("seed %d: opened in %s, taken back (-before +after):\n%s", seed, s.Name, diff)
			}
		}
		if diff := cmp.Diff(before, pod); diff != "" {
			t.Fatalf("seed %d: the pod itself has changed:\n%s", seed, diff)
		}
	}
}
