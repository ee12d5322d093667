package guard

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// tellAgain is how long no more events are sent about a budget or a pod after one was.
	tellAgain = time.Minute
	// mostOfNamespace is how many events of a namespace may be sent at once, and then within tellAgain. So a namespace with many refusals leaves events for others.
	mostOfNamespace = 20
	// mostInAll is the same for all namespaces together.
	mostInAll = 600
	// mostRemembered is how many pods, budgets and namespaces the teller remembers. About a forgotten one it may send events early.
	mostRemembered = 8192
)

// teller sends events about refusals, on the budget and on the pod. Metrics also count the refusals for which it sends no events.
type teller struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock

	mu sync.Mutex
	// limits has a *rate.Limiter for each pod and budget, by UID, and for each namespace, by name.
	limits *lru.Cache
	all    *rate.Limiter
}

func newTeller(recorder events.EventRecorder, clock clock.PassiveClock) *teller {
	return &teller{recorder: recorder, clock: clock, limits: lru.New(mostRemembered), all: rate.NewLimiter(mostInAll*rate.Every(tellAgain), mostInAll)}
}

// refused sends the events of a refusal. A recorder does not wait until they are written. A nil teller does nothing.
func (t *teller) refused(request *Request, answer verdict) {
	if t == nil {
		return
	}
	pod := request.Pod
	refused := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	send := func(regarding, related *corev1.ObjectReference) {
		if !t.mayTell(regarding) {
			return
		}
		var other runtime.Object // an interface with a nil pointer in it would not be nil
		if related != nil {
			other = related
		}
		t.recorder.Eventf(regarding, other, corev1.EventTypeWarning, string(answer.Reason), string(request.Operation), "%s", answer.Message)
	}
	send(refused, answer.by)
	if answer.by != nil {
		send(answer.by, refused)
	}
}

// mayTell is true if there may be one more event about the object, and counts it.
func (t *teller) mayTell(regarding *corev1.ObjectReference) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	return t.limit(regarding.UID, 1).AllowN(now, 1) && t.limit(regarding.Namespace, mostOfNamespace).AllowN(now, 1) && t.all.AllowN(now, 1)
}

// limit returns what limits the events of the key to so many in each tellAgain.
func (t *teller) limit(key any, most int) *rate.Limiter {
	if known, found := t.limits.Get(key); found {
		return known.(*rate.Limiter)
	}
	limiter := rate.NewLimiter(rate.Limit(most)*rate.Every(tellAgain), most)
	t.limits.Add(key, limiter)
	return limiter
}
