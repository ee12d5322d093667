package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// advancedSet is an advanced StatefulSet of OpenKruise. The test acts as its controller.
type advancedSet struct {
	ns, name string
	object   *unstructured.Unstructured
}

// apply changes the spec.
func (s *advancedSet) apply(t *testing.T, replicas int64, reserved ...any) {
	t.Helper()
	s.object = &unstructured.Unstructured{Object: map[string]any{"apiVersion": advancedSets.group + "/" + advancedSets.version, "kind": advancedSets.kind,
		"metadata": map[string]any{"name": s.name}, "spec": map[string]any{"replicas": replicas, "reserveOrdinals": reserved}}}
	if err := the.Apply(t.Context(), s.ns, s.object); err != nil {
		t.Fatal(err)
	}
	s.object = get(t, s.ns, s.object)
}

// make creates the pods with these ordinals, in this order.
func (s *advancedSet) make(t *testing.T, ordinals ...int) {
	t.Helper()
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}},
	}
	for _, ordinal := range ordinals {
		if err := createPod(t.Context(), s.object, fmt.Sprintf("%s-%d", s.name, ordinal), &template); err != nil {
			t.Fatal(err)
		}
	}
}

// unmake deletes the pods with these ordinals at once.
func (s *advancedSet) unmake(t *testing.T, ordinals ...int) {
	t.Helper()
	for _, ordinal := range ordinals {
		if err := the.Client.CoreV1().Pods(s.ns).Delete(t.Context(), fmt.Sprintf("%s-%d", s.name, ordinal), *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheFirstSubsetHasTheLowestOrdinalsThatExist: an advanced StatefulSet reserves ordinals, and its pods come in the worst order, right after it.
func TestTheFirstSubsetHasTheLowestOrdinalsThatExist(t *testing.T) {
	pools(t, "a", "b")
	advancedSets.serve(t, true)
	for _, binding := range []string{"Late", "Early"} {
		t.Run(binding, func(t *testing.T) {
			ns := namespace(t)
			apply(t, ns, spreadFor("db", "apps.kruise.io/v1beta1", "StatefulSet", "db", "  scheduleStrategy: {binding: "+binding+"}"+fmt.Sprintf(twoPools, "2")))
			expectKnown(t, ns)
			set := &advancedSet{ns: ns, name: "db"}
			set.apply(t, 5, int64(0), "2-3")
			set.make(t, 7, 6, 5, 4, 1)
			expectSubsets(t, ns, "db-1=a db-4=a db-5=b db-6=b db-7=b")

			// The pod with the lowest ordinal is deleted and reserved. The next pods are far behind it, and leave its slot to one that is not made yet.
			set.unmake(t, 1, 5)
			set.apply(t, 6, "0-3")
			set.make(t, 9, 8)
			expectSubsets(t, ns, "db-4=a db-6=b db-7=b db-8=b db-9=b")
			// Watches of different kinds are not ordered, so its first pod may be seen before the change of the StatefulSet.
			waitFor(t, "db-5 in its new subset", func(context.Context) (string, error) {
				set.make(t, 5)
				if subsets := subsetsOf(t, ns); subsets != "db-4=a db-5=a db-6=b db-7=b db-8=b db-9=b" {
					set.unmake(t, 5)
					return subsets, nil
				}
				return "", nil
			})
			expectNoViolation(t)
		})
	}
}

// expectSubsets waits until all pods have nodes. Then they must be in these subsets.
func expectSubsets(t *testing.T, ns, want string) {
	t.Helper()
	if got := subsetsOf(t, ns); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// subsetsOf waits until all pods have nodes, and returns their subsets in the order of their names: "db-0=a db-1=b".
func subsetsOf(t *testing.T, ns string) string {
	t.Helper()
	var subsets []string
	waitFor(t, "the pods on nodes", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		subsets = nil
		for i := range pods {
			if pods[i].Spec.NodeName == "" {
				return pods[i].Name + " has none", nil
			}
			subsets = append(subsets, pods[i].Name+"="+record(t, &pods[i]).Subset)
		}
		return "", err
	})
	slices.Sort(subsets)
	return strings.Join(subsets, " ")
}
