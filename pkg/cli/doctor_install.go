package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/internal/version"
	"github.com/berth-project/berth/pkg/cli/console"
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

// checkKruise looks whether OpenKruise's webhook serves some resources. Then its controller does too. todo is what to
// do about it.
func checkKruise(kinds, todo string, resources ...string) func(context.Context, *console.Cluster) (string, []string, error) {
	return func(ctx context.Context, c *console.Cluster) (string, []string, error) {
		configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if err := c.Get(ctx, client.ObjectKey{Name: kruiseWebhooks}, configuration); err != nil && !apierrors.IsNotFound(err) {
			return "", nil, err
		}
		for _, webhook := range configuration.Webhooks {
			for _, rule := range webhook.Rules {
				if slices.ContainsFunc(rule.Resources, func(of string) bool { return slices.Contains(resources, of) }) {
					return "", []string{fmt.Sprintf("OpenKruise serves %s in this cluster (ValidatingWebhookConfiguration %s, webhook %s): %s", kinds, kruiseWebhooks, webhook.Name, todo)}, nil
				}
			}
		}
		return "OpenKruise does not serve " + kinds + " in this cluster", nil, nil
	}
}
