package guarded

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/descheduler/pkg/descheduler/evictions"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"
)

// Handle is the framework's, with an evictor that means the very pod it is called with, and returns an *Error. Every plugin is built with it,
// those of others as well.
func (c *Client) Handle(handle frameworktypes.Handle) frameworktypes.Handle {
	return guardedHandle{handle, c}
}

// Ahead says what evictions are like that are sent before the framework is told of them. The framework sends one at a time, and each waits for up to a
// tenth of a second in the API server, which must be sure that it knows all PodDisruptionBudgets. The framework then hears the result, and counts it.
type Ahead struct {
	// GracePeriodSeconds of the pods. Nil leaves it to them.
	GracePeriodSeconds *int64
}

// SendAhead has evictions sent so from now on. It must not be called if the framework has limits, which it would look at before, or evicts elsewhere.
func (c *Client) SendAhead(ahead Ahead) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead = &ahead
}

// sendAhead sends the eviction of a pod, if evictions are sent ahead.
func (c *Client) sendAhead(ctx context.Context, pod *corev1.Pod, meant *intent, opts evictions.EvictOptions) {
	c.mu.Lock()
	ahead := c.ahead
	c.mu.Unlock()
	if ahead == nil {
		return
	}
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Annotations: map[string]string{"reason": opts.StrategyName + ": " + opts.Reason}},
		DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: ahead.GracePeriodSeconds},
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

// Evict implements Evictor. Errors of the framework's own limits are returned as they are, because plugins tell them apart by their types.
func (e evictor) Evict(ctx context.Context, pod *corev1.Pod, opts evictions.EvictOptions) error {
	err := e.evict(ctx, pod, opts)
	if settled := e.client.options.Settled; settled != nil {
		settled(ctx, pod, ResultOf(err))
	}
	return err
}

func (e evictor) evict(ctx context.Context, pod *corev1.Pod, opts evictions.EvictOptions) error {
	if pod.UID == "" {
		return &Error{Unintended, fmt.Errorf("pod %s/%s has no UID", pod.Namespace, pod.Name)}
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
