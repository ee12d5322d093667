package ui

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/workload"
)

// listTimeout bounds the first lists of the cluster's objects.
const listTimeout = 30 * time.Second

// Options of a page.
type Options struct {
	Title
	// Secret is the first part of the path of the page. Whoever does not know it gets nothing, also on a machine that others share. Empty for none.
	Secret string
	// Explain returns as JSON why a pod is where it is, as "kubectl berth explain -o json" prints it. Nil if the page does not offer that. It is asked
	// about pods that the page shows. Its context ends when the browser leaves, and after 30 s. Browsers see its error.
	Explain func(ctx context.Context, namespace, pod string) ([]byte, error)
	// Simulate returns as JSON where the pods of a spread would be with this number of replicas, as "kubectl berth simulate -o json" prints it. The rest
	// is as for Explain. Replicas are at most 5,000.
	Simulate func(ctx context.Context, namespace, spread string, replicas int32) ([]byte, error)
	// Clock is the real one if nil.
	Clock clock.WithTicker
}

// Page follows a cluster.
type Page struct {
	clock     clock.WithTicker
	stream    *stream
	following *following
	secret    string
	// explain and simulate are those of Options.
	explain   func(ctx context.Context, namespace, pod string) ([]byte, error)
	simulate  func(ctx context.Context, namespace, spread string, replicas int32) ([]byte, error)
	questions questions
	// united and federated are true if UnitedDeployments and FederatedReplicaSets are watched.
	united, federated bool
	// ended is closed when nothing is followed any more. endedBy says why.
	ended   chan struct{}
	endedBy error
}

// Open reads the cluster and returns a page that follows it until the context ends. It needs the rights to list and watch nodes, pods,
// WorkloadSpreads and the built-in owners of pods. Its error names a missing right.
func Open(ctx context.Context, config *rest.Config, options Options) (*Page, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme, unitedv1beta1.AddToScheme, federationv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering types: %w", err)
		}
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	if err := checkRights(ctx, reader, options.Namespace); err != nil {
		return nil, err
	}
	united, err := canList(ctx, reader, &unitedv1beta1.UnitedDeploymentList{}, options.Namespace)
	if err != nil {
		return nil, err
	}
	federated, err := canList(ctx, reader, &federationv1alpha1.FederatedReplicaSetList{}, options.Namespace)
	if err != nil {
		return nil, err
	}
	p := &Page{secret: options.Secret, united: united, federated: federated, clock: options.Clock, following: newFollowing(options.Clock), explain: options.Explain, simulate: options.Simulate, ended: make(chan struct{})}
	config = rest.CopyConfig(config)
	config.Wrap(p.following.watch)
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Cache:                  cacheOptions(options.Namespace),
		Logger:                 logr.Discard(),
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		return nil, err
	}
	owners, err := lineage.New(ctx, mgr, lineage.Options{Clock: options.Clock})
	if err != nil {
		return nil, err
	}
	p.stream = newStream(newBoard(owners, options.Clock), options.Title, offersOf(&options), options.Clock)
	synced, err := p.addHandlers(ctx, mgr, owners)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		if p.endedBy = mgr.Start(ctx); p.endedBy == nil {
			p.endedBy = context.Cause(ctx)
		}
		close(p.ended)
	}()
	waiting, stop := context.WithTimeoutCause(ctx, listTimeout, fmt.Errorf("listing what the page shows took longer than %s; check the connection to the API server", listTimeout))
	defer stop()
	if !toolscache.WaitForCacheSync(waiting.Done(), append(synced, owners.HasSynced)...) {
		err := context.Cause(waiting)
		cancel()
		<-p.ended
		if p.endedBy != nil && ctx.Err() == nil {
			err = p.endedBy
		}
		return nil, err
	}
	go p.stream.run(ctx)
	go p.following.ask(ctx, mgr)
	return p, nil
}

// workloads are the kinds of owners that are always read.
func workloads() []client.Object {
	return []client.Object{&appsv1.Deployment{}, &appsv1.ReplicaSet{}, &appsv1.StatefulSet{}, &batchv1.Job{}}
}

// checkRights lists one object of every kind that is watched, because a forbidden watch would wait for ever.
func checkRights(ctx context.Context, reader client.Reader, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	for _, list := range []client.ObjectList{
		&v1beta1.WorkloadSpreadList{}, &corev1.PodList{}, &corev1.NodeList{},
		&appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &appsv1.StatefulSetList{}, &batchv1.JobList{},
	} {
		in := []client.ListOption{client.Limit(1)}
		if _, everywhere := list.(*corev1.NodeList); !everywhere {
			in = append(in, client.InNamespace(namespace))
		}
		if err := reader.List(ctx, list, in...); err != nil {
			return err
		}
	}
	return nil
}

