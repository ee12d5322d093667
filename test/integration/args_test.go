package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/test/harness"
)

// TestAMistakeInTheArgsStopsTheStart runs the scheduler's binary with configurations that must not start.
func TestAMistakeInTheArgsStopsTheStart(t *testing.T) {
	tests := map[string]struct{ from, to, want string }{
		"a value out of range": {"bindTimeout: 5s", "bindTimeout: 0s", "pluginConfig[WorkloadSpread].args.bindTimeout"},
		"not a duration":       {"bindTimeout: 5s", "bindTimeout: soon", "soon"},
		"an unknown field":     {"bindTimeout: 5s", "bindTimeuot: 5s", "bindTimeuot"},
		"every error at once":  {"bindTimeout: 5s\n      observationTimeout: 2s", "bindTimeout: 2h\n      observationTimeout: -1s", "observationTimeout"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			config := strings.Replace(string(manifests.SchedulerConfig), tc.from, tc.to, 1)
			if config == string(manifests.SchedulerConfig) {
				t.Fatalf("the deployed configuration has no %q", tc.from)
			}
			config = strings.Replace(config, "clientConnection:\n", "clientConnection:\n  kubeconfig: "+the.Sandbox.Kubeconfig()+"\n", 1)
			config = strings.Replace(config, "leaderElect: true", "leaderElect: false", 1)
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			command := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "berth-scheduler"),
				"--config="+file, "--bind-address=127.0.0.1", "--secure-port=0", "--cert-dir="+t.TempDir())
			output, err := command.CombinedOutput()
			if err == nil || ctx.Err() != nil {
				t.Fatalf("the scheduler started: %v\n%s", err, output)
			}
			if !strings.Contains(string(output), tc.want) {
				t.Errorf("no %q in:\n%s", tc.want, output)
			}
		})
	}
}
