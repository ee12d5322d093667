package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/lineage"
)

const (
	// unusedFor is how long a namespace stays in the match condition after the last object in it is gone. It may get another one.
	unusedFor = 10 * time.Minute
	// includeTimeout bounds how long the creation of a spread waits.
	includeTimeout = 2 * time.Second
)

// uses narrows a mutating webhook to the namespaces that have objects of a kind, or in which a rule may make one. Without that, the API server would call Berth about the pods and evictions of all namespaces.
//
// A namespace is added when the webhook of the first object admits it, before the API server stores the object: its pods may follow at once. The leader adds what was created
// while no webhook answered, and removes namespaces without an object.
type uses struct {
	configuration, webhook string
	// kind of the objects, and the cache with them.
	kind    client.ObjectList
	example client.Object
	objects cache.Cache
	// rules apply in namespaces that need no object yet. Nil means none.
	rules *lineage.Rules
	// configurations is a cache of webhook configurations, and live reads from the API server.
	configurations cache.Cache
	live           client.Reader
	writer         client.Writer
	clock          clock.Clock
	// unused is since when a narrowed namespace has had no object. Only Start uses it.
	unused map[string]time.Time
}

var _ manager.Runnable = &uses{} // of the leader, as it does not say otherwise

// Start looks after the first object in a namespace, when the webhook is called for all namespaces, as after it was applied, and every keepInterval, until the context ends.
func (u *uses) Start(ctx context.Context) error {
	changed := newSignal()
	if err := changed.on(ctx, u.objects, u.example, func(o client.Object) bool { return !u.includes(ctx, o.GetNamespace()) }); err != nil {
		return err
	}
	if err := changed.on(ctx, u.configurations, &admissionregistrationv1.MutatingWebhookConfiguration{}, func(o client.Object) bool {
		_, all := namespacesOf(o.(*admissionregistrationv1.MutatingWebhookConfiguration), u.webhook)
		return all && o.GetName() == u.configuration
	}); err != nil {
		return err
	}
	if u.rules != nil {
		missing := func(client.Object) bool {
			names, err := u.rules.Namespaces(ctx)
			return err != nil || slices.ContainsFunc(names, func(name string) bool { return !u.includes(ctx, name) })
		}
		isMissing := func(namespace client.Object) bool {
			applies, err := u.rules.Apply(ctx, namespace.GetName())
			return err != nil || applies && !u.includes(ctx, namespace.GetName())
		}
		if err := errors.Join(changed.on(ctx, u.objects, &v1alpha1.SpreadRule{}, missing), changed.on(ctx, u.objects, &v1alpha1.ClusterSpreadRule{}, missing),
			changed.on(ctx, u.objects, lineage.NewNamespace(), isMissing)); err != nil {
			return err
		}
	}
	repeat(ctx, u.clock, changed, keepInterval, "Writing for which namespaces webhook "+u.webhook+" is called", u.keep)
	return nil
}

// keep adds the namespaces that have an object, and removes those that have had none for unusedFor.
func (u *uses) keep(ctx context.Context) error {
	list := u.kind.DeepCopyObject().(client.ObjectList)
	if err := u.objects.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing %T: %w", list, err)
	}
	used := sets.New[string]()
	if err := meta.EachListItem(list, func(object runtime.Object) error {
		used.Insert(object.(client.Object).GetNamespace())
		return nil
	}); err != nil {
		return err
	}
	if u.rules != nil {
		names, err := u.rules.Namespaces(ctx)
		if err != nil {
			return err
		}
		used.Insert(names...)
	}
	now, unused := u.clock.Now(), map[string]time.Time{}
	return u.write(ctx, func(names []string, _ bool) ([]string, bool) {
		next := used.Clone()
		for _, name := range names {
			if used.Has(name) {
				continue
			}
			since, known := u.unused[name]
			if !known {
				since = now
			}
			if unused[name] = since; now.Sub(since) < unusedFor {
				next.Insert(name)
			}
		}
		u.unused = unused
		return next.UnsortedList(), true
	})
}

// include adds a namespace, and returns once this replica has seen the change. API servers see it at about the same time. An error is logged: then the leader adds the namespace.
func (u *uses) include(ctx context.Context, namespace string) {
	ctx, cancel := context.WithTimeout(ctx, includeTimeout)
	defer cancel()
	if u.includes(ctx, namespace) {
		return
	}
	err := u.write(ctx, func(names []string, all bool) ([]string, bool) {
		return append(names, namespace), !all && !slices.Contains(names, namespace)
	})
	if err == nil {
		err = wait.PollUntilContextCancel(ctx, 2*time.Millisecond, true, func(ctx context.Context) (bool, error) { return u.includes(ctx, namespace), nil })
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Adding a namespace to those for which a webhook is called", "webhook", u.webhook, "namespace", namespace)
	}
}

// includes is true if the cached configuration has the namespace, and if there is none.
func (u *uses) includes(ctx context.Context, namespace string) bool {
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := u.configurations.Get(ctx, types.NamespacedName{Name: u.configuration}, configuration, client.UnsafeDisableDeepCopy); err != nil {
		return client.IgnoreNotFound(err) == nil
	}
	names, all := namespacesOf(configuration, u.webhook)
	return all || slices.Contains(names, namespace)
}

// write changes the namespaces, unless change is false. If the webhook is called for all of them, names is empty.
func (u *uses) write(ctx context.Context, change func(names []string, all bool) ([]string, bool)) error {
	var reader client.Reader = u.configurations
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
		if err := reader.Get(ctx, types.NamespacedName{Name: u.configuration}, configuration); err != nil {
			return client.IgnoreNotFound(err)
		}
		reader = u.live // after a conflict
		before := configuration.DeepCopy()
		names, write := change(namespacesOf(configuration, u.webhook))
		if !write || !endpoint.Narrow(configuration, u.webhook, namespacesCondition, inNamespaces(names)) {
			return nil
		}
		patch := client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
		if err := u.writer.Patch(ctx, configuration, patch, client.FieldOwner("berth-controller")); err != nil {
			return client.IgnoreNotFound(err)
		}
		klog.FromContext(ctx).V(2).Info("Wrote for which namespaces the API server calls a webhook", "webhook", u.webhook)
		return nil
	})
}
