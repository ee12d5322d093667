package lineage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// Snapshot is what the API server had at one moment. It implements client.Reader as far as a lineage reads. Owners of
// kinds that are not built in are read when they are asked for, once. What it holds is shared and must not be changed.
// It is not safe for concurrent use.
type Snapshot struct {
	Spreads []v1beta1.WorkloadSpread
	Pods    []*corev1.Pod
	Nodes   []*corev1.Node
	// Lineage of what is in the snapshot.
	Lineage *Lineage

	live      client.Client
	byTarget  map[string][]*v1beta1.WorkloadSpread
	nodeNamed map[string]*corev1.Node
	owners    map[schema.GroupKind]map[types.NamespacedName]client.Object
	others    map[string]*metav1.PartialObjectMetadata
}

var _ client.Reader = &Snapshot{}

// Take lists spreads, pods, nodes and the built-in owners of pods. It lists spreads before everything else: what
// somebody does to the pods after that is in the list of pods, or has changed a spread, which is noticed when its
// status is written.
func Take(ctx context.Context, live client.Client, clock clock.WithTicker) (*Snapshot, error) {
	return TakeWith(ctx, live, clock, nil)
}

// TakeWith is Take with the pods and nodes of informers that have synced. Nil lists them. What somebody did to the
// pods, and an informer has not seen yet, is in the status of their spread if it was a move.
func TakeWith(ctx context.Context, live client.Client, clock clock.WithTicker, watched informers.SharedInformerFactory) (*Snapshot, error) {
	return read(ctx, live, clock, "", watched)
}

// TakeNamespace is Take for one namespace and without nodes, for users who may list no more.
func TakeNamespace(ctx context.Context, live client.Client, clock clock.WithTicker, namespace string) (*Snapshot, error) {
	return read(ctx, live, clock, namespace, nil)
}

// read reads one namespace without nodes, or everything if the name is empty.
func read(ctx context.Context, live client.Client, clock clock.WithTicker, namespace string, watched informers.SharedInformerFactory) (*Snapshot, error) {
	s := &Snapshot{live: live, byTarget: map[string][]*v1beta1.WorkloadSpread{}, nodeNamed: map[string]*corev1.Node{},
		owners: map[schema.GroupKind]map[types.NamespacedName]client.Object{}, others: map[string]*metav1.PartialObjectMetadata{}}
	s.Lineage = Over(s, NewKinds(live.RESTMapper(), live, clock), clock)
	var spreads v1beta1.WorkloadSpreadList
	if err := live.List(ctx, &spreads, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing spreads: %w", err)
	}
	s.Spreads = spreads.Items
	s.indexSpreads()
	var pods corev1.PodList
	var nodes corev1.NodeList
	owners := map[schema.GroupKind]client.ObjectList{}
	for kind, typed := range builtIn {
		owners[kind] = typed.NewList()
	}
	lists := slices.Collect(maps.Values(owners))
	if watched == nil {
		lists = append(lists, &pods)
	}
	if watched == nil && namespace == "" {
		lists = append(lists, &nodes)
	}
	reading, readCtx := errgroup.WithContext(ctx)
	for _, list := range lists {
		reading.Go(func() error {
			if err := live.List(readCtx, list, client.InNamespace(namespace)); err != nil {
				return fmt.Errorf("listing into %T: %w", list, err)
			}
			return nil
		})
	}
	if err := reading.Wait(); err != nil {
		return nil, err
	}
	if watched != nil {
		var podsErr, nodesErr error
		s.Pods, podsErr = watched.Core().V1().Pods().Lister().List(labels.Everything())
		s.Nodes, nodesErr = watched.Core().V1().Nodes().Lister().List(labels.Everything())
		if err := errors.Join(podsErr, nodesErr); err != nil {
			return nil, err
		}
	}
	for i := range pods.Items {
		pods.Items[i].ManagedFields = nil
		s.Pods = append(s.Pods, &pods.Items[i])
	}
	for i := range nodes.Items {
		nodes.Items[i].ManagedFields = nil
		s.Nodes = append(s.Nodes, &nodes.Items[i])
	}
	for _, node := range s.Nodes {
		s.nodeNamed[node.Name] = node
	}
	for kind, list := range owners {
		s.owners[kind] = map[types.NamespacedName]client.Object{}
		if err := meta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object)
			object.SetManagedFields(nil)
			s.owners[kind][client.ObjectKeyFromObject(object)] = object
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Snapshot) indexSpreads() {
	clear(s.byTarget)
	for i := range s.Spreads {
		spread := &s.Spreads[i]
		for _, key := range TargetKeyOf(spread) {
			s.byTarget[spread.Namespace+"/"+key] = append(s.byTarget[spread.Namespace+"/"+key], spread)
		}
	}
}

