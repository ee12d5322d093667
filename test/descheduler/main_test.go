// Package descheduler tests the descheduler on a real control plane, with real ReplicaSets, Berth's scheduler and webhooks, and
// PodUnavailableBudgets. Most runs are in this process, one after the other. Like a CronJob's, each run starts without state. Where several must run
// at the same time, they are processes. Everything runs as the descheduler's service account.
package descheduler

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

var (
	// parityPods is the number of random pods on which the test compares the filters with the scheduler. The what-if is compared on about as many, of 2
	// spreads for every 15 pods.
	parityPods = flag.Int("parity-pods", 75, "how many random pods to compare the scheduler's verdict on")
	// simulated is how many minutes the test watches the flapping subset, by the clock of the descheduler.
	simulated = flag.Int("simulated-minutes", 60, "how many minutes by the descheduler's clock a subset flaps")
)

// the is the cluster that all tests share. dir is a directory for files.
var (
	the *harness.Cluster
	dir string
)

const (
	serviceAccount = "system:serviceaccount:berth-system:berth-descheduler"
	// powerless is a service account without any rights.
	powerless = "system:serviceaccount:berth-system:powerless"
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
	if os.Getenv("BERTH_LOG") == "" {
		klog.LogToStderr(false)
		klog.SetOutput(nowhere{})
	}
	var level klog.Level
	if err := level.Set(os.Getenv("BERTH_LOG")); os.Getenv("BERTH_LOG") != "" && err != nil {
		return 1, err
	}
	ctrl.SetLogger(klog.NewKlogr())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if dir, err = os.MkdirTemp("", "berth-descheduler-"); err != nil {
		return 1, err
	}
	defer func() {
		if code == 0 {
			err = errors.Join(err, os.RemoveAll(dir))
		} else {
			fmt.Fprintln(os.Stderr, "the components' logs are in", filepath.Join(dir, "sandbox", "logs"))
		}
	}()
	config := sandbox.Config{Name: "descheduler", Dir: filepath.Join(dir, "sandbox"), Nodes: 2}
	if the, err = harness.Start(ctx, config, product.Options{}); err != nil {
		return 1, err
	}
	defer the.Sandbox.Stop()
	return m.Run(), nil
}

type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// kubeconfigAs returns a kubeconfig for a user of the cluster.
func kubeconfigAs(t *testing.T, user string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := the.WriteKubeconfigAs(user, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// withoutBudgets deletes the budgets of a namespace, so that its pods can be deleted.
func withoutBudgets(ctx context.Context, ns string) error {
	all := metav1.ListOptions{}
	if err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return err
	}
	return the.Client.PolicyV1().PodDisruptionBudgets(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, all)
}

// newNamespace creates a namespace for the test.
func newNamespace(t *testing.T) string {
	t.Helper()
	name, err := the.CreateNamespace(t.Context(), "move")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := withoutBudgets(ctx, name); err != nil {
			t.Error(err)
		}
		if err := the.DeleteNamespace(ctx, name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// pool creates nodes with this much CPU in a pool of the test. The node names are never used again.
func pool(t *testing.T, ns, name string, cpus ...string) []*corev1.Node {
	t.Helper()
	var nodes []*corev1.Node
	for i, cpu := range cpus {
		nodeName := fmt.Sprintf("%s-%s-%d-%d", ns, name, i, len(made))
		made[nodeName] = true
		nodes = append(nodes, sandbox.NewNode(nodeName, "zone-"+name, map[string]string{"pool": ns + "-" + name}, nil, sandbox.Allocatable(quantity(cpu), quantity("64Gi"))))
	}
	t.Cleanup(func() {
		if err := the.DeleteNodes(context.Background(), nodes); err != nil {
			t.Error(err)
		}
	})
	if err := the.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	return nodes
}

var made = map[string]bool{}
