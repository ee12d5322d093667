package sandbox

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"
)

const (
	fieldManager = "sandbox"

	// appearTimeout bounds the wait for a CustomResourceDefinition to be established, or for a kind to be served.
	appearTimeout  = 20 * time.Second
	appearInterval = 50 * time.Millisecond
)

// applier applies manifests server-side.
type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
	// establishing are the CustomResourceDefinitions that may not be served yet.
	establishing []string
}

func newApplier(config *rest.Config) (*applier, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	return &applier{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))}, nil
}

// apply applies the manifests' objects in order and returns when all their kinds are served.
func (a *applier) apply(ctx context.Context, manifests ...[]byte) error {
	for i, manifest := range manifests {
		objects, err := decode(manifest)
		if err != nil {
			return fmt.Errorf("reading manifest %d: %w", i, err)
		}
		for _, object := range objects {
			if err := a.applyObject(ctx, object); err != nil {
				return fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
			}
		}
	}
	return a.awaitEstablished(ctx)
}

func (a *applier) applyObject(ctx context.Context, object *unstructured.Unstructured) error {
	definition := object.GetKind() == "CustomResourceDefinition"
	if !definition {
		if err := a.awaitEstablished(ctx); err != nil {
			return err
		}
	}
	mapping, err := a.mappingOf(ctx, object)
	if err != nil {
		return err
	}
	var client dynamic.ResourceInterface = a.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		client = a.client.Resource(mapping.Resource).Namespace(cmp.Or(object.GetNamespace(), metav1.NamespaceDefault))
	}
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	if _, err := client.Apply(ctx, object.GetName(), object, options); err != nil {
		return err
	}
	if definition {
		a.establishing = append(a.establishing, object.GetName())
	}
	return nil
}

// mappingOf waits until the object's kind is served: discovery lags behind the CustomResourceDefinition.
func (a *applier) mappingOf(ctx context.Context, object *unstructured.Unstructured) (*meta.RESTMapping, error) {
	kind := object.GroupVersionKind()
	var mapping *meta.RESTMapping
	var last error
	err := wait.PollUntilContextTimeout(ctx, appearInterval, appearTimeout, true, func(context.Context) (bool, error) {
		mapping, last = a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(last) {
			a.mapper.Reset()
			return false, nil
		}
		return last == nil, last
	})
	if err != nil {
		return nil, errors.Join(err, last)
	}
	return mapping, nil
}

func (a *applier) awaitEstablished(ctx context.Context) error {
	if len(a.establishing) == 0 {
		return nil
	}
	definitions := a.client.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	for _, name := range a.establishing {
		var state string
		err := wait.PollUntilContextTimeout(ctx, appearInterval, appearTimeout, true, func(ctx context.Context) (bool, error) {
			object, err := definitions.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			var definition apiextensionsv1.CustomResourceDefinition
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &definition); err != nil {
				return false, err
			}
			for _, condition := range definition.Status.Conditions {
				if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
					return true, nil
				}
				state = fmt.Sprintf("%s=%s: %s", condition.Type, condition.Status, condition.Message)
			}
			return false, nil
		})
		if err != nil {
			return fmt.Errorf("CustomResourceDefinition %s is not established (%s): %w", name, state, err)
		}
	}
	a.establishing = nil
	a.mapper.Reset()
	return nil
}

// decode returns the objects of a manifest's documents, and the items of lists one by one.
func decode(manifest []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, err
		}
		switch {
		case len(object.Object) == 0: // only comments
		case object.IsList():
			if err := object.EachListItem(func(item runtime.Object) error {
				objects = append(objects, item.(*unstructured.Unstructured))
				return nil
			}); err != nil {
				return nil, err
			}
		case object.GetKind() == "" || object.GetName() == "":
			return nil, fmt.Errorf("an object without kind or name: %s", document)
		default:
			objects = append(objects, object)
		}
	}
}
