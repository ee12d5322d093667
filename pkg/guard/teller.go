package guard

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

const (
	// tellAgain is how long no more events are sent about a budget or a pod after one was.
	tellAgain = time.Minute
	// mostOfNamespace is the maximum number of events of a namespace within tellAgain, so that a namespace with many refusals leaves events for others.
	mostOfNamespace = 20
	// mostInAll is the maximum number of events of all namespaces together within tellAgain.
	mostInAll = 600
	// mostRemembered is how many pods and budgets, and how many namespaces, the teller remembers. About a forgotten one it may send events early.
	mostRemembered = 4096
	// mostWaiting is how many refusals may wait for their events. Further refusals get none.
	mostWaiting = 256
)

// teller sends events about refusals, on the budget and on the pod. No answer waits for it, and its memory is bounded. Metrics also count the refusals
// for which it sends no events.
type teller struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock
	waiting  chan refusal

	// last has the time of the last event about a pod or budget, by UID. Only Start uses it and the fields below.
	last *lru.Cache
	// namespaces has the window of each namespace, for mostOfNamespace.
	namespaces *lru.Cache
	all        window
}

// refusal is the content of the events.
type refusal struct {
	reason    v1beta1.Reason
	operation v1beta1.Operation
	message   string
	pod       corev1.ObjectReference
	budget    *corev1.ObjectReference
}

// window counts the events since it began.
type window struct {
	began time.Time
	told  int
}

var (
	_ manager.Runnable               = &teller{}
	_ manager.LeaderElectionRunnable = &teller{}
)

func newTeller(recorder events.EventRecorder, clock clock.PassiveClock) *teller {
	return &teller{
		recorder: recorder, clock: clock, waiting: make(chan refusal, mostWaiting), last: lru.New(mostRemembered), namespaces: lru.New(mostRemembered),
	}
}

// refused queues a refusal for its events and returns at once. A nil teller does nothing.
func (t *teller) refused(request *Request, answer verdict) {
	if t == nil {
		return
	}
	pod := request.Pod
	r := refusal{
		reason: answer.Reason, operation: request.Operation, message: answer.Message, budget: answer.by,
		pod: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	select {
	case t.waiting <- r:
	default: // the queue is full
	}
}

// NeedLeaderElection is false: every replica refuses.
func (t *teller) NeedLeaderElection() bool { return false }

// Start sends events until the context ends.
func (t *teller) Start(ctx context.Context) error {
	for {
		select {
		case r := <-t.waiting:
			t.tell(&r)
		case <-ctx.Done():
			return nil
		}
	}
}

func (t *teller) tell(r *refusal) {
	t.send(r, &r.pod, r.budget)
	if r.budget != nil {
		t.send(r, r.budget, &r.pod)
	}
}

func (t *teller) send(r *refusal, regarding, related *corev1.ObjectReference) {
	now := t.clock.Now()
	if at, told := t.last.Get(regarding.UID); told && now.Sub(at.(time.Time)) < tellAgain || !t.hasRoom(regarding.Namespace, now) {
		return
	}
	t.last.Add(regarding.UID, now)
	var other runtime.Object // an interface with a nil pointer in it would not be nil
	if related != nil {
		other = related
	}
	t.recorder.Eventf(regarding, other, corev1.EventTypeWarning, string(r.reason), string(r.operation), "%s", r.message)
}

// hasRoom counts one more event of the namespace, and is false if there may be no more.
func (t *teller) hasRoom(namespace string, now time.Time) bool {
	found, known := t.namespaces.Get(namespace)
	if !known {
		found = &window{}
		t.namespaces.Add(namespace, found)
	}
	own := found.(*window)
	for _, w := range []*window{own, &t.all} {
		if now.Sub(w.began) >= tellAgain {
			*w = window{began: now}
		}
	}
	if own.told >= mostOfNamespace || t.all.told >= mostInAll {
		return false
	}
	own.told++
	t.all.told++
	return true
}
