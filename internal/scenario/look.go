package scenario

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// look is a scenario's namespace at one moment.
type look struct {
	*lineage.Snapshot
	namespace string
	// owned are the pods of each owner and of the owners below it. The keys have no UID.
	owned map[workload.Owner][]*corev1.Pod
}

func (p *Play) look(ctx context.Context) (*look, error) {
	taken, err := lineage.Take(ctx, p.client, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	l := &look{Snapshot: taken, namespace: p.Namespace, owned: map[workload.Owner][]*corev1.Pod{}}
	for _, pod := range l.Pods {
		if _, err := l.Lineage.Climb(ctx, l.namespace, workload.ControllerOf(pod), func(o workload.Owner) (bool, error) {
			o.UID = ""
			l.owned[o] = append(l.owned[o], pod)
			return false, nil
		}); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// object is the workload as the cluster has it, or nil.
func (l *look) object(o workload.Owner) client.Object {
	object, _ := l.Owner(l.namespace, o)
	return object
}

func ownerOf(object Object) workload.Owner {
	return workload.Owner{Kind: object.GroupVersionKind().GroupKind(), Name: object.GetName()}
}

// tables are those of all spreads.
func (l *look) tables(ctx context.Context) (string, error) {
	spreads := slices.SortedFunc(slices.Values(l.Spreads), func(a, b v1beta1.WorkloadSpread) int { return cmp.Compare(a.Name, b.Name) })
	layouts := make([]Layout, len(spreads))
	for i := range spreads {
		target := workload.TargetOf(&spreads[i])
		var replicas int32
		var err error
		if object := l.object(target); object != nil {
			if replicas, err = l.Replicas(ctx, &spreads[i], object); err != nil {
				return "", err
			}
		}
		if layouts[i], err = Observe(&spreads[i], replicas, l.owned[target], l.Node); err != nil {
			return "", err
		}
	}
	return Tables(layouts), nil
}

// underWay says what is still to happen after a step. It is empty when every controller has seen the last change of its
// objects, every workload has its pods, and each pod is ready, has finished, or waits because the scheduler has refused
// it.
func (l *look) underWay(applied map[Reference]Object) string {
	for i := range l.Spreads {
		if spread := &l.Spreads[i]; spread.Status.ObservedGeneration < spread.Generation {
			return fmt.Sprintf("the status of WorkloadSpread/%s is not up to date", spread.Name)
		}
	}
	for _, pod := range l.Pods {
		if !settled(pod) {
			return fmt.Sprintf("pod %s changes", pod.Name)
		}
	}
	for owner := range l.owned {
		if object := l.object(owner); object != nil && observed(object) < object.GetGeneration() {
			return fmt.Sprintf("the status of %s/%s is not up to date", owner.Kind.Kind, owner.Name)
		}
	}
	for ref, object := range applied {
		owner := ownerOf(object)
		if owner.Kind == v1beta1.Kind.GroupKind() {
			continue
		}
		workloadNow := l.object(owner)
		if workloadNow == nil || observed(workloadNow) < workloadNow.GetGeneration() {
			return fmt.Sprintf("the status of %s is not up to date", ref)
		}
		replicas, _ := workload.ReplicasNow(workloadNow)
		if pods := l.owned[owner]; len(pods) < int(replicas) && !waitsForItsLast(workloadNow, pods) {
			return fmt.Sprintf("%s has %d of %d pods", ref, len(pods), replicas)
		}
	}
	return ""
}

// settled is true for a pod that changes only if something else changes.
func settled(pod *corev1.Pod) bool {
	switch {
	case pod.DeletionTimestamp != nil:
		return false
	case !subset.IsActive(pod):
		return true
	case pod.Spec.NodeName == "":
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
	default:
		return len(pod.Spec.ReadinessGates) > 0 || subset.Observe(pod, nil).Ready
	}
}

// observed is the generation that the controller of a workload has seen. The status of a Job does not say.
func observed(object client.Object) int64 {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return o.Status.ObservedGeneration
	case *appsv1.ReplicaSet:
		return o.Status.ObservedGeneration
	case *appsv1.StatefulSet:
		return o.Status.ObservedGeneration
	default:
		return object.GetGeneration()
	}
}

// waitsForItsLast is true for a StatefulSet that creates no further pod while one of its pods has no node.
func waitsForItsLast(object client.Object, pods []*corev1.Pod) bool {
	set, ok := object.(*appsv1.StatefulSet)
	return ok && set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement &&
		slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" })
}
