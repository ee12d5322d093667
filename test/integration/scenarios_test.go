package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

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
	"github.com/berth-project/berth/pkg/simulate"
)

// TestScenarios plays every scenario on the control plane. The expected tables are those that the simulation is held to.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "scenarios", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			scenario, err := simulate.Parse(file, content)
			if err != nil {
				t.Fatal(err)
			}
			p := &play{cluster: the, t: t, ctx: t.Context(), applied: map[simulate.Reference]simulate.Object{}}
			the.nodes(t, scenario.Nodes()...)
			p.namespace = the.namespace(t, "scenario")
			for i, step := range scenario.Steps {
				if err := p.take(step.Action); err != nil {
					t.Fatalf("%s:%d: %s: %v", file, step.Line, step.Text, err)
				}
				if i+1 < len(scenario.Steps) {
					p.rest(scenario.Steps[i+1].Action)
				}
			}
			the.expectNoViolation(t)
		})
	}
}

// play is one scenario on the cluster.
type play struct {
	*cluster
	t         *testing.T
	ctx       context.Context
	namespace string
	applied   map[simulate.Reference]simulate.Object
}

func (p *play) take(action simulate.Action) error {
	switch a := action.(type) {
	case simulate.Apply:
		return p.applyAll(a.Objects)
	case simulate.Scale:
		return p.scale(a)
	case simulate.Delete:
		return p.delete(a.Target)
	case simulate.Cordon:
		return p.cordon(a.Group, true)
	case simulate.Uncordon:
		return p.cordon(a.Group, false)
	case simulate.Kill:
		p.waitForBurst()
		p.kill(p.t, a.Component)
		return nil
	case simulate.Expect:
		p.expect(a)
		return nil
	default:
		return fmt.Errorf("step %T cannot be played", action)
	}
}

// rest waits until the step before is done, as scenarios promise. A kill strikes before that, and an expectation waits by itself.
func (p *play) rest(next simulate.Action) {
	p.t.Helper()
	switch next.(type) {
	case simulate.Kill, simulate.Expect:
		return
	}
	p.waitFor(p.ctx, p.t, "the cluster to come to rest", func(ctx context.Context) (string, error) {
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

// settled is true for a pod that has a node, or was told that there is none.
func settled(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled {
			return true
		}
	}
	return pod.Spec.NodeName != ""
}

func (p *play) applyAll(objects []simulate.Object) error {
	for _, object := range objects {
		content, err := toUnstructured(object)
		if err != nil {
			return err
		}
		if err := p.apply(p.ctx, p.namespace, content); err != nil {
			return err
		}
		p.applied[simulate.ReferenceTo(object)] = object
	}
	return nil
}

func (p *play) object(ref simulate.Reference) (*unstructured.Unstructured, error) {
	object, ok := p.applied[ref]
	if !ok {
		return nil, fmt.Errorf("%s was not applied", ref)
	}
	return toUnstructured(object)
}

func (p *play) scale(a simulate.Scale) error {
	object, err := p.object(a.Target)
	if err != nil {
		return err
	}
	client, err := p.resource(object, p.namespace)
	if err != nil {
		return err
	}
	if a.Target.Kind == "Job" { // has no scale subresource
		patch := fmt.Sprintf(`{"spec":{"parallelism":%d}}`, a.Replicas)
		_, err = client.Patch(p.ctx, a.Target.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, a.Replicas)
	_, err = client.Patch(p.ctx, a.Target.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "scale")
	return err
}

func (p *play) delete(ref simulate.Reference) error {
	object, err := p.object(ref)
	if err != nil {
		return err
	}
	client, err := p.resource(object, p.namespace)
	if err != nil {
		return err
	}
	delete(p.applied, ref)
	foreground := metav1.DeletePropagationForeground
	if err := client.Delete(p.ctx, ref.Name, metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		return err
	}
	p.waitFor(p.ctx, p.t, ref.String()+" to be gone", func(ctx context.Context) (string, error) {
		if _, err := client.Get(ctx, ref.Name, metav1.GetOptions{}); err == nil {
			return "it is there", nil
		} else if !apierrors.IsNotFound(err) {
			return "", err
		}
		return "", nil
	})
	return nil
}

func (p *play) cordon(group simulate.NodeGroup, unschedulable bool) error {
	for _, name := range group.NodeNames() {
		patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, unschedulable)
		if _, err := p.client.CoreV1().Nodes().Patch(p.ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// waitForBurst waits until the pods of the step before are being bound and most of them are not bound yet.
func (p *play) waitForBurst() {
	p.t.Helper()
	p.waitFor(p.ctx, p.t, "some pods to be bound", func(ctx context.Context) (string, error) {
		pods, err := p.pods(ctx, p.namespace)
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

// expect waits until the layout of all spreads is the expected one.
func (p *play) expect(a simulate.Expect) {
	p.t.Helper()
	p.waitFor(p.ctx, p.t, "table "+a.Section, func(ctx context.Context) (string, error) {
		layouts, err := p.layouts(ctx)
		if err != nil {
			return "", err
		}
		return cmp.Diff(a.Table, simulate.Tables(layouts)), nil
	})
}

func (p *play) layouts(ctx context.Context) ([]simulate.Layout, error) {
	list, err := p.dynamic.Resource(v1alpha1.Resource).Namespace(p.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	nodeList, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	nodes := map[string]*corev1.Node{}
	for i := range nodeList.Items {
		nodes[nodeList.Items[i].Name] = &nodeList.Items[i]
	}
	sort.Slice(list.Items, func(i, j int) bool { return list.Items[i].GetName() < list.Items[j].GetName() })
	var layouts []simulate.Layout
	for i := range list.Items {
		spread := &v1alpha1.WorkloadSpread{}
		if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, spread); err != nil {
			return nil, err
		}
		replicas, pods, err := p.workload(ctx, spread.Spec.TargetReference)
		if err != nil {
			return nil, err
		}
		layout, err := simulate.Observe(spread, replicas, pods, nodes)
		if err != nil {
			return nil, err
		}
		layouts = append(layouts, layout)
	}
	return layouts, nil
}

// workload reads how many pods a workload asks for, and those that it has, through its ReplicaSets if it is a Deployment.
func (p *play) workload(ctx context.Context, target v1alpha1.TargetReference) (int32, []*corev1.Pod, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(target.APIVersion, target.Kind))
	client, err := p.resource(object, p.namespace)
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
	replicaSets, err := p.client.AppsV1().ReplicaSets(p.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, nil, err
	}
	for i := range replicaSets.Items {
		if owner := metav1.GetControllerOf(&replicaSets.Items[i]); owner != nil && owners[owner.UID] {
			owners[replicaSets.Items[i].UID] = true
		}
	}
	all, err := p.pods(ctx, p.namespace)
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
	typed, ok := map[string]simulate.Object{
		"Deployment": &appsv1.Deployment{}, "ReplicaSet": &appsv1.ReplicaSet{}, "StatefulSet": &appsv1.StatefulSet{}, "Job": &batchv1.Job{},
	}[object.GetKind()]
	if !ok {
		return 0, fmt.Errorf("no replicas for kind %s", object.GetKind())
	}
	if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		return 0, err
	}
	return simulate.ReplicasOf(typed), nil
}
