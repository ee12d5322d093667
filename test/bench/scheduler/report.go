package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// report prints a table of the outcomes, and stores every run for benchstat.
func report(w io.Writer, outcomes []outcome, o options) error {
	if len(outcomes) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%d nodes, %d pods, %d pairs; pods bound per second, medians; ratio of each pair, median (least to greatest)\n\n", o.nodes, o.pods, o.pairs)
	fmt.Fprintln(w, "| case | stock | berth | berth/stock | floor | CPU per pod, berth/stock |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	var stockText, berthText strings.Builder
	for _, out := range outcomes {
		ratios, cpu := make([]float64, len(out.stock)), make([]float64, len(out.stock))
		for i := range ratios {
			ratios[i] = out.berth[i].podsPerSecond / out.stock[i].podsPerSecond
			cpu[i] = out.berth[i].cpuPerPod.Seconds() / out.stock[i].cpuPerPod.Seconds()
		}
		fmt.Fprintf(w, "| %s | %.0f | %.0f | **%.2f** (%.2f to %.2f) | %.2f | %.2f (%.2f to %.2f) |\n", out.name, median(rates(out.stock)), median(rates(out.berth)),
			median(ratios), slices.Min(ratios), slices.Max(ratios), out.floor, median(cpu), slices.Min(cpu), slices.Max(cpu))
		benchmarkLines(&stockText, out.name, out.stock, o)
		benchmarkLines(&berthText, out.name, out.berth, o)
	}
	if o.out == "" {
		return nil
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{"stock.txt": stockText.String(), "berth.txt": berthText.String()} {
		if err := os.WriteFile(filepath.Join(o.out, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func benchmarkLines(w *strings.Builder, name string, samples []sample, o options) {
	for _, s := range samples {
		fmt.Fprintf(w, "BenchmarkScheduler/%s/nodes=%d/pods=%d 1 %.1f pods/s %.0f cpu-ns/pod\n", name, o.nodes, o.pods, s.podsPerSecond, float64(s.cpuPerPod.Nanoseconds()))
	}
}

func reportWaiting(w io.Writer, r waitingResult) {
	fmt.Fprintf(w, "\n%d pods wait, %d slots are freed, %d a second\n\n", r.waiting, r.freed, deletionsPerSecond)
	fmt.Fprintln(w, "| bound | useless cycles per freed slot (at most 1) | wake-up p50 | p99 (below 1 s) |\n|---|---|---|---|")
	fmt.Fprintf(w, "| %d | %.2f | %.0f ms | %.0f ms |\n", r.bound, r.useless, float64(r.p50.Microseconds())/1000, float64(r.p99.Microseconds())/1000)
}

func rates(samples []sample) []float64 {
	all := make([]float64, len(samples))
	for i := range samples {
		all[i] = samples[i].podsPerSecond
	}
	return all
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
