package harness

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http/httptest"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/conversion"
	"github.com/berth-project/berth/pkg/endpoint"
)

// convert serves the conversion of objects in this process until it ends, for a cluster without a controller.
func (c *Cluster) convert(ctx context.Context) error {
	server := httptest.NewTLSServer(conversion.Handler())
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"conversion": map[string]any{"webhook": map[string]any{"clientConfig": map[string]any{
		"service": nil, "url": server.URL + endpoint.Conversion, "caBundle": authority,
	}}}}})
	if err != nil {
		return err
	}
	definitions := c.Dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	for _, name := range endpoint.Definitions {
		if _, err := definitions.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("telling the API server who converts: %w", err)
		}
	}
	return nil
}

// awaitConversion waits until the controller has told the API server whom to trust for conversion. That changes the definitions, and the API server then ends all
// watches of their kinds.
func (c *Cluster) awaitConversion(ctx context.Context) error {
	definitions := c.Dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	return c.WaitFor(ctx, "the authority for conversion", func(ctx context.Context) (string, error) {
		for _, name := range endpoint.Definitions {
			definition, err := definitions.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			if authority, _, _ := unstructured.NestedString(definition.Object, "spec", "conversion", "webhook", "clientConfig", "caBundle"); authority == "" {
				return name + " has none", nil
			}
		}
		return "", nil
	})
}
