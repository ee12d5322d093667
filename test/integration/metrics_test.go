package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/test/harness"
)

// metricsOf reads the metrics of a component's replica from its own endpoint, as a cluster administrator.
func metricsOf(ctx context.Context, c *harness.Cluster, component string, replica int) (string, error) {
	for _, status := range c.Sandbox.Status() {
		if status.Name == component && status.Replica == replica {
			return scrape(ctx, status.Address, c.Sandbox.RESTConfig().BearerToken)
		}
	}
	return "", fmt.Errorf("no replica %d of component %s", replica, component)
}

func scrape(ctx context.Context, address, token string) (string, error) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // it signs its own certificate
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

func TestTheSchedulerExposesItsSlots(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "2"))
	apply(t, ns, deployment("web", 5, ""))
	expectPlaces(t, ns, "a=2 b=3")
	waitFor(t, "the metrics", func(ctx context.Context) (string, error) {
		text, err := metricsOf(ctx, the, product.Scheduler, 0)
		if err != nil {
			return "", err
		}
		for _, line := range []string{
			`scheduler_workloadspread_slots{state="bound"} 5`, `scheduler_workloadspread_slots{state="uncertain"} 0`,
			`scheduler_workloadspread_subset_attempts_total{result="reserved"}`, `scheduler_workloadspread_subset_attempts_total{result="chosen"}`,
			`scheduler_workloadspread_take_over_seconds`, `scheduler_workloadspread_over_quota_pods 0`,
		} {
			if !strings.Contains(text, line) {
				return "no " + line, nil
			}
		}
		return "", nil
	})
}
