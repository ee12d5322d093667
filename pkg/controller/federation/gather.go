package federation

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	model "github.com/berth-project/berth/pkg/federation"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/sites"
)

// from says where ReplicaSets and pods are read.
type from string

const (
	theCaches from = "cache"
	// theSets are the API servers, without the pods of ReplicaSets that are settled. ReplicaSets that the caches have as they were applied last come from these: if somebody has changed one since, a write fails.
	theSets    from = "API server, briefly"
	theServers from = "API server"
)

// local is the ReplicaSet in a cluster.
type local struct {
	model.Member
	// set is its metadata. Nil if there is none, or if it is somebody else's. It may be shared, and must not be changed.
	set *metav1.ObjectMeta
	// ours is true if the ReplicaSet has the labels of the FederatedReplicaSet, and need not be taken over.
	ours bool
}

// localsOf reads the ReplicaSets and pods of a FederatedReplicaSet in all clusters, in the order of Members.List. API servers are asked at the same time.
func (r *reconciler) localsOf(ctx context.Context, frs *v1alpha1.FederatedReplicaSet, policy *model.Policy, from from) []local {
	known, applied := r.members.List(), r.appliedOf(client.ObjectKeyFromObject(frs))
	all := make([]local, len(known))
	var asked []*local
	var errands []members.Errand
	for i := range known {
		l, of := &all[i], members.Errand{Object: client.ObjectKeyFromObject(frs), Member: known[i].Name}
		l.Cluster = apply.ClusterOf(&known[i])
		if known[i].State != members.Unreachable { // the message of that changes with each attempt
			l.Why = known[i].Message
		}
		if !l.Reachable {
			continue
		}
		live := true
		if from != theServers {
			r.recall(ctx, l, frs, policy)
			live = l.Reachable && l.set == nil && wasTaken(frs, l.Name) // the caches have no ReplicaSets of others
			if from == theSets {
				live = l.set == nil || !applied.Follows(l.Name, l.set)
			}
		}
		switch {
		case !l.Reachable:
		case r.Runs(of):
			r.late(ctx, l, frs, policy)
		case live:
			asked, errands = append(asked, l), append(errands, of)
		}
	}
	if from == theCaches {
		from = theSets
	}
	tooBrief := func(s *seen) bool { return s.brief && from == theServers }
	asking := *frs // a read may outlast this pass, which replaces what frs points to
	for i, answer := range r.Reading.Each(ctx, errands, tooBrief, func(ctx context.Context, i int) seen { return r.read(ctx, errands[i].Member, &asking, policy, from) }) {
		if answer == nil {
			r.late(ctx, asked[i], frs, policy)
			continue
		}
		r.answered(ctx, asked[i], answer, errands[i], frs, policy)
	}
	return all
}

// wasTaken is true if a cluster had another ReplicaSet of the name when its API server was asked last.
func wasTaken(frs *v1alpha1.FederatedReplicaSet, cluster string) bool {
	return slices.ContainsFunc(frs.Status.Clusters, func(c v1alpha1.ClusterStatus) bool { return c.Name == cluster && c.State == v1alpha1.ClusterNameTaken })
}

// seen is what one cluster has of a FederatedReplicaSet. It is empty if there is nothing.
type seen struct {
	set         *metav1.ObjectMeta
	local       *model.Local
	taken, ours bool
	// brief is true if the status of the ReplicaSet tells of its pods.
	brief bool
	err   error
}

// recall says what the cache of a cluster has. A cluster without a cache is one that does not answer.
func (r *reconciler) recall(ctx context.Context, l *local, frs *v1alpha1.FederatedReplicaSet, policy *model.Policy) {
	s := r.read(ctx, l.Name, frs, policy, theCaches)
	if s.err != nil {
		r.silent(ctx, l, s.err)
		return
	}
	l.set, l.Local, l.Taken, l.ours = s.set, s.local, s.taken, s.ours
}

// late says what is known of a cluster that has not answered yet.
func (r *reconciler) late(ctx context.Context, l *local, frs *v1alpha1.FederatedReplicaSet, policy *model.Policy) {
	l.Late = true
	if r.recall(ctx, l, frs, policy); l.set == nil {
		l.Taken = wasTaken(frs, l.Name)
	}
}

// answered says what an API server has answered. One that answers with errors is late: members.Set says whether it is there. If it has done so for too long, nothing is known of it.
func (r *reconciler) answered(ctx context.Context, l *local, s *seen, of members.Errand, frs *v1alpha1.FederatedReplicaSet, policy *model.Policy) {
	switch r.Answered(of, s.err, r.clock.Now()) {
	case apply.Written:
		l.set, l.Local, l.Taken, l.ours = s.set, s.local, s.taken, s.ours
	case apply.Failed:
		klog.FromContext(ctx).V(2).Info("Cannot read a cluster", "cluster", l.Name, "err", s.err)
		r.late(ctx, l, frs, policy)
	default:
		r.silent(ctx, l, s.err)
	}
}

func (r *reconciler) silent(ctx context.Context, l *local, err error) {
	klog.FromContext(ctx).V(2).Info("A cluster does not answer", "cluster", l.Name, "err", err)
	*l = local{Member: model.Member{Cluster: sites.Cluster{Name: l.Name}}}
}

// sets are used again and again: a pass over hundreds of clusters would leave most of its garbage in them.
var sets = sync.Pool{New: func() any { return &appsv1.ReplicaSet{} }}

