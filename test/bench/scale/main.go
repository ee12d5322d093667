// Command scale measures Berth's plugin from outside. One process contains a complete scheduler with real informers and a real queue, and an API
// server that only lists, watches and binds. Each cluster shape is measured in its own process.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func main() {
	var f flags
	flag.IntVar(&f.spreads, "spreads", 5000, "spreads")
	flag.IntVar(&f.pods, "pods", 20, "pods of each spread")
	flag.IntVar(&f.nodes, "nodes", 5000, "nodes")
	flag.DurationVar(&f.bindTimeout, "bind-timeout", time.Second, "bindTimeout of the plugin; a process that takes over waits twice as long")
	flag.DurationVar(&f.churn, "churn", 10*time.Second, "how long pods come and go")
	flag.IntVar(&f.rate, "rate", 25, "pods that come and go in a second")
	flag.DurationVar(&f.limit, "limit", time.Minute, "longest wait for the scheduler at any point")
	flag.StringVar(&f.only, "only", "", "measure this shape alone: stock, namespaces, rule, one, many, late")
	flag.BoolVar(&f.json, "json", false, "print the result of -only as JSON")
	flag.StringVar(&f.descheduler, "descheduler", "", "path of berth-descheduler: measure one cycle of it in place of the scheduler, without evictions")
	flag.IntVar(&f.members, "members", 0, "measure a hub with so many members that starts, in place of the scheduler: each has so many ReplicaSets of a FederatedReplicaSet as there are spreads")
	flag.BoolVar(&f.log, "log", false, "show the scheduler's log")
	flag.Parse()
	if !f.log {
		klog.SetLogger(logr.Discard())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := f.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

type flags struct {
	spreads, pods, nodes, rate, members int
	bindTimeout, churn, limit           time.Duration
	only, descheduler                   string
	json, log                           bool
}

// shapes returns the clusters with this number of spreads, in the order of measurement.
func (f *flags) shapes() []shape {
	extra := min(100, f.spreads/10)
	base := shape{Spreads: f.spreads, Pods: f.pods, Nodes: f.nodes, Extra: extra}
	in := func(name string, namespaces int) shape {
		s := base
		s.Name, s.Namespaces, s.Late, s.Ruled = name, max(1, namespaces), name == "late", name == "rule"
		return s
	}
	return []shape{
		in("stock", f.spreads/100),
		in("namespaces", f.spreads/100),
		in("rule", f.spreads/100),
		in("one", 1),
		in("many", f.spreads),
		in("late", 1),
	}
}

var about = map[string]string{
	"stock":      "the same scheduler without Berth's plugins",
	"namespaces": "100 spreads in each namespace",
	"rule":       "the same, made by a rule",
	"one":        "all spreads in one namespace",
	"many":       "one spread in each namespace",
	"late":       "all spreads in one namespace, and seen after all pods",
}

func (f *flags) run(ctx context.Context) error {
	if f.descheduler != "" {
		return f.cycle(ctx)
	}
	if f.members > 0 {
		return f.hub(ctx)
	}
	if f.only != "" {
		for _, s := range f.shapes() {
			if s.Name == f.only {
				return f.one(ctx, s)
			}
		}
		return fmt.Errorf("there is no shape %q", f.only)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Printf("%d spreads of %d pods on %d nodes; GOMAXPROCS %d\n", f.spreads, f.pods, f.nodes, runtime.GOMAXPROCS(0))
	var results []*result
	for _, s := range f.shapes() {
		fmt.Fprintf(os.Stderr, "%s: %s\n", s.Name, about[s.Name])
		command := exec.CommandContext(ctx, program, append(os.Args[1:], "-only", s.Name, "-json")...)
		command.Stderr = os.Stderr
		text, err := command.Output()
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", s.Name, err) // the other shapes are measured anyway
			continue
		}
		r := &result{}
		if err := json.Unmarshal(text, r); err != nil {
			return fmt.Errorf("reading the result of shape %s: %w", s.Name, err)
		}
		results = append(results, r)
	}
	fmt.Print(table(results))
	return nil
}

func (f *flags) one(ctx context.Context, s shape) error {
	r, err := measure(ctx, s, options{
		Stock: s.Name == "stock", BindTimeout: f.bindTimeout, Waits: s.Name != "stock", Updates: 20, Scrapes: 20, Creations: s.Extra, Churn: f.churn, Rate: f.rate, Limit: f.limit,
	})
	if r == nil {
		return err
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", s.Name, err) // results from before the error count
	}
	if f.json {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	fmt.Print(table([]*result{r}))
	return nil
}

// table has a column for each result.
func table(results []*result) string {
	var stock *result
	var b strings.Builder
	row := func(name string, cell func(*result) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, r := range results {
			fmt.Fprintf(&b, " %s |", cell(r))
		}
		b.WriteString("\n")
	}
	for _, r := range results {
		if r.Shape.Name == "stock" {
			stock = r
		}
	}
	plugin := func(cell func(*result) string) func(*result) string {
		return func(r *result) string {
			if r.Shape.Name == "stock" {
				return ""
			}
			return cell(r)
		}
	}
	row("", func(r *result) string { return r.Shape.Name })
	b.WriteString("|---|" + strings.Repeat("---|", len(results)) + "\n")
	row("start to informers' sync, s", func(r *result) string { return fmt.Sprintf("%.1f", r.Synced/1000) })
	row("sync to all handlers of the scheduler itself, s", func(r *result) string { return fmt.Sprintf("%.1f", r.OwnHandlers/1000) })
	row("sync to first answer, s", plugin(func(r *result) string {
		if r.Ready == 0 {
			return fmt.Sprintf("over %.0f", r.Limit/1000)
		}
		return fmt.Sprintf("%.1f", r.Ready/1000)
	}))
	row("CPU, s", number(1000, 1, func(r *result) float64 { return r.ReadyCPU }))
	row("requests to list bound pods", plugin(func(r *result) string { return fmt.Sprintf("%d in %.1f s", r.Lists, r.ListsTook/1000) }))
	row("sync to all pods bound, s", number(1000, 1, func(r *result) float64 { return r.Settled }))
	row("heap of the scheduler, MiB", number(1<<20, 0, func(r *result) float64 { return float64(r.Heap) }))
	row("of which Berth's, bytes for each pod", plugin(func(r *result) string {
		if stock == nil || r.Heap == 0 {
			return ""
		}
		return fmt.Sprintf("%d", (int64(r.Heap)-int64(stock.Heap))/int64(r.Pods))
	}))
	row("mutex held at the start, ms", mutex(func(r *result) held { return r.Start }))
	row("one spread updated, ms: median, max", several(func(r *result) []float64 { return []float64{r.Update.Median, r.Update.Max} }))
	row("CPU, ms", number(1, 1, func(r *result) float64 { return r.UpdateCPU }))
	row("mutex held, ms", mutex(func(r *result) held { return r.UpdateHeld }))
	row("spreads made at once, ms", number(1, 0, func(r *result) float64 { return r.Creation }))
	row("CPU, ms", number(1, 0, func(r *result) float64 { return r.CreationCPU }))
	row("mutex held, ms", mutex(func(r *result) held { return r.CreationHeld }))
	row("metrics scraped, ms: median, max", several(func(r *result) []float64 { return []float64{r.Scrape.Median, r.Scrape.Max} }))
	row("mutex held, ms", mutex(func(r *result) held { return r.ScrapeHeld }))
	row("PreFilter under load, ms: p50, p99, max", several(func(r *result) []float64 { return []float64{r.PreFilter.Median, r.PreFilter.P99, r.PreFilter.Max} }))
	row("mutex held, ms", mutex(func(r *result) held { return r.ChurnHeld }))
	return b.String()
}

// number formats a cell. It is empty for 0, which means that the value was not measured.
func number(unit float64, digits int, of func(*result) float64) func(*result) string {
	return func(r *result) string {
		if of(r) == 0 {
			return ""
		}
		return fmt.Sprintf("%.*f", digits, of(r)/unit)
	}
}

func several(of func(*result) []float64) func(*result) string {
	return func(r *result) string {
		var cell []string
		for _, n := range of(r) {
			if n == 0 {
				return ""
			}
			cell = append(cell, fmt.Sprintf("%.*f", 2-min(2, int(math.Log10(max(n, 1)))), n))
		}
		return strings.Join(cell, ", ")
	}
}

// mutex shows the median, the maximum, and the noise of the machine in parentheses.
func mutex(of func(*result) held) func(*result) string {
	return func(r *result) string {
		h := of(r)
		if h.Max == 0 {
			return ""
		}
		return fmt.Sprintf("%.1f, %.1f (%.1f)", h.Median, h.Max, h.Noise)
	}
}
