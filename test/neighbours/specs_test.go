package neighbours

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/test/harness"
)

// specs are OpenKruise's own end-to-end specs about a kind that Berth serves.
type specs struct {
	focus string
	count int
	// differ are those that fail, with the reason. docs/what-differs.md has them, and docs/uniteddeployments.md.
	differ map[string]string
}

// moreKinds are the rights on kinds of which spreads of the specs divide objects, as docs/install.md gives them.
const moreKinds = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: more-kinds, labels: {rbac.berth.dev/aggregate-to-workload-reader: "true"}}
rules:
- {apiGroups: [apps.kruise.io], resources: [daemonsets], verbs: [get, list, watch]}
- {apiGroups: [kubeflow.org], resources: [tfjobs], verbs: [get, list, watch]}
`

var (
	failedSpec = regexp.MustCompile(`(?m)^\[Fail\] .*\[It\] (.*?)\s*$`)
	ranSpecs   = regexp.MustCompile(`(?m)^Ran (\d+) of \d+ Specs`)
)

// TestTheSpecsOfOpenKruise runs the specs that OpenKruise tests itself with, unchanged, in an installation that is compatible with it. OpenKruise's manager runs the other kinds.
func TestTheSpecsOfOpenKruise(t *testing.T) {
	t.Parallel()
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "specs", Dir: t.TempDir()}, product.Options{Compatibility: v1beta1.CompatibleWithKruise})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	var nodes []*corev1.Node
	for _, name := range []string{"a", "b", "c"} {
		nodes = append(nodes, sandbox.NewNode("node-"+name, "zone-a", nil, nil, nil))
	}
	if err := cluster.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	if err := cluster.ApplyYAML(t.Context(), "", moreKinds); err != nil {
		t.Fatal(err)
	}
	for _, name := range berths {
		if err := leaveToBerth(t.Context(), cluster, name, name != endpoint.UnitedDefinition); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	peer, err := install(t.Context(), cluster, stable, filepath.Join(dir, "kruise"), berths...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.stop)
	if err := peer.start(t.Context(), gatesOff); err != nil {
		t.Fatal(err)
	}
	peer.expectControllers(t, map[string]bool{"uniteddeployment": false})
	if err := serve(t.Context(), cluster, endpoint.UnitedDefinition, "v1alpha1", true); err != nil { // OpenKruise looks only once which kinds there are
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	var kubelet sync.WaitGroup
	kubelet.Go(func() { restartContainers(ctx, cluster) })
	t.Cleanup(func() {
		end()
		kubelet.Wait()
	})
	for name, of := range map[string]specs{
		"WorkloadSpread": {focus: "workloadspread", count: 10, differ: map[string]string{
			"job-like custom workload [Conformance]":                                                   "of two of four workers, with 25% and 75% both are in the second subset",
			"manage existing pods by only preferredNodeSelector, then deletion subset-b [Conformance]": "pods of a removed subset count in one that selects their node",
			"manage statefulset pods only with patch [Conformance]":                                    "pods start at once here, and the status is written at most once a second",
			"reschedule subset-a [Conformance]":                                                        "a pod without a node has no deletion cost",
		}},
		"PodUnavailableBudget": {focus: "podUnavailableBudget functionality", count: 10},
		"UnitedDeployment": {focus: "uniteddeployment", count: 3, differ: map[string]string{
			"adaptive united deployment with elastic allocator": "no running pod is deleted to find out whether a subset has room again",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of.run(t, cluster, filepath.Join(os.TempDir(), fmt.Sprintf("berth-specs-%d-%s.log", os.Getpid(), name)))
		})
	}
}

// run runs the specs and compares those that fail with the ones that differ.
func (s specs) run(t *testing.T, cluster *harness.Cluster, log string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(harness.Root(), "bin", "kruise-specs"), "-ginkgo.noColor", "-ginkgo.focus="+s.focus, "-test.timeout=30m")
	command.Env = append(os.Environ(), "KUBECONFIG="+cluster.Sandbox.Kubeconfig())
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	command.Stdout, command.Stderr = file, file
	_ = command.Run() // it fails if a spec does
	output, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	ran := ranSpecs.FindSubmatch(output)
	if ran == nil || string(ran[1]) != fmt.Sprint(s.count) {
		t.Fatalf("%s ran of %d specs; they wrote:\n%s", ran, s.count, output[max(0, len(output)-4000):])
	}
	failed := []string{}
	for _, match := range failedSpec.FindAllSubmatch(output, -1) {
		failed = append(failed, strings.TrimSpace(string(match[1])))
	}
	slices.Sort(failed)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(s.differ)), failed, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("specs that fail (-want +got)\n%s\nwhat they wrote is in %s", diff, log)
		return
	}
	if err := os.Remove(log); err != nil {
		t.Error(err)
	}
}