// read is what a cluster has. The pods of a settled ReplicaSet are read only from theServers.
func (r *reconciler) read(ctx context.Context, cluster string, frs *v1alpha1.FederatedReplicaSet, policy *model.Policy, from from) seen {
	var in client.Reader
	var err error
	if from == theCaches {
		in, err = r.members.Cache(cluster)
	} else {
		in, err = r.members.Client(cluster)
	}
	if err != nil {
		return seen{err: err}
	}
	set := sets.Get().(*appsv1.ReplicaSet)
	defer sets.Put(set)
	*set = appsv1.ReplicaSet{}
	if err := in.Get(ctx, client.ObjectKeyFromObject(frs), set, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		return seen{}
	} else if err != nil {
		return seen{err: fmt.Errorf("reading the ReplicaSet: %w", err)}
	}
	ours := set.Labels[v1alpha1.OwnerLabel] == string(frs.UID)
	if !ours && !isAdoptable(set, policy) {
		return seen{taken: true}
	}
	metadata := set.ObjectMeta
	ours = ours && set.Labels[v1alpha1.HubLabel] != ""
	if from != theServers && isSettled(set) {
		n := min(max(replicasOf(set), 0), mostPods)
		return seen{set: &metadata, ours: ours, brief: true, local: &model.Local{Replicas: replicasOf(set), Pods: n, Bound: n, Available: n}}
	}
	pods, err := podsIn(ctx, in, frs, from)
	if err != nil {
		return seen{err: fmt.Errorf("listing pods: %w", err)}
	}
	return seen{set: &metadata, ours: ours, local: r.localOf(set, pods)}
}

// podsIn are the pods in a cluster that may be those of the ReplicaSet. They may be shared.
func podsIn(ctx context.Context, in client.Reader, frs *v1alpha1.FederatedReplicaSet, from from) ([]corev1.Pod, error) {
	options := []client.ListOption{client.InNamespace(frs.Namespace), client.UnsafeDisableDeepCopy}
	if from == theCaches {
		options = append(options, client.MatchingFields{members.OwnerIndex: frs.Name})
	} else {
		selector, err := metav1.LabelSelectorAsSelector(frs.Spec.Selector)
		if err != nil {
			return nil, err
		}
		options = append(options, client.MatchingLabelsSelector{Selector: selector})
	}
	var pods corev1.PodList
	err := in.List(ctx, &pods, options...)
	return pods.Items, err
}

// isAdoptable is true for a ReplicaSet that its owner has labelled for Berth to take over, or that a hub has made if the FederatedReplicaSet takes such ones over. Its pods are those that the FederatedReplicaSet selects.
func isAdoptable(set *appsv1.ReplicaSet, policy *model.Policy) bool {
	may := set.Labels[v1alpha1.AdoptLabel] == "true" || policy.TakeOver && set.Labels[v1alpha1.OwnerLabel] != ""
	return may && metav1.GetControllerOfNoCopy(set) == nil && set.DeletionTimestamp.IsZero() &&
		equality.Semantic.DeepEqual(set.Spec.Selector, policy.LabelSelector)
}

// isSettled is true if all replicas of a ReplicaSet are available by its own status, which may be a little old. Its pods need not be read unless some of them are to end: with hundreds of
// clusters that is most of the work.
func isSettled(set *appsv1.ReplicaSet) bool {
	s := &set.Status
	return set.DeletionTimestamp.IsZero() && s.ObservedGeneration == set.Generation && s.Replicas == replicasOf(set) && s.AvailableReplicas == s.Replicas && len(s.Conditions) == 0
}

// mostPods is how many pods of a ReplicaSet count, if only its status tells of them. No cluster has as many. A cluster says what it likes, and the sum of all must be a number.
const mostPods = 200_000

func replicasOf(set *appsv1.ReplicaSet) int32 { return ptr.Deref(set.Spec.Replicas, 1) }

// localOf is what the model is told about a ReplicaSet.
func (r *reconciler) localOf(set *appsv1.ReplicaSet, pods []corev1.Pod) *model.Local {
	l := &model.Local{Replicas: replicasOf(set), Deleting: !set.DeletionTimestamp.IsZero()}
	for _, c := range set.Status.Conditions {
		if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
			l.FailingSince = c.LastTransitionTime.Time
		}
	}
	terminating := false
	for i := range pods {
		pod := &pods[i]
		if !metav1.IsControlledBy(pod, set) || podstate.HasEnded(pod) {
			continue
		}
		if pod.DeletionTimestamp != nil {
			terminating = true
			continue
		}
		l.Pods++
		if pod.Spec.NodeName != "" {
			l.Bound++
		}
		if ready, since := podstate.IsReady(pod); ready && !since.Add(time.Duration(set.Spec.MinReadySeconds)*time.Second).After(r.clock.Now()) {
			l.Available++
		}
		if is, since := podstate.IsUnschedulable(pod); is {
			l.UnschedulableSince = append(l.UnschedulableSince, since)
		}
	}
	// Pods of an adopted ReplicaSet lack the label, and are not in the cache. Its status counts them.
	if more := min(set.Status.Replicas, mostPods) - l.Pods; more > 0 && !terminating {
		run := min(more, max(set.Status.AvailableReplicas-l.Available, 0))
		l.Pods, l.Bound, l.Available = l.Pods+more, l.Bound+run, l.Available+run
	}
	return l
}
