package fit

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-project/berth/pkg/podstate"
)

// Verdict on a pod.
type Verdict uint8

const (
	// Fits: there is a node for the pod.
	Fits Verdict = iota
	// DoesNotFit: no node takes it.
	DoesNotFit
	// Unknown: a filter could not say, or the pod has what only the scheduler allocates.
	Unknown
)

// Rooms is the cluster at one moment, with what was placed on it since. It is not safe for concurrent use.
type Rooms struct {
	filters *Filters
	// leaving are the pods instead of which others were placed. They keep their rooms.
	leaving map[types.UID]*corev1.Pod
	// next is where Schedule begins to look at nodes. Each call goes on where the last one ended.
	next int
}

// Take takes a picture of the cluster: pods that hold room, which are those on nodes that have not ended, and those
// nominated to one. Only one picture of the same Filters may be in use.
func (f *Filters) Take(pods []*corev1.Pod, nodes []*corev1.Node) (*Rooms, error) {
	var holding []*corev1.Pod
	for _, pod := range pods {
		switch {
		case podstate.HasEnded(pod):
		case pod.Spec.NodeName != "":
			holding = append(holding, pod)
		case pod.Status.NominatedNodeName != "":
			nominated := pod.DeepCopy()
			nominated.Spec.NodeName = pod.Status.NominatedNodeName
			holding = append(holding, nominated)
		}
	}
	f.forget()
	return &Rooms{filters: f, leaving: map[types.UID]*corev1.Pod{}}, f.picture.take(holding, nodes)
}

// Expect says which persistent volume claims controllers will make for pods that are about to be placed, as a
// StatefulSet's does. Claims that exist stay as they are. Nobody need say it of generic ephemeral volumes. The error
// says why it is not known where a volume will be.
func (r *Rooms) Expect(namespace string, expected []*corev1.PersistentVolumeClaim) error {
	return r.filters.claims.prepare(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}, expected)
}

// Place looks for a node for a pod that has none, among the nodes for which may is true. The pod replaces the pod
// instead, which may be nil: that one does not keep the pod from a node, but its own node does not count, because the
// move would lead nowhere. If a node fits, the pod is on it from now on.
//
// The pod instead keeps its room: nobody knows yet whether and when it goes. Later pods fit only if they do with it,
// and without it. If no node fits, nothing has changed.
func (r *Rooms) Place(ctx context.Context, pod, instead *corev1.Pod, may func(*corev1.Node) bool) (node string, verdict Verdict, why error) {
	if err := r.filters.unknown(pod); err != nil {
		return "", Unknown, err
	}
	picture, logger, state := r.filters.picture, klog.FromContext(ctx), framework.NewCycleState()
	err := picture.without(logger, []*corev1.Pod{instead}, func() (err error) {
		allowed := func(n *corev1.Node) bool { return (instead == nil || n.Name != instead.Spec.NodeName) && may(n) }
		if len(r.leaving) > 0 && looksAtOthers(pod) {
			after := sets.New[string]()
			err = picture.without(logger, slices.Collect(maps.Values(r.leaving)), func() error {
				verdict, why = r.filter(ctx, framework.NewCycleState(), pod, allowed, func(name string) bool { after.Insert(name); return true })
				return nil
			})
			if err != nil || after.Len() == 0 {
				return err
			}
			allowed = func(n *corev1.Node) bool { return after.Has(n.Name) }
		}
		verdict, why = r.filter(ctx, state, pod, allowed, func(name string) bool { node = name; return false })
		return nil
	})
	if err != nil {
		return "", Unknown, err
	}
	if verdict != Fits {
		return "", verdict, why
	}
	if err := r.filters.put(ctx, state, pod, node); err != nil {
		return "", Unknown, err
	}
	if instead != nil {
		r.leaving[instead.UID] = instead
	}
	return node, Fits, nil
}

