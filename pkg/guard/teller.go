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

	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

const (
	// tellAgain is how long nothing more is told of a budget, or of a pod, after something was.
	tellAgain = time.Minute
	// mostOfNamespace is how many events a namespace has within tellAgain, so that one with many refusals does not keep others from being heard.
	mostOfNamespace = 20
	// mostInAll is how many events all namespaces have within tellAgain.
	mostInAll = 600
	// mostRemembered bounds what is known of whom something was told. What is forgotten is told once more at most.
	mostRemembered = 4096
	// mostWaiting is how many refusals wait to be told. What comes then is left out.
	mostWaiting = 256
)

// teller has events tell of refusals, on the budget and on the pod. No answer waits for it, and what it keeps is bounded. Metrics tell of those that it
// leaves out.
type teller struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock
	waiting  chan refusal

	// last says when something was told of a pod or budget, by UID. Only Start looks at it, and at what follows.
	last *lru.Cache
	// namespaces have the windows of mostOfNamespace.
	namespaces *lru.Cache
	all        window
}

// refusal is what is told.
type refusal struct {
	reason    v1alpha1.Reason
	operation v1alpha1.Operation
	message   string
	pod       corev1.ObjectReference
	budget    *corev1.ObjectReference
}

// window counts what was told since it began.
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

// refused returns at once. It may be called of nil.
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
	default: // too many wait
	}
}

// NeedLeaderElection is false: every replica refuses.
func (t *teller) NeedLeaderElection() bool { return false }

// Start tells until the context ends.
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
	var other runtime.Object // not a nil pointer, which would be no nil in it
	if related != nil {
		other = related
	}
	t.recorder.Eventf(regarding, other, corev1.EventTypeWarning, string(r.reason), string(r.operation), "%s", r.message)
}

// hasRoom counts one more event of the namespace, if there may be one.
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
