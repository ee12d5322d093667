package apply

import (
	"errors"
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-project/berth/pkg/controller/frame"
)

// Operation is what is written.
type Operation string

// Operations of a step.
const (
	Create Operation = "create"
	Apply  Operation = "apply"
	Scale  Operation = "scale"
	Delete Operation = "delete"
)

// Result is how a write ended.
type Result string

const (
	// Written is success.
	Written Result = "written"
	// Stale: something has changed since it was read, so the plan is out of date.
	Stale Result = "stale"
	// Refused: the same request will be refused again, until somebody changes something.
	Refused Result = "refused"
	// Failed is everything else. It may end by itself.
	Failed Result = "failed"
)

// ResultOf is how a write ended.
func ResultOf(err error) Result {
	var known *Obstacle
	switch {
	case err == nil:
		return Written
	case errors.As(err, &known):
		return Refused
	case EndsWithNamespace(err), apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err), apierrors.IsGone(err):
		return Stale
	case frame.IsRefused(err):
		return Refused
	default:
		return Failed
	}
}

// Outcome is how writes ended. The zero value is that of none. It is safe for concurrent use.
type Outcome struct {
	mu sync.Mutex
	// Refused are the messages of API servers that do not accept something, by what it is.
	Refused map[string]string
	// Scaled says what asks for another number of replicas now.
	Scaled []string
	// Kept is how many replicas stay because writes that were to lower them failed, or have not ended.
	Kept int64
	// Stale is true if something has changed since it was read.
	Stale bool
	Err   error
}

// Add notes how a write ended. It is false if the write failed.
func (o *Outcome) Add(what string, is Result, err error) bool {
	switch is {
	case Written:
		return true
	case Stale:
		o.Join(&Outcome{Stale: true})
	case Refused:
		o.Join(&Outcome{Refused: map[string]string{what: err.Error()}})
	default:
		o.Join(&Outcome{Err: fmt.Errorf("writing to %s: %w", what, err)})
	}
	return false
}

// Keep notes something that was not written.
func (o *Outcome) Keep(one Placed) { o.Join(&Outcome{Kept: int64(max(-one.Raise(), 0))}) }

// Join adds what has come of other writes.
func (o *Outcome) Join(other *Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Refused == nil && other.Refused != nil {
		o.Refused = map[string]string{}
	}
	maps.Copy(o.Refused, other.Refused)
	o.Scaled, o.Kept, o.Stale, o.Err = append(o.Scaled, other.Scaled...), o.Kept+other.Kept, o.Stale || other.Stale, errors.Join(o.Err, other.Err)
}

// EndsWithNamespace is true for an error that says that the namespace is being deleted, and everything in it.
func EndsWithNamespace(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// Obstacle is why an object cannot be made until somebody does something about it: another one has its name, or there is no namespace for it.
type Obstacle struct{ Message string }

func (o *Obstacle) Error() string { return o.Message }
