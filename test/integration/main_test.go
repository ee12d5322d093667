package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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

func TestMain(m *testing.M) {
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
	dir, err := os.MkdirTemp("", "berth-integration-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, keepLogsIf(code != 0, dir)) }()
	schedulerConfig, err := withSecondProfile(manifests.SchedulerConfig)
	if err != nil {
		return 1, err
	}
	if the, err = harness.Start(ctx, sandbox.Config{Name: "integration", Dir: dir, AuditLog: true}, product.Options{SchedulerConfig: schedulerConfig, CostMetrics: true}); err != nil {
		return 1, err
	}
	defer the.Sandbox.Stop()
	if watcher, err = checker.Start(ctx, the.Dynamic); err != nil {
		return 1, err
	}
	code = m.Run()
	cancel() // ends the checker's watches before the API server
	return code, nil
}

// secondProfile is the scheduler's name for pods that choose another profile than the one that is deployed.
const secondProfile = "berth-scheduler-2"

// withSecondProfile adds the first profile of a scheduler's configuration once more.
func withSecondProfile(config []byte) ([]byte, error) {
	var fields map[string]any
	if err := yaml.Unmarshal(config, &fields); err != nil {
		return nil, err
	}
	profiles, _ := fields["profiles"].([]any)
	if len(profiles) != 1 {
		return nil, fmt.Errorf("the scheduler's configuration has %d profiles", len(profiles))
	}
	first, _ := profiles[0].(map[string]any)
	second := maps.Clone(first)
	second["schedulerName"] = secondProfile
	fields["profiles"] = append(profiles, second)
	return yaml.Marshal(fields)
}

// keepLogsIf keeps the components' logs if a test failed.
func keepLogsIf(failed bool, dir string) error {
	if failed {
		fmt.Fprintf(os.Stderr, "the components' logs are in %s\n", filepath.Join(dir, "logs"))
		return nil
	}
	return os.RemoveAll(dir)
}

// namespace makes a namespace for the test.
func namespace(t *testing.T) string {
	t.Helper()
	name, err := the.CreateNamespace(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := the.DeleteNamespace(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// nodes makes nodes for the test.
func nodes(t *testing.T, nodes ...*corev1.Node) {
	t.Helper()
	t.Cleanup(func() {
		if err := the.DeleteNodes(context.Background(), nodes); err != nil {
			t.Error(err)
		}
	})
	if err := the.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
}

func apply(t *testing.T, namespace, text string) {
	t.Helper()
	if err := the.ApplyYAML(t.Context(), namespace, text); err != nil {
		t.Fatal(err)
	}
}

// as is a client with the rights of one of Berth's service accounts.
func as(t *testing.T, account string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(the.Sandbox.RESTConfig())
	config.Impersonate = rest.ImpersonationConfig{UserName: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:berth-system", "system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// waitFor waits until the condition has nothing missing any more.
func waitFor(t *testing.T, what string, condition func(context.Context) (missing string, err error)) {
	t.Helper()
	if err := the.WaitFor(t.Context(), what, condition); err != nil {
		t.Fatal(err)
	}
}

// expectNoViolation fails the test if the checker has anything to say, also of earlier tests.
func expectNoViolation(t *testing.T) {
	t.Helper()
	for _, violation := range watcher.Violations() {
		t.Error(violation)
	}
}
