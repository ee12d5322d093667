package harness

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-project/berth/cmd/sandbox/product"
)

var (
	metricName = regexp.MustCompile(`\b(?:berth|scheduler_workloadspread)_[a-z0-9_]+`)
	// parts are what a histogram's name is followed by.
	parts = regexp.MustCompile(`_(bucket|count|sum)$`)
)

// QueriedMetrics are those that the alerts and the dashboard of the manifests ask for and whose name begins with the prefix.
func QueriedMetrics(prefix string) ([]string, error) {
	var names []string
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		content, err := os.ReadFile(filepath.Join(Root(), "manifests", "observe", file))
		if err != nil {
			return nil, err
		}
		for _, line := range strings.Split(string(content), "\n") {
			if text := strings.TrimSpace(line); !strings.HasPrefix(text, "expr:") && !strings.HasPrefix(text, `"expr":`) && !strings.HasPrefix(text, `"query":`) {
				continue
			}
			for _, name := range metricName.FindAllString(line, -1) {
				if strings.HasPrefix(name, prefix) {
					names = append(names, parts.ReplaceAllString(name, ""))
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// ControllerMetrics are those of the controller, which serves them without encryption.
func (c *Cluster) ControllerMetrics(ctx context.Context) (string, error) {
	for _, status := range c.Sandbox.Status() {
		if status.Name != product.Controller {
			continue
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+status.Address+"/metrics", nil)
		if err != nil {
			return "", err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return string(text), err
	}
	return "", fmt.Errorf("there is no %s", product.Controller)
}
