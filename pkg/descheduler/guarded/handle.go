package guarded

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/descheduler/pkg/descheduler/evictions"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"
)

// Handle is the framework's, with an evictor that means the very pod it is called with, and returns an *Error. Every plugin is built with it,
// those of others as well.
func (c *Client) Handle(handle frameworktypes.Handle) frameworktypes.Handle {
	return guardedHandle{handle, c}
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

// Evict implements Evictor. Errors of the framework's own limits are returned as they are, for plugins tell them apart by their types. In a dry
// run of the framework's, which evicts from a fake API server, nothing comes by here.
func (e evictor) Evict(ctx context.Context, pod *corev1.Pod, opts evictions.EvictOptions) error {
	if pod.UID == "" {
		return &Error{Unintended, fmt.Errorf("pod %s/%s has no UID", pod.Namespace, pod.Name)}
	}
	meant := e.client.intend(pod)
	err := e.Evictor.Evict(ctx, pod, opts)
	e.client.mu.Lock()
	defer e.client.mu.Unlock()
	if meant.done && meant.err != nil {
		return meant.err
	}
	return err
}
