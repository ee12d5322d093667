package frame

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestWhatAnAPIServerRefuses will be refused again; a failure may end by itself.
func TestWhatAnAPIServerRefuses(t *testing.T) {
	resource := schema.GroupResource{Group: "apps", Resource: "replicasets"}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"a policy":                      {apierrors.NewForbidden(resource, "web", errors.New("no")), true},
		"a field that it does not know": {apierrors.NewInternalError(errors.New("failed to create typed patch object: .spec.template.spec.workloadRef: field not declared in schema")), true},
		"no space":                      {apierrors.NewInternalError(errors.New("etcdserver: mvcc: database space exceeded")), false},
		"too many requests":             {apierrors.NewTooManyRequests("later", 1), false},
		"no answer":                     {errors.New("connection refused"), false},
	} {
		if got := IsRefused(tc.err); got != tc.want {
			t.Errorf("%s: refused is %v", name, got)
		}
	}
}
