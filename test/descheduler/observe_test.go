package descheduler

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-project/berth/test/harness"
)

// expectQueriedMetrics fails if an alert or the dashboard queries a metric that the descheduler does not have. The metrics are those after a cycle
// that has moved some pods and kept others.
func expectQueriedMetrics(t *testing.T) {
	t.Helper()
	names, err := harness.QueriedMetrics("berth_descheduler_")
	if err != nil {
		t.Fatal(err)
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, family := range families {
		there[family.GetName()] = true
	}
	for _, name := range names {
		if !there[name] {
			t.Errorf("no metric %s", name)
		}
	}
	exposed := httptest.NewRecorder()
	legacyregistry.Handler().ServeHTTP(exposed, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if difference, err := harness.MetricsDifference(exposed.Body.String(), "berth_descheduler_"); err != nil || difference != "" {
		t.Errorf("docs/api/metrics.md is not true (-exposed +page): %v\n%s", err, difference)
	}
	if len(names) == 0 {
		t.Error("no query asks for metrics of the descheduler")
	}
}
