// Package turns is a work queue that serves namespaces in turn: whoever has one object waits for one of each other namespace at most, and not for the
// thousands that somebody else has. Within a namespace it is first come, first served.
package turns

import (
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// NewQueue makes the queue of a controller, for the option of controller-runtime of the same name.
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

// turns are the requests that wait. The queue around it calls it under its own lock, and keeps each request from being in it twice.
type turns struct {
	// waiting requests of each namespace that has any, in their order.
	waiting map[string][]reconcile.Request
	// next are these namespaces, in the order of their turns.
	next []string
	len  int
}

var _ workqueue.Queue[reconcile.Request] = &turns{}

// Touch changes nothing: who asks again keeps the place that he has.
func (t *turns) Touch(reconcile.Request) {}

// Push adds a request behind the others of its namespace.
func (t *turns) Push(request reconcile.Request) {
	if len(t.waiting[request.Namespace]) == 0 {
		t.next = append(t.next, request.Namespace)
	}
	t.waiting[request.Namespace] = append(t.waiting[request.Namespace], request)
	t.len++
}

// Len is how many requests wait.
func (t *turns) Len() int { return t.len }

// Pop takes the first request of the namespace whose turn it is, which is last then.
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
