package cycle

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podevictions "sigs.k8s.io/descheduler/pkg/descheduler/evictions"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"
)

// Handle is the framework's, with an evictor that means the very pod it is called with, and returns an *Error. Every
// plugin is built with it, those of others as well.
func (c *Client) Handle(handle frameworktypes.Handle) frameworktypes.Handle {
	return guardedHandle{handle, c}
}

// SendAhead has evictions sent before the framework is told of them from now on, with a grace period in seconds, or nil
// for that of the pod. The framework sends one at a time, and each waits for up to a tenth of a second in the API
// server, which must be sure that it knows all PodDisruptionBudgets. The framework then hears the result, and counts
// it. It must not be called if the framework has limits, which it would look at before, or evicts elsewhere.
func (c *Client) SendAhead(gracePeriodSeconds *int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead, c.gracePeriod = true, gracePeriodSeconds
}

// sendAhead sends the eviction of a pod, if evictions are sent ahead.
func (c *Client) sendAhead(ctx context.Context, pod *corev1.Pod, meant *intent, opts podevictions.EvictOptions) {
	c.mu.Lock()
	ahead, gracePeriod := c.ahead, c.gracePeriod
	c.mu.Unlock()
	if !ahead {
		return
	}
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Annotations: map[string]string{"reason": opts.StrategyName + ": " + opts.Reason}},
		DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: gracePeriod},
	}
	_ = c.carryOut(ctx, eviction, meant) // it is in meant
}

type guardedHandle struct {
	frameworktypes.Handle
	client *Client
}

// Evictor implements Handle.
func (h guardedHandle) Evictor() frameworktypes.Evictor {
	return evictor{h.Handle.Evictor(), h.client}
}

type evictor struct {
	frameworktypes.Evictor
	client *Client
}

// Evict implements Evictor. Errors of the framework's own limits are returned as they are, because plugins tell them
// apart by their types.
func (e evictor) Evict(ctx context.Context, pod *corev1.Pod, opts podevictions.EvictOptions) error {
	err := e.evict(ctx, pod, opts)
	if settled := e.client.options.Settled; settled != nil {
		settled(ctx, pod, resultOf(err))
	}
	return err
}

func (e evictor) evict(ctx context.Context, pod *corev1.Pod, opts podevictions.EvictOptions) error {
	if pod.UID == "" {
		return &evictionError{resultUnintended, fmt.Errorf("pod %s/%s has no UID", pod.Namespace, pod.Name)}
	}
	meant := e.client.intend(pod)
	e.client.sendAhead(ctx, pod, meant, opts)
	err := e.Evictor.Evict(ctx, pod, opts)
	e.client.mu.Lock()
	defer e.client.mu.Unlock()
	if meant.done && meant.err != nil {
		return meant.err
	}
	return err
}
