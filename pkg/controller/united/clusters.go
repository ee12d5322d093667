package united

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/pkg/sites"
	model "github.com/berth-project/berth/pkg/united"
	"github.com/berth-project/berth/pkg/workload"
)

// memberKinds are the kinds of children in other clusters.
var memberKinds = []schema.GroupKind{model.DeploymentKind, model.StatefulSetKind}

// cluster is where children are.
type cluster struct {
	// name is empty for the cluster of the UnitedDeployment.
	name string
	// client writes, live reads from the API server, and cache from the cache.
	client      client.Client
	live, cache client.Reader
}

// cluster is the one with a name. An empty name is the cluster of the UnitedDeployment.
func (r *reconciler) cluster(name string) (*cluster, error) {
	if name == "" {
		return &cluster{client: r.client, live: r.live, cache: r.client}, nil
	}
	to, err := r.members.Client(name)
	if err != nil {
		return nil, err
	}
	cache, err := r.members.Cache(name)
	return &cluster{name: name, client: to, live: to, cache: cache}, err
}

// owns is true for a child of the UnitedDeployment. An owner reference does not reach across clusters, so that a label says whose a child in another one is.
func (c *cluster) owns(object metav1.Object, ud *v1beta1.UnitedDeployment) bool {
	if c.name == "" {
		return metav1.IsControlledBy(object, ud)
	}
	return object.GetLabels()[v1beta1.OwnerLabel] == string(ud.UID)
}

// offers is true for an object that a UnitedDeployment may adopt, if its selector fits. In another cluster, somebody there has to allow it, or the UnitedDeployment takes over what an earlier hub has made for one of
// its name. What a hub has made in the UnitedDeployment's own cluster is that hub's: this one's, if the cluster is its own member, or another one's.
func (c *cluster) offers(object client.Object, ud *v1beta1.UnitedDeployment) bool {
	labels := object.GetLabels()
	if metav1.GetControllerOfNoCopy(object) != nil || !hasSubset(object) {
		return false
	}
	if c.name == "" {
		return labels[v1alpha1.HubLabel] == ""
	}
	takesOver := ud.Annotations[v1alpha1.TakeOverAnnotation] == "true" && labels[v1beta1.OwnerLabel] != "" && strings.HasPrefix(object.GetName(), ud.Name+"-")
	return (takesOver || labels[v1alpha1.AdoptLabel] == "true") && workload.TemplateLabels(object)[v1alpha1.HubLabel] != ""
}

