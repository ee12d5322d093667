package workloadspread

import (
	"bytes"
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	schedulermetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
)

// batch is a world whose pods use the scheduler's own batching. Each node takes one pod.
type batch struct {
	*world
	nodes     []*corev1.Node
	pods      []*corev1.Pod // on nodes
	cycle     int64
	framework framework.Framework
	snapshot  *internalcache.Snapshot
}

// NodeInfos implements fwk.SharedLister, with StorageInfos.
func (b *batch) NodeInfos() fwk.NodeInfoLister       { return b.snapshot.NodeInfos() }
func (b *batch) StorageInfos() fwk.StorageInfoLister { return b.snapshot.StorageInfos() }

func newBatch(t *testing.T, zones ...string) *batch {
	t.Helper()
	schedulermetrics.Register()
	b := &batch{world: newWorld(t, 9)}
	for i, zone := range zones {
		node := nodeInfo(zone, "1").Node()
		node.Name = zones[i] + string(rune('0'+i))
		b.nodes = append(b.nodes, node)
	}
	defaults, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	enabled := func(names ...string) (set schedulerconfig.PluginSet) {
		for _, name := range names {
			set.Enabled = append(set.Enabled, schedulerconfig.Plugin{Name: name, Weight: 1})
		}
		return set
	}
	registry := plugins.NewInTreeRegistry()
	registry[Name] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		return b.Spread, nil
	}
	b.framework, err = frameworkruntime.NewFramework(t.Context(), registry, &schedulerconfig.KubeSchedulerProfile{
		Plugins:      &schedulerconfig.Plugins{QueueSort: enabled(names.PrioritySort), Bind: enabled(names.DefaultBinder), MultiPoint: enabled(Name, names.NodeResourcesFit)},
		PluginConfig: defaults.Profiles[0].PluginConfig,
	}, frameworkruntime.WithSnapshotSharedLister(b))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAPodIsSignedByItsSubset(t *testing.T) {
	b := newBatch(t, "a", "b")
	b.spread(1, adaptive)
	sign := func(pod *corev1.Pod) fwk.PodSignature { return signPod(t.Context(), b.framework, pod) }
	expectNone := func(why string, pod *corev1.Pod) {
		t.Helper()
		if got := sign(pod); got != nil {
			t.Errorf("a pod %s has the signature %s, want none", why, got)
		}
	}
	expectNone("that is not known yet", podOf("rs-uid", "new"))
	expectNone("whose owner is not known yet", podOf("unseen-uid", "orphan"))
	pods := b.podsNamed("p", 3)
	expectNone("that has no subset yet", pods[0])
	alone, other := podOf("rs-uid", "alone"), podOf("rs-uid", "other")
	alone.OwnerReferences, other.OwnerReferences = nil, nil
	if sign(alone) == nil || !bytes.Equal(sign(alone), sign(other)) {
		t.Errorf("pods without a spread have signatures %s and %s, want them to be equal", sign(alone), sign(other))
	}
	for _, pod := range pods {
		b.asks(pod)
	}
	if sign(pods[0]) == nil || !bytes.Equal(sign(pods[0]), sign(pods[1])) || bytes.Equal(sign(pods[0]), sign(alone)) {
		t.Errorf("pods of a subset have signatures %s and %s, want them to be equal", sign(pods[0]), sign(pods[1]))
	}
}

// This tests what docs/install.md says about batching.
func TestAProfileBatchesWithoutDefaultTopologySpreadAndExtenders(t *testing.T) {
	const profiles, pluginConfig = "profiles:\n", "  pluginConfig:\n"
	noDefaults := []string{pluginConfig, pluginConfig + "  - {name: PodTopologySpread, args: {defaultingType: List}}\n"}
	for name, tc := range map[string]struct {
		config []string
		want   bool
	}{
		"as shipped":                    {},
		"without default constraints":   {config: noDefaults, want: true},
		"without them, but an extender": {config: append(noDefaults, profiles, "extenders: [{urlPrefix: 'http://localhost:1', filterVerb: filter}]\n"+profiles)},
	} {
		t.Run(name, func(t *testing.T) {
			made, _ := newScheduler(t, configured(t, tc.config...))
			if got := signPod(t.Context(), made.Profiles[profileName], &corev1.Pod{}); (got != nil) != tc.want {
				t.Errorf("signature %s, want one: %t", got, tc.want)
			}
		})
	}
}
