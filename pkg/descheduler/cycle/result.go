package cycle

import (
	"errors"
	"fmt"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// evictionResult of an eviction.
type evictionResult string

const (
	// resultEvicted: the API server has accepted it. In a dry run the client returns it too.
	resultEvicted evictionResult = "Evicted"
	// resultWouldEvict: it is a dry run, and nothing speaks against the eviction. Reports say so in place of Evicted.
	resultWouldEvict evictionResult = "WouldEvict"
	// resultRefused: a PodDisruptionBudget or PodUnavailableBudget has no room (429 with their cause).
	resultRefused evictionResult = "Refused"
	// resultReplacedFirst: a PodUnavailableBudget has no room, and has a new pod made. Then it evicts this one.
	resultReplacedFirst evictionResult = "ReplacedFirst"
	// resultForbidden: the API server or a webhook of somebody else does not allow it (403).
	resultForbidden evictionResult = "Forbidden"
	// resultChanged: another pod has the name, or the pending pod was bound or changed since (409).
	resultChanged evictionResult = "Changed"
	// resultGone: there is no such pod (404).
	resultGone evictionResult = "Gone"
	// resultFailed: the API server or a webhook has answered with an error, and has not evicted the pod. So it is if it
	// has too much to do (429 alone).
	resultFailed evictionResult = "Failed"
	// resultUnanswered: there was no answer, or none in time. The pod may be gone.
	resultUnanswered evictionResult = "Unanswered"
	// resultTripped: it was not sent, because too many before it have failed in this cycle.
	resultTripped evictionResult = "Tripped"
	// resultUnintended: it was not sent, because no plugin has said which pod is meant.
	resultUnintended evictionResult = "Unintended"
)

// attempted is true for results of evictions of which something was wanted and that count as a success or a failure. A
// pod that has changed, is gone or is replaced first needs no eviction any more.
func (r evictionResult) attempted() bool {
	return r == resultEvicted || r == resultRefused || r == resultForbidden || r.broken()
}

// broken is true for results that say something of the API server and nothing of the pod.
func (r evictionResult) broken() bool { return r == resultFailed || r == resultUnanswered }

// evictionError is a result other than Evicted.
type evictionError struct {
	Result evictionResult
	Err    error
}

func (e *evictionError) Error() string { return fmt.Sprintf("%s: %v", e.Result, e.Err) }

// Unwrap is the answer of the API server.
func (e *evictionError) Unwrap() error { return e.Err }

// resultOf is Evicted for nil, and what a guarded eviction ended with; Failed for an error of somebody else.
func resultOf(err error) evictionResult {
	if err == nil {
		return resultEvicted
	}
	var typed *evictionError
	if errors.As(err, &typed) {
		return typed.Result
	}
	return resultFailed
}

func classify(err error) evictionResult {
	switch {
	case err == nil:
		return resultEvicted
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		cause, _ := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
		if strings.HasPrefix(cause.Message, string(v1beta1.ReasonReplacedFirst)+": ") {
			return resultReplacedFirst
		}
		return resultRefused
	case apierrors.IsForbidden(err):
		return resultForbidden
	case apierrors.IsConflict(err):
		return resultChanged
	case apierrors.IsNotFound(err):
		return resultGone
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) {
		return resultUnanswered
	}
	return resultFailed
}
