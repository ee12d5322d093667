package harness

import (
	"context"
	"fmt"
	"sort"
	"syscall"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/scenario"
)

// Play is a scenario on a cluster. It has its own nodes and its own namespace.
type Play struct {
	*Cluster
	Namespace string
	// Stepping, if set, is called before each step.
	Stepping func(text string)
	// Watching, if set, is called with the expected and the actual table of each expectation, until they are equal.
	Watching func(section, want, got string)

	scenario *scenario.Scenario
	nodes    []*corev1.Node
	applied  map[scenario.Reference]scenario.Object
}

// NewPlay creates the nodes and the namespace of a scenario. End deletes them.
func (c *Cluster) NewPlay(ctx context.Context, of *scenario.Scenario) (*Play, error) {
	p := &Play{Cluster: c, scenario: of, nodes: of.Nodes(), applied: map[scenario.Reference]scenario.Object{}}
	var err error
	if p.Namespace, err = c.CreateNamespace(ctx, "scenario"); err != nil {
		return nil, err
	}
	for _, node := range p.nodes {
		node.Name = p.nodeName(node.Name)
		node.Labels[corev1.LabelHostname] = node.Name
	}
	return p, c.Sandbox.CreateNodes(ctx, p.nodes)
}

// nodeName is the name of a node on the cluster. It is new for each play, because the fake kubelet needs 10 seconds to notice a node whose name it
// knows.
func (p *Play) nodeName(name string) string { return p.Namespace + "-" + name }

// End deletes everything that the scenario has created.
func (p *Play) End(ctx context.Context) error {
	if err := p.DeleteNamespace(ctx, p.Namespace); err != nil {
		return err
	}
	return p.DeleteNodes(ctx, p.nodes)
}

// Run takes all steps. Its error names the step that failed and the cause.
func (p *Play) Run(ctx context.Context) error {
	for i, step := range p.scenario.Steps {
		if p.Stepping != nil {
			p.Stepping(step.Text)
		}
		err := p.take(ctx, step.Action)
		if err == nil && i+1 < len(p.scenario.Steps) {
			err = p.rest(ctx, p.scenario.Steps[i+1].Action)
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %s: %w", p.scenario.Name, step.Line, step.Text, err)
		}
	}
	return nil
}

func (p *Play) take(ctx context.Context, action scenario.Action) error {
	switch a := action.(type) {
	case scenario.Apply:
		return p.applyAll(ctx, a.Objects)
	case scenario.Scale:
		return p.scale(ctx, a)
	case scenario.Delete:
		return p.delete(ctx, a.Target)
	case scenario.Cordon:
		return p.cordon(ctx, a.Group, true)
	case scenario.Uncordon:
		return p.cordon(ctx, a.Group, false)
	case scenario.Kill:
		if err := p.waitForBurst(ctx); err != nil {
			return err
		}
		return p.Sandbox.Signal(a.Component, 0, syscall.SIGKILL)
	case scenario.Expect:
		return p.expect(ctx, a)
	default:
		return fmt.Errorf("step %T cannot be played", action)
	}
}

// rest waits until the effects of a step are complete, as scenarios promise. Kill and expectations skip this wait.
func (p *Play) rest(ctx context.Context, next scenario.Action) error {
	switch next.(type) {
	case scenario.Kill, scenario.Expect:
		return nil
	}
	return p.WaitFor(ctx, "the cluster to come to rest", func(ctx context.Context) (string, error) {
		for ref := range p.applied {
			if ref.Kind == "WorkloadSpread" {
				continue
			}
			replicas, pods, err := p.workload(ctx, v1alpha1.TargetReference{APIVersion: p.applied[ref].GetObjectKind().GroupVersionKind().GroupVersion().String(), Kind: ref.Kind, Name: ref.Name})
			if err != nil {
				return "", err
			}
			if len(pods) < int(replicas) {
				return fmt.Sprintf("%s has %d of %d pods", ref, len(pods), replicas), nil
			}
			for _, pod := range pods {
				if !settled(pod) {
					return fmt.Sprintf("pod %s was not tried yet", pod.Name), nil
				}
			}
		}
		return "", nil
	})
}

// settled is true for a pod that has a node or that the scheduler has refused.
func settled(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled {
			return true
		}
	}
	return pod.Spec.NodeName != ""
}

func (p *Play) applyAll(ctx context.Context, objects []scenario.Object) error {
	for _, object := range objects {
		content, err := Unstructured(object)
		if err != nil {
			return err
		}
		if err := p.Apply(ctx, p.Namespace, content); err != nil {
			return err
		}
		p.applied[scenario.ReferenceTo(object)] = object
	}
	return nil
}

func (p *Play) object(ref scenario.Reference) (*unstructured.Unstructured, error) {
	object, ok := p.applied[ref]
	if !ok {
		return nil, fmt.Errorf("%s was not applied", ref)
	}
	return Unstructured(object)
}

