package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// inPools is the spec of a spread over pools a, b and c. Each argument is what one subset has, for example "maxReplicas: 20%".
func inPools(a, b, c string) string {
	var spec strings.Builder
	spec.WriteString("  subsets:\n")
	for i, has := range []string{a, b, c} {
		pool := string("abc"[i])
		fmt.Fprintf(&spec, "  - {name: %s, %s, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%s]}]}}\n", pool, has, pool)
	}
	return spec.String()
}

func spreadOverPools(name, spec string) string {
	return spreadFor(name, "apps/v1", "Deployment", name, spec)
}

// layout is how many ready pods the subsets have, besides those that wait for a node.
type layout struct{ a, b, c, waiting int }

// sharesOf is 1:1:3 for a number of pods.
func sharesOf(pods int) layout {
	a, b := (pods+2)/5, (pods+1)/5
	return layout{a: a, b: b, c: pods - a - b}
}

// layouts are those of the namespace's workloads. seats are the seats that their pods have, as in "web 1".
func layouts(ctx context.Context, ns string) (found map[string]layout, seats map[string]bool, err error) {
	pods, err := the.Pods(ctx, ns)
	if err != nil {
		return nil, nil, err
	}
	found, seats = map[string]layout{}, map[string]bool{}
	for i := range pods {
		pod := &pods[i]
		app := pod.Labels["app"]
		is := found[app]
		switch {
		case pod.DeletionTimestamp != nil:
			continue
		case pod.Spec.NodeName == "":
			is.waiting++
		case isReady(pod):
			cost, err := strconv.Atoi(pod.Annotations[v1beta1.PodDeletionCostAnnotation])
			if err != nil {
				return nil, nil, err
			}
			seats[fmt.Sprint(app, " ", 1_000_000-cost)] = true
			switch pod.Labels[v1beta1.SubsetLabel] {
			case "a":
				is.a++
			case "b":
				is.b++
			case "c":
				is.c++
			}
		}
		found[app] = is
	}
	return found, seats, nil
}

// expectLayouts waits until the workloads have these layouts.
func expectLayouts(t *testing.T, ns string, want map[string]layout) {
	t.Helper()
	expectLayoutsAnd(t, ns, want, func(map[string]bool) string { return "" })
}

// expectLayoutsAtRest also waits until the pods of each workload have its first seats. A scale-down goes by them.
func expectLayoutsAtRest(t *testing.T, ns string, want map[string]layout) {
	t.Helper()
	expectLayoutsAnd(t, ns, want, func(seats map[string]bool) string {
		for app, is := range want {
			for seat := 1; seat <= is.a+is.b+is.c; seat++ {
				if !seats[fmt.Sprint(app, " ", seat)] {
					return fmt.Sprintf("no pod of %s has seat %d", app, seat)
				}
			}
		}
		return ""
	})
}

func expectLayoutsAnd(t *testing.T, ns string, want map[string]layout, missing func(seats map[string]bool) string) {
	t.Helper()
	waitFor(t, fmt.Sprintf("layouts %+v", want), func(ctx context.Context) (string, error) {
		found, seats, err := layouts(ctx, ns)
		if err != nil || !maps.Equal(found, want) {
			return fmt.Sprintf("%+v", found), err
		}
		return missing(seats), nil
	})
	expectNoViolation(t)
}

// expectSeen waits until berth-controller has seen the spreads. Admission then knows them, and the scheduler waits for a spread that admission knew.
func expectSeen(t *testing.T, ns string, spreads ...string) {
	t.Helper()
	for _, name := range spreads {
		expectCondition(t, ns, name, "True", v1beta1.ReasonSpreadReady)
	}
}

// TestSharesAreKept at every step: percentages of all subsets and weights are the same.
func TestSharesAreKept(t *testing.T) {
	pools(t, "a", "b", "c")
	ns := namespace(t)
	apply(t, ns, spreadOverPools("percent", inPools("maxReplicas: 20%", "maxReplicas: 20%", "maxReplicas: 60%"))+"\n---\n"+
		spreadOverPools("weight", inPools("weight: 1", "weight: 1", "weight: 3")))
	apply(t, ns, deployment("percent", 0, "")+"\n---\n"+deployment("weight", 0, ""))
	expectSeen(t, ns, "percent", "weight")
	to := func(size int) {
		t.Helper()
		scale(t, ns, "percent", size)
		scale(t, ns, "weight", size)
	}
	expect := func(size int) {
		t.Helper()
		expectLayoutsAtRest(t, ns, map[string]layout{"percent": sharesOf(size), "weight": sharesOf(size)})
	}
	for _, size := range []int{1, 3, 7, 18, 40, 33, 19, 9, 7} {
		to(size)
		expect(size)
	}
	for _, name := range []string{"percent", "weight"} {
		patchNamed(t, ns, name, `{"spec":{"strategy":{"rollingUpdate":{"maxSurge":2,"maxUnavailable":0}}}}`)
		patchNamed(t, ns, name, revision("2"))
	}
	expectRevision(t, ns, "2", 14)
	expect(7)

	for _, name := range []string{"percent", "weight"} {
		spread, err := the.Spread(t.Context(), ns, name)
		if err != nil {
			t.Fatal(err)
		}
		var targets []int32
		for _, status := range spread.Status.SubsetStatuses {
			targets = append(targets, status.TargetReplicas)
		}
		if fmt.Sprint(targets) != "[1 1 5]" {
			t.Errorf("spread %s says targets %v", name, targets)
		}
	}
	expectTrueStatus(t, ns)
}

