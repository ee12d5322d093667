package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// ways are the ways in which pods of a Deployment come to their nodes. Each has a namespace of its own.
var ways = []way{
	{name: "webhook", about: "the webhook changes the pods of an unmodified Deployment", spread: true, admitted: true},
	{name: "policy", about: "a MutatingAdmissionPolicy makes the same changes", spread: true, admitted: true, apart: true},
	{name: "named", about: "the Deployment names Berth's scheduler, and no admission is asked", spread: true, named: true, apart: true},
	{name: "plain", about: "no spread; kube-scheduler", apart: true},
}

type way struct {
	name, about string
	// spread is true if a WorkloadSpread divides the pods, and named if the Deployment names the scheduler.
	spread, named bool
	// admitted is true if the pods carry the constraints of their spread.
	admitted bool
	// apart keeps the webhook away from the namespace.
	apart bool
}

// measureDeployment scales Deployments up from 0 on a whole cluster, in each of the ways in turn.
func measureDeployment(ctx context.Context, s settings) (err error) {
	dir, err := os.MkdirTemp("", "berth-bench-webhook-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := harness.Start(ctx, sandbox.Config{Name: "bench-webhook", Dir: dir, Nodes: s.nodes, APIServerFlags: policyFlags}, product.Options{})
	if err != nil {
		return err
	}
	defer cluster.Sandbox.Stop()
	others, err := cluster.CreateNamespace(ctx, "others")
	if err != nil {
		return err
	}
	for i := range s.spreads - 3 {
		if err := cluster.ApplyYAML(ctx, others, spreadOver(workloadName(i))); err != nil {
			return err
		}
	}
	d := &deployments{cluster: cluster, namespaces: map[string]string{}, pods: s.pods}
	for _, g := range ways {
		if err := d.create(ctx, g); err != nil {
			return err
		}
		if _, err := d.measure(ctx, g); err != nil { // warms caches
			return err
		}
	}
	fmt.Printf("\nA Deployment from 0 to %d pods on %d nodes, with %d spreads\n", s.pods, s.nodes, s.spreads)
	for _, g := range ways {
		fmt.Printf("  %-8s %s\n", g.name, g.about)
	}
	const header, line = "%-6s %-8s %8s %16s %8s %8s\n", "%-6v %-8s %8.2f %16.2f %8.2f %8.2f\n"
	fmt.Printf(header, "round", "", "seconds", "API server CPU", "ratio", "of CPU")
	plain := len(ways) - 1
	var took, cpu, slower, dearer [][]float64 // by way, then by round
	for range ways {
		took, cpu, slower, dearer = append(took, nil), append(cpu, nil), append(slower, nil), append(dearer, nil)
	}
	for round := range s.pairs {
		for j := range ways {
			i := (round + j) % len(ways)
			m, err := d.measure(ctx, ways[i])
			if err != nil {
				return err
			}
			took[i], cpu[i] = append(took[i], m.took.Seconds()), append(cpu[i], m.apiServer.Seconds())
		}
		for i, g := range ways {
			slower[i], dearer[i] = append(slower[i], took[i][round]/took[plain][round]), append(dearer[i], cpu[i][round]/cpu[plain][round])
			fmt.Printf(line, round+1, g.name, took[i][round], cpu[i][round], slower[i][round], dearer[i][round])
		}
	}
	for i, g := range ways {
		fmt.Printf(line, "median", g.name, median(took[i]), median(cpu[i]), median(slower[i]), median(dearer[i]))
	}
	return nil
}

type deployments struct {
	cluster    *harness.Cluster
	namespaces map[string]string // by way
	pods       int
}

func (d *deployments) create(ctx context.Context, g way) error {
	namespace, err := d.cluster.CreateNamespace(ctx, g.name)
	if err != nil {
		return err
	}
	d.namespaces[g.name] = namespace
	if g.apart {
		label := []byte(fmt.Sprintf(`{"metadata":{"labels":{%q:"disabled"}}}`, v1beta1.AdmissionLabel))
		if _, err := d.cluster.Client.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	spread := strings.Replace(spreadOver("web"), "maxReplicas: 100", "maxReplicas: 1000", 1)
	if g.spread {
		if err := d.cluster.ApplyYAML(ctx, namespace, spread); err != nil {
			return err
		}
	}
	if g.admitted && g.apart {
		if err := d.admitByPolicy(ctx, namespace); err != nil {
			return err
		}
	}
	scheduler := ""
	if g.named {
		scheduler = "schedulerName: " + v1beta1.SchedulerName
	}
	return d.cluster.ApplyYAML(ctx, namespace, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: main, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: 10m, memory: 16Mi}}}]
      `+scheduler+`
`)
}

// measurement is of one scale-up.
type measurement struct {
	// took is the time until all pods are ready, and apiServer the processor time of the API server meanwhile.
	took, apiServer time.Duration
}

// measure scales up until all pods are ready, and then down until they are gone.
func (d *deployments) measure(ctx context.Context, g way) (m measurement, err error) {
	before, err := d.cluster.CPU()
	if err != nil {
		return m, err
	}
	started := time.Now()
	if err := d.scale(ctx, g.name, d.pods); err != nil {
		return m, err
	}
	if err := d.await(ctx, g.name, d.pods); err != nil {
		return m, err
	}
	m.took = time.Since(started)
	after, err := d.cluster.CPU()
	if err != nil {
		return m, err
	}
	m.apiServer = after.Since(before)[sandbox.APIServer]
	if err := d.expectAdmission(ctx, g); err != nil {
		return m, err
	}
	for left := d.pods; left > 0; { // in steps of a minute at most: etcd 3.7 was silent for 34 s, twice, when 3,000 pods were deleted at once
		left = max(left-1000, 0)
		if err := errors.Join(d.scale(ctx, g.name, left), d.await(ctx, g.name, left)); err != nil {
			return m, err
		}
	}
	return m, nil
}

func (d *deployments) scale(ctx context.Context, kind string, replicas int) error {
	patch := []byte(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
	_, err := d.cluster.Client.AppsV1().Deployments(d.namespaces[kind]).Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
	return err
}

// await reads only the Deployment, which costs the API server almost nothing. At the end of a scale-down it counts the pods.
func (d *deployments) await(ctx context.Context, kind string, replicas int) error {
	return d.cluster.WaitFor(ctx, fmt.Sprintf("%d pods", replicas), func(ctx context.Context) (string, error) {
		deployment, err := d.cluster.Client.AppsV1().Deployments(d.namespaces[kind]).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if s := deployment.Status; int(s.ReadyReplicas) != replicas || int(s.Replicas) != replicas {
			return fmt.Sprintf("%d are ready", s.ReadyReplicas), nil
		}
		if replicas > 0 {
			return "", nil
		}
		list, err := d.cluster.Client.CoreV1().Pods(d.namespaces[kind]).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil || len(list.Items) == 0 {
			return "", err
		}
		return "some are terminating", nil
	})
}

// expectAdmission checks that the pods had admission as the table says.
func (d *deployments) expectAdmission(ctx context.Context, g way) error {
	pods, err := d.cluster.Pods(ctx, d.namespaces[g.name])
	if err != nil {
		return err
	}
	for i := range pods {
		pod := &pods[i]
		if constrained, scheduled := pod.Annotations[v1beta1.ConstraintsAnnotation] != "", pod.Spec.SchedulerName == v1beta1.SchedulerName; constrained != g.admitted || scheduled != g.spread {
			return fmt.Errorf("%s: pod %s has scheduler %s, constrained is %t", g.name, pod.Name, pod.Spec.SchedulerName, constrained)
		}
	}
	return nil
}
