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

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
)

var (
	metricName = regexp.MustCompile(`\b(?:berth|scheduler_workloadspread)_[a-z0-9_]+`)
	// parts are the suffixes of the series of a histogram.
	parts = regexp.MustCompile(`_(bucket|count|sum)$`)
	// described matches a metric in the text format. row matches it in docs/api/metrics.md: name, type, labels, help.
	described = regexp.MustCompile(`(?m)^# HELP (\S+) (?:\[[A-Z]+\] )?(.*)\n# TYPE \S+ (\w+)\n(?:\S+?(\{.*\}) )?`)
	row       = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| (.*?) \\| (.*) \\|$")
	label     = regexp.MustCompile(`(\w+)="[^"]*"`)
)

// QueriedMetrics returns the metrics that the alerts and the dashboard of the manifests query. It returns only names with the prefix.
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

// MetricsDifference compares docs/api/metrics.md with the metrics that a component exposes: names, types, labels and help. It compares only metrics
// whose name has the prefix. It returns an empty string if the page is correct. A component exposes a metric with labels only once it has a value.
func MetricsDifference(exposed, prefix string) (string, error) {
	page, err := os.ReadFile(filepath.Join(Root(), "docs", "api", "metrics.md"))
	if err != nil {
		return "", err
	}
	var onPage, there []string
	add := func(all *[]string, name, kind, help string, labels []string) {
		if strings.HasPrefix(name, prefix) {
			labels = slices.DeleteFunc(labels, func(label string) bool { return label == "le" || label == "" })
			slices.Sort(labels)
			*all = append(*all, fmt.Sprintf("%s %s %s: %s", kind, name, labels, help))
		}
	}
	for _, found := range row.FindAllStringSubmatch(string(page), -1) {
		add(&onPage, found[1], found[2], strings.ReplaceAll(found[4], `\|`, "|"), strings.Split(strings.ReplaceAll(found[3], "`", ""), ", "))
	}
	for _, found := range described.FindAllStringSubmatch(exposed, -1) {
		var labels []string
		for _, one := range label.FindAllStringSubmatch(found[4], -1) {
			labels = append(labels, one[1])
		}
		add(&there, found[1], found[3], found[2], labels)
	}
	slices.Sort(onPage)
	slices.Sort(there)
	return cmp.Diff(there, onPage), nil
}

// ControllerMetrics are those of the controller.
func (c *Cluster) ControllerMetrics(ctx context.Context) (string, error) {
	return ControllerMetrics(ctx, c.Sandbox)
}

// ControllerMetrics are those of the first replica of the controller in a sandbox.
func ControllerMetrics(ctx context.Context, in *sandbox.Sandbox) (string, error) {
	all, err := ControllersMetrics(ctx, in)
	if err != nil {
		return "", err
	}
	return all[0], nil
}

// ControllersMetrics are those of each replica of the controller in a sandbox.
func ControllersMetrics(ctx context.Context, in *sandbox.Sandbox) ([]string, error) {
	return metricsOf(ctx, in, product.Controller)
}

// UnitedMetrics are those of the first replica of what creates workloads.
func UnitedMetrics(ctx context.Context, in *sandbox.Sandbox) (string, error) {
	all, err := metricsOf(ctx, in, product.United)
	if err != nil {
		return "", err
	}
	return all[0], nil
}

// metricsOf are those of each replica of a component.
func metricsOf(ctx context.Context, in *sandbox.Sandbox, component string) (all []string, err error) {
	for _, status := range in.Status() {
		if status.Name != component {
			continue
		}
		text, err := Metrics(ctx, in, status)
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no %s", component)
	}
	return all, nil
}

// Metrics are those of one replica of the scheduler or the controller. The scheduler serves them to administrators, the controller to everyone.
func Metrics(ctx context.Context, in *sandbox.Sandbox, replica sandbox.ComponentStatus) (string, error) {
	if replica.Name != product.Scheduler {
		return metricsAt(ctx, http.DefaultClient, "http://"+replica.Address)
	}
	config := in.RESTConfig()
	config.CAData, config.Insecure = nil, true // the scheduler has signed its certificate itself
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return "", err
	}
	return metricsAt(ctx, client, "https://"+replica.Address)
}

func metricsAt(ctx context.Context, client *http.Client, server string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/metrics", nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", request.URL, response.Status, text)
	}
	return string(text), err
}
