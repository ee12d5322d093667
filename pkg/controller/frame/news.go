package frame

import (
	"fmt"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

const (
	// longestNote of an event is what the API server accepts, in bytes.
	longestNote = 1024
	// longestMessage of a condition. The API server accepts eight times as much, of which many in one status would be more than it stores.
	longestMessage = 4096
)

// Message is the text of a condition, cut to what is stored.
func Message(text string) string { return AtMost(longestMessage, text) }

// AtMost cuts a text to a number of bytes, between characters.
func AtMost(bytes int, text string) string {
	if len(text) <= bytes {
		return text
	}
	const ellipsis = "..."
	end := bytes - len(ellipsis)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}

// News is the content of an event.
type News struct{ eventType, reason, action, note string }

// Normal is the news that something happened.
func Normal[R ~string](reason R, action, format string, values ...any) News {
	return News{corev1.EventTypeNormal, string(reason), action, fmt.Sprintf(format, values...)}
}

// Warning is the news that somebody has to do something.
func Warning[R ~string](reason R, action, format string, values ...any) News {
	n := Normal(reason, action, format, values...)
	n.eventType = corev1.EventTypeWarning
	return n
}

// Reported is the news that a status has a condition with another reason. It is a warning unless the condition holds.
func Reported[R ~string](holds bool, reason R, message string) News {
	if holds {
		return Normal(reason, "ReportStatus", "%s", message)
	}
	return Warning(reason, "ReportStatus", "%s", message)
}

// Send records the event on an object. Related is another object that it involves, or nil. The note is cut to what the API server accepts.
func (n News) Send(to events.EventRecorder, regarding, related runtime.Object) {
	to.Eventf(regarding, related, n.eventType, n.reason, n.action, "%s", AtMost(longestNote, n.note))
}

// Condition is a condition without its time and generation.
type Condition[R ~string] struct {
	Type    string
	Status  metav1.ConditionStatus
	Reason  R
	Message string
}

// True is a condition that holds.
func True[R ~string](of string, reason R, format string, values ...any) Condition[R] {
	return Condition[R]{of, metav1.ConditionTrue, reason, fmt.Sprintf(format, values...)}
}

// False is a condition that does not hold.
func False[R ~string](of string, reason R, format string, values ...any) Condition[R] {
	return Condition[R]{of, metav1.ConditionFalse, reason, fmt.Sprintf(format, values...)}
}

// Set puts the condition into a list, cut to what is stored. It keeps the time of the last transition if the status does not change. It is false if that changes nothing.
func (c Condition[R]) Set(conditions *[]metav1.Condition, generation int64, now metav1.Time) bool {
	return meta.SetStatusCondition(conditions, metav1.Condition{
		Type: c.Type, Status: c.Status, Reason: string(c.Reason), Message: Message(c.Message), ObservedGeneration: generation, LastTransitionTime: now,
	})
}