// Suppose puts a spread into the snapshot, in place of the one of its name if there is one. It writes to the status of
// the spread what the installation is compatible with, as the status of other spreads says it. If there is none, the
// installation counts as compatible with nothing.
func (s *Snapshot) Suppose(spread *v1beta1.WorkloadSpread) {
	of := spread.Spec.TargetReference
	for i := range s.Spreads {
		known := &s.Spreads[i]
		if known.Status.ObservedGeneration == 0 {
			continue
		}
		spread.Status.Compatibility = known.Status.Compatibility
		if paths, ref := known.Status.ReplicasPathList, known.Spec.TargetReference; len(paths) > 0 && ref.APIVersion == of.APIVersion && ref.Kind == of.Kind {
			spread.Status.ReplicasPathList = paths
		}
	}
	s.Spreads = slices.DeleteFunc(s.Spreads, func(other v1beta1.WorkloadSpread) bool {
		return other.Namespace == spread.Namespace && other.Name == spread.Name
	})
	s.Spreads = append(s.Spreads, *spread)
	s.indexSpreads()
}

// Get implements client.Reader for the owners of pods.
func (s *Snapshot) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if metadata, is := into.(*metav1.PartialObjectMetadata); is {
		return s.getOther(ctx, key, metadata)
	}
	gvk, err := s.live.GroupVersionKindFor(into)
	if err != nil {
		return err
	}
	owners, taken := s.owners[gvk.GroupKind()]
	if !taken && gvk.GroupKind() == podKind { // few pods own pods
		owners, taken = make(map[types.NamespacedName]client.Object, len(s.Pods)), true
		for _, pod := range s.Pods {
			owners[client.ObjectKeyFromObject(pod)] = pod
		}
		s.owners[podKind] = owners
	}
	if !taken {
		return fmt.Errorf("a %T is not in the snapshot", into)
	}
	object, found := owners[key]
	if !found {
		return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, key.Name)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(object).Elem())
	return nil
}

func (s *Snapshot) getOther(ctx context.Context, key client.ObjectKey, into *metav1.PartialObjectMetadata) error {
	kind := into.GroupVersionKind().GroupKind()
	id := kind.String() + "/" + key.String()
	object, known := s.others[id]
	if !known {
		object = &metav1.PartialObjectMetadata{TypeMeta: into.TypeMeta}
		err := s.live.Get(ctx, key, object)
		switch {
		case apierrors.IsNotFound(err):
			object = nil
		case err != nil:
			return err
		}
		s.others[id] = object
	}
	if object == nil {
		return apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, key.Name)
	}
	*into = *object
	return nil
}

// List implements client.Reader for the spreads of a workload.
func (s *Snapshot) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	list, ok := into.(*v1beta1.WorkloadSpreadList)
	if !ok {
		return fmt.Errorf("a %T is not in the snapshot", into)
	}
	var options client.ListOptions
	options.ApplyOptions(opts)
	if options.FieldSelector == nil {
		return fmt.Errorf("spreads are listed by %s", TargetField)
	}
	target, exact := options.FieldSelector.RequiresExactMatch(TargetField)
	if !exact {
		return fmt.Errorf("spreads are listed by %s, not by %s", TargetField, options.FieldSelector)
	}
	for _, spread := range s.byTarget[options.Namespace+"/"+target] {
		list.Items = append(list.Items, *spread)
	}
	return nil
}

// Node is nil if there is none of the name.
func (s *Snapshot) Node(name string) *corev1.Node { return s.nodeNamed[name] }

// Owner is an object of a built-in kind that can own pods. It is nil if there is none of the name; builtIn is false for
// other kinds.
func (s *Snapshot) Owner(namespace string, o workload.Owner) (object client.Object, builtIn bool) {
	all, builtIn := s.owners[o.Kind]
	return all[types.NamespacedName{Namespace: namespace, Name: o.Name}], builtIn
}

// Position of a pod in its StatefulSet, as subset.Pod has it. The policy is that of the spread that divides the pod.
// Read are the ordinals of the workload that this spread names; see Lineage.Ordinals.
func (s *Snapshot) Position(pod *corev1.Pod, policy *subset.Policy, read *workload.Ordinals) int32 {
	controller := workload.ControllerOf(pod)
	if controller == nil || !policy.GoByOrdinal() {
		return 0
	}
	object, _ := s.Owner(pod.Namespace, *controller)
	return workload.OrdinalsOf(*controller, object, read).Position(pod.Name, controller.Name)
}

// SpreadOf is the spread that divides a pod, or nil.
func (s *Snapshot) SpreadOf(ctx context.Context, pod *corev1.Pod) (*Spread, error) {
	owner := workload.ControllerOf(pod)
	for range workload.LongestOwnerChain {
		found, missing, err := s.Lineage.SpreadOf(ctx, pod.Namespace, owner, pod.Labels)
		if missing == nil || err != nil {
			return found, err
		}
		if s.Lineage.NewObject(missing.Kind) != nil {
			return nil, nil // the owner is gone, and its pods are going
		}
		if _, err := s.Lineage.Watch(ctx, missing.Kind); err != nil {
			return nil, err
		}
	}
	return nil, nil
}