// PlaceByPreemption is Place for a pod that may preempt. On one node after the other it takes away pods of lower
// priority for which mayGo is true, the lowest first, until the pod fits. They are gone from now on. If no node fits,
// nothing has changed.
func (r *Rooms) PlaceByPreemption(ctx context.Context, pod, instead *corev1.Pod, may func(*corev1.Node) bool, mayGo func(*corev1.Pod) bool) (string, Verdict, error) {
	node, verdict, why := r.Place(ctx, pod, instead, may)
	if verdict != DoesNotFit || pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return node, verdict, why
	}
	picture, logger, priority := r.filters.picture, klog.FromContext(ctx), corev1helpers.PodPriority(pod)
	for _, info := range picture.nodes {
		if !may(info.Node()) {
			continue
		}
		var victims, gone []*corev1.Pod
		for _, on := range info.GetPods() {
			if other := on.GetPod(); corev1helpers.PodPriority(other) < priority && mayGo(other) {
				victims = append(victims, other)
			}
		}
		slices.SortFunc(victims, func(a, b *corev1.Pod) int {
			return cmp.Compare(corev1helpers.PodPriority(a), corev1helpers.PodPriority(b))
		})
		only := func(n *corev1.Node) bool { return n.Name == info.Node().Name }
		for _, victim := range victims {
			if picture.remove(logger, victim) {
				gone = append(gone, victim)
			}
			if node, verdict, _ := r.Place(ctx, pod, instead, only); verdict == Fits {
				return node, Fits, nil
			}
		}
		for _, pod := range gone {
			if err := picture.add(pod); err != nil {
				return "", Unknown, err
			}
		}
	}
	return "", DoesNotFit, why
}

// looksAtOthers is true for a pod that may fit less where others are gone. That is what affinity to them and even
// spreading do; room for resources, ports and volumes only grows.
func looksAtOthers(pod *corev1.Pod) bool {
	return pod.Spec.Affinity != nil && pod.Spec.Affinity.PodAffinity != nil || len(pod.Spec.TopologySpreadConstraints) > 0
}

// each calls a function with all nodes for which may is true, and with what the filters say of the pod there, or what
// refuses it before them. It ends when the function returns false. State is empty before.
func (r *Rooms) each(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, may func(*corev1.Node) bool, visit func(node *corev1.Node, status *fwk.Status) (more bool)) {
	run := r.filters.framework
	result, before, _ := run.RunPreFilterPlugins(ctx, state, pod)
	for _, node := range r.filters.picture.nodes {
		if !may(node.Node()) {
			continue
		}
		status := before
		switch {
		case !before.IsSuccess():
		case r.filters.notices.Of(node.Node()) != "":
			status = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) announced their end")
		case !result.AllNodes() && !result.NodeNames.Has(node.Node().Name):
			status = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't satisfy plugin(s) before filters")
		default:
			status = run.RunFilterPlugins(ctx, state, pod, node)
		}
		if !visit(node.Node(), status) {
			return
		}
	}
}

// filter calls a function with the nodes that take a pod, of those for which may is true, for as long as it returns
// true. Without such a node the verdict is not Fits, and the error says why. State is empty before.
func (r *Rooms) filter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, may func(*corev1.Node) bool, fits func(node string) (more bool)) (Verdict, error) {
	verdict, why := DoesNotFit, errors.New("no node may be used")
	r.each(ctx, state, pod, may, func(node *corev1.Node, status *fwk.Status) bool {
		switch {
		case status.IsSuccess():
			verdict, why = Fits, nil
			return fits(node.Name)
		case verdict == Fits:
		case !status.IsRejected():
			verdict, why = Unknown, status.AsError()
		case verdict == DoesNotFit:
			why = status.AsError()
		}
		return true
	})
	return verdict, why
}

// Survey is what the filters say of nodes, without a pod being placed.
type Survey struct {
	// Nodes that were asked about, and how many of them take the pod.
	Nodes, Fit int
	// Refused counts the reasons of the others, in the filters' words. A node can have several.
	Refused map[string]int
	// Unknown is why nothing can be said about the nodes. Nil if something can.
	Unknown error
}

// Survey asks about all nodes for which may is true. The pod instead, which may be nil, counts as gone.
func (r *Rooms) Survey(ctx context.Context, pod, instead *corev1.Pod, may func(*corev1.Node) bool) (survey Survey, err error) {
	if survey.Unknown = r.filters.unknown(pod); survey.Unknown != nil {
		return survey, nil
	}
	survey.Refused = map[string]int{}
	err = r.filters.picture.without(klog.FromContext(ctx), []*corev1.Pod{instead}, func() (err error) {
		r.each(ctx, framework.NewCycleState(), pod, may, func(_ *corev1.Node, status *fwk.Status) bool {
			survey.Nodes++
			switch {
			case status.IsSuccess():
				survey.Fit++
			case status.Code() == fwk.Error:
				err = status.AsError()
				return false
			default:
				for _, reason := range status.Reasons() {
					survey.Refused[reason]++
				}
			}
			return true
		})
		return err
	})
	return survey, err
}
