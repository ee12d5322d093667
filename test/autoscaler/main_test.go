// Package autoscaler runs Berth beside the real Karpenter, with its kwok provider, whose nodes KWOK simulates. Karpenter decides from the pods alone
// which nodes to make, and which pods to evict in order to remove nodes. Tests read the API only.
package autoscaler

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

// the is the cluster that all tests share. watcher is the checker that watches it.
var (
	the     *harness.Cluster
	watcher *checker.Checker
)

var (
	disturbed = flag.Duration("disturbed", 45*time.Second, "how long the random test scales, rolls out and takes nodes away")
	seed      = flag.Uint64("seed", 1, "of the random test")
	binding   = flag.String("binding", "Auto", "how the spreads of the tests bind; with Late the cases fail, because autoscalers do not know the quotas")
)

// Karpenter is the name of the component. It runs with the rights of an administrator: what it may do is not what these tests are about.
const karpenter = "karpenter"

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
	dir, err := os.MkdirTemp("", "berth-autoscaler-")
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
	definitions, err := karpenterDefinitions(ctx)
	if err != nil {
		return 1, err
	}
	config := sandbox.Config{Name: "autoscaler", Dir: dir, AuditLog: true, Manifests: definitions, Components: []sandbox.Component{{
		Name: karpenter, Binary: "/usr/bin/env", User: "karpenter", Groups: []string{"system:masters"}, Args: karpenterArgs,
		Ready: func(in sandbox.Instance) string { return "http://" + in.Address("health") + "/readyz" },
	}, {
		Name: "berth-descheduler", Binary: "berth-descheduler", User: "system:serviceaccount:berth-system:berth-descheduler",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:berth-system"}, Args: deschedulerArgs,
	}}}
	if the, err = harness.Start(ctx, config, product.Options{Gangs: os.Getenv(harness.Line) == "1.37"}); err != nil {
		return 1, err
	}
	defer the.Sandbox.Stop()
	// The nodes that the replicas of Berth and Karpenter would run on. They belong to no subset. The descheduler does nothing in a cluster of one node.
	if err := the.Sandbox.CreateNodes(ctx, []*corev1.Node{sandbox.NewNode("system-0", "zone-a", nil, nil, nil), sandbox.NewNode("system-1", "zone-a", nil, nil, nil)}); err != nil {
		return 1, err
	}
	if watcher, err = checker.Start(ctx, the.Dynamic); err != nil {
		return 1, err
	}
	code = m.Run()
	cancel() // ends the checker's watches before the API server
	return code, nil
}

// karpenterArgs are a command line of env. Karpenter reads the kubeconfig and its namespace from the environment only.
func karpenterArgs(in sandbox.Instance) ([]string, error) {
	return []string{
		"KUBECONFIG=" + in.Kubeconfig, "SYSTEM_NAMESPACE=kube-system", "KUBERNETES_MIN_VERSION=1.19.0-0", "DISABLE_LEADER_ELECTION=true",
		filepath.Join(harness.Root(), "bin", "karpenter-kwok"), "--karpenter-service=karpenter",
		fmt.Sprintf("--health-probe-port=%d", in.Port("health")), fmt.Sprintf("--metrics-port=%d", in.Port("metrics")),
	}, nil
}

// deschedulerArgs are those of the installation, with its policy, and with a cycle every few seconds.
func deschedulerArgs(in sandbox.Instance) ([]string, error) {
	var policy corev1.ConfigMap
	if err := yaml.Unmarshal(manifests.DeschedulerPolicy, &policy); err != nil {
		return nil, err
	}
	file := filepath.Join(in.Dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(policy.Data["policy.yaml"]), 0o600); err != nil {
		return nil, err
	}
	return []string{"--kubeconfig=" + in.Kubeconfig, "--policy-config-file=" + file, "--descheduling-interval=5s", "--secure-port=0"}, nil
}

// karpenterDefinitions are the kinds of Karpenter and of its kwok provider, from the module that the program is built from.
func karpenterDefinitions(ctx context.Context) ([][]byte, error) {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/karpenter")
	list.Dir = filepath.Join(harness.Root(), "hack", "tools", "karpenter")
	list.Env = append(os.Environ(), "GOFLAGS=")
	module, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("looking for Karpenter's module: %w", err)
	}
	var definitions [][]byte
	for _, pattern := range []string{"pkg/apis/crds/*.yaml", "kwok/apis/crds/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(module)), pattern))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("no definitions in %s: %w", pattern, err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			definitions = append(definitions, content)
		}
	}
	return definitions, nil
}
