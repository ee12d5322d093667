package sandbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// podsPerNode is the default limit of pods on a node, as for a kubelet.
const podsPerNode = "110"

// nodeReadyTimeout bounds how long nodes may take to become ready.
const nodeReadyTimeout = time.Minute

// Allocatable returns what a node of that size can hold.
func Allocatable(cpu, memory resource.Quantity) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    cpu,
		corev1.ResourceMemory: memory,
		corev1.ResourcePods:   resource.MustParse(podsPerNode),
	}
}

// NewNode returns a node for CreateNodes with the labels that a kubelet and a cloud provider set. The given labels override them. An empty zone means
// no zone label. Nil allocatable means the defaults of Config.
func NewNode(
	name, zone string, labels map[string]string, taints []corev1.Taint, allocatable corev1.ResourceList,
) *corev1.Node {
	if allocatable == nil {
		allocatable = Allocatable(resource.MustParse(DefaultNodeCPU), resource.MustParse(DefaultNodeMemory))
	}
	all := map[string]string{
		corev1.LabelHostname:       name,
		corev1.LabelTopologyRegion: "local",
		corev1.LabelOSStable:       "linux",
		corev1.LabelArchStable:     "amd64",
		KubeletLabel:               KWOK,
	}
	if zone != "" {
		all[corev1.LabelTopologyZone] = zone
	}
	for key, value := range labels {
		all[key] = value
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all},
		Spec:       corev1.NodeSpec{Taints: slices.Clone(taints)},
		Status:     corev1.NodeStatus{Capacity: allocatable.DeepCopy(), Allocatable: allocatable.DeepCopy()},
	}
}

// CreateNodes creates the nodes and returns when pods can run on them. If only one of capacity and allocatable is set, it is used for both. Without
// KWOK nothing makes nodes ready, and CreateNodes does not wait. Without kube-controller-manager the not-ready taint stays, and CreateNodes waits
// only until the nodes are ready.
func (s *Sandbox) CreateNodes(ctx context.Context, nodes []*corev1.Node) error {
	if len(nodes) == 0 {
		return nil
	}
	client, err := kubernetes.NewForConfig(s.RESTConfig())
	if err != nil {
		return err
	}
	var names []string
	creating, createCtx := errgroup.WithContext(ctx)
	creating.SetLimit(16)
	for _, node := range nodes {
		names = append(names, node.Name)
		creating.Go(func() error {
			node := node.DeepCopy()
			if node.Status.Allocatable == nil {
				node.Status.Allocatable = node.Status.Capacity
			}
			if node.Status.Capacity == nil {
				node.Status.Capacity = node.Status.Allocatable
			}
			_, err := client.CoreV1().Nodes().Create(createCtx, node, metav1.CreateOptions{})
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		return fmt.Errorf("creating nodes: %w", err)
	}
	if !s.config.runs(KWOK) {
		return nil
	}
	return s.awaitUsable(ctx, client, names...)
}

// awaitUsable returns when pods can run on the nodes of these names.
func (s *Sandbox) awaitUsable(ctx context.Context, client kubernetes.Interface, names ...string) error {
	waiting := sets.New(names...)
	ctx, cancel := context.WithTimeout(ctx, nodeReadyTimeout)
	defer cancel()
	source := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, fields.Everything())
	_, err := watchtools.UntilWithSync(ctx, source, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
		node, ok := event.Object.(*corev1.Node)
		if ok && s.isUsable(node) {
			waiting.Delete(node.Name)
		}
		return waiting.Len() == 0, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for nodes %s to be ready: %w", strings.Join(sets.List(waiting), ", "), err)
	}
	return nil
}

// isUsable is true if the node is ready and does not have the not-ready taint.
func (s *Sandbox) isUsable(node *corev1.Node) bool {
	ready := slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
	tainted := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == corev1.TaintNodeNotReady
	})
	return ready && (!tainted || !s.config.runs(ControllerManager))
}

// configuredNodes returns Config.Nodes, distributed over the zones.
func (c Config) configuredNodes() []*corev1.Node {
	var nodes []*corev1.Node
	digits := len(fmt.Sprint(c.Nodes))
	for i := range c.Nodes {
		name := fmt.Sprintf("node-%0*d", digits, i+1)
		nodes = append(nodes, NewNode(name, c.Zones[i%len(c.Zones)], nil, nil, Allocatable(c.NodeCPU, c.NodeMemory)))
	}
	return nodes
}
