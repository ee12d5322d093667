package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"gomodules.xyz/jsonpatch/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	expiring "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/sidecar"
	"github.com/berth-project/berth/pkg/watches"
)

// SetupSidecars registers the webhooks of SidecarSets: one gives sidecars to new pods, and one validates SidecarSets. revisions is the namespace of the
// ControllerRevisions of SidecarSets, and watched is the state of the manager's watch of them.
func SetupSidecars(ctx context.Context, mgr ctrl.Manager, owners *lineage.Lineage, watched *watches.State, revisions string, register func(path string, hook http.Handler)) error {
	s := &sidecarAdmission{
		cached: mgr.GetCache(), live: mgr.GetAPIReader(), watched: watched, revisions: revisions, clock: clock.RealClock{}, named: expiring.NewExpiring(), sets: map[string]*sidecarSet{},
	}
	var err error
	if s.synced, err = owners.Handle(ctx, mgr, &v1beta1.SidecarSet{}, s.seen, s.gone); err != nil {
		return err
	}
	if _, err := mgr.GetCache().GetInformer(ctx, lineage.NewNamespace()); err != nil {
		return fmt.Errorf("watching namespaces: %w", err)
	}
	if err := mgr.AddReadyzCheck("sidecar-caches", onceTrue(s.ready)); err != nil {
		return err
	}
	register(endpoint.Sidecars, &podReviews{answer: s.review, clock: clock.RealClock{}})
	register(endpoint.SidecarSets, admission.WithValidator(mgr.GetScheme(), setReviews(s.policies)))
	return nil
}

// sidecarSet is what the webhook knows about a valid SidecarSet.
type sidecarSet struct {
	policy *sidecar.Policy
	// latest is the name of the ControllerRevision of the policy. Empty if it is not known yet.
	latest string
}

// known is what the webhook knows about a set. It is nil for one that is invalid or goes away.
func known(set *v1beta1.SidecarSet) *sidecarSet {
	policy, errs := sidecar.Compile(set)
	if len(errs) > 0 || set.DeletionTimestamp != nil {
		return nil
	}
	known := &sidecarSet{policy: policy}
	if set.Status.ObservedGeneration == set.Generation {
		known.latest = set.Status.LatestRevision
	}
	return known
}

// namedFor is how long a version is used that was found by its name.
const namedFor = 5 * time.Second

// sidecarAdmission gives sidecars to new pods. It refuses no pod.
type sidecarAdmission struct {
	cached    client.Reader
	live      client.Reader
	watched   *watches.State
	lists     singleflight.Group
	revisions string
	clock     clock.PassiveClock
	synced    cache.InformerSynced
	// named has the *sidecar.Version that the injection strategy of a policy names, for namedFor.
	named *expiring.Expiring

	mu   sync.Mutex
	sets map[string]*sidecarSet
}

func (s *sidecarAdmission) seen(object metav1.Object) {
	set, is := object.(*v1beta1.SidecarSet)
	if !is {
		return
	}
	known := known(set)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known == nil {
		delete(s.sets, set.Name)
		return
	}
	s.sets[set.Name] = known
}

func (s *sidecarAdmission) gone(object metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sets, object.GetName())
}

func (s *sidecarAdmission) policies() (all []*sidecar.Policy) {
	for _, set := range s.seenSets() {
		all = append(all, set.policy)
	}
	return all
}

func (s *sidecarAdmission) seenSets() []*sidecarSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.sets))
}

// listTimeout is how long a pod waits for a list of the SidecarSets. It is below the webhook's timeout of 2 seconds.
const listTimeout = time.Second

// setsFor are the sets that a new pod may get. While the watch of sets is interrupted, the API server says which there are: a pod that lacks a container lacks it for life.
// Pods that come during a list share it.
func (s *sidecarAdmission) setsFor(ctx context.Context) ([]*sidecarSet, error) {
	if !s.watched.Interrupted() {
		return s.seenSets(), nil
	}
	all, err, _ := s.lists.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
		defer cancel()
		var list v1beta1.SidecarSetList
		if err := s.live.List(ctx, &list); err != nil {
			return s.seenSets(), fmt.Errorf("listing SidecarSets: %w", err)
		}
		var all []*sidecarSet
		for i := range list.Items {
			if known := known(&list.Items[i]); known != nil {
				all = append(all, known)
			}
		}
		return all, nil
	})
	return all.([]*sidecarSet), err
}

// ready is an error until the webhook knows the SidecarSets: it gives pods nothing before.
func (s *sidecarAdmission) ready(*http.Request) error {
	if !s.synced() {
		return errors.New("the cache of SidecarSets is not full yet")
	}
	return nil
}

