package lookahead

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/federation"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/podstate"
)

const (
	// reportInterval is how often the room of a cluster is looked at.
	reportInterval = 5 * time.Second
	// askInterval is how often a cluster is asked whether it wants reports, while it does not.
	askInterval = time.Minute
	// mostPlacements bounds the work of one report. Shapes share it.
	mostPlacements = 5000
)

// reporter reports to the hub of a federation how many more pods find a node in this cluster, for the ReplicaSets that the hub has made here.
type reporter struct {
	client kubernetes.Interface
	pods   corelisters.PodLister
	nodes  corelisters.NodeLister
	// sets are ReplicaSets without their templates.
	sets    appslisters.ReplicaSetLister
	filters *fit.Filters
	clock   clock.PassiveClock
	leads   func() bool
	// unwanted is until when nobody wants reports.
	unwanted time.Time
}

// ofHub selects what a hub has made.
var ofHub = labels.NewSelector().Add(func() labels.Requirement {
	has, err := labels.NewRequirement(v1alpha1.HubLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	return *has
}())

// report writes what there is room for now into the ConfigMap that the hub reads. In a cluster without ReplicaSets of a hub, without that ConfigMap, or without the right to write it, nobody
// wants a report.
func (r *reporter) report(ctx context.Context) {
	if !r.leads() || r.clock.Now().Before(r.unwanted) {
		return
	}
	if sets, err := r.sets.List(ofHub); err == nil && len(sets) == 0 {
		return
	}
	into, err := r.client.CoreV1().ConfigMaps(v1alpha1.RoomNamespace).Get(ctx, v1alpha1.RoomName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		r.unwanted = r.clock.Now().Add(askInterval)
		return
	}
	if err == nil {
		err = r.write(ctx, into)
	}
	if err != nil && ctx.Err() == nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Reporting to the hub of the federation what there is room for")
	}
}

func (r *reporter) write(ctx context.Context, into *corev1.ConfigMap) error {
	sets, err := r.client.AppsV1().ReplicaSets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: ofHub.String(), ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("listing ReplicaSets: %w", err)
	}
	room, err := r.roomFor(ctx, sets.Items)
	if err != nil {
		return err
	}
	text, err := json.Marshal(room)
	if err != nil {
		return err
	}
	into.Data = map[string]string{v1alpha1.RoomKey: string(text)}
	if _, err := r.client.CoreV1().ConfigMaps(into.Namespace).Update(ctx, into, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing ConfigMap %s/%s: %w", into.Namespace, into.Name, err)
	}
	return nil
}

// roomFor tries pods of each shape on a picture of the cluster, until no node takes one more. Shapes do not take room from each other in it: the hub holds what it gives.
func (r *reporter) roomFor(ctx context.Context, sets []appsv1.ReplicaSet) (*federation.Room, error) {
	room := &federation.Room{At: r.clock.Now(), Seats: map[string]int32{}, Bound: map[string]int32{}}
	pods, err := r.pods.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	keys, shapes := map[types.UID]string{}, map[string]*appsv1.ReplicaSet{}
	for i := range sets {
		set := &sets[i]
		key := set.Namespace + "/" + set.Name
		keys[set.UID], room.Bound[key] = key, 0
		if shape := set.Annotations[v1alpha1.ShapeAnnotation]; shape != "" {
			shapes[shape] = set
		}
	}
	for _, pod := range pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner != nil && keys[owner.UID] != "" && pod.Spec.NodeName != "" && podstate.IsActive(pod) {
			room.Bound[keys[owner.UID]]++
		}
	}
	most := int32(min(enough, mostPlacements/max(len(shapes), 1)))
	for _, shape := range slices.Sorted(maps.Keys(shapes)) {
		seats, known, err := r.seatsFor(ctx, shapes[shape], pods, nodes, most)
		if err != nil {
			return nil, err
		}
		if known {
			room.Seats[shape] = seats
		}
	}
	return room, nil
}

// seatsFor is how many more pods of a ReplicaSet find a node, at most as many as given. It is false if the filters cannot tell.
func (r *reporter) seatsFor(ctx context.Context, set *appsv1.ReplicaSet, pods []*corev1.Pod, nodes []*corev1.Node, most int32) (seats int32, known bool, _ error) {
	rooms, err := r.filters.Take(pods, nodes)
	if err != nil {
		return 0, false, fmt.Errorf("taking a picture of the cluster: %w", err)
	}
	for ; seats < most; seats++ {
		pod := &corev1.Pod{ObjectMeta: *set.Spec.Template.ObjectMeta.DeepCopy(), Spec: *set.Spec.Template.Spec.DeepCopy()}
		pod.Namespace, pod.Name, pod.UID = set.Namespace, fmt.Sprint(set.Name, "-", seats), types.UID(fmt.Sprint(set.UID, "-", seats))
		_, verdict, why := rooms.Place(ctx, pod, nil, func(*corev1.Node) bool { return true })
		if verdict == fit.Unknown {
			klog.FromContext(ctx).V(2).Info("Cannot tell what there is room for", "replicaset", klog.KObj(set), "err", why)
			return 0, false, nil
		}
		if verdict == fit.DoesNotFit {
			break
		}
	}
	return seats, true, nil
}
