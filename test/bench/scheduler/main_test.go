package main

import (
	"regexp"
	"testing"
)

// TestTheBenchmarkRuns runs one small pair of every case, and checks no speed. Each run itself checks that every pod is bound, and in the right pool.
func TestTheBenchmarkRuns(t *testing.T) {
	const pods = 100
	outcomes, err := run(t.Context(), options{nodes: 50, pods: pods, pairs: 1, freed: 25, cases: regexp.MustCompile("."), out: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if len(outcomes) != len(benchmarks) {
		t.Fatalf("%d outcomes of %d cases", len(outcomes), len(benchmarks))
	}
	for _, o := range outcomes {
		for _, s := range append(o.stock, o.berth...) {
			bound := 0
			for _, n := range s.pools {
				bound += n
			}
			if bound != pods || s.podsPerSecond <= 0 || s.cpuPerPod <= 0 {
				t.Errorf("%s: %+v", o.name, s)
			}
		}
	}
}
