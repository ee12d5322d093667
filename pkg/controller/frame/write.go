package frame

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// WriteStatus writes the status that an object has. It is false if the object has changed since it was read, or is gone: an event follows.
func WriteStatus(ctx context.Context, to client.StatusClient, object client.Object, options ...client.SubResourceUpdateOption) (bool, error) {
	object.SetManagedFields(nil) // the cache does not keep them
	err := to.Status().Update(ctx, object, options...)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("writing the status: %w", err)
	}
	return true, nil
}

// SetFinalizer adds a finalizer to an object, or removes it, if that has not been done. Done is true if the object was as wanted. If the object has changed since it was read, an event follows.
func SetFinalizer(ctx context.Context, to client.Writer, object client.Object, finalizer string, wanted bool, manager client.FieldOwner) (done bool, _ error) {
	if controllerutil.ContainsFinalizer(object, finalizer) == wanted {
		return true, nil
	}
	finalizers := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == finalizer })
	if wanted {
		finalizers = append(finalizers, finalizer)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion(), "finalizers": finalizers}})
	if err != nil {
		return false, err
	}
	err = to.Patch(ctx, object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, patch), manager)
	if apierrors.IsConflict(err) {
		return false, nil
	}
	return false, client.IgnoreNotFound(err)
}

// StatusInterval is the shortest time between two writes of a status that only tell of pods.
const StatusInterval = time.Second

// Pace limits how often each object is written. The zero value limits nothing. It is safe for concurrent use.
type Pace struct {
	// Interval is the shortest time between two writes of an object.
	Interval time.Duration
	// last is of type types.NamespacedName to time.Time.
	last sync.Map
}

// Wait is how long the next write must wait. 0 or less means that it need not.
func (p *Pace) Wait(object types.NamespacedName, now time.Time) time.Duration {
	last, found := p.last.Load(object)
	if !found {
		return 0
	}
	return last.(time.Time).Add(p.Interval).Sub(now)
}

// Wrote begins the interval of an object.
func (p *Pace) Wrote(object types.NamespacedName, now time.Time) { p.last.Store(object, now) }

// Forget drops an object that is gone.
func (p *Pace) Forget(object types.NamespacedName) { p.last.Delete(object) }

// Memories are what is remembered of each object of a kind. A memory belongs to the worker that reconciles its object. The zero value is empty.
type Memories[T any] struct {
	// all is of type types.NamespacedName to memory[T].
	all sync.Map
}

type memory[T any] struct {
	of types.UID
	is *T
}

// Of is the memory of an object. At first it is the one that is given, also for another object of the name.
func (m *Memories[T]) Of(object client.Object, first *T) *T {
	key := client.ObjectKeyFromObject(object)
	if known, found := m.all.Load(key); found && known.(memory[T]).of == object.GetUID() {
		return known.(memory[T]).is
	}
	m.all.Store(key, memory[T]{object.GetUID(), first})
	return first
}

// Forget drops an object that is gone.
func (m *Memories[T]) Forget(object types.NamespacedName) { m.all.Delete(object) }
