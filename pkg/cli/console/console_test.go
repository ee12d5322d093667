package console

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestAdvise(t *testing.T) {
	resource := schema.GroupResource{Group: "apps.kruise.io", Resource: "workloadspreads"}
	for err, want := range map[error]string{
		&meta.NoKindMatchError{}:                                                             "install Berth's CRDs with kubectl apply -k manifests/crd",
		apierrors.NewForbidden(resource, "", errors.New("no")):                               "ask for a role",
		apierrors.NewUnauthorized("who"):                                                     "rejects your credentials; renew them",
		&url.Error{Op: "Get", URL: "https://10.0.0.1:6443/apis", Err: errors.New("refused")}: "no API server answers at https://10.0.0.1:6443 (refused)",
		fmt.Errorf("anything else"):                                                          "anything else",
	} {
		if got := Advise(err); !strings.Contains(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%v: %q, want one line with %q", err, got, want)
		}
	}
}
