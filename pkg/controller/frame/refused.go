package frame

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// IsRefused is true for an error with which an API server says that it will not accept the same request later either, until somebody changes something.
func IsRefused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	if code == http.StatusInternalServerError && strings.Contains(status.Status().Message, "field not declared in schema") {
		return true // an apply with a field that an older API server does not know; it creates an object without the field
	}
	return code >= 400 && code < 500 && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout && code != http.StatusUnauthorized
}
