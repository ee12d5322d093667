package spread

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// gather reads the facts about a spread. It returns an error if they cannot be read. A problem that the user has to solve is a fact and no error.
func (r *reconciler) gather(ctx context.Context, spread *v1beta1.WorkloadSpread) (*facts, error) {
	f := &facts{now: metav1.NewTime(r.clock.Now()), installation: r.family.Compatibility(), autoscaler: r.autoscaler.Name()}
	spread, err := r.withKruisePaths(ctx, spread, f)
	if err != nil {
		return nil, err
	}
	compiled := r.family.Compiled(spread)
	f.policy, f.invalid = compiled.Policy, compiled.Invalid
	if f.policy == nil {
		return f, nil
	}
	f.account = openAccount(basis{policy: f.policy, spread: spread.Name})
	target := workload.TargetOf(spread)
	winner, err := r.family.Winner(ctx, spread.Namespace, target)
	if err != nil {
		return nil, err
	}
	if winner != nil && workload.Wins(winner, spread) {
		f.older = winner.Name
		return f, nil
	}
	if err := r.family.WatchSeen(ctx, spread.Namespace); err != nil {
		return nil, err
	}
	object, problem, err := r.workloadOf(ctx, spread, target)
	if err != nil {
		return nil, err
	}
	if problem != nil {
		f.workload.problem = problem
		f.podsUnknown = problem.condition.Reason != v1beta1.ReasonTargetNotFound
		return f, nil
	}
	f.workload.selector, f.workload.maxUnavailable = workload.Selector(object), workload.MaxUnavailable(object)
	f.workload.replicas, f.workload.problem, err = r.replicas(ctx, spread, object)
	if err != nil {
		return nil, fmt.Errorf("reading the replicas of %s: %w", workloadName(spread), err)
	}
	latest := ""
	if f.policy.Kruise {
		if latest, err = r.family.latestRevision(ctx, object); err != nil {
			return nil, fmt.Errorf("finding the latest revision of %s: %w", workloadName(spread), err)
		}
	}
	f.account, err = r.accountOf(ctx, spread, basis{f.policy, spread.Name, object.GetUID(), spread.CreationTimestamp.Unix(), latest})
	if err != nil {
		return nil, fmt.Errorf("finding the pods of %s: %w", workloadName(spread), err)
	}
	plan := f.policy.Plan(f.workload.replicas)
	f.roster.Replan(&plan)
	if r.costs {
		f.podPrices, err = r.podPrices(ctx, f)
	}
	return f, err
}

// podPrices are those of the nodes with a price. A new price counts from the next look at the spread on.
func (r *reconciler) podPrices(ctx context.Context, f *facts) ([]float64, error) {
	list := &corev1.NodeList{}
	if err := r.client.List(ctx, list, client.HasLabels{v1beta1.HourlyPriceLabel}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the nodes with a price: %w", err)
	}
	nodes := make([]*corev1.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = &list.Items[i]
	}
	return f.policy.PodPrices(nil, nodes, f.requests), nil
}

// withKruisePaths returns the spread with the status.replicasPathList that it should have.
func (r *reconciler) withKruisePaths(ctx context.Context, spread *v1beta1.WorkloadSpread, f *facts) (*v1beta1.WorkloadSpread, error) {
	seen := *subset.In(f.installation, spread)
	seen.Status.ReplicasPathList = nil
	if subset.CompatibilityOf(&seen) != v1beta1.CompatibleWithKruise || len(subset.ReplicaPaths(&seen)) > 0 {
		return &seen, nil
	}
	if _, builtIn := workload.BuiltIn(workload.TargetOf(&seen).Kind); builtIn {
		return &seen, nil
	}
	configuration := &corev1.ConfigMap{}
	if err := r.client.Get(ctx, frame.KruiseConfiguration, configuration); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading ConfigMap %s: %w", frame.KruiseConfiguration, err)
	}
	var kinds kruiseKinds
	kinds, f.kindList = readKruiseKinds(configuration)
	if path := kinds.pathOf(schema.FromAPIVersionAndKind(seen.Spec.TargetReference.APIVersion, seen.Spec.TargetReference.Kind)); path != "" {
		f.kruisePaths = []string{path}
	}
	seen.Status.ReplicasPathList = f.kruisePaths
	return &seen, nil
}

// recountInterval is how often all pods of an account are counted again, as a check.
const recountInterval = 10 * time.Minute