// review injects the containers of all sets that pick the pod.
func (s *sidecarAdmission) review(ctx context.Context, request *podRequest) answer {
	if !s.synced() {
		return answer{outcome: failed, warnings: []string{"Berth admits the pod without sidecars: it does not know the SidecarSets yet"}}
	}
	versions, warnings, err := s.versionsFor(ctx, request)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Admitting a pod without sidecars", "namespace", request.Namespace)
		return answer{outcome: failed, warnings: []string{"Berth admits the pod without sidecars: " + err.Error()}}
	}
	if len(versions) == 0 {
		return answer{outcome: left, warnings: warnings}
	}
	before := &corev1.Pod{}
	if err := json.Unmarshal(request.Object.raw, before); err != nil {
		return answer{outcome: failed, warnings: []string{"Berth admits the pod without sidecars: it cannot read it: " + err.Error()}}
	}
	after, more := s.inject(before, request.Namespace, versions)
	patch, err := patchOfSidecars(before, after)
	if err != nil {
		return answer{outcome: failed, warnings: []string{"Berth admits the pod without sidecars: " + err.Error()}}
	}
	return answer{outcome: injected, patch: patch, warnings: append(warnings, more...)}
}

// inject leaves out sets with which the API server would refuse a pod that it admits without them. It cannot tell for a pod that it would refuse anyway.
func (s *sidecarAdmission) inject(before *corev1.Pod, namespace string, versions []sidecar.Version) (after *corev1.Pod, warnings []string) {
	try := func(versions []sidecar.Version) (warnings []string, errs field.ErrorList) {
		after = before.DeepCopy()
		warnings = sidecar.Inject(after, versions, s.clock.Now())
		tried := after.DeepCopy()
		tried.Namespace, tried.Name = namespace, cmp.Or(tried.Name, "pod") // the API server gives both later
		return warnings, podErrors(tried)
	}
	warnings, errs := try(versions)
	if len(errs) == 0 {
		return after, warnings
	}
	if _, errs := try(nil); len(errs) > 0 {
		warnings, _ = try(versions)
		return after, warnings
	}
	slices.SortFunc(versions, func(a, b sidecar.Version) int { return strings.Compare(a.Set, b.Set) })
	var kept []sidecar.Version
	var left []string
	for _, version := range versions {
		if _, errs := try(append(kept, version)); len(errs) > 0 {
			left = append(left, fmt.Sprintf("the pod gets no containers of SidecarSet %s: the API server would refuse it with them: %v", version.Set, errs.ToAggregate()))
			continue
		}
		kept = append(kept, version)
	}
	warnings, _ = try(kept)
	return after, append(warnings, left...)
}

func (s *sidecarAdmission) versionsFor(ctx context.Context, request *podRequest) (versions []sidecar.Version, warnings []string, _ error) {
	sets, err := s.setsFor(ctx)
	if err != nil {
		warnings = append(warnings, "the pod may lack containers of a new SidecarSet: "+err.Error())
	}
	var namespaceLabels map[string]string
	for _, set := range sets {
		policy := set.policy
		if policy.InjectionPaused || !policy.Selector.Matches(labels.Set(request.Object.Metadata.Labels)) {
			continue
		}
		if namespaceLabels == nil {
			namespace := lineage.NewNamespace()
			if err := s.cached.Get(ctx, types.NamespacedName{Name: request.Namespace}, namespace); client.IgnoreNotFound(err) != nil {
				return nil, nil, fmt.Errorf("reading namespace %s: %w", request.Namespace, err)
			}
			namespaceLabels = namespace.Labels
			if namespaceLabels == nil {
				namespaceLabels = map[string]string{corev1.LabelMetadataName: request.Namespace} // the API server adds it to all
			}
		}
		if !policy.Picks(request.Namespace, namespaceLabels, request.Object.Metadata.Labels) {
			continue
		}
		version, warning := s.versionOf(ctx, set, request)
		versions = append(versions, version)
		if warning != "" {
			warnings = append(warnings, warning)
		}
	}
	return versions, warnings, nil
}

// versionOf is the version that a new pod gets: the latest, or the one that the injection strategy names. With policy Partial, pods that the selector of the update
// strategy picks get the latest one if there is a selector; all others get the named one, and the update brings as many as it should to the latest.
func (s *sidecarAdmission) versionOf(ctx context.Context, set *sidecarSet, request *podRequest) (sidecar.Version, string) {
	policy := set.policy
	newest := sidecar.Version{Set: policy.Name, Content: &policy.Content, Revision: set.latest}
	if !policy.GivesRevision(request.Object.Metadata.Labels) {
		return newest, ""
	}
	if named, known := s.named.Get(policy); known {
		return *named.(*sidecar.Version), ""
	}
	named, err := s.find(ctx, policy)
	if err != nil {
		return newest, fmt.Sprintf("the pod gets the latest version of SidecarSet %s: %v", policy.Name, err)
	}
	s.named.Set(policy, named, namedFor)
	return *named, ""
}

