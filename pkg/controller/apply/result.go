package apply

import (
	"errors"

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

// EndsWithNamespace is true for an error that says that the namespace is being deleted, and everything in it.
func EndsWithNamespace(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// Obstacle is why an object cannot be made until somebody does something about it: another one has its name, or there is no namespace for it.
type Obstacle struct{ Message string }

func (o *Obstacle) Error() string { return o.Message }