func (p *Play) scale(ctx context.Context, a scenario.Scale) error {
	object, err := p.object(a.Target)
	if err != nil {
		return err
	}
	client, err := p.Resource(object, p.Namespace)
	if err != nil {
		return err
	}
	if a.Target.Kind == "Job" { // a Job has no scale subresource
		patch := fmt.Sprintf(`{"spec":{"parallelism":%d}}`, a.Replicas)
		_, err = client.Patch(ctx, a.Target.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, a.Replicas)
	_, err = client.Patch(ctx, a.Target.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "scale")
	return err
}

func (p *Play) delete(ctx context.Context, ref scenario.Reference) error {
	object, err := p.object(ref)
	if err != nil {
		return err
	}
	client, err := p.Resource(object, p.Namespace)
	if err != nil {
		return err
	}
	delete(p.applied, ref)
	foreground := metav1.DeletePropagationForeground
	if err := client.Delete(ctx, ref.Name, metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		return err
	}
	return p.WaitFor(ctx, ref.String()+" to be gone", func(ctx context.Context) (string, error) {
		if _, err := client.Get(ctx, ref.Name, metav1.GetOptions{}); err == nil {
			return "it is there", nil
		} else if !apierrors.IsNotFound(err) {
			return "", err
		}
		return "", nil
	})
}

func (p *Play) cordon(ctx context.Context, group scenario.NodeGroup, unschedulable bool) error {
	for _, name := range group.NodeNames() {
		patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, unschedulable)
		if _, err := p.Client.CoreV1().Nodes().Patch(ctx, p.nodeName(name), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// waitForBurst waits until at least 50 pods of the previous step are bound, so that most of them are not bound yet.
func (p *Play) waitForBurst(ctx context.Context) error {
	return p.WaitFor(ctx, "some pods to be bound", func(ctx context.Context) (string, error) {
		pods, err := p.Pods(ctx, p.Namespace)
		if err != nil {
			return "", err
		}
		bound := 0
		for i := range pods {
			if pods[i].Spec.NodeName != "" {
				bound++
			}
		}
		if bound < 50 {
			return fmt.Sprintf("%d of %d pods are bound", bound, len(pods)), nil
		}
		return "", nil
	})
}

// expect waits until all spreads have the expected layout.
func (p *Play) expect(ctx context.Context, a scenario.Expect) error {
	return p.WaitFor(ctx, "table "+a.Section, func(ctx context.Context) (string, error) {
		layouts, err := p.layouts(ctx)
		if err != nil {
			return "", err
		}
		got := scenario.Tables(layouts)
		if p.Watching != nil {
			p.Watching(a.Section, a.Table, got)
		}
		return cmp.Diff(a.Table, got), nil
	})
}

func (p *Play) layouts(ctx context.Context) ([]scenario.Layout, error) {
	list, err := p.Dynamic.Resource(v1alpha1.Resource).Namespace(p.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	nodeList, err := p.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	nodes := map[string]*corev1.Node{}
	for i := range nodeList.Items {
		nodes[nodeList.Items[i].Name] = &nodeList.Items[i]
	}
	sort.Slice(list.Items, func(i, j int) bool { return list.Items[i].GetName() < list.Items[j].GetName() })
	var layouts []scenario.Layout
	for i := range list.Items {
		spread := &v1alpha1.WorkloadSpread{}
		if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, spread); err != nil {
			return nil, err
		}
		replicas, pods, err := p.workload(ctx, spread.Spec.TargetReference)
		if err != nil {
			return nil, err
		}
		layout, err := scenario.Observe(spread, replicas, pods, nodes)
		if err != nil {
			return nil, err
		}
		layouts = append(layouts, layout)
	}
	return layouts, nil
}

// workload returns the replicas that a workload asks for and its pods. For a Deployment it follows the ReplicaSets.
func (p *Play) workload(ctx context.Context, target v1alpha1.TargetReference) (int32, []*corev1.Pod, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(target.APIVersion, target.Kind))
	client, err := p.Resource(object, p.Namespace)
	if err != nil {
		return 0, nil, err
	}
	object, err = client.Get(ctx, target.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, err
	}
	replicas, err := replicasOf(object)
	if err != nil {
		return 0, nil, err
	}
	owners := map[types.UID]bool{object.GetUID(): true}
	replicaSets, err := p.Client.AppsV1().ReplicaSets(p.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, nil, err
	}
	for i := range replicaSets.Items {
		if owner := metav1.GetControllerOf(&replicaSets.Items[i]); owner != nil && owners[owner.UID] {
			owners[replicaSets.Items[i].UID] = true
		}
	}
	all, err := p.Pods(ctx, p.Namespace)
	if err != nil {
		return 0, nil, err
	}
	var pods []*corev1.Pod
	for i := range all {
		if owner := metav1.GetControllerOf(&all[i]); owner != nil && owners[owner.UID] {
			pods = append(pods, &all[i])
		}
	}
	return replicas, pods, nil
}

func replicasOf(object *unstructured.Unstructured) (int32, error) {
	typed, ok := map[string]scenario.Object{
		"Deployment": &appsv1.Deployment{}, "ReplicaSet": &appsv1.ReplicaSet{}, "StatefulSet": &appsv1.StatefulSet{}, "Job": &batchv1.Job{},
	}[object.GetKind()]
	if !ok {
		return 0, fmt.Errorf("no replicas for kind %s", object.GetKind())
	}
	if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		return 0, err
	}
	return scenario.ReplicasOf(typed), nil
}