// find reads the version that the injection strategy names.
func (s *sidecarAdmission) find(ctx context.Context, policy *sidecar.Policy) (*sidecar.Version, error) {
	revision := &appsv1.ControllerRevision{}
	if name := ptr.Deref(policy.Revision.RevisionName, ""); name != "" {
		err := s.live.Get(ctx, types.NamespacedName{Namespace: s.revisions, Name: name}, revision)
		if apierrors.IsNotFound(err) || err == nil && revision.Labels[v1beta1.NameLabel] != policy.Name {
			return nil, fmt.Errorf("it has no ControllerRevision %s in namespace %s; correct injectionStrategy.revision", name, s.revisions)
		}
		if err != nil {
			return nil, fmt.Errorf("reading ControllerRevision %s: %w", name, err)
		}
	} else {
		var list appsv1.ControllerRevisionList
		version := ptr.Deref(policy.Revision.CustomVersion, "")
		if err := s.live.List(ctx, &list, client.InNamespace(s.revisions), client.MatchingLabels{v1beta1.NameLabel: policy.Name, v1beta1.CustomVersionLabel: version}); err != nil {
			return nil, fmt.Errorf("listing ControllerRevisions: %w", err)
		}
		if len(list.Items) == 0 {
			return nil, fmt.Errorf("it has no ControllerRevision with label %s=%s in namespace %s; correct injectionStrategy.revision", v1beta1.CustomVersionLabel, version, s.revisions)
		}
		*revision = slices.MaxFunc(list.Items, func(a, b appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	}
	content, err := sidecar.ContentIn(revision.Data.Raw)
	if err != nil {
		return nil, fmt.Errorf("ControllerRevision %s: %w", revision.Name, err)
	}
	return &sidecar.Version{Set: policy.Name, Content: content, Revision: revision.Name}, nil
}

// patchOfSidecars turns a pod into the one with sidecars. It adds and removes items of lists, and leaves the others alone, because they may have fields that this version of
// Kubernetes does not know.
func patchOfSidecars(before, after *corev1.Pod) ([]jsonpatch.Operation, error) {
	patch, err := patchOf(&corev1.Pod{ObjectMeta: before.ObjectMeta}, &corev1.Pod{ObjectMeta: after.ObjectMeta})
	nameOf := func(c *corev1.Container) string { return c.Name }
	patch = append(patch, patchOfList("/spec/initContainers", before.Spec.InitContainers, after.Spec.InitContainers, nameOf)...)
	patch = append(patch, patchOfList("/spec/containers", before.Spec.Containers, after.Spec.Containers, nameOf)...)
	patch = append(patch, patchOfList("/spec/volumes", before.Spec.Volumes, after.Spec.Volumes, func(v *corev1.Volume) string { return v.Name })...)
	return append(patch, patchOfList("/spec/imagePullSecrets", before.Spec.ImagePullSecrets, after.Spec.ImagePullSecrets, func(r *corev1.LocalObjectReference) string { return r.Name })...), err
}

// patchOfList removes the items that are not there any more, or have changed, and adds others at their places.
func patchOfList[T any](path string, before, after []T, nameOf func(*T) string) (patch []jsonpatch.Operation) {
	if len(before) == 0 {
		if len(after) > 0 {
			patch = append(patch, jsonpatch.NewOperation("add", path, after))
		}
		return patch
	}
	kept := make([]bool, len(after)) // is in both
	for i := len(before) - 1; i >= 0; i-- {
		stays := false
		for j := range after {
			if nameOf(&before[i]) == nameOf(&after[j]) && equality.Semantic.DeepEqual(&before[i], &after[j]) {
				kept[j], stays = true, true
			}
		}
		if !stays {
			patch = append(patch, jsonpatch.NewOperation("remove", fmt.Sprintf("%s/%d", path, i), nil))
		}
	}
	for i := range after {
		if !kept[i] {
			patch = append(patch, jsonpatch.NewOperation("add", fmt.Sprintf("%s/%d", path, i), &after[i]))
		}
	}
	return patch
}

// setReviews are about SidecarSets. others returns the policies of all valid sets.
func setReviews(others func() []*sidecar.Policy) endpoint.Validator[*v1beta1.SidecarSet] {
	return endpoint.Validator[*v1beta1.SidecarSet]{
		Kind: v1beta1.Kind.GroupKind(),
		Same: func(old, set *v1beta1.SidecarSet) bool { return equality.Semantic.DeepEqual(old.Spec, set.Spec) },
		Validate: func(_ context.Context, set, old *v1beta1.SidecarSet) ([]string, field.ErrorList, error) {
			policy, errs := sidecar.Compile(set)
			if policy != nil {
				var before *sidecar.Policy
				if old != nil {
					before, _ = sidecar.Compile(old)
				}
				errs = slices.Concat(errs, sidecar.ValidateUpdate(policy, before), sidecar.Conflicts(policy, others()), validateSample(policy))
			}
			return nil, errs, nil
		},
	}
}

// validateSample tries the containers and volumes in a pod.
func validateSample(policy *sidecar.Policy) (errs field.ErrorList) {
	sample := sidecar.Sample(policy)
	seen := map[string]bool{}
	for _, e := range podErrors(sample) {
		at := sidecar.Locate(policy, sample, e.Field).String()
		if key := at + e.Detail; !seen[key] { // a sidecar with hot upgrade has two containers
			seen[key] = true
			errs = append(errs, &field.Error{Type: e.Type, Field: at, BadValue: e.BadValue, Detail: e.Detail})
		}
	}
	return errs
}
