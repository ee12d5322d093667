package federation

import (
	"strings"
	"testing"

	"github.com/berth-project/berth/test/harness"
)

// metricsPrefix is that of all metrics of a hub.
const metricsPrefix = "berth_federat"

// expectQueriedMetrics fails if an alert or the dashboard queries a metric that the hub does not have, or if docs/api/metrics.md does not describe it. The hub must have written
// to members.
func (w *world) expectQueriedMetrics(t *testing.T) {
	t.Helper()
	names, err := harness.QueriedMetrics(metricsPrefix)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Errorf("no query asks for %s*", metricsPrefix)
	}
	exposed, err := harness.UnitedMetrics(t.Context(), w.Hub())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.Contains(exposed, "\n# TYPE "+name+" ") {
			t.Errorf("an alert or the dashboard asks for %s, which the hub does not have", name)
		}
	}
	if difference, err := harness.MetricsDifference(exposed, metricsPrefix); err != nil || difference != "" {
		t.Errorf("docs/api/metrics.md is not true (-exposed +page): %v\n%s", err, difference)
	}
}
