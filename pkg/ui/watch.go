package ui

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
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
	"github.com/berth-project/berth/pkg/crd/versions"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/pkg/workload"
)

// listTimeout bounds the first lists of the cluster's objects.
const listTimeout = 30 * time.Second

// Options of a page.
type Options struct {
	Title
	// Secret is the first part of the path of the page. Whoever does not know it gets nothing, also on a machine that
	// others share. Empty for none.
	Secret string
}

// Page follows a cluster.
type Page struct {
	clock  clock.WithTicker
	stream *stream
	secret string
	// trouble is a string that says why the page may be out of date: the API server does not answer. Empty or nothing
	// if it does.
	trouble atomic.Value
	// ended is closed when nothing is followed any more. endedBy says why.
	ended   chan struct{}
	endedBy error
}

// Open reads the cluster and returns a page that follows it until the context ends. It needs the rights to list and
// watch nodes, pods, WorkloadSpreads and the built-in owners of pods. Its error names a missing right.
func Open(ctx context.Context, config *rest.Config, options Options) (*Page, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), versions.AddStored(scheme)); err != nil {
		return nil, fmt.Errorf("registering types: %w", err)
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	shown, err := listable(ctx, reader, options.Namespace)
	if err != nil {
		return nil, err
	}
	p := &Page{secret: options.Secret, clock: clock.RealClock{}, ended: make(chan struct{})}
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
	owners, err := lineage.New(ctx, mgr, lineage.Options{})
	if err != nil {
		return nil, err
	}
	p.stream = newStream(newBoard(owners, p.clock), options.Title, p.clock)
	synced, err := p.addHandlers(ctx, mgr, owners, shown)
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
	go p.ask(ctx, mgr)
	return p, nil
}

// workloads are the kinds of owners that are always read.
func workloads() []client.Object {
	return []client.Object{&appsv1.Deployment{}, &appsv1.ReplicaSet{}, &appsv1.StatefulSet{}, &batchv1.Job{}}
}

// listable are the kinds that are shown: those that the page needs, and those that the cluster has and the user may
// list. It lists one object of each, because a forbidden watch would wait forever.
func listable(ctx context.Context, reader client.Reader, namespace string) (shown []client.Object, _ error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	for _, of := range []struct {
		list  client.ObjectList
		shows client.Object // nil for owners of pods
		need  bool
	}{
		{&v1beta1.WorkloadSpreadList{}, &v1beta1.WorkloadSpread{}, true}, {&corev1.PodList{}, &corev1.Pod{}, true}, {&corev1.NodeList{}, &corev1.Node{}, true},
		{&appsv1.DeploymentList{}, nil, true}, {&appsv1.ReplicaSetList{}, nil, true}, {&appsv1.StatefulSetList{}, nil, true}, {&batchv1.JobList{}, nil, true},
		{&unitedv1beta1.UnitedDeploymentList{}, &unitedv1beta1.UnitedDeployment{}, false}, {&federationv1alpha1.FederatedReplicaSetList{}, &federationv1alpha1.FederatedReplicaSet{}, false},
	} {
		switch err := reader.List(ctx, of.list, client.Limit(1), client.InNamespace(namespace)); { // the namespace is ignored for nodes
		case err == nil && of.shows != nil:
			shown = append(shown, of.shows)
		case err != nil && (of.need || !meta.IsNoMatchError(err) && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err)):
			return nil, err
		}
	}
	return shown, nil
}

// addHandlers puts what is shown on the board, and tells it of owners.
func (p *Page) addHandlers(ctx context.Context, mgr ctrl.Manager, owners *lineage.Lineage, shown []client.Object) (synced []toolscache.InformerSynced, _ error) {
	on := func(do func(*board, metav1.Object)) func(metav1.Object) {
		return func(object metav1.Object) { p.stream.change(func(b *board) { do(b, object) }) }
	}
	seeOwner := on(func(b *board, object metav1.Object) { b.seeOwner(object.GetUID()) })
	owners.OnStart(func(ctx context.Context, object *metav1.PartialObjectMetadata) error {
		_, err := owners.Handle(ctx, mgr, object, seeOwner, nil)
		return err
	})
	handle := func(object client.Object, seen, gone func(metav1.Object)) error {
		has, err := owners.Handle(ctx, mgr, object, seen, gone)
		synced = append(synced, has)
		return err
	}
	for _, object := range shown {
		if err := handle(object, on((*board).put), on((*board).drop)); err != nil {
			return nil, err
		}
	}
	for _, object := range workloads() {
		if err := handle(object, seeOwner, nil); err != nil {
			return nil, err
		}
	}
	return synced, nil
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
	pod.Spec, pod.Status = corev1.PodSpec{NodeName: pod.Spec.NodeName, Resources: &corev1.ResourceRequirements{Requests: report.RequestsOf([]*corev1.Pod{pod})}}, corev1.PodStatus{Phase: pod.Status.Phase, Conditions: pod.Status.Conditions}
	pod.ManagedFields = nil
	maps.DeleteFunc(pod.Annotations, func(key, _ string) bool { return key != v1beta1.MatchedAnnotation && key != v1beta1.AdmittedAnnotation })
	return pod, nil
}

func keepOfNode(obj any) (any, error) {
	if node, ok := obj.(*corev1.Node); ok {
		node.ManagedFields, node.Annotations, node.Status = nil, nil, corev1.NodeStatus{Conditions: node.Status.Conditions, Allocatable: node.Status.Allocatable}
	}
	return obj, nil
}
