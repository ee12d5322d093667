package descheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/descheduler/pkg/api"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// What a cycle reads. If a list is missing here and not allowed, an informer waits for it until the sync timeout, and does not say for what.
var (
	// readByFramework is what the framework always watches.
	readByFramework = []schema.GroupVersionResource{
		core("pods"), core("nodes"), core("namespaces"), core("persistentvolumeclaims"),
		{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
		{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	}
	// readByBerth is what a cycle of Berth's plugins lists.
	readByBerth = []schema.GroupVersionResource{
		v1beta1.Resource, policyv1beta1.GroupVersion.WithResource("podunavailablebudgets"),
		apps("deployments"), apps("replicasets"), apps("statefulsets"), {Group: "batch", Version: "v1", Resource: "jobs"},
	}
	// readByFilters is what the scheduler's filters watch as well.
	readByFilters = []schema.GroupVersionResource{
		core("services"), core("replicationcontrollers"), core("persistentvolumes"),
		storage("storageclasses"), storage("csinodes"), storage("csidrivers"), storage("csistoragecapacities"), storage("volumeattachments"),
	}
)

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

func apps(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}
}

func storage(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: resource}
}

// enabledIn are the plugins that a policy enables.
func enabledIn(policy *api.DeschedulerPolicy) sets.Set[string] {
	enabled := sets.New[string]()
	for i := range policy.Profiles {
		p := &policy.Profiles[i].Plugins
		for _, set := range []api.PluginSet{p.Deschedule, p.Balance, p.Filter, p.PreEvictionFilter} {
			enabled.Insert(set.Enabled...)
		}
	}
	return enabled
}

// required are the lists and the rights that a cycle of the policy needs.
type required struct {
	lists  []schema.GroupVersionResource
	rights []authorizationv1.ResourceAttributes
}

func requiredBy(policy *api.DeschedulerPolicy, berths sets.Set[string], dryRun bool) required {
	r := required{lists: slices.Clone(readByFramework)}
	if !dryRun {
		r.rights = append(r.rights, authorizationv1.ResourceAttributes{Verb: "create", Version: "v1", Resource: "pods", Subresource: "eviction"})
	}
	if enabledIn(policy).Intersection(berths).Len() == 0 {
		return r
	}
	r.lists = slices.Concat(r.lists, readByBerth, readByFilters)
	if !dryRun {
		r.rights = append(r.rights, authorizationv1.ResourceAttributes{Verb: "patch", Group: v1beta1.GroupName, Version: v1beta1.GroupVersion.Version,
			Resource: v1beta1.Resource.Resource, Subresource: "status"})
	}
	return r
}

// look is how often an API server that does not answer is asked again.
const look = 500 * time.Millisecond

// check returns what is missing. It asks again until the API server answers or the context ends.
func (r *required) check(ctx context.Context, lists metadata.Interface, client kubernetes.Interface) error {
	var missing []error
	err := wait.PollUntilContextCancel(ctx, look, true, func(ctx context.Context) (bool, error) {
		now := r.missing(ctx, lists, client)
		if missing == nil || !slices.ContainsFunc(now, isCutOff) { // the attempt that was cut off says less than earlier ones
			missing = now
		}
		return !slices.ContainsFunc(now, mayPass), nil
	})
	if err != nil && len(missing) == 0 {
		missing = append(missing, err)
	}
	return errors.Join(missing...)
}

// isCutOff is true for an error that says that the context ends. That of the client's limiter, "would exceed context deadline", has no type.
func isCutOff(err error) bool { return strings.Contains(err.Error(), "context deadline") }

// mayPass is true for an error that may not come again.
func mayPass(err error) bool {
	return !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !apierrors.IsUnauthorized(err) && !errors.Is(err, errNotAllowed)
}

var errNotAllowed = errors.New("not allowed")

// missing asks for everything at the same time.
func (r *required) missing(ctx context.Context, lists metadata.Interface, client kubernetes.Interface) (missing []error) {
	errs := make([]error, len(r.lists)+len(r.rights))
	var asking sync.WaitGroup
	for i, resource := range r.lists {
		asking.Go(func() {
			if _, err := lists.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
				errs[i] = fmt.Errorf("listing %s: %w", resource.GroupResource(), err)
			}
		})
	}
	for i := range r.rights {
		asking.Go(func() {
			right := &r.rights[i]
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: right}}
			answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err == nil && !answer.Status.Allowed && answer.Status.EvaluationError == "" {
				errs[len(r.lists)+i] = fmt.Errorf("%s %s/%s: %w", right.Verb, right.Resource, right.Subresource, errNotAllowed)
			}
		})
	}
	asking.Wait()
	for _, err := range errs {
		if err == nil {
			continue
		}
		if missing = append(missing, err); mayPass(err) {
			break // the other errors say no more
		}
	}
	return missing
}
