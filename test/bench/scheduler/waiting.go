package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// waitingResult is the cost of freed slots while many pods wait for one.
type waitingResult struct {
	waiting, freed, bound int
	// useless is the number of scheduling attempts without a bind, for each freed slot.
	useless float64
	// p50 and p99 are the times from a deletion that frees a slot to a bind. The n-th deletion is paired with the n-th bind.
	p50, p99 time.Duration
}

const (
	deletionsPerSecond = 100
	// settled is how long a count must stay the same to be final.
	settled = 2 * time.Second
)

// measureWaiting fills a quota and lets the other pods wait. Then it deletes bound pods at a steady rate. Each freed slot is for a waiting pod.
func (r *runner) measureWaiting(ctx context.Context, waiting, freed int) (result waitingResult, err error) {
	quota := freed + 100
	b := &benchmark{name: "waiting", cpu: "10m", strategy: "{type: Fixed, whenFull: Wait}", workloads: 1,
		subsets: subsetOf("a", fmt.Sprintf(", maxReplicas: %d", quota), poolA)}
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	namespace, binds, err := r.prepare(ctx, b, true, quota+waiting)
	if err != nil {
		return result, err
	}
	p, err := r.berth.start(ctx, r.dir, r.cluster.Sandbox.Kubeconfig(), r.cluster.Sandbox.RESTConfig().BearerToken)
	if err != nil {
		return result, err
	}
	defer func() {
		if stopErr := p.stop(); err == nil {
			err = stopErr
		}
	}()
	if err := binds.wait(ctx, quota); err != nil {
		return result, err
	}
	// Each of the other pods has its first cycle. Its status then says that it waits.
	held := regexp.MustCompile(`state="waiting"`)
	if err := r.cluster.WaitFor(ctx, "the pods to wait", func(ctx context.Context) (string, error) {
		n, err := p.metric(ctx, "scheduler_workloadspread_slots", held)
		if err != nil || int(n) == waiting {
			return "", err
		}
		return fmt.Sprintf("%v of %d wait", n, waiting), nil
	}); err != nil {
		return result, err
	}
	attempts, err := r.settledAttempts(ctx, p)
	if err != nil {
		return result, err
	}
	names, err := r.cluster.boundPods(ctx, namespace)
	if err != nil {
		return result, err
	}
	if len(names) != quota {
		return result, fmt.Errorf("%d pods are bound, want %d", len(names), quota)
	}
	deleted := make([]time.Time, freed)
	tick := time.NewTicker(time.Second / deletionsPerSecond)
	defer tick.Stop()
	for i := range deleted {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return result, ctx.Err()
		}
		if err := r.cluster.fast.CoreV1().Pods(namespace).Delete(ctx, names[i], metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			return result, err
		}
		deleted[i] = time.Now()
	}
	if err := binds.wait(ctx, quota+freed); err != nil {
		return result, err
	}
	after, err := r.settledAttempts(ctx, p)
	if err != nil {
		return result, err
	}
	times, _ := binds.result()
	latencies := make([]time.Duration, freed)
	for i := range latencies {
		latencies[i] = times[quota+i].Sub(deleted[i])
	}
	slices.Sort(latencies)
	result = waitingResult{waiting: waiting, freed: freed, bound: len(times) - quota,
		useless: (after - attempts - float64(freed)) / float64(freed),
		p50:     latencies[freed/2], p99: latencies[freed*99/100]}
	return result, r.cluster.clear(ctx, namespace)
}

var anyAttempt = regexp.MustCompile(`profile="`)

// settledAttempts waits until the scheduler makes no more attempts, and returns their number.
func (r *runner) settledAttempts(ctx context.Context, p *process) (attempts float64, err error) {
	since := time.Now()
	err = r.cluster.WaitFor(ctx, "scheduling attempts to cease", func(ctx context.Context) (string, error) {
		now, err := p.metric(ctx, "scheduler_schedule_attempts_total", anyAttempt)
		if err != nil {
			return "", err
		}
		if now != attempts {
			attempts, since = now, time.Now()
		}
		if time.Since(since) >= settled {
			return "", nil
		}
		return fmt.Sprintf("%v", now), nil
	})
	return attempts, err
}
