package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-project/berth/pkg/endpoint"
)

// migration makes the API server store every object in the version that its definition names. To read an object that is stored in another version, the API server needs
// Berth: while Berth is down, nobody could list its kind, and a namespace with such an object could not be deleted. The leader runs it.
type migration struct {
	// reader reads from the API server.
	reader client.Reader
	writer client.Client
	// generations are those of the definitions at the last look. An API server may still store the old version shortly after its definition has changed, so a
	// definition must be the same in two looks.
	generations map[string]int64
}

var _ manager.Runnable = &migration{} // of the leader, as it does not say otherwise

const (
	// objectsPerPage is how many objects are listed at a time.
	objectsPerPage = 500
	// settlingTime is the time between two looks. It is longer than API servers need to learn of a changed definition.
	settlingTime = 10 * time.Second
)

// Start looks until the context ends. A look costs one read for each definition if there is nothing to do.
func (m *migration) Start(ctx context.Context) error {
	repeat(ctx, clock.RealClock{}, nil, settlingTime, "Storing objects in the version of their definition", m.look)
	return nil
}

// look migrates the objects of the definitions that have not changed since the last look.
func (m *migration) look(ctx context.Context) error {
	var errs []error
	for _, name := range converted() {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := m.reader.Get(ctx, types.NamespacedName{Name: name}, definition); err != nil {
			errs = append(errs, client.IgnoreNotFound(err))
			continue
		}
		if m.generations[name] != definition.Generation {
			m.generations[name] = definition.Generation
			continue
		}
		if i := storageOf(definition); i >= 0 && endpoint.Converts(definition) {
			errs = append(errs, m.migrate(ctx, definition, definition.Spec.Versions[i].Name))
		}
	}
	return errors.Join(errs...)
}

// storageOf is the index of the version in which the API server stores objects that are written. It is negative if all objects are stored in it.
func storageOf(definition *apiextensionsv1.CustomResourceDefinition) int {
	return slices.IndexFunc(definition.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Storage && !slices.Equal(definition.Status.StoredVersions, []string{v.Name})
	})
}

// migrate has all objects written again, and then says in the definition that no other version is stored. If the definition changes meanwhile, that is a conflict.
func (m *migration) migrate(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition, version string) error {
	objects := &metav1.PartialObjectMetadataList{}
	objects.SetGroupVersionKind(schema.GroupVersionKind{Group: definition.Spec.Group, Version: version, Kind: definition.Spec.Names.ListKind})
	var written, failed int
	var first error
	for more := true; more; more = objects.Continue != "" {
		if err := m.reader.List(ctx, objects, client.Limit(objectsPerPage), client.Continue(objects.Continue)); err != nil {
			return fmt.Errorf("listing %s: %w", definition.Name, err)
		}
		for i := range objects.Items {
			// An empty patch of the status changes nothing that a client sees, and no webhook is called.
			err := m.writer.Status().Patch(ctx, &objects.Items[i], client.RawPatch(types.MergePatchType, []byte("{}")))
			if written++; client.IgnoreNotFound(err) == nil {
				continue
			}
			if failed++; first == nil {
				first = fmt.Errorf("%s %s: %w", definition.Spec.Names.Kind, client.ObjectKeyFromObject(&objects.Items[i]), err)
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d objects of %s cannot be stored again as %s, first %w", failed, written, definition.Name, version, first)
	}
	patch := client.MergeFromWithOptions(definition.DeepCopy(), client.MergeFromWithOptimisticLock{})
	definition.Status.StoredVersions = []string{version}
	if err := m.writer.Status().Patch(ctx, definition, patch); err != nil {
		if apierrors.IsConflict(err) {
			return nil // the next look begins again
		}
		return fmt.Errorf("writing status.storedVersions of CustomResourceDefinition %s: %w", definition.Name, err)
	}
	klog.FromContext(ctx).Info("All objects are stored in one version", "definition", definition.Name, "version", version, "objects", written)
	return nil
}
