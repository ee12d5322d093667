package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// TestAlertsAndDashboardAskForMetricsThatAreThere checks that the metrics of alerts and dashboard exist, and that docs/api/metrics.md describes them.
// Before that it gives nodes a price, creates a pod and a spread, and has an eviction refused. test/descheduler checks the metrics of the descheduler.
func TestAlertsAndDashboardAskForMetricsThatAreThere(t *testing.T) {
	for _, name := range []string{"a", "b"} {
		nodes(t, sandbox.NewNode(nodeIn(t, name), "zone-a", map[string]string{"pool": name, v1beta1.HourlyPriceLabel: "0.40"}, nil, nil))
	}
	ns := namespace(t)
	t.Cleanup(func() {
		if err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
	apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "2"))
	apply(t, ns, `
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 0}`)
	apply(t, ns, strings.Replace(deployment("web", 2, ""), "pause:3.10}", `pause:3.10, resources: {requests: {cpu: "1"}}}`, 1))
	expectPlaces(t, ns, "a=2 b=0")
	expectEnforced(t, ns, "web", 2)
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pods[0].Name}}
	if err := the.Client.PolicyV1().Evictions(ns).Evict(t.Context(), eviction); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("evicted against the budget: %v", err)
	}

	var wanted []string
	prefixes := []string{"scheduler_workloadspread_", "berth_workloadspread", "berth_webhook_", "berth_budget_"}
	for _, prefix := range prefixes {
		names, err := harness.QueriedMetrics(prefix)
		if err != nil {
			t.Fatal(err)
		}
		if len(names) == 0 {
			t.Errorf("no query asks for %s*", prefix)
		}
		wanted = append(wanted, names...)
	}
	waitFor(t, "the metrics", func(ctx context.Context) (string, error) {
		ofScheduler, err := metricsOf(ctx, the, product.Scheduler, 0)
		if err != nil {
			return "", err
		}
		ofController, err := the.ControllerMetrics(ctx)
		if err != nil {
			return "", err
		}
		var missing []string
		for _, name := range wanted {
			if !strings.Contains(ofScheduler+ofController, "\n# TYPE "+name+" ") {
				missing = append(missing, name)
			}
		}
		for _, prefix := range prefixes {
			difference, err := harness.MetricsDifference(ofScheduler+ofController, prefix)
			if err != nil {
				return "", err
			}
			if difference != "" {
				missing = append(missing, "docs/api/metrics.md is not true (-exposed +page):\n"+difference)
			}
		}
		return strings.Join(missing, " "), nil
	})
}
