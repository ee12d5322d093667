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
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/sandbox"
	"github.com/berth-project/berth/test/harness"
)

// measureDeployment scales a Deployment up from 0 on a whole cluster. In one namespace the webhook changes an unmodified Deployment's pods. In the
// other the Deployment names Berth's scheduler, and the webhook is not called. The same scheduler and an equal spread place both.
func measureDeployment(ctx context.Context, s settings) (err error) {
	dir, err := os.MkdirTemp("", "berth-bench-webhook-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := harness.Start(ctx, sandbox.Config{Name: "bench-webhook", Dir: dir, Nodes: s.nodes}, product.Options{})
	if err != nil {
		return err
	}
	defer cluster.Sandbox.Stop()
	others, err := cluster.CreateNamespace(ctx, "others")
	if err != nil {
		return err
	}
	for i := range s.spreads - 2 {
		if err := cluster.ApplyYAML(ctx, others, spreadOver(workloadName(i))); err != nil {
			return err
		}
	}
	d := &deployments{cluster: cluster, namespaces: map[string]string{}, pods: s.pods}
	for _, kind := range []string{with, without} {
		if err := d.create(ctx, kind); err != nil {
			return err
		}
		if _, err := d.measure(ctx, kind); err != nil { // warms caches
			return err
		}
	}
	fmt.Printf("\nA Deployment from 0 to %d pods on %d nodes, with %d spreads; seconds until all are ready\n%-6s %8s %8s %8s\n", s.pods, s.nodes, s.spreads, "pair", with, without, "speed")
	seconds := map[string][]float64{}
	var ratios []float64
	for i := range s.pairs {
		order := []string{with, without}
		if i%2 == 1 {
			order = []string{without, with}
		}
		took := map[string]float64{}
		for _, kind := range order {
			if took[kind], err = d.measure(ctx, kind); err != nil {
				return err
			}
			seconds[kind] = append(seconds[kind], took[kind])
		}
		ratios = append(ratios, took[without]/took[with])
		fmt.Printf("%-6d %8.2f %8.2f %8.2f\n", i+1, took[with], took[without], took[without]/took[with])
	}
	fmt.Printf("%-6s %8.2f %8.2f %8.2f (median of the ratios %.2f)\n", "median", median(seconds[with]), median(seconds[without]),
		median(seconds[without])/median(seconds[with]), median(ratios))
	return nil
}

type deployments struct {
	cluster    *harness.Cluster
	namespaces map[string]string // by with and without
	pods       int
}

func (d *deployments) create(ctx context.Context, kind string) error {
	namespace, err := d.cluster.CreateNamespace(ctx, kind)
	if err != nil {
		return err
	}
	d.namespaces[kind] = namespace
	scheduler := ""
	if kind == without {
		label := []byte(fmt.Sprintf(`{"metadata":{"labels":{%q:"disabled"}}}`, v1beta1.AdmissionLabel))
		if _, err := d.cluster.Client.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
			return err
		}
		scheduler = "schedulerName: " + v1beta1.SchedulerName
	}
	return d.cluster.ApplyYAML(ctx, namespace, strings.Replace(spreadOver("web"), "maxReplicas: 100", "maxReplicas: 1000", 1)+`
---
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

// measure returns the seconds from scaling up until all pods are ready, and then scales down and waits until they are gone.
func (d *deployments) measure(ctx context.Context, kind string) (seconds float64, err error) {
	started := time.Now()
	if err := d.scale(ctx, kind, d.pods); err != nil {
		return 0, err
	}
	if err := d.await(ctx, kind, d.pods); err != nil {
		return 0, err
	}
	seconds = time.Since(started).Seconds()
	if err := d.expectAdmission(ctx, kind); err != nil {
		return 0, err
	}
	if err := d.scale(ctx, kind, 0); err != nil {
		return 0, err
	}
	return seconds, d.await(ctx, kind, 0)
}

func (d *deployments) scale(ctx context.Context, kind string, replicas int) error {
	patch := []byte(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
	_, err := d.cluster.Client.AppsV1().Deployments(d.namespaces[kind]).Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
	return err
}

// await reads only the Deployment, which costs the API server almost nothing. For a scale-down it counts the pods.
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
func (d *deployments) expectAdmission(ctx context.Context, kind string) error {
	pods, err := d.cluster.Pods(ctx, d.namespaces[kind])
	if err != nil {
		return err
	}
	for i := range pods {
		pod := &pods[i]
		if constrained := pod.Annotations[v1beta1.ConstraintsAnnotation] != ""; pod.Spec.SchedulerName != v1beta1.SchedulerName || constrained != (kind == with) {
			return fmt.Errorf("%s the webhook: pod %s has scheduler %s, constrained is %t", kind, pod.Name, pod.Spec.SchedulerName, constrained)
		}
	}
	return nil
}
