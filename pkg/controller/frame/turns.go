package frame

import (
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// Workers is how many requests a controller serves at a time. A worker that waits costs next to nothing, so there are more than a tenant with a few namespaces
	// can occupy.
	Workers = 32
	// ofNamespace is how many of them may be of one namespace. Some objects take the API server long to read.
	ofNamespace = 4
)

// newQueue makes functions that make the queue of a controller, for NewQueue in the controller options of controller-runtime. most is how many requests of
// one namespace are served at a time. If the controller has more workers, some are left for other namespaces while those of one namespace take long.
func newQueue(most int) func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	type request = reconcile.Request
	return func(name string, limiter workqueue.TypedRateLimiter[request]) workqueue.TypedRateLimitingInterface[request] {
		t := &turns{most: most, waiting: map[string][]request{}, served: map[string]int{}}
		return &queue{turns: t, TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[request]{
			Name: name,
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[request]{
				Name:  name,
				Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[request]{Name: name, Queue: t}),
			}),
		})}
	}
}

// queue tells the turns which requests are no longer served.
type queue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	turns *turns
}

// Done ends the work on a request. It makes at most one more request ready. The worker that calls Done takes that one when it calls Get, unless another
// worker is faster, so nobody needs to be woken.
func (q *queue) Done(request reconcile.Request) {
	q.turns.done(request.Namespace)
	q.TypedRateLimitingInterface.Done(request)
}

// turns are the waiting requests: a work queue that serves namespaces in turn (round robin). The only waiting object of a namespace waits for at most
// one object of each other namespace, even if another namespace has thousands. No namespace occupies all workers. Within a namespace the order is first
// in, first out. The work queue never adds a request twice.
type turns struct {
	most int

	mu sync.Mutex
	// waiting are the requests of each namespace in their order. It has no empty lists.
	waiting map[string][]reconcile.Request
	// served counts the requests of each namespace that workers serve now. It has no zeros.
	served map[string]int
	// next are the namespaces with waiting requests of which fewer than most are served, in the order of their turns.
	next []string
	// ready counts the waiting requests of these namespaces.
	ready int
}

var _ workqueue.Queue[reconcile.Request] = &turns{}

// Touch changes nothing: a request that is added again keeps its place.
func (t *turns) Touch(reconcile.Request) {}

// Push adds a request behind the others of its namespace.
func (t *turns) Push(request reconcile.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	namespace := request.Namespace
	t.waiting[namespace] = append(t.waiting[namespace], request)
	if t.served[namespace] == t.most {
		return
	}
	t.ready++
	if len(t.waiting[namespace]) == 1 {
		t.next = append(t.next, namespace)
	}
}

// Len is the number of waiting requests, without those of namespaces of which enough are served.
func (t *turns) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ready
}

// Pop removes the first request of the namespace whose turn it is. The next turn of this namespace comes after those of all others.
func (t *turns) Pop() reconcile.Request {
	t.mu.Lock()
	defer t.mu.Unlock()
	namespace := t.next[0]
	t.next = t.next[1:]
	first, rest := t.waiting[namespace][0], t.waiting[namespace][1:]
	t.waiting[namespace] = rest
	t.served[namespace]++
	t.ready--
	switch {
	case len(rest) == 0:
		delete(t.waiting, namespace)
	case t.served[namespace] == t.most:
		t.ready -= len(rest)
	default:
		t.next = append(t.next, namespace)
	}
	return first
}

// done counts a request of the namespace as no longer served.
func (t *turns) done(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.served[namespace] == t.most && len(t.waiting[namespace]) > 0 {
		t.next = append(t.next, namespace)
		t.ready += len(t.waiting[namespace])
	}
	if t.served[namespace]--; t.served[namespace] == 0 {
		delete(t.served, namespace)
	}
}