// TestABurstKeepsMinimumsAndShares makes 500 pods of four workloads in the same pools at once, and kills the scheduler in the middle. The checker watches each
// bind for maximums.
func TestABurstKeepsMinimumsAndShares(t *testing.T) {
	harness.Long(t)
	var all []*corev1.Node
	for i := range 10 {
		pool := "abc"[i%3 : i%3+1]
		all = append(all, sandbox.NewNode(nodeIn(t, fmt.Sprint(i, "-", pool)), "zone-a", map[string]string{"pool": pool}, nil, nil))
	}
	nodes(t, all...)
	ns := namespace(t)
	specs := map[string]string{
		"percent": inPools("maxReplicas: 20%", "maxReplicas: 20%", "maxReplicas: 60%"),
		"weight":  inPools("weight: 1", "weight: 1", "weight: 3"),
		"first":   inPools("minReplicas: 3", "minReplicas: 3, maxReplicas: 50", "minReplicas: 3"),
		"even":    inPools("weight: 1, minReplicas: 3, maxReplicas: 50", "weight: 1, minReplicas: 3, maxReplicas: 50", "weight: 1, minReplicas: 3"),
	}
	burst := map[string]layout{"percent": sharesOf(47), "weight": sharesOf(53), "first": {a: 234, b: 3, c: 3}, "even": {a: 50, b: 50, c: 60}}
	least := map[string]layout{"percent": sharesOf(7), "weight": sharesOf(7), "first": {a: 3, b: 3, c: 3}, "even": {a: 3, b: 3, c: 3}}
	for name, spec := range specs {
		apply(t, ns, spreadOverPools(name, spec))
		apply(t, ns, deployment(name, 0, ""))
	}
	expectSeen(t, ns, slices.Collect(maps.Keys(specs))...)
	for name, is := range burst {
		scale(t, ns, name, is.a+is.b+is.c)
	}
	waitFor(t, "the burst to be under way", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		bound := 0
		for i := range pods {
			if pods[i].Spec.NodeName != "" {
				bound++
			}
		}
		if bound < 60 {
			return fmt.Sprintf("%d pods are bound", bound), nil
		}
		return "", nil
	})
	if err := the.Sandbox.Signal(product.Scheduler, 0, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if harness.Compatibility() != "" { // costs are as OpenKruise's: a scale-down does not keep the shares
		expectLayouts(t, ns, burst)
		expectTrueStatus(t, ns)
		return
	}
	expectLayoutsAtRest(t, ns, burst)
	for name, is := range least {
		scale(t, ns, name, is.a+is.b+is.c)
	}
	expectLayoutsAtRest(t, ns, least)
	expectTrueStatus(t, ns)
}

// TestAMinimumWithoutANode makes pods of a Fixed spread wait. With Adaptive they go on, and later pods fill the minimum when it has a node.
func TestAMinimumWithoutANode(t *testing.T) {
	harness.Long(t)
	pools(t, "b", "c")
	a := nodeIn(t, "a")
	nodes(t, sandbox.NewNode(a, "zone-a", map[string]string{"pool": "none"}, nil, nil))
	ns := namespace(t)
	minimums := inPools("minReplicas: 2, maxReplicas: 2", "minReplicas: 2, maxReplicas: 3", "minReplicas: 1")
	apply(t, ns, spreadOverPools("waits", minimums)+"\n---\n"+spreadOverPools("goes", minimums+"\n  scheduleStrategy: {type: Adaptive}"))
	apply(t, ns, deployment("waits", 0, "")+"\n---\n"+deployment("goes", 0, ""))
	expectSeen(t, ns, "waits", "goes")
	scale(t, ns, "waits", 6)
	scale(t, ns, "goes", 6)
	expectLayouts(t, ns, map[string]layout{"waits": {b: 3, c: 1, waiting: 2}, "goes": {b: 3, c: 3}})
	patchNode(t, a, `{"metadata":{"labels":{"pool":"a"}}}`)
	scale(t, ns, "goes", 8)
	expectLayoutsAtRest(t, ns, map[string]layout{"waits": {a: 2, b: 3, c: 1}, "goes": {a: 2, b: 3, c: 3}})
	scale(t, ns, "waits", 5)
	scale(t, ns, "goes", 5)
	expectLayoutsAtRest(t, ns, map[string]layout{"waits": {a: 2, b: 2, c: 1}, "goes": {a: 2, b: 2, c: 1}})
	expectTrueStatus(t, ns)
}
