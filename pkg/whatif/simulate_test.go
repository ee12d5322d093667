package whatif

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/testkit"
)

// shop is Deployment web with some replicas of one CPU each, and nodes of two CPUs in pools a and b.
func shop(replicas int32) []client.Object {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	deployment.Spec.Template.Labels = map[string]string{"app": "web"}
	deployment.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	replicaSet := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "rs",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: ptr.To(true)}}}}
	return []client.Object{deployment, replicaSet, node("node-a", "a"), node("node-b", "b")}
}

// inAWord is "a 0>1 b 0>2 waiting 1".
func inAWord(s *simulation) string {
	var parts []string
	for _, in := range s.Subsets {
		parts = append(parts, fmt.Sprintf("%s %d>%d", in.Name, in.Now, in.Then))
	}
	if s.Unplaced > 0 {
		parts = append(parts, fmt.Sprintf("unplaced %d", s.Unplaced))
	}
	if s.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("waiting %d", s.Waiting))
	}
	for _, move := range s.Moves {
		parts = append(parts, fmt.Sprintf("%s moves from %s", move.Pod, move.From))
	}
	return strings.Join(parts, " ")
}

func TestSimulateOnACluster(t *testing.T) {
	const openEnded = `
subsets:
- {name: a, maxReplicas: 3, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
`
	tests := map[string]struct {
		spec  string
		there []client.Object
		sizes []int32
		want  []string
	}{
		"quotas are kept":                   {byPool, nil, []int32{1, 3, 4}, []string{"a 0>1 b 0>0", "a 0>1 b 0>2", "a 0>1 b 0>2 unplaced 1"}},
		"Fixed waits for a node":            {openEnded, nil, []int32{5}, []string{"a 0>2 b 0>2 waiting 1"}}, // the waiting pod keeps its slot of a
		"Adaptive goes on":                  {openEnded + adaptive, nil, []int32{4, 5}, []string{"a 0>2 b 0>2", "a 0>2 b 0>2 waiting 1"}},
		"the present size":                  {byPool, nil, nil, []string{"a 0>1 b 0>1"}},
		"pods that are there hold room":     {openEnded + adaptive, []client.Object{pod("p", "1", "node-a", "a")}, []int32{3}, []string{"a 1>2 b 0>1"}},
		"strangers hold room":               {openEnded + adaptive, []client.Object{stranger("x", "2", "node-a")}, []int32{2}, []string{"a 0>0 b 0>2"}},
		"pods above a lowered quota move":   {byPool, []client.Object{pod("p", "1", "node-a", "a"), pod("q", "1", "node-a", "a")}, []int32{2}, []string{"a 2>2 b 0>0 q moves from a"}},
		"scaling down takes the last first": {byPool, []client.Object{pod("p", "1", "node-a", "a"), pod("q", "1", "node-b", "b")}, []int32{1}, []string{"a 1>1 b 1>0"}},
		"a workload that is full waits":     {byPool + "scheduleStrategy: {whenFull: Wait}", nil, []int32{4}, []string{"a 0>1 b 0>2 waiting 1"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			simulations, _, err := simulateOn(t.Context(), engineOf(t, append(shop(2), tc.there...)...), testkit.Spread(t, tc.spec, "{}"), tc.sizes)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range simulations {
				got = append(got, inAWord(&simulations[i]))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("simulated (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("why there is no node", func(t *testing.T) {
		simulations, _, err := simulateOn(t.Context(), engineOf(t, shop(2)...), testkit.Spread(t, openEnded, "{}"), []int32{3})
		if want := "a: 0/1: 1 Insufficient cpu"; err != nil || simulations[0].Why != want {
			t.Errorf("%v, got %+v, want %q", err, simulations, want)
		}
	})
	t.Run("a workload that has a spread", func(t *testing.T) {
		other := testkit.Spread(t, byPool, "{}")
		other.Name, other.UID = "older", "older"
		young := testkit.Spread(t, byPool, "{}")
		young.CreationTimestamp = metav1.Now()
		if _, _, err := simulateOn(t.Context(), engineOf(t, append(shop(2), other)...), young, nil); err == nil || !strings.Contains(err.Error(), "older divides Deployment/web already") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a workload that does not exist", func(t *testing.T) {
		if _, _, err := simulateOn(t.Context(), engineOf(t), testkit.Spread(t, byPool, "{}"), nil); err == nil || !strings.Contains(err.Error(), "Deployment/web, the workload of WorkloadSpread web, does not exist") {
			t.Errorf("got %v", err)
		}
	})
}

func stranger(name, cpu, on string) *corev1.Pod {
	p := pod(name, cpu, on, "adopted")
	p.OwnerReferences = nil
	return p
}

func TestSimulateFiles(t *testing.T) {
	noCluster := func() (*console.Cluster, error) { return nil, errors.New("no cluster is needed") }
	simulate := func(c simulateCommand, content, suffix string) (string, error) {
		var out bytes.Buffer
		c.out, c.file = &out, filepath.Join(t.TempDir(), "file"+suffix)
		if err := os.WriteFile(c.file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := c.run(context.Background(), noCluster, nil)
		return out.String(), err
	}
	const header = "apiVersion: apps.kruise.io/v1alpha1\nkind: WorkloadSpread\nmetadata: {name: web}\nspec:\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n"
	t.Run("a spread alone", func(t *testing.T) {
		got, err := simulate(simulateCommand{replicas: -1, scale: []int32{1, 10}}, header+`  subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 3}]`, ".yaml")
		want := `1 replicas   KEPT   THEN   QUOTA
  a          0      1      2
  b          0      0      3
10 replicas   KEPT   THEN   QUOTA
  a           0      2      2
  b           0      3      3
  5 pods run in no subset
`
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v, printed (-want +got):\n%s", err, diff)
		}
	})
	t.Run("a UnitedDeployment", func(t *testing.T) {
		const united = `apiVersion: apps.kruise.io/v1alpha1
kind: UnitedDeployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template: {deploymentTemplate: {spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: web}]}}}}}
  topology:
    clusterRegistry: {namespaces: [other], selector: {tier: gold}}
    subsets: [{name: a, minReplicas: 1, maxReplicas: 2}, {name: b, maxReplicas: 3, targetCluster: {name: m}}]
`
		got, err := simulate(simulateCommand{replicas: -1, scale: []int32{3, 10}}, united, ".yaml")
		want := `3 replicas   KEPT   THEN   QUOTA
  a          0      2      2
  b          0      1      3
10 replicas   KEPT   THEN   QUOTA
  a           0      2      2
  b           0      3      3
  5 pods run in no subset
`
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v, printed (-want +got):\n%s", err, diff)
		}
	})
	for name, tc := range map[string]struct{ content, want string }{
		"no size":           {header + "  subsets: [{name: a}]", "--replicas or --scale"},
		"an invalid spread": {header + "  subsets: [{name: a, maxReplicas: -1}]", "spec.subsets[0].maxReplicas"},
		"another kind":      {"{apiVersion: v1, kind: Pod}", "must contain a WorkloadSpread"},
		"a wrong field":     {header + "  subset: []", "unknown field"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := simulate(simulateCommand{replicas: -1}, tc.content, ".yaml"); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestSimulateAsksWhat(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	invalid := testkit.Spread(t, "subsets: [{name: a, maxReplicas: -1}]", "{}")
	connect := func() (*console.Cluster, error) {
		return &console.Cluster{Namespace: "shop", WithWatch: fake.NewClientBuilder().WithScheme(scheme).WithObjects(invalid).Build()}, nil
	}
	for name, tc := range map[string]struct {
		file  string
		names []string
		want  string
	}{
		"neither":           {"", nil, "either a file with -f FILE, or the name of a spread"},
		"both":              {"spread.yaml", []string{"web"}, "either a file with -f FILE, or the name of a spread"},
		"no such spread":    {"", []string{"wbe"}, `there is no WorkloadSpread "wbe" in namespace "shop"`},
		"an invalid spread": {"", []string{"web"}, "spec.subsets[0].maxReplicas"},
	} {
		t.Run(name, func(t *testing.T) {
			c := simulateCommand{out: io.Discard, file: tc.file, replicas: -1}
			if err := c.run(t.Context(), connect, tc.names); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
