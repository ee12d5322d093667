package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/version"
)

const certManager = "cert-manager"

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
