package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/test/harness"
)

// histogram is a Prometheus histogram. Its bucket counts are not cumulative.
type histogram struct {
	bounds []float64
	counts []float64
	count  float64
	sum    float64
}

func (h histogram) minus(o histogram) histogram { return h.combine(o, -1) }
func (h histogram) plus(o histogram) histogram  { return h.combine(o, 1) }

func (h histogram) combine(o histogram, sign float64) histogram {
	if h.count == 0 {
		h = histogram{bounds: o.bounds, counts: make([]float64, len(o.counts))}
	}
	result := histogram{bounds: h.bounds, counts: slices.Clone(h.counts), count: h.count + sign*o.count, sum: h.sum + sign*o.sum}
	for i := range o.counts {
		result.counts[i] += sign * o.counts[i]
	}
	return result
}

func (h histogram) mean() float64 { return h.sum / h.count }

// share returns the share of the observations that do not exceed a bound.
func (h histogram) share(bound float64) float64 {
	var within float64
	for i, b := range h.bounds {
		if b <= bound {
			within += h.counts[i]
		}
	}
	return within / h.count
}

// quantile returns a quantile. Inside a bucket it interpolates linearly.
func (h histogram) quantile(q float64) float64 {
	rank, below, from := q*h.count, 0.0, 0.0
	for i, bound := range h.bounds {
		if below+h.counts[i] >= rank && h.counts[i] > 0 {
			return from + (bound-from)*(rank-below)/h.counts[i]
		}
		below, from = below+h.counts[i], bound
	}
	return math.Inf(1)
}

// callTimes are the durations of webhook calls: as the API server measures them, and as the webhook itself does.
type callTimes struct{ server, own histogram }

func (c callTimes) minus(o callTimes) callTimes {
	return callTimes{c.server.minus(o.server), c.own.minus(o.own)}
}

func (c callTimes) plus(o callTimes) callTimes {
	return callTimes{c.server.plus(o.server), c.own.plus(o.own)}
}

func readCalls(ctx context.Context, cluster *harness.Cluster) (callTimes, error) {
	text, err := cluster.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return callTimes{}, err
	}
	controller, err := controllerMetrics(ctx, cluster)
	if err != nil {
		return callTimes{}, err
	}
	return callTimes{
		server: metrics(text).histogram("apiserver_admission_webhook_admission_duration_seconds", `name="pod.berth.dev"`),
		own:    controller.histogram("berth_webhook_pod_seconds", ""),
	}, nil
}

// metrics are the lines of a Prometheus endpoint.
type metrics string

// value returns the value of a metric without labels.
func (m metrics) value(name string) float64 {
	for line := range strings.Lines(string(m)) {
		if text, found := strings.CutPrefix(line, name+" "); found {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err == nil {
				return value
			}
		}
	}
	return math.NaN()
}

var bucket = regexp.MustCompile(`^le="([^"]+)"$`)

// histogram sums the series with this label. An empty label means all series.
func (m metrics) histogram(name, label string) histogram {
	cumulative := map[float64]float64{}
	var all histogram
	for line := range strings.Lines(string(m)) {
		series, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		value, err := strconv.ParseFloat(text, 64)
		kind, isOurs := strings.CutPrefix(series, name+"_")
		if err != nil || !isOurs || !strings.Contains(series, label) {
			continue
		}
		kind, labels, _ := strings.Cut(strings.TrimSuffix(kind, "}"), "{")
		switch kind {
		case "sum":
			all.sum += value
		case "count":
			all.count += value
		case "bucket":
			for _, l := range strings.Split(labels, ",") {
				if match := bucket.FindStringSubmatch(l); match != nil {
					if bound, err := strconv.ParseFloat(match[1], 64); err == nil {
						cumulative[bound] += value
					}
				}
			}
		}
	}
	all.bounds = slices.Sorted(maps.Keys(cumulative))
	below := 0.0
	for _, bound := range all.bounds {
		all.counts = append(all.counts, cumulative[bound]-below)
		below = cumulative[bound]
	}
	return all
}

// memory is the memory of the controller in bytes.
type memory struct{ rss, heap float64 }

func readMemory(ctx context.Context, cluster *harness.Cluster) (memory, error) {
	controller, err := controllerMetrics(ctx, cluster)
	if err != nil {
		return memory{}, err
	}
	rss, err := residentBytes(cluster)
	// The next collection starts at twice the live heap of the last collection.
	return memory{rss: rss, heap: controller.value("go_memstats_next_gc_bytes") / 2}, err
}

// residentBytes is the controller's resident memory without mapped files, such as its program.
func residentBytes(cluster *harness.Cluster) (float64, error) {
	for _, status := range cluster.Sandbox.Status() {
		if status.Name != product.Controller {
			continue
		}
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", status.PID))
		if err != nil {
			return 0, err
		}
		for _, line := range strings.Split(string(content), "\n") {
			if rest, found := strings.CutPrefix(line, "RssAnon:"); found {
				kibi, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
				return kibi * 1024, err
			}
		}
	}
	return math.NaN(), nil
}

func controllerMetrics(ctx context.Context, cluster *harness.Cluster) (metrics, error) {
	text, err := cluster.ControllerMetrics(ctx)
	return metrics(text), err
}
