//go:build upstream

// Package perf is Kubernetes' benchmarks of the scheduler without their thresholds, which small machines miss. With -owner, SchedulingNodeAffinity is run with pods of a ReplicaSet: the scheduler
// spreads these by itself. With -spread a WorkloadSpread takes the place of their affinity.
package perf

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	perf "k8s.io/kubernetes/test/integration/scheduler_perf"
	"k8s.io/kubernetes/test/utils/ktesting"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

const (
	// withAffinity is the benchmark whose pods have a node affinity.
	withAffinity = "SchedulingNodeAffinity"
	namespace    = "spread"
)

var (
	withOwner  = flag.Bool("owner", false, "run SchedulingNodeAffinity alone, with pods of a ReplicaSet")
	withSpread = flag.Bool("spread", false, "as -owner, with a WorkloadSpread in place of the affinity")
)

func TestMain(m *testing.M) {
	if err := perf.InitTests(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	m.Run()
}

func BenchmarkPerfScheduling(b *testing.B) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		b.Fatal(err)
	}
	of, config, pod := filepath.Join(strings.TrimSpace(string(module)), "test/integration/scheduler_perf"), filepath.Join(b.TempDir(), "config.yaml"), filepath.Join(b.TempDir(), "pod.yaml")
	all := slices.Concat(cases(b, filepath.Join(of, "misc")), cases(b, filepath.Join(of, "affinity")), cases(b, filepath.Join(of, "topology_spreading")))
	if !*withOwner && !*withSpread {
		write(b, config, all)
		perf.RunBenchmarkPerfScheduling(b, config, "all", nil)
		return
	}
	all = slices.DeleteFunc(all, func(c map[string]any) bool { return c["name"] != withAffinity })
	if len(all) != 1 {
		b.Fatalf("Kubernetes has %d benchmarks %s", len(all), withAffinity)
	}
	affinity := &corev1.Pod{}
	read(b, all[0]["defaultPodTemplatePath"].(string), affinity)
	all[0]["defaultPodTemplatePath"] = pod
	for _, op := range all[0]["workloadTemplate"].([]any) {
		if op := op.(map[string]any); op["opcode"] == "createPods" {
			op["namespace"] = namespace
		}
	}
	write(b, config, all)
	perf.RunBenchmarkPerfScheduling(b, config, "owned", nil, perf.WithPrepareFn(func(ctx ktesting.TContext) error {
		owner, err := own(ctx, affinity)
		if err != nil {
			return err
		}
		if !*withSpread {
			write(ctx, pod, podOf(affinity, owner))
			return nil
		}
		without := affinity.DeepCopy()
		without.Spec.Affinity = nil
		write(ctx, pod, podOf(without, owner))
		if err := divide(ctx, affinity, owner); err != nil {
			return err
		}
		return known(ctx, of, without, owner)
	}))
}

// cases are the benchmarks of one of Kubernetes' packages, without thresholds, and with paths that hold anywhere.
func cases(b *testing.B, dir string) []map[string]any {
	b.Helper()
	var all []map[string]any
	read(b, filepath.Join(dir, "performance-config.yaml"), &all)
	var move func(any) any
	move = func(value any) any {
		switch v := value.(type) {
		case string:
			if strings.HasSuffix(v, ".yaml") {
				return filepath.Join(dir, v)
			}
		case []any:
			for i := range v {
				v[i] = move(v[i])
			}
		case map[string]any:
			delete(v, "threshold")
			for key := range v {
				v[key] = move(v[key])
			}
		}
		return value
	}
	for i := range all {
		move(all[i])
	}
	return all
}

// own makes a ReplicaSet.
func own(ctx ktesting.TContext, pod *corev1.Pod) (*appsv1.ReplicaSet, error) {
	if _, err := ctx.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	labels := map[string]string{"app": "web"}
	return ctx.Client().AppsV1().ReplicaSets(namespace).Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](20000), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec}},
	}, metav1.CreateOptions{})
}

// divide makes a spread whose only subset has the affinity of the pods.
func divide(ctx ktesting.TContext, affinity *corev1.Pod, owner *appsv1.ReplicaSet) error {
	definitions := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	for _, content := range manifests.CRDs() {
		definition := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(content, &definition.Object); err != nil {
			return err
		}
		unstructured.RemoveNestedField(definition.Object, "spec", "conversion") // there is no webhook
		if _, err := ctx.Dynamic().Resource(definitions).Create(ctx, definition, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	terms := affinity.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	spread := &v1beta1.WorkloadSpread{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: v1beta1.Kind.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: v1beta1.WorkloadSpreadSpec{
			TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner.Name},
			Subsets:         []v1beta1.Subset{{Name: "zones", RequiredNodeSelector: &terms[0]}},
		},
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spread)
	if err != nil {
		return err
	}
	spreads := ctx.Dynamic().Resource(v1beta1.GroupVersion.WithResource("workloadspreads")).Namespace(namespace)
	return until(ctx, func(ctx context.Context) (bool, error) {
		_, err := spreads.Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil // the definition is not served yet
		}
		return err == nil, err
	})
}

// known waits until the scheduler keeps a pod of the owner from a node outside the zones, for the sake of the spread.
func known(ctx ktesting.TContext, of string, template *corev1.Pod, owner *appsv1.ReplicaSet) error {
	outside := &corev1.Node{}
	read(ctx, filepath.Join(of, "templates/node-default.yaml"), outside)
	nodes, pods := ctx.Client().CoreV1().Nodes(), ctx.Client().CoreV1().Pods(namespace)
	outside, err := nodes.Create(ctx, outside, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := until(ctx, func(ctx context.Context) (bool, error) {
		pod, err := pods.Create(ctx, podOf(template, owner), metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		said := ""
		if err := until(ctx, func(ctx context.Context) (bool, error) {
			now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			for _, condition := range now.Status.Conditions {
				said = condition.Message
			}
			return said != "" || now.Spec.NodeName != "", nil
		}); err != nil {
			return false, err
		}
		return strings.Contains(said, "WorkloadSpread"), pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
	}); err != nil {
		return fmt.Errorf("waiting until the scheduler knows the spread: %w", err)
	}
	return nodes.Delete(ctx, outside.Name, metav1.DeleteOptions{})
}

// podOf is a pod of the owner.
func podOf(template *corev1.Pod, owner *appsv1.ReplicaSet) *corev1.Pod {
	pod := template.DeepCopy()
	pod.Labels = map[string]string{"app": "web"}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	return pod
}

// until asks ten times a second, for a minute.
func until(ctx context.Context, condition func(context.Context) (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, condition)
}

func read(t ktesting.TB, file string, into any) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(content, into)
	}
	if err != nil {
		t.Fatalf("reading %s: %v", file, err)
	}
}

func write(t ktesting.TB, file string, content any) {
	t.Helper()
	text, err := yaml.Marshal(content)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatalf("writing %s: %v", file, err)
	}
}
