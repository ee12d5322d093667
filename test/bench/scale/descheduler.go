package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// policy has every strategy of Berth, without waiting times.
const policy = `
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: berth
  pluginConfig:
  - {name: DefaultEvictor, args: {}}
  - {name: SubsetEvictor, args: {}}
  - {name: EvictUnschedulableSubsetPods, args: {}}
  - {name: EnforceSubsetMaxReplicas, args: {settleTime: 0s}}
  - {name: RebalanceToPreferredSubset, args: {stabilizationWindow: 0s, minResidence: 0s, cooldown: 0s}}
  plugins:
    filter: {enabled: [SubsetEvictor]}
    preEvictionFilter: {enabled: [SubsetEvictor]}
    deschedule: {enabled: [EvictUnschedulableSubsetPods, EnforceSubsetMaxReplicas]}
    balance: {enabled: [RebalanceToPreferredSubset]}
`

const kubeconfig = `
apiVersion: v1
kind: Config
current-context: scale
clusters: [{name: scale, cluster: {server: %q}}]
contexts: [{name: scale, context: {cluster: scale, user: scale}}]
users: [{name: scale, user: {}}]
`

// cycle measures one cycle of the descheduler, a process of its own, as a dry run. The pods are those of the other measurements, with environments, probes, volumes and managed fields.
func (f *flags) cycle(ctx context.Context) error {
	server := newAPIServer()
	defer server.stop()
	s := &shape{Spreads: f.spreads, Pods: f.pods, Nodes: f.nodes, Namespaces: max(1, f.spreads/100)}
	all, _ := s.fill(server)
	dir, err := os.MkdirTemp("", "berth-scale-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{"policy.yaml": policy, "kubeconfig": fmt.Sprintf(kubeconfig, server.URL)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, f.descheduler, "--kubeconfig="+filepath.Join(dir, "kubeconfig"), "--policy-config-file="+filepath.Join(dir, "policy.yaml"), "--secure-port=0", "--server-dry-run",
		"--explain=table", "--sync-timeout=5m", "--cycle-timeout=10m")
	var out, logs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &logs
	began := time.Now()
	err = cmd.Run()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		fmt.Printf("%d pods, %d spreads, %d nodes: %.1f s, %.1f s of CPU, at most %d MiB, %d decisions, GOMEMLIMIT %q\n", all, f.spreads, f.nodes, time.Since(began).Seconds(),
			(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), usage.Maxrss>>10, bytes.Count(out.Bytes(), []byte("\n"))-1, os.Getenv("GOMEMLIMIT"))
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, logs.String())
	}
	return nil
}
