// Package neighbours runs Berth beside other projects, which are built from their modules in hack/tools: OpenKruise, Argo Rollouts and the autoscaler of kube-controller-manager; with -keda, KEDA,
// Kueue, Volcano and the VerticalPodAutoscaler. Tests read and write the API only.
package neighbours

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/test/harness"
)

// the is the cluster that tests share which need none of their own: Berth serves spreads, budgets and UnitedDeployments, neighbour the other kinds of OpenKruise, and metrics what the
// autoscaler reads.
var (
	the       *harness.Cluster
	neighbour *kruise
	metrics   *queue
)

// next makes the tests of OpenKruise's workloads run with the newest version that is served.
var next = flag.Bool("next", false, "run the newest OpenKruise that is served")

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "10"); err != nil { // the tests wait most of the time
		panic(err)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "berth-neighbours-")
	if err != nil {
		return 1, err
	}
	defer func() {
		if code == 0 && err == nil {
			err = os.RemoveAll(dir)
			return
		}
		err = errors.Join(err, fmt.Errorf("logs are in %s", dir))
	}()
	if the, err = harness.Start(ctx, autoscaled(sandbox.Config{Name: "neighbours", Dir: dir}), product.Options{}); err != nil {
		return 1, err
	}
	defer the.Sandbox.Stop()
	var nodes []*corev1.Node
	for _, pool := range []string{"a", "b", "c"} {
		nodes = append(nodes, sandbox.NewNode("node-"+pool, "zone-a", map[string]string{"pool": pool}, nil, nil))
	}
	if err := the.Sandbox.CreateNodes(ctx, nodes); err != nil {
		return 1, err
	}
	if *keda {
		end, err := runNotInCI(ctx, dir)
		defer end()
		if err != nil {
			return 1, err
		}
		return m.Run(), nil
	}
	if metrics, err = serveQueue(ctx, the); err != nil {
		return 1, err
	}
	for _, name := range berths {
		if err := leaveToBerth(ctx, the, name, name != endpoint.UnitedDefinition); err != nil {
			return 1, err
		}
	}
	version := stable
	if *next {
		version, cloneSets.Version = newest, "v1beta1"
		// It runs UnitedDeployments, too, if the API server serves v1beta1 when it starts.
		if err := serve(ctx, the, endpoint.UnitedDefinition, "v1beta1", false); err != nil {
			return 1, err
		}
	}
	if neighbour, err = install(ctx, the, version, filepath.Join(dir, "kruise"), berths...); err != nil {
		return 1, err
	}
	defer neighbour.stop()
	if err := neighbour.start(ctx, gatesOff); err != nil {
		return 1, err
	}
	if *next {
		if _, err := neighbour.awaitControllers(ctx); err != nil {
			return 1, err
		}
		if err := serve(ctx, the, endpoint.UnitedDefinition, "v1beta1", true); err != nil {
			return 1, err
		}
	}
	argo, err := installRollouts(ctx, the, dir)
	if err != nil {
		return 1, err
	}
	defer argo.stop()
	kubelet, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { restartContainers(kubelet, the) })
	code = m.Run()
	end()
	running.Wait()
	return code, nil
}

// runNotInCI starts the neighbours of the tests that are not in CI. The function ends them, also after an error.
func runNotInCI(ctx context.Context, dir string) (end func(), _ error) {
	var running []*process
	end = func() {
		for _, p := range running {
			p.stop()
		}
	}
	metrics = newQueue(ctx, httptest.NewServer)
	for _, install := range []func(context.Context, *harness.Cluster, string) ([]*process, error){installKEDA, installKueue, installVolcano, installVPA} {
		started, err := install(ctx, the, dir)
		if running = append(running, started...); err != nil {
			return end, err
		}
	}
	return end, nil
}
