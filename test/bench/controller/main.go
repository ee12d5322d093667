// Command controller measures what berth-controller costs, on a sandbox.
//
// For the pod webhook (`make bench-webhook`) it measures how much later a pod is created because of it, at a steady rate of creations and with many
// spreads in its cache. It also measures the CPU and memory, and how fast a Deployment grows with the webhook, with an admission policy in its
// place, and without both. Runs of each kind alternate, because machines are noisy.
//
// For the statuses (`make bench-controller`) it measures many idle spreads, a restart, and a burst in one spread.
//
// For UnitedDeployments (`make bench-united`) it measures 100 of them at rest and one change at a time, and how fast one grows beside plain Deployments.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
)

type settings struct {
	only    string
	spreads int
	cost    bool
	// These flags are for the creations.
	rate    int
	seconds int
	rounds  int
	// These flags are for the Deployment.
	nodes int
	pods  int
	pairs int
}

func main() {
	var s settings
	flag.StringVar(&s.only, "only", "creations,deployment", "what to measure, of creations, deployment, status and united")
	flag.IntVar(&s.spreads, "spreads", 1000, "spreads in the controller's cache")
	flag.IntVar(&s.rate, "rate", 500, "creations a second")
	flag.IntVar(&s.seconds, "seconds", 10, "length of a round of creations")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds with the webhook, and as many without")
	flag.IntVar(&s.nodes, "nodes", 100, "nodes for the Deployment")
	flag.IntVar(&s.pods, "pods", 3000, "pods of the Deployment, and binds of the burst")
	flag.IntVar(&s.pairs, "pairs", 5, "measured rounds of Deployments, after one that is not counted")
	flag.BoolVar(&s.cost, "cost", false, "measure status with --cost-metrics")
	flag.Parse()
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // about the many spreads whose workloads do not exist
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-controller:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	measures := map[string]func(context.Context, settings) error{"creations": measureCreations, "deployment": measureDeployment, "status": measureStatus, "united": measureUnited}
	for _, name := range strings.Split(s.only, ",") {
		measure := measures[name]
		if measure == nil {
			return fmt.Errorf("-only %s: must be of creations, deployment, status and united", s.only)
		}
		if err := measure(ctx, s); err != nil {
			return fmt.Errorf("measuring %s: %w", name, err)
		}
	}
	return nil
}

// quantile returns a quantile of sorted durations.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
