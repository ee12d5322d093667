// Package turns is a work queue that serves namespaces in turn (round robin). The only waiting object of a namespace waits for at most one object of
// each other namespace, even if another namespace has thousands. Within a namespace the order is first in, first out.
package turns

import (
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// NewQueue makes the queue of a controller. It is a value for NewQueue in the controller options of controller-runtime.
func NewQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	type request = reconcile.Request
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[request]{
		Name: name,
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[request]{
			Name:  name,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[request]{Name: name, Queue: &turns{waiting: map[string][]request{}}}),
		}),
	})
}

// turns are the waiting requests. The work queue calls it under its own lock, and never adds a request twice.
type turns struct {
	// waiting are the requests of each namespace in their order. It has no empty lists.
	waiting map[string][]reconcile.Request
	// next are the namespaces with waiting requests, in the order of their turns.
	next []string
	len  int
}

var _ workqueue.Queue[reconcile.Request] = &turns{}

// Touch changes nothing: a request that is added again keeps its place.
func (t *turns) Touch(reconcile.Request) {}

// Push adds a request behind the others of its namespace.
func (t *turns) Push(request reconcile.Request) {
	if len(t.waiting[request.Namespace]) == 0 {
		t.next = append(t.next, request.Namespace)
	}
	t.waiting[request.Namespace] = append(t.waiting[request.Namespace], request)
	t.len++
}

// Len is the number of waiting requests.
func (t *turns) Len() int { return t.len }

// Pop removes the first request of the namespace whose turn it is. The next turn of this namespace comes after those of all others.
func (t *turns) Pop() reconcile.Request {
	namespace := t.next[0]
	t.next = t.next[1:]
	requests := t.waiting[namespace]
	if len(requests) > 1 {
		t.waiting[namespace] = requests[1:]
		t.next = append(t.next, namespace)
	} else {
		delete(t.waiting, namespace)
	}
	t.len--
	return requests[0]
}