// accountOf is the account of a spread's pods, updated from the cache.
func (r *reconciler) accountOf(ctx context.Context, spread *v1beta1.WorkloadSpread, now basis) (*account, error) {
	key := client.ObjectKeyFromObject(spread)
	// The changes come first: a change that comes later may already be in what is read, and one that is not must not be lost.
	change := r.changes.take(key)
	found, _ := r.accounts.Load(key)
	known, _ := found.(*account)
	reopen := known == nil || known.basis != now || change.everything
	if !reopen {
		for name := range change.pods {
			if err := r.lookAgain(ctx, spread.Namespace, name, known); err != nil {
				return nil, err
			}
		}
		if r.clock.Now().Before(known.recount) {
			return known, nil
		}
	}
	counted := openAccount(now)
	pods, err := r.family.podsBelow(ctx, spread.Namespace, now.workload)
	if err != nil {
		return nil, err
	}
	nodes := map[string]*corev1.Node{}
	for i := range pods {
		pod := &pods[i]
		if !now.policy.Selects(pod.Labels) {
			continue
		}
		node, read := nodes[pod.Spec.NodeName]
		if !read {
			if node, err = r.family.Node(ctx, pod.Spec.NodeName); err != nil {
				return nil, err
			}
			nodes[pod.Spec.NodeName] = node
		}
		counted.take(pod, node)
	}
	if !reopen && !known.agrees(counted) && !r.changes.any(key) {
		r.corrections.Inc()
		klog.FromContext(ctx).Info("A recount came to other numbers than the account, and takes its place", "spread", klog.KObj(spread))
	}
	counted.recount = r.clock.Now().Add(wait.Jitter(recountInterval, 0.5))
	r.accounts.Store(key, counted)
	return counted, nil
}

// lookAgain updates one pod of an account.
func (r *reconciler) lookAgain(ctx context.Context, namespace, name string, in *account) error {
	pod := &corev1.Pod{}
	err := r.family.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod, client.UnsafeDisableDeepCopy)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading pod %s: %w", name, err)
	}
	belongs := false
	if err == nil && in.policy.Selects(pod.Labels) {
		if belongs, err = r.family.isBelow(ctx, pod, in.workload); err != nil {
			return err
		}
	}
	if !belongs {
		in.drop(name)
		return nil
	}
	node, err := r.family.Node(ctx, pod.Spec.NodeName)
	if err != nil {
		return err
	}
	in.take(pod, node)
	return nil
}

// problem keeps a workload from being read. The user can solve it.
type problem struct {
	condition condition
	// silent is true if no event tells when it is solved.
	silent bool
}

// workloadOf reads the workload from the cache: all of it for built-in kinds, only metadata for others.
func (r *reconciler) workloadOf(ctx context.Context, spread *v1beta1.WorkloadSpread, target workload.Owner) (client.Object, *problem, error) {
	unwatchable, err := r.family.Watch(ctx, target.Kind)
	if err != nil {
		return nil, nil, err
	}
	if unwatchable != nil {
		return nil, &problem{cannotWatch(unwatchable), true}, nil
	}
	object, err := r.family.Read(ctx, spread.Namespace, target)
	if err != nil {
		return nil, nil, err
	}
	if object == nil {
		return nil, &problem{condition: targetNotFound(spread)}, nil
	}
	return object, nil, nil
}

// replicas of the workload, from the cache if it has them, and otherwise with one request.
func (r *reconciler) replicas(ctx context.Context, spread *v1beta1.WorkloadSpread, cached client.Object) (replicas int32, _ *problem, err error) {
	paths := subset.ReplicaPaths(spread)
	if len(paths) == 0 {
		if replicas, err = workload.Replicas(cached, nil); !errors.Is(err, workload.ErrNeedsScale) {
			return replicas, nil, err
		}
	}
	object, mapping, err := r.unstructuredTarget(spread)
	if err != nil {
		return 0, nil, err
	}
	resource := mapping.Resource.GroupResource()
	if len(paths) > 0 {
		err = r.live.Get(ctx, client.ObjectKeyFromObject(object), object)
	} else {
		resource.Resource += "/scale"
		replicas, err = lineage.ReplicasOfScale(ctx, r.client, object)
	}
	switch gone := apierrors.IsNotFound(err); {
	case apierrors.IsForbidden(err):
		return 0, &problem{forbidden("get", resource), true}, nil
	case len(paths) > 0 && gone:
		return 0, &problem{condition: targetNotFound(spread)}, nil
	case len(paths) == 0 && (gone || apierrors.IsMethodNotSupported(err)): // the workload is known to exist
		return 0, &problem{noScale(spread), true}, nil
	case err != nil || len(paths) == 0:
		return replicas, nil, err
	}
	if replicas, err = workload.Replicas(object, paths); err != nil {
		return 0, &problem{condition: noReplicasAtPaths(spread, err)}, nil
	}
	return replicas, nil, nil
}

// unstructuredTarget is the workload in the version of the spread's targetRef if the API server serves it, and otherwise in another version.
func (r *reconciler) unstructuredTarget(spread *v1beta1.WorkloadSpread) (*unstructured.Unstructured, *meta.RESTMapping, error) {
	target := workload.TargetOf(spread)
	gv, err := schema.ParseGroupVersion(spread.Spec.TargetReference.APIVersion)
	if err != nil {
		return nil, nil, err
	}
	mapper := r.client.RESTMapper()
	mapping, err := mapper.RESTMapping(target.Kind, gv.Version)
	if meta.IsNoMatchError(err) {
		mapping, err = mapper.RESTMapping(target.Kind)
	}
	if err != nil {
		return nil, nil, err
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(mapping.GroupVersionKind)
	object.SetNamespace(spread.Namespace)
	object.SetName(target.Name)
	return object, mapping, nil
}