// claim is the patch of the metadata that makes an object a child of the UnitedDeployment.
func (c *cluster) claim(object client.Object, ud *v1beta1.UnitedDeployment) map[string]any {
	claim := map[string]any{"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion()}
	if c.name == "" {
		claim["ownerReferences"] = append(object.GetOwnerReferences(), *metav1.NewControllerRef(ud, v1beta1.Kind))
	} else {
		claim["labels"] = map[string]any{v1beta1.OwnerLabel: ud.UID, v1alpha1.AdoptLabel: nil}
	}
	return claim
}

// controlledBy lists what an object may control in the cache.
func (c *cluster) controlledBy(name string, uid types.UID) client.MatchingFields {
	if c.name == "" {
		return client.MatchingFields{lineage.ControllerField: string(uid)}
	}
	return client.MatchingFields{members.OwnerIndex: name}
}

// isFederated is true for a UnitedDeployment that has, or had, children in other clusters.
func isFederated(ud *v1beta1.UnitedDeployment) bool {
	return controllerutil.ContainsFinalizer(ud, v1beta1.MembersFinalizer) ||
		slices.ContainsFunc(ud.Spec.Topology.Subsets, func(s v1beta1.Subset) bool { return s.TargetCluster != nil })
}

// refuseClusters is why a UnitedDeployment with subsets in other clusters cannot be served.
func (r *reconciler) refuseClusters(ud *v1beta1.UnitedDeployment) field.ErrorList {
	if r.members != nil || !isFederated(ud) {
		return nil
	}
	path := field.NewPath("spec", "topology", "subsets")
	if i := slices.IndexFunc(ud.Spec.Topology.Subsets, func(s v1beta1.Subset) bool { return s.TargetCluster != nil }); i >= 0 {
		path = path.Index(i).Child("targetCluster")
	}
	return field.ErrorList{field.Forbidden(path, "berth-united is not the hub of a federation, so all children stay as they are; start it with --federation, or create another UnitedDeployment without targetCluster")}
}

// seen is what another cluster has of a UnitedDeployment.
type seen struct {
	children
	err error
}

// readMembers reads the children in other clusters at the same time. Children in a cluster that does not answer are not known; of one that is late, they are those in the cache. From the API servers, it reads clusters
// that the spec or the status names, and those where the last look into the caches found children.
func (r *reconciler) readMembers(ctx context.Context, ud *v1beta1.UnitedDeployment, policy *model.Policy, from from, found *children, m *memory) {
	if r.members == nil || !isFederated(ud) {
		return
	}
	concerned := append(policy.Clusters(), m.clusters...)
	for i := range ud.Status.Clusters {
		concerned = append(concerned, ud.Status.Clusters[i].Name)
	}
	if from == theCache {
		m.clusters = nil
	}
	take := func(at sites.Cluster, answer *seen) {
		if at.Late = answer == nil; at.Late {
			answer = r.readMember(ctx, at.Name, ud, policy, theCache)
			answer.adoptable = nil
		}
		if answer.err != nil {
			klog.FromContext(ctx).V(2).Info("A cluster does not answer", "cluster", at.Name, "err", answer.err)
			at.Reachable, at.Late, at.Since = false, false, time.Time{}
		}
		found.clusters, found.late = append(found.clusters, at), found.late || at.Late
		found.all, found.adoptable = append(found.all, answer.all...), append(found.adoptable, answer.adoptable...)
		if from == theCache && len(answer.all)+len(answer.adoptable) > 0 {
			m.clusters = append(m.clusters, at.Name)
		}
	}
	var asked []sites.Cluster
	var errands []members.Errand
	known := r.members.List()
	for i := range known {
		at := apply.ClusterOf(&known[i])
		if from == theServer && !slices.Contains(concerned, at.Name) && !slices.ContainsFunc(ud.Status.Clusters, func(c v1beta1.ClusterStatus) bool { return at.Identity != "" && c.Identity == at.Identity }) {
			continue
		}
		of := errandOf(ud, at.Name)
		switch {
		case !at.Reachable:
			found.clusters = append(found.clusters, at)
		case r.Runs(of):
			take(at, nil)
		case from == theCache:
			take(at, r.readMember(ctx, at.Name, ud, policy, from))
		default:
			asked, errands = append(asked, at), append(errands, of)
		}
	}
	for i, answer := range r.Reading.Each(ctx, errands, nil, func(ctx context.Context, i int) *seen { return r.readMember(ctx, asked[i].Name, ud, policy, from) }) {
		if answer == nil || r.Answered(errands[i], (*answer).err, r.clock.Now()) == apply.Failed {
			take(asked[i], nil)
			continue
		}
		take(asked[i], *answer)
	}
}

func (r *reconciler) readMember(ctx context.Context, name string, ud *v1beta1.UnitedDeployment, policy *model.Policy, from from) *seen {
	in, err := r.cluster(name)
	if err != nil {
		return &seen{err: err}
	}
	s := &seen{}
	for _, kind := range memberKinds {
		if err := r.readKind(ctx, in, kind, ud, policy, from, &s.children); err != nil {
			return &seen{err: err}
		}
	}
	return s
}

// finalize sets the finalizer before there can be children in other clusters, and removes it when there cannot be any more. It is false if it has changed something, or failed.
func (r *reconciler) finalize(ctx context.Context, v *view) (bool, error) {
	if r.members == nil || !v.acts() {
		return true, nil
	}
	has, wanted := controllerutil.ContainsFinalizer(v.ud, v1beta1.MembersFinalizer), len(v.policy.Clusters()) > 0
	if has == wanted || has && !r.isCleared(ctx, v) {
		return true, nil
	}
	return false, r.setFinalizer(ctx, v.ud, wanted)
}

// isCleared is true if no other cluster has children. Every cluster must answer: otherwise the finalizer stays, which does no harm.
func (r *reconciler) isCleared(ctx context.Context, v *view) bool {
	if len(v.ud.Status.Clusters)+len(v.plan.Status.Clusters) > 0 || slices.ContainsFunc(r.members.List(), func(s members.Status) bool { return s.State != members.Ready }) {
		return false
	}
	left, silent := r.childrenElsewhere(ctx, v.ud, false)
	return !left && len(silent) == 0
}

func (r *reconciler) setFinalizer(ctx context.Context, ud *v1beta1.UnitedDeployment, wanted bool) error {
	_, err := frame.SetFinalizer(ctx, r.client, ud, v1beta1.MembersFinalizer, wanted, v1beta1.FieldManager)
	return err
}

// cascade deletes the children in other clusters of a UnitedDeployment that is being deleted. The garbage collector takes care of those in its own cluster, as it was asked.
func (r *reconciler) cascade(ctx context.Context, ud *v1beta1.UnitedDeployment) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(ud, v1beta1.MembersFinalizer) {
		return reconcile.Result{}, nil
	}
	if ud.Annotations[v1alpha1.CascadeAnnotation] == "false" || r.isOrphaning(ud) {
		return reconcile.Result{}, r.setFinalizer(ctx, ud, false)
	}
	if r.members == nil {
		return reconcile.Result{}, r.publishWaiting(ctx, ud, "berth-united is not the hub of a federation; start it with --federation")
	}
	left, silent := r.childrenElsewhere(ctx, ud, true)
	silent = slices.DeleteFunc(silent, func(name string) bool { return !mayHaveChildren(ud, name) })
	switch {
	case len(silent) > 0:
		return reconcile.Result{RequeueAfter: apply.CascadeInterval}, r.publishWaiting(ctx, ud, "these clusters do not answer, or refuse the deletion of its children: "+strings.Join(silent, ", "))
	case left:
		return reconcile.Result{RequeueAfter: apply.CascadeInterval}, nil
	default:
		return reconcile.Result{}, r.setFinalizer(ctx, ud, false)
	}
}

