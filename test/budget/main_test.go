package budget

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

var (
	// duration is how long each storm of the exactness run lasts.
	duration = flag.Duration("storm", time.Second, "how long each storm of operations lasts")
	// storms is the number of concurrent clients in a storm.
	storms = flag.Int("clients", 50, "how many clients operate at the same time")
	// slack multiplies time limits, for a slow machine or the race detector.
	slack = flag.Int("slack", 1, "how many times longer than on an idle machine things may take")
	// broken is how many budgets that the controller cannot count one namespace has. Another namespace must not notice them.
	broken = flag.Int("broken", 200, "how many broken budgets one namespace has")
	// long makes cases wait for the real timeouts of Kubernetes.
	long = flag.Bool("long", false, "wait for the timeouts of Kubernetes, which takes minutes")
	// kubelets is for the tests that 'make test-kubelet' names: others need what only simulated nodes do.
	kubelets = flag.Int("kubelets", 0, "how many real nodes are there in place of simulated ones")
)

// the is the cluster that all tests share. berth is the part of Berth that runs in this process.
var (
	the   *harness.Cluster
	berth *installation
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	logs := klog.NewKlogr()
	if os.Getenv("BERTH_LOG") == "" {
		logs = klog.LoggerWithName(logs, "berth")
		klog.LogToStderr(false)
		klog.SetOutput(nowhere{})
	}
	ctrl.SetLogger(logs)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "berth-budget-")
	if err != nil {
		return 1, err
	}
	defer func() {
		if code == 0 {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	config := sandbox.Config{Name: "budget", Dir: dir, Without: []string{product.Controller}, Nodes: 5}
	if *kubelets > 0 {
		config.Nodes, config.Kubelets = 0, *kubelets
	}
	if the, err = harness.Start(ctx, config, product.Options{}); err != nil {
		return 1, err
	}
	defer the.Sandbox.Stop()
	if berth, err = install(ctx); err != nil {
		return 1, err
	}
	if *kubelets == 0 {
		go runKubelet(ctx)
	}
	code = m.Run()
	cancel()
	berth.stop()
	return code, nil
}

type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
