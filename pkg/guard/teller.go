package guard

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
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
	// limits drop events: about one pod or budget, of one namespace, and of all.
	limits []*record.EventSourceObjectSpamFilter
}

func newTeller(recorder events.EventRecorder, clock clock.PassiveClock) *teller {
	limit := func(most int, of record.EventSpamKeyFunc) *record.EventSourceObjectSpamFilter {
		return record.NewEventSourceObjectSpamFilter(mostRemembered, most, float32(most)/float32(tellAgain.Seconds()), clock, of)
	}
	return &teller{recorder, []*record.EventSourceObjectSpamFilter{
		limit(1, func(e *corev1.Event) string { return string(e.InvolvedObject.UID) }),
		limit(mostOfNamespace, func(e *corev1.Event) string { return e.InvolvedObject.Namespace }),
		limit(mostInAll, func(*corev1.Event) string { return "" }),
	}}
}

// refused sends the events of a refusal. A recorder does not wait until they are written. A nil teller does nothing.
func (t *teller) refused(request *Request, answer verdict) {
	if t == nil {
		return
	}
	pod := request.Pod
	refused := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	send := func(regarding, related *corev1.ObjectReference) {
		event := &corev1.Event{InvolvedObject: *regarding}
		if slices.ContainsFunc(t.limits, func(limit *record.EventSourceObjectSpamFilter) bool { return limit.Filter(event) }) {
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
