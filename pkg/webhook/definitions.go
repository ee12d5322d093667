package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/endpoint"
)

// definitionsInterval is how often Berth checks that the definitions have the CA. Nothing else tells it that somebody has replaced them: a watch would have to
// read every definition of the cluster, because RBAC cannot restrict one to names.
const definitionsInterval = 30 * time.Second

// converted are the names of the CustomResourceDefinitions whose objects Berth may convert.
func converted() []string {
	return append(slices.Clone(endpoint.Definitions), endpoint.UnitedDefinition)
}

// definitions are the CustomResourceDefinitions of Berth's kinds. The API server converts objects by calling the webhook that they name.
type definitions struct {
	// live reads from the API server.
	live   client.Reader
	writer client.Writer
}

// trust makes the API server trust the authority when it calls the conversion webhook. It changes nothing else of the definitions, and leaves alone those
// that do not exist, name no webhook, or name that of another controller.
func (d *definitions) trust(ctx context.Context, authority []byte) error {
	var errs []error
	for _, name := range converted() {
		errs = append(errs, d.trustOf(ctx, name, authority))
	}
	return errors.Join(errs...)
}

func (d *definitions) trustOf(ctx context.Context, name string, authority []byte) error {
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := d.live.Get(ctx, types.NamespacedName{Name: name}, definition); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !endpoint.Converts(definition) || bytes.Equal(definition.Spec.Conversion.Webhook.ClientConfig.CABundle, authority) {
		return nil
	}
	// A patch, because a newer API server may have fields that this version would drop. The revision lets only one of several replicas write.
	patch := client.MergeFromWithOptions(definition.DeepCopy(), client.MergeFromWithOptimisticLock{})
	definition.Spec.Conversion.Webhook.ClientConfig.CABundle = authority
	if err := d.writer.Patch(ctx, definition, patch); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("writing the authority of CustomResourceDefinition %s: %w", name, err)
	}
	return nil
}
