package harness

import (
	"context"
	"encoding/pem"
	"net/http/httptest"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/pkg/endpoint"
)

// convert serves the conversion of objects in this process until it ends, for a cluster without a controller. It returns the definitions that name this server.
// They are there from the start: a change of them ends all watches of their kinds, and for about a second nobody would see new objects.
func convert() (definitions [][]byte, err error) {
	server := httptest.NewTLSServer(endpoint.ConversionHandler())
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return product.DefinitionsAt(server.URL+endpoint.Conversion, authority)
}

// awaitConversion waits until the controller has told the API server whom to trust for conversion. That changes the definitions, and the API server then ends all
// watches of their kinds.
func (c *Cluster) awaitConversion(ctx context.Context) error {
	definitions := c.Dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	return c.WaitFor(ctx, "the authority for conversion", func(ctx context.Context) (string, error) {
		for _, name := range append(slices.Clone(endpoint.Definitions), endpoint.UnitedDefinition) {
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