// isOrphaning is true if whoever deleted the UnitedDeployment wants its children to stay.
func (r *reconciler) isOrphaning(ud *v1beta1.UnitedDeployment) bool {
	uid, seen := r.orphaned.Load(client.ObjectKeyFromObject(ud))
	return seen && uid == ud.UID || controllerutil.ContainsFinalizer(ud, metav1.FinalizerOrphanDependents)
}

// noteOrphaning remembers who is being deleted without its children: the garbage collector may remove its finalizer before the reconciler looks.
func (r *reconciler) noteOrphaning(object client.Object) {
	if !object.GetDeletionTimestamp().IsZero() && controllerutil.ContainsFinalizer(object, metav1.FinalizerOrphanDependents) {
		r.orphaned.Store(client.ObjectKeyFromObject(object), object.GetUID())
	}
}

// mayHaveChildren is true if the status knows of replicas in a cluster.
func mayHaveChildren(ud *v1beta1.UnitedDeployment, cluster string) bool {
	return slices.ContainsFunc(ud.Status.SubsetStatuses, func(s v1beta1.SubsetStatus) bool { return s.Cluster == cluster && max(s.Replicas, s.SeenReplicas) > 0 }) ||
		slices.ContainsFunc(ud.Status.Clusters, func(c v1beta1.ClusterStatus) bool {
			return c.Name == cluster && max(c.LeavingReplicas, c.SeenLeavingReplicas) > 0
		})
}

// childrenElsewhere looks for the children in all other clusters, and removes them if asked to; see apply.Remote.
func (r *reconciler) childrenElsewhere(ctx context.Context, ud *v1beta1.UnitedDeployment, remove bool) (left bool, silent []string) {
	return r.VisitAll(ctx, client.ObjectKeyFromObject(ud), r.members.List(), func(ctx context.Context, m *members.Status) (left bool, _ error) {
		in, err := r.cluster(m.Name)
		if err != nil {
			return false, err
		}
		for _, kind := range memberKinds {
			objects, err := read(ctx, in.live, r.newList(kind, nil), client.InNamespace(ud.Namespace), client.MatchingLabels{v1beta1.OwnerLabel: string(ud.UID)})
			if err != nil {
				return false, err
			}
			for _, object := range objects {
				left = true
				if !remove || !object.GetDeletionTimestamp().IsZero() {
					continue
				}
				uid := object.GetUID()
				err := in.client.Delete(ctx, object, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
				if client.IgnoreNotFound(err) != nil {
					return true, err
				}
			}
		}
		return left, nil
	})
}

// publishWaiting says why a UnitedDeployment is not deleted yet.
func (r *reconciler) publishWaiting(ctx context.Context, ud *v1beta1.UnitedDeployment, why string) error {
	status := *ud.Status.DeepCopy()
	message := "it is not deleted yet: " + why + "; or annotate it with " + v1alpha1.CascadeAnnotation + "=false, and what is left there stays"
	setCondition(&status, &ud.Status, v1beta1.ReadyCondition, corev1.ConditionFalse, v1beta1.ReasonDeletionWaits, message, r.clock.Now())
	_, err := r.publish(ctx, &view{ud: ud}, status)
	return err
}

// concerned are the UnitedDeployments that a change in another cluster may concern: the one that it names, or all with children in other clusters if the state of the cluster has changed, or if it names none that exists: pods
// of a child that was taken over have the label of the earlier one.
func (r *reconciler) concerned(change members.Change) (requests []reconcile.Request) {
	owner, isState := change.Labels[v1beta1.OwnerLabel], change.Workload == (types.NamespacedName{})
	adoptable := change.Labels[v1alpha1.AdoptLabel] == "true"
	if !isState && owner == "" && !adoptable || !r.isServed() {
		return nil
	}
	var all v1beta1.UnitedDeploymentList
	if err := r.client.List(context.Background(), &all, client.InNamespace(change.Workload.Namespace), client.UnsafeDisableDeepCopy); err != nil { //nolint:forbidigo // reads the cache
		klog.Background().Error(err, "Listing UnitedDeployments from the cache; they see the change of a cluster late", "cluster", change.Member)
	}
	for i := range all.Items {
		ud := &all.Items[i]
		request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(ud)}
		if string(ud.UID) == owner && !adoptable {
			return []reconcile.Request{request}
		}
		if isFederated(ud) {
			requests = append(requests, request)
		}
	}
	return requests
}
