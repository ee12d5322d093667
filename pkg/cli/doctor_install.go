package cli

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/version"
)

const (
	certManager = "cert-manager"
	// renewal is how long before its end a certificate must have been renewed. Berth and cert-manager do it weeks before.
	renewal = 3 * 24 * time.Hour
)

// serverVersion asks the API server for its version, such as v1.35.4.
func serverVersion(ctx context.Context, c *console.Cluster) (string, error) {
	asked, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		return "", err
	}
	answer, err := asked.RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var server struct{ GitVersion string }
	err = json.Unmarshal(answer, &server)
	return server.GitVersion, err
}

func checkServer(ctx context.Context, c *console.Cluster) (string, []string, error) {
	server, err := serverVersion(ctx, c)
	if err != nil {
		return "", nil, err
	}
	line, err := version.LineFor(server)
	if err != nil {
		return "", nil, err
	}
	if line == "" {
		return "", []string{fmt.Sprintf("the API server is Kubernetes %s, and this version of Berth runs with %s: see docs/compatibility.md for a version of Berth that runs with it", server, version.Supported())}, nil
	}
	return fmt.Sprintf("Kubernetes %s is supported, by line %s of Berth", server, line), nil, nil
}

// checkKruise looks whether OpenKruise's webhook serves the two kinds. It says what to do about it.
func checkKruise(ctx context.Context, c *console.Cluster, todo string) (string, []string, error) {
	configuration := &unstructured.Unstructured{}
	configuration.SetGroupVersionKind(webhookKind)
	if err := c.Get(ctx, client.ObjectKey{Name: kruiseWebhooks}, configuration); err != nil && !apierrors.IsNotFound(err) {
		return "", nil, err
	}
	webhooks, _, err := entriesOf(configuration)
	if err != nil {
		return "", nil, err
	}
	for _, webhook := range webhooks {
		if isEntry(webhook) {
			return "", []string{fmt.Sprintf("OpenKruise serves WorkloadSpreads and PodUnavailableBudgets in this cluster (ValidatingWebhookConfiguration %s, webhook %s): %s",
				kruiseWebhooks, webhook.(map[string]any)["name"], todo)}, nil
		}
	}
	return "does not serve WorkloadSpreads and PodUnavailableBudgets in this cluster", nil, nil
}

// checkKruisesUnited looks whether OpenKruise's webhook serves UnitedDeployments. Then its controller does too.
func checkKruisesUnited(ctx context.Context, c *console.Cluster) (string, []string, error) {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := c.Get(ctx, client.ObjectKey{Name: kruiseWebhooks}, configuration); err != nil && !apierrors.IsNotFound(err) {
		return "", nil, err
	}
	for i := range configuration.Webhooks {
		for _, rule := range configuration.Webhooks[i].Rules {
			if slices.Contains(rule.Resources, "uniteddeployments") {
				return "", []string{fmt.Sprintf("OpenKruise serves UnitedDeployments in this cluster (ValidatingWebhookConfiguration %s, webhook %s), and two controllers would create children without end: "+
					"install with unitedDeployments.enabled=false, or see docs/install.md", kruiseWebhooks, configuration.Webhooks[i].Name)}, nil
			}
		}
	}
	return "OpenKruise does not serve them in this cluster", nil, nil
}

func checkCertManager(ctx context.Context, c *console.Cluster) (string, []string, error) {
	var problems []string
	for _, name := range []string{"certificates.cert-manager.io", "issuers.cert-manager.io"} {
		err := c.Get(ctx, client.ObjectKey{Name: name}, &apiextensionsv1.CustomResourceDefinition{})
		if apierrors.IsNotFound(err) {
			problems = append(problems, name+" does not exist: install cert-manager first, or leave out --certificates")
		} else if err != nil {
			return "", nil, err
		}
	}
	return "is installed", problems, nil
}

// checkOwnRights looks whether the user may create what makes a cluster administrator of those who may.
func checkOwnRights(ctx context.Context, c *console.Cluster) (string, []string, error) {
	var missing []string
	for _, resource := range []string{"namespaces", "customresourcedefinitions.apiextensions.k8s.io", "clusterroles.rbac.authorization.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io",
		"validatingwebhookconfigurations.admissionregistration.k8s.io", "validatingadmissionpolicies.admissionregistration.k8s.io"} {
		name, group, _ := strings.Cut(resource, ".")
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "create", Group: group, Resource: name}}}
		if err := c.Create(ctx, review); err != nil {
			return "", nil, err
		}
		if !review.Status.Allowed {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return "", []string{"you may not create " + strings.Join(missing, ", ") + ": install Berth as an administrator of the cluster"}, nil
	}
	return "you may create what Berth is made of", nil, nil
}

// checkCertificates looks at the authorities by which the API server knows the webhooks. checkWebhooks says if there is none.
func checkCertificates(ctx context.Context, c *console.Cluster) (string, []string, error) {
	var problems []string
	var ends time.Time
	for _, name := range endpoint.Configurations {
		for _, object := range []client.Object{&admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfiguration{}} {
			err := c.Get(ctx, client.ObjectKey{Name: name}, object)
			if apierrors.IsNotFound(err) {
				continue
			} else if err != nil {
				return "", problems, err
			}
			for _, webhook := range endpoint.WebhooksOf(object) {
				if len(webhook.Client.CABundle) == 0 {
					continue
				}
				end, err := endOf(webhook.Client.CABundle)
				switch {
				case err != nil:
					problems = append(problems, fmt.Sprintf("%s %s, %s, has a CA bundle that is none (%v): see the log of berth-controller, or of cert-manager", kindOf(object), name, webhook.Name, err))
				case now().Add(renewal).After(end):
					problems = append(problems, fmt.Sprintf("%s %s, %s, trusts an authority that nobody has renewed and that ends %s: see the log of berth-controller, or of cert-manager",
						kindOf(object), name, webhook.Name, end.UTC().Format(time.RFC3339)))
				case ends.IsZero() || end.Before(ends):
					ends = end
				}
			}
		}
	}
	if ends.IsZero() {
		return "the webhooks have none yet", problems, nil
	}
	return "the authorities of the webhooks are valid until " + ends.UTC().Format(time.DateOnly), problems, nil
}

// endOf is when the last of the certificates ends. During a change of the authority there are two.
func endOf(bundle []byte) (end time.Time, err error) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return end, err
		}
		if certificate.NotAfter.After(end) {
			end = certificate.NotAfter
		}
	}
	if end.IsZero() {
		return end, errors.New("there is no certificate in it")
	}
	return end, nil
}
