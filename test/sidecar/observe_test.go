package sidecar

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// TestAlertsAndDashboardAskForMetricsThatAreThere checks that the controller that leads exposes the metrics of SidecarSets that alerts and dashboard ask for, and that docs/api/metrics.md
// describes them.
func TestAlertsAndDashboardAskForMetricsThatAreThere(t *testing.T) {
	const prefix = "berth_sidecarset_"
	names, err := harness.QueriedMetrics(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Fatal("no query asks for SidecarSets")
	}
	w := newWorld(t)
	w.set("log", "v1beta1", "containers: [{name: log, image: 'log:1'}]")
	w.deploy(1)
	w.pods(func(pod *corev1.Pod) string { return runs(pod, "log", "log:1") }, 1)
	w.expectReason("log", v1beta1.ReasonReady)
	w.await("the metrics", func(ctx context.Context) (string, error) {
		all, err := harness.ControllersMetrics(ctx, the.Sandbox)
		if err != nil {
			return "", err
		}
		leads := slices.IndexFunc(all, func(text string) bool { return strings.Contains(text, "\nberth_sidecarset_ready{") })
		if leads < 0 {
			return "no controller has metrics of a SidecarSet", nil
		}
		exposed := all[leads]
		var missing []string
		for _, name := range names {
			if !strings.Contains(exposed, "\n# TYPE "+name+" ") {
				missing = append(missing, name)
			}
		}
		difference, err := harness.MetricsDifference(exposed, prefix)
		if difference != "" {
			missing = append(missing, "docs/api/metrics.md is not true (-exposed +page):\n"+difference)
		}
		return strings.Join(missing, " "), err
	})
}
