package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// writers is the number of concurrent requests that create objects.
const writers = 32

// cluster is an API server with nodes that run no pods. A pod is done when it is bound.
type cluster struct {
	*harness.Cluster
	// fast has no client-side limit and speaks protobuf.
	fast kubernetes.Interface
}

// startCluster starts only etcd and the API server. Anything else would take processor time from the scheduler.
func startCluster(ctx context.Context, dir string, nodes, podsPerNode int) (*cluster, error) {
	base, err := harness.Start(ctx, sandbox.Config{Name: "bench-scheduler", Dir: dir,
		Without: []string{sandbox.ControllerManager, sandbox.KWOK, product.Scheduler, product.DefaultScheduler, product.Controller}}, product.Options{})
	if err != nil {
		return nil, err
	}
	c := &cluster{Cluster: base}
	config := rest.CopyConfig(base.Sandbox.RESTConfig())
	config.QPS, config.ContentType, config.AcceptContentTypes = -1, "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"
	if c.fast, err = kubernetes.NewForConfig(config); err == nil {
		err = c.createNodes(ctx, nodes, podsPerNode)
	}
	if err != nil {
		base.Sandbox.Stop()
		return nil, err
	}
	return c, nil
}

func (c *cluster) createNodes(ctx context.Context, count, podsPerNode int) error {
	creating, ctx := errgroup.WithContext(ctx)
	creating.SetLimit(writers)
	for pool, size := range poolSizes(count) {
		cpu := "8"
		if pool == poolA || pool == poolB {
			cpu = "4"
		}
		for i := range size {
			creating.Go(func() error { return c.createNode(ctx, fmt.Sprintf("%s-%d", pool, i), pool, cpu, podsPerNode) })
		}
	}
	return creating.Wait()
}

func (c *cluster) createNode(ctx context.Context, name, pool, cpu string, pods int) error {
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods: *resource.NewQuantity(int64(pods), resource.DecimalSI)}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool, corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: room, Capacity: room,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Benchmark"}}},
	}
	if _, err := c.fast.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating node %s: %w", name, err)
	}
	// The API server taints every new node. No controller runs that would remove the taint.
	if _, err := c.fast.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("removing the taint of node %s: %w", name, err)
	}
	return nil
}

// newNamespace creates a namespace and its service account, because no controller does it.
func (c *cluster) newNamespace(ctx context.Context, prefix string) (string, error) {
	name, err := c.CreateNamespace(ctx, prefix)
	if err != nil {
		return "", err
	}
	_, err = c.fast.CoreV1().ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	return name, err
}

// createWorkload creates a Deployment with its ReplicaSet, and a spread if wanted. It returns a pod to copy.
func (c *cluster) createWorkload(ctx context.Context, namespace, name string, replicas int, b *benchmark, withSpread bool) (*corev1.Pod, error) {
	labels := map[string]string{"app": name}
	hashed := map[string]string{"app": name, appsv1.DefaultDeploymentUniqueLabelKey: "1"}
	spec := corev1.PodSpec{
		SchedulerName: v1beta1.SchedulerName, TerminationGracePeriodSeconds: ptr.To[int64](0), AutomountServiceAccountToken: ptr.To(false),
		Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(b.cpu), corev1.ResourceMemory: resource.MustParse("16Mi")}}}},
	}
	if !withSpread && len(b.affinity) > 0 {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: b.affinity}}}}}}}
	}
	deployment, err := c.fast.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating Deployment %s: %w", name, err)
	}
	set, err := c.fast.AppsV1().ReplicaSets(namespace).Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-1", Labels: hashed,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: hashed},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: hashed}, Spec: spec}}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating ReplicaSet %s: %w", name, err)
	}
	if withSpread && b.subsets != "" {
		strategy := b.strategy
		if strategy == "" {
			strategy = "{type: Fixed}"
		} else if !strings.HasPrefix(strategy, "{") {
			strategy = "{type: " + strategy + "}"
		}
		if err := c.ApplyYAML(ctx, namespace, fmt.Sprintf("apiVersion: apps.kruise.io/v1alpha1\nkind: WorkloadSpread\nmetadata: {name: %[1]s}\nspec:\n"+
			"  targetRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}\n  scheduleStrategy: %[2]s\n  subsets:\n%[3]s", name, strategy, b.subsets)); err != nil {
			return nil, err
		}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-1-", Labels: hashed,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}}, Spec: spec}, nil
}

// createPods creates this number of pods from the samples in turn.
func (c *cluster) createPods(ctx context.Context, namespace string, samples []*corev1.Pod, count int) error {
	creating, ctx := errgroup.WithContext(ctx)
	creating.SetLimit(writers)
	for i := range count {
		creating.Go(func() error {
			// The client modifies the object that it sends.
			_, err := c.fast.CoreV1().Pods(namespace).Create(ctx, samples[i%len(samples)].DeepCopy(), metav1.CreateOptions{})
			return err
		})
	}
	return creating.Wait()
}

// clear deletes the objects of a run and waits until its pods are deleted.
func (c *cluster) clear(ctx context.Context, namespace string) error {
	now, all := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, metav1.ListOptions{}
	spreads := c.Dynamic.Resource(v1beta1.Resource).Namespace(namespace)
	if err := errors.Join(
		spreads.DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		c.fast.AppsV1().Deployments(namespace).DeleteCollection(ctx, now, all),
		c.fast.AppsV1().ReplicaSets(namespace).DeleteCollection(ctx, now, all),
		c.fast.CoreV1().Pods(namespace).DeleteCollection(ctx, now, all),
		c.fast.CoreV1().Events(namespace).DeleteCollection(ctx, now, all)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return c.WaitFor(ctx, "the pods to be gone", func(ctx context.Context) (string, error) {
		pods, err := c.fast.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil || len(pods.Items) == 0 {
			return "", err
		}
		return "some are left", nil
	})
}
