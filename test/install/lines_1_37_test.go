//go:build kubernetes_1_37

package install

import (
	"context"
	"os/exec"
	"strings"
	"testing"
)

// TestChangeOfTheLine upgrades Kubernetes from 1.36 to 1.37 as docs/install.md says. The API server is a 1.37 all the time. Only Helm is told that it is a 1.36,
// when it installs line 1.35. The programs of line 1.35 then run as they do after the upgrade of the API servers. They are upgraded to line 1.37, rolled back, and
// upgraded again. Meanwhile a workload is scaled and evicted all the time: no quota and no budget is broken. Another workload rests: none of its pods moves.
func TestChangeOfTheLine(t *testing.T) {
	t.Parallel()
	older, newer := *releaseVersion, *releaseVersion+suffixOf("1.37")
	r := startRegistry(t, distOf(t, ""), distOf(t, "1.37"))
	for version, line := range map[string]string{older: "1.35", newer: "1.37"} {
		i, err := r.pull(t.Context(), "ghcr.io/berth-project/berth-scheduler:"+version)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), i.program(), "--version").CombinedOutput(); err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "built on Kubernetes "+line) {
			t.Fatalf("the scheduler of %s: %v, %s", version, err, out)
		}
	}
	c, k := start(t)
	k.use(func(ctx context.Context, reference string) (string, error) {
		i, err := r.pull(ctx, reference)
		return i.program(), err
	})
	c.behind(t, "v1.36.4").helm(t, append([]string{"install", "berth"}, r.chartOf(older)...)...)
	expectRunning(t, k, "scheduler", "controller", "united")
	c.awaitWatches(t)

	used := c.putToUse(t, k, r)
	// Between the two upgrades, Berth works, and keeps its values.
	used.expectUnmoved(t, older)
	c.expectRefused(t, "chart requires kubeVersion", append([]string{"helm", "upgrade", "berth", "--namespace=kube-system", "--reset-then-reuse-values"}, r.chartOf(older)...)...)
	used.upgrade(t, newer)
	used.rollback(t, older)
	used.upgrade(t, newer)
	used.end(t)
	runDescheduler(t, k)
}
