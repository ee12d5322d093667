package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/allocation"
)

// Step is an object that is not as wanted.
type Step struct {
	// In writes to the cluster, and Live reads from its API server.
	In   client.Client
	Live client.Reader
	// Before is the object as it was read. Nil if it is to be made. It may be shared, and is not changed.
	Before client.Object
	// Wanted is what is applied. Nil if only replicas are written, or the object is deleted.
	Wanted *unstructured.Unstructured
	// Replicas and Annotations are what is written without Wanted. A nil annotation is removed.
	Replicas    int32
	Annotations map[string]any
	// Delete is true if the object goes.
	Delete bool
	// Strict is true if an object is made only where the API server knows every field of it. An older one would drop the others.
	Strict bool
	// Manager is the field manager.
	Manager client.FieldOwner
	// Owns is true if the object may still be written.
	Owns func(client.Object) bool
}

// Operation is what a step writes.
func (s *Step) Operation() Operation {
	switch {
	case s.Before == nil:
		return Create
	case s.Delete:
		return Delete
	case s.Wanted == nil:
		return Scale
	default:
		return Apply
	}
}

// attempts bounds how often an object is written again because somebody else wrote to it at the same time.
const attempts = 5

// Do writes the object, and returns it as it is then. It repeats a write that came too late, as long as only metadata or the status of the object has changed. The plan still holds then: it goes by the
// spec. Without this, somebody who often writes an annotation could keep an object from being scaled for long.
func (s *Step) Do(ctx context.Context) (after client.Object, err error) {
	for range attempts {
		if after, err = s.write(ctx); !apierrors.IsConflict(err) || s.Before == nil || s.Delete || !s.readAgain(ctx) {
			return after, err
		}
	}
	return after, err
}

// readAgain is false if the plan does not hold any more.
func (s *Step) readAgain(ctx context.Context) bool {
	now := copyOf(s.Before)
	if s.Live.Get(ctx, client.ObjectKeyFromObject(now), now) != nil || now.GetUID() != s.Before.GetUID() || now.GetGeneration() != s.Before.GetGeneration() ||
		!now.GetDeletionTimestamp().IsZero() || !s.Owns(now) {
		return false
	}
	s.Before = now
	return true
}

func (s *Step) write(ctx context.Context) (client.Object, error) {
	switch s.Operation() {
	case Create:
		object := s.Wanted.DeepCopy() // server-side apply would change another object of the name instead
		options := []client.CreateOption{s.Manager}
		if s.Strict {
			options = append(options, client.FieldValidation(metav1.FieldValidationStrict))
		}
		err := s.In.Create(ctx, object, options...)
		var status apierrors.APIStatus
		if apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces" {
			err = &Obstacle{fmt.Sprintf("namespace %s does not exist there; create it", object.GetNamespace())}
		}
		return object, err
	case Delete:
		uid, version := s.Before.GetUID(), s.Before.GetResourceVersion()
		return s.Before, s.In.Delete(ctx, copyOf(s.Before), client.Preconditions{UID: &uid, ResourceVersion: &version}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	case Scale:
		return s.merge(ctx, s.Annotations, map[string]any{"replicas": s.Replicas})
	default:
		if err := s.clearRollingUpdate(ctx); err != nil {
			return nil, err
		}
		version, err := s.upgrade(ctx)
		if err != nil {
			return nil, err
		}
		object := s.Wanted.DeepCopy()
		object.SetUID(s.Before.GetUID())
		object.SetResourceVersion(version)
		return object, s.In.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.ForceOwnership, s.Manager)
	}
}

// merge writes these fields of the object as it was read.
func (s *Step) merge(ctx context.Context, annotations, spec map[string]any) (client.Object, error) {
	metadata := map[string]any{"uid": s.Before.GetUID(), "resourceVersion": s.Before.GetResourceVersion()}
	if annotations != nil { // null would remove those that others have written
		metadata["annotations"] = annotations
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "spec": spec})
	if err != nil {
		return nil, err
	}
	object := copyOf(s.Before)
	return object, s.In.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), s.Manager)
}

// clearRollingUpdate removes the parameters of rolling updates from an object that gets a strategy without them. The API server refuses them beside that strategy. Server-side apply keeps them, because the
// manager does not own them: the API server has filled them in, or somebody else has written them.
func (s *Step) clearRollingUpdate(ctx context.Context) error {
	for _, field := range []string{"strategy", "updateStrategy"} {
		wanted, _, _ := unstructured.NestedMap(s.Wanted.Object, "spec", field)
		if _, rolls := wanted["rollingUpdate"]; rolls || wanted["type"] != "Recreate" && wanted["type"] != "OnDelete" {
			continue
		}
		before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s.Before)
		if err != nil {
			return fmt.Errorf("reading the strategy: %w", err)
		}
		if rolling, _, _ := unstructured.NestedMap(before, "spec", field, "rollingUpdate"); rolling == nil {
			continue
		}
		cleared, err := s.merge(ctx, nil, map[string]any{field: map[string]any{"type": wanted["type"], "rollingUpdate": nil}})
		if err != nil {
			return err
		}
		s.Before = cleared
	}
	return nil
}

// upgrade makes the fields that the manager wrote without server-side apply, such as at the creation, fields that it has applied. Otherwise a field would stay when the manager applies the object without
// it. The result is the resource version of the object afterwards.
func (s *Step) upgrade(ctx context.Context) (resourceVersion string, _ error) {
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(s.Before, sets.New(string(s.Manager)), string(s.Manager))
	if err != nil || patch == nil {
		return s.Before.GetResourceVersion(), err
	}
	upgraded := copyOf(s.Before)
	if err := s.In.Patch(ctx, upgraded, client.RawPatch(types.JSONPatchType, patch)); err != nil {
		return "", err
	}
	return upgraded.GetResourceVersion(), nil
}

func copyOf(object client.Object) client.Object { return object.DeepCopyObject().(client.Object) }

// afford takes from the raises of steps, from the last ones first, what others keep that were to give it up. less makes a step raise less, and is false if nothing is left of it.
func afford[T Placed](steps []T, kept int64, less func(by int32, step *T) (bool, error)) (left []T, _ error) {
	raises := make([]int32, len(steps))
	for i := range steps {
		raises[i] = max(steps[i].Raise(), 0)
	}
	allocation.Afford(raises, kept)
	for i, s := range steps {
		is := true
		if by := max(s.Raise(), 0) - raises[i]; by > 0 {
			var err error
			if is, err = less(by, &s); err != nil {
				return nil, err
			}
		}
		if is {
			left = append(left, s)
		}
	}
	return left, nil
}