// canList is true if the cluster has a kind and shows it to the user. The page works without it.
func canList(ctx context.Context, reader client.Reader, list client.ObjectList, namespace string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	err := reader.List(ctx, list, client.Limit(1), client.InNamespace(namespace))
	if meta.IsNoMatchError(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// addHandlers puts everything that is watched on the board.
func (p *Page) addHandlers(ctx context.Context, mgr ctrl.Manager, owners *lineage.Lineage) ([]toolscache.InformerSynced, error) {
	seeOwner := func(object metav1.Object) {
		uid := object.GetUID()
		p.stream.change(func(b *board) { b.seeOwner(uid) })
	}
	owners.OnStart(func(ctx context.Context, object *metav1.PartialObjectMetadata) error {
		_, err := owners.Handle(ctx, mgr, object, seeOwner, nil)
		return err
	})
	type told struct {
		object     client.Object
		seen, gone func(metav1.Object)
	}
	all := []told{
		{&corev1.Node{}, onBoard(p.stream, (*board).putNode), func(object metav1.Object) {
			p.stream.change(func(b *board) { b.dropNode(object.GetName()) })
		}},
		{&corev1.Pod{}, onBoard(p.stream, (*board).putPod), func(object metav1.Object) {
			p.stream.change(func(b *board) { b.dropPod(keyOf(object)) })
		}},
		{&v1beta1.WorkloadSpread{}, onBoard(p.stream, (*board).putSpread), func(object metav1.Object) {
			p.stream.change(func(b *board) { b.dropSpread(keyOf(object)) })
		}},
	}
	for _, object := range workloads() {
		all = append(all, told{object, seeOwner, nil})
	}
	if p.united {
		all = append(all, told{&unitedv1beta1.UnitedDeployment{}, onBoard(p.stream, (*board).putUnited), func(object metav1.Object) {
			p.stream.change(func(b *board) { b.dropUnited(keyOf(object)) })
		}})
	}
	if p.federated {
		all = append(all, told{&federationv1alpha1.FederatedReplicaSet{}, onBoard(p.stream, (*board).putFederated), func(object metav1.Object) {
			p.stream.change(func(b *board) { b.dropFederated(keyOf(object)) })
		}})
	}
	var synced []toolscache.InformerSynced
	for _, of := range all {
		has, err := owners.Handle(ctx, mgr, of.object, of.seen, of.gone)
		if err != nil {
			return nil, err
		}
		synced = append(synced, has)
	}
	return synced, nil
}

// onBoard puts objects of one type on the board.
func onBoard[T metav1.Object](s *stream, put func(*board, T)) func(metav1.Object) {
	return func(object metav1.Object) {
		if typed, ok := object.(T); ok {
			s.change(func(b *board) { put(b, typed) })
		}
	}
}

// cacheOptions keep only what the page needs of objects, in one namespace or in all.
func cacheOptions(namespace string) cache.Options {
	options := cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:  {Transform: keepOfPod},
			&corev1.Node{}: {Transform: keepOfNode},
		},
		DefaultUnsafeDisableDeepCopy: ptr.To(true),
		// The page shows errors.
		DefaultWatchErrorHandler: func(context.Context, *toolscache.Reflector, error) {},
	}
	for _, object := range workloads() {
		options.ByObject[object] = cache.ByObject{Transform: workload.Keep}
	}
	if namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	return options
}

func keepOfPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Pod{
		ObjectMeta: pod.ObjectMeta,
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName},
		Status:     corev1.PodStatus{Phase: pod.Status.Phase, Conditions: pod.Status.Conditions},
	}
	kept.ManagedFields, kept.Annotations = nil, nil
	for _, key := range []string{v1beta1.MatchedAnnotation, v1beta1.AdmittedAnnotation} {
		if value, found := pod.Annotations[key]; found {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, value)
		}
	}
	return kept, nil
}

func keepOfNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Node{
		ObjectMeta: node.ObjectMeta,
		Spec:       corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints},
		Status:     corev1.NodeStatus{Conditions: node.Status.Conditions},
	}
	kept.ManagedFields, kept.Annotations = nil, nil
	return kept, nil
}
