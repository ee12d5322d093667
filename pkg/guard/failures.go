package guard

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

const (
	// retryAfter is when a client shall try again after a transient error, if the API server does not say when.
	retryAfter = time.Second
	// longestRetryAfter bounds the delay that the API server names. Client libraries wait that long up to ten times before they return to their
	// callers.
	longestRetryAfter = 5 * time.Second
)

// passes is true for a transient error: the API server is busy, restarts, has lost its store for a moment, or cannot be reached. The duration is when
// to try again, at least a second. All other errors need a person: missing rights, objects that cannot be read, faults of Berth.
func passes(err error) (after time.Duration, ok bool) {
	if !isPassing(err) {
		return 0, false
	}
	after = retryAfter
	if seconds, told := apierrors.SuggestsClientDelay(err); told {
		after = min(max(time.Duration(seconds)*time.Second, retryAfter), longestRetryAfter)
	}
	return after, true
}

func isPassing(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return isPassingStatus(status.Status())
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return false
	}
	// A request without an answer is transient too.
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || utilnet.IsHTTP2ConnectionLost(err) {
		return true
	}
	// Errors of the client's own rate limiter, and of an answer that breaks off, have no type.
	return containsAny(err.Error(), "would exceed context deadline", "when reading response body")
}

func isPassingStatus(status metav1.Status) bool {
	switch status.Code {
	case http.StatusConflict, http.StatusGone, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	case http.StatusInternalServerError:
		return status.Reason == metav1.StatusReasonServerTimeout || containsAny(status.Message, passingMessages...)
	default:
		return false
	}
}

// passingMessages occur in answers with code 500 that are transient. In them the API server repeats the errors of its store and of its own connections.
var passingMessages = []string{
	"etcdserver: leader changed", "etcdserver: no leader", "etcdserver: not leader", "etcdserver: request timed out", "etcdserver: server stopped",
	"etcdserver: too many requests", "etcdserver: unhealthy cluster", "required revision has been compacted",
	"code = Unavailable", "code = DeadlineExceeded", "context deadline exceeded", "context canceled",
	"connection refused", "connection reset", "client connection lost", "i/o timeout", "unexpected EOF", "is shutting down",
}

func containsAny(text string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}
