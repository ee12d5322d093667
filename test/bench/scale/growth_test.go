package main

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestAnUpdateCostsNoMoreAmongManySpreads: the cost of a spread's update must not grow with the other spreads of its namespace and their pods. The
// test compares processor time, which does not depend on other load of the machine.
func TestAnUpdateCostsNoMoreAmongManySpreads(t *testing.T) {
	const updates, batches = 10, 7
	cost := map[int]time.Duration{}
	for _, spreads := range []int{50, 500} {
		t.Run(fmt.Sprintf("%d spreads", spreads), func(t *testing.T) {
			m := begun(t, shape{Spreads: spreads, Pods: 10, Namespaces: 1, Nodes: 50})
			generation := int64(1)
			var costs []time.Duration
			for range batches {
				heap() // so that no garbage collection happens during the measurement
				before := processorTime()
				if err := m.within(t.Context(), func(ctx context.Context) error {
					_, err := m.afterProbe(ctx, func() {
						for range updates {
							generation++
							m.server.put(m.shape.spread(m.shape.namespaceOf(0), workloadName(0), generation))
						}
					})
					return err
				}); err != nil {
					t.Fatal(err)
				}
				costs = append(costs, processorTime()-before)
			}
			slices.Sort(costs)
			cost[spreads] = costs[batches/2]
		})
	}
	t.Logf("%d updates took %s of CPU among 50 spreads, %s among 500", updates, cost[50], cost[500])
	if cost[500] > 4*cost[50] {
		t.Errorf("%d updates took %s of CPU among 50 spreads, and %s among 500; want no more than 4 times as much", updates, cost[50], cost[500])
	}
}

// TestATakeOverReadsNoMorePagesOfManyNamespaces: a take-over reads the bound pods page by page, and not namespace by namespace.
func TestATakeOverReadsNoMorePagesOfManyNamespaces(t *testing.T) {
	lists := map[int]int{}
	for _, namespaces := range []int{1, 200} {
		t.Run(fmt.Sprintf("%d namespaces", namespaces), func(t *testing.T) {
			lists[namespaces] = begun(t, shape{Spreads: 200, Pods: 2, Namespaces: namespaces, Nodes: 20}).result.Lists
		})
	}
	if lists[200] > lists[1]+2 {
		t.Errorf("a take-over read 400 pods with %d requests in one namespace, and with %d in 200", lists[1], lists[200])
	}
}
