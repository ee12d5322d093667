package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/clientcmd"
)

// Advise returns one line that says what went wrong and what to do about it.
func Advise(err error) string {
	var noMatch *meta.NoKindMatchError
	var unreachable *url.Error
	switch {
	case errors.As(err, &noMatch), meta.IsNoMatchError(err):
		kind, from := "WorkloadSpread", map[string]string{"SidecarSet": "manifests/sidecar", "FederatedReplicaSet": "manifests/federation/hub"}
		if noMatch != nil {
			kind = cmp.Or(noMatch.GroupKind.Kind, kind)
		}
		return fmt.Sprintf("the cluster does not know %ss; install Berth's CRDs with kubectl apply -k %s", kind, cmp.Or(from[kind], "manifests/crd"))
	case clientcmd.IsEmptyConfig(err):
		return "no cluster is configured; set KUBECONFIG or use --kubeconfig or --server"
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("%v; ask for a role that allows it, or use another --context or --as", err)
	case apierrors.IsUnauthorized(err):
		return "the API server rejects your credentials; renew them or use another --context"
	case errors.As(err, &unreachable):
		return fmt.Sprintf("no API server answers at %s (%v); use another --context or --kubeconfig", hostOf(unreachable.URL), unreachable.Err)
	default:
		return err.Error()
	}
}

func hostOf(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return address
	}
	return parsed.Scheme + "://" + parsed.Host
}
