package neighbours

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// TestArgoCDAndFluxSeeNoDifference: what these products apply stays as they want it, by each of their ways to compare, before Berth has looked at it, meanwhile, and after that.
func TestArgoCDAndFluxSeeNoDifference(t *testing.T) {
	t.Parallel()
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "gitops", Dir: filepath.Join(t.TempDir(), "cluster"), Nodes: 6}, product.Options{Federation: true, SidecarSets: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	groups := []string{v1beta1.GroupVersion.Group, policyv1beta1.GroupVersion.Group, federations.Group}
	var files []string
	for _, name := range []string{"adaptive", "architectures", "bandwidth-packages", "budget", "federated", "job", "licences", "log-agent", "mesh-proxy", "minimums", "one-one-three", "serverless", "sidecar", "spot", "statefulset",
		"united-elastic", "united-processors", "united-zones", "weights"} {
		files = append(files, filepath.Join(harness.Root(), "docs", "examples", name+".yaml"))
	}
	for _, way := range []string{"argo", "argo-merge", "argo-server", "flux"} {
		t.Run(way, func(t *testing.T) {
			ns, err := cluster.CreateNamespace(t.Context(), way)
			if err != nil {
				t.Fatal(err)
			}
			differs := func(flags ...string) string {
				args := append(flags, "-kubeconfig="+cluster.Sandbox.Kubeconfig(), "-namespace="+ns, "-way="+way, "-groups="+strings.Join(groups, ","))
				text, err := exec.CommandContext(t.Context(), filepath.Join(harness.Root(), "bin", "gitops"), append(args, files...)...).CombinedOutput()
				if err != nil {
					return fmt.Sprintf("%v: %s", err, text)
				}
				return ""
			}
			compare := func(flags ...string) {
				t.Helper()
				if text := differs(flags...); text != "" {
					t.Fatal(text)
				}
			}
			compare("-apply")
			if err := cluster.WaitFor(t.Context(), "Berth to have looked at all objects", func(ctx context.Context) (string, error) {
				compare()
				return unseen(ctx, cluster, ns)
			}); err != nil {
				t.Fatal(err)
			}
			compare()
			if _, err := cluster.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"maxUnavailable":1}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if text := differs(); !strings.Contains(text, "PodUnavailableBudget web: ") {
				t.Errorf("somebody changed a budget, and it says %q", text)
			}
		})
	}
}

// unseen names an object of Berth whose status is not about its spec. It fails if there is no object of a kind.
func unseen(ctx context.Context, cluster *harness.Cluster, ns string) (string, error) {
	for _, kind := range []schema.GroupVersionResource{v1beta1.Resource, policyv1beta1.Resource, unitedv1beta1.Resource, sidecarv1beta1.Resource, federations} {
		in := ns
		if kind == sidecarv1beta1.Resource {
			in = metav1.NamespaceAll
		}
		list, err := cluster.Dynamic.Resource(kind).Namespace(in).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		if len(list.Items) == 0 {
			return "", fmt.Errorf("there are no %s", kind.Resource)
		}
		for _, object := range list.Items {
			if seen, _, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration"); seen != object.GetGeneration() {
				return kind.Resource + " " + object.GetName(), nil
			}
		}
	}
	return "", nil
}
