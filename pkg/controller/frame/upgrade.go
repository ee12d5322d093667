package frame

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// UpgradeToApplied makes the fields that a manager wrote without server-side apply, such as at the creation, fields that it has applied. Otherwise a field would stay when the manager applies the object
// without it. The object needs its managed fields, and is not changed. The result is its resource version afterwards. It is an error if the object has changed since it was read.
func UpgradeToApplied(ctx context.Context, to client.Writer, object client.Object, manager string) (resourceVersion string, _ error) {
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(object, sets.New(manager), manager)
	if err != nil || patch == nil {
		return object.GetResourceVersion(), err
	}
	upgraded := object.DeepCopyObject().(client.Object)
	if err := to.Patch(ctx, upgraded, client.RawPatch(types.JSONPatchType, patch)); err != nil {
		return "", err
	}
	return upgraded.GetResourceVersion(), nil
}
