package workloadspread

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

func TestTheMemoRefusesNodesWhereTheFiltersOfTheProfileDo(t *testing.T) {
	requests := func(name corev1.ResourceName) func(*corev1.PodSpec) {
		one := corev1.ResourceList{name: resource.MustParse("1")}
		return func(pod *corev1.PodSpec) {
			pod.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: one, Limits: one}}}
		}
	}
	tolerates := func(below string) func(*corev1.PodSpec) {
		return func(pod *corev1.PodSpec) {
			pod.Tolerations = []corev1.Toleration{{Key: "risk", Operator: corev1.TolerationOpLt, Value: below, Effect: corev1.TaintEffectNoSchedule}}
		}
	}
	risky := func(node *corev1.Node) {
		node.Spec.Taints = []corev1.Taint{{Key: "risk", Value: "9", Effect: corev1.TaintEffectNoSchedule}}
	}
	cordoned := func(node *corev1.Node) { node.Spec.Unschedulable = true }
	const profiles, pluginConfig = "profiles:\n", "  pluginConfig:\n"
	tests := map[string]struct {
		config []string
		gate   bool // TaintTolerationComparisonOperators
		pod    func(*corev1.PodSpec)
		node   func(*corev1.Node)
		want   string // the subset: a, or b, whose node has room for every pod
	}{
		"a resource that the node lacks": {
			pod: requests("example.com/gpu"), want: "b"},
		"a resource that the profile ignores": {
			config: []string{pluginConfig, pluginConfig + "  - {name: NodeResourcesFit, args: {ignoredResources: [example.com/gpu]}}\n"},
			pod:    requests("example.com/gpu"), want: "a"},
		"another resource than the profile ignores": {
			config: []string{pluginConfig, pluginConfig + "  - {name: NodeResourcesFit, args: {ignoredResources: [example.com/gpu]}}\n"},
			pod:    requests("example.com/fpga"), want: "b"},
		"a resource of a group that the profile ignores": {
			config: []string{pluginConfig, pluginConfig + "  - {name: NodeResourcesFit, args: {ignoredResourceGroups: [example.com]}}\n"},
			pod:    requests("example.com/gpu"), want: "a"},
		"a resource that an extender manages": {
			config: []string{profiles, "extenders: [{urlPrefix: 'http://localhost:1', filterVerb: filter, managedResources: [{name: example.com/gpu, ignoredByScheduler: true}]}]\n" + profiles},
			pod:    requests("example.com/gpu"), want: "a"},
		"a resource that an extender only looks at": {
			config: []string{profiles, "extenders: [{urlPrefix: 'http://localhost:1', filterVerb: filter, managedResources: [{name: example.com/gpu}]}]\n" + profiles},
			pod:    requests("example.com/gpu"), want: "b"},
		"an affinity that the profile adds": {
			config: []string{pluginConfig, pluginConfig + `  - {name: NodeAffinity, args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
      {matchExpressions: [{key: zone, operator: In, values: [b]}]}]}}}}` + "\n"}, want: "b"},
		"a cordoned node": {node: cordoned, want: "b"},
		"a cordoned node for a profile without a say": {config: []string{"- name: DefaultPreemption\n", "- name: DefaultPreemption\n      - name: NodeUnschedulable\n"}, node: cordoned, want: "a"},
		"a taint that is tolerated by comparison":     {gate: true, pod: tolerates("10"), node: risky, want: "a"},
		"a taint that compares as too high":           {gate: true, pod: tolerates("5"), node: risky, want: "b"},
		"a comparison that the scheduler does not do": {pod: tolerates("10"), node: risky, want: "b"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.TaintTolerationComparisonOperators, tc.gate)
			made, _ := newScheduler(t, configured(t, tc.config...))
			w := newWorld(t, 1)
			w.finder.predicates.add(t.Context(), made.Profiles[profileName])
			w.spread(1, adaptive)
			pod, a, b := podOf("rs-uid", "p"), nodeInfo("a", "4"), nodeInfo("b", "4")
			b.Node().Status.Allocatable["example.com/gpu"], b.Node().Status.Allocatable["example.com/fpga"] = resource.MustParse("1"), resource.MustParse("1")
			b.(*framework.NodeInfo).SetNode(b.Node())
			pod.Spec.SchedulerName = profileName
			if tc.pod != nil {
				tc.pod(&pod.Spec)
			}
			w.see(pod)
			if tc.node != nil {
				tc.node(a.Node())
			}
			w.expectAnswer(tc.want, pod, a, b)
		})
	}
}

// classes serve all resources, or none.
type classes struct {
	fwk.SharedDRAManager
	serve bool
}

func (c *classes) DeviceClassResolver() fwk.DeviceClassResolver { return c }

func (c *classes) GetDeviceClass(corev1.ResourceName) *resourcev1.DeviceClass {
	if c.serve {
		return &resourcev1.DeviceClass{}
	}
	return nil
}

func TestAVerdictEndsWhenAClassServesAResourceOfThePod(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, adaptive)
	served := &classes{}
	w.finder.predicates.profiles.Store("", filters{devices: served, of: func(*corev1.Pod) func(fwk.NodeInfo) string {
		return func(fwk.NodeInfo) string {
			if served.serve {
				return ""
			}
			return "Insufficient example.com/gpu"
		}
	}})
	a, b := nodeInfo("a", "4"), nodeInfo("b", "4")
	for _, want := range []string{"NoNodeFits", "NoNodeFits", "a"} {
		served.serve = want == "a"
		pod := podOf("rs-uid", "p")
		pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}}}}
		w.see(pod)
		if got := w.asks(pod, a, b); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		w.delete(pod)
	}
}
