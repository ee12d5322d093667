package workloadspread

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-project/berth/pkg/podstate"
)

// ending is a node that announces its end, in its newest generation.
func ending(zone, cpu string) fwk.NodeInfo {
	info := nodeInfo(zone, cpu)
	info.Node().Status.Conditions = []corev1.NodeCondition{{Type: "PreemptScheduled", Status: corev1.ConditionTrue}}
	return info
}

func TestANodeThatAnnouncesItsEndIsClosedForItsSubset(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, adaptive)
	pods := w.podsNamed("web-", 4)
	a, b := nodeInfo("a", "4"), nodeInfo("b", "4")
	w.expectAnswer("a", pods[0], a, b)

	w.expectAnswer("b", pods[1], ending("a", "4"), b)
	w.expectAnswer("a", pods[2], nodeInfo("a", "4"), b) // the notice was withdrawn

	// Adaptive tries each subset, and says in the end why none has a node.
	if got := w.asks(pods[3], ending("a", "4"), ending("b", "4")); strings.Count(got, "0/1 nodes fit: 1 announced their end") != 2 {
		t.Errorf("no node is left: %s", got)
	}
}

// The scheduler tries a nominated node without the nodes that PreFilter names.
func TestFilterRefusesANodeThatAnnouncesItsEnd(t *testing.T) {
	for name, spec := range map[string]string{"the subset selects some nodes": twoThenAny, "the subset selects every node": halves} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.spread(1, spec)
			pod, state := w.pod("web-0"), framework.NewCycleState()
			nodes := []fwk.NodeInfo{ending("a", "4"), nodeInfo("b", "4")}
			if _, status := w.PreFilter(t.Context(), state, pod, nodes); !status.IsSuccess() {
				t.Fatal(status.AsError())
			}
			if got := w.Filter(t.Context(), state, pod, nodes[0]).Message(); got != `node(s) of subset "a" announced their end by condition PreemptScheduled` {
				t.Errorf("the node that ends: %q", got)
			}
			if got := w.Filter(t.Context(), state, pod, nodes[1]); got.IsSuccess() != (spec == halves) {
				t.Errorf("the other node: %v", got)
			}
		})
	}
}

func TestAPodInNoSubsetUsesNoNodeThatAnnouncesItsEnd(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 0}]}`)
	pod, state := w.pod("web-0"), framework.NewCycleState()
	if _, status := w.PreFilter(t.Context(), state, pod, []fwk.NodeInfo{ending("a", "4"), nodeInfo("b", "4")}); !status.IsSuccess() {
		t.Fatal(status.AsError())
	}
	if got := w.Filter(t.Context(), state, pod, ending("a", "4")).Message(); got != "node(s) announced their end by condition PreemptScheduled" {
		t.Errorf("got %q", got)
	}
	if got := w.Filter(t.Context(), state, pod, nodeInfo("b", "4")); !got.IsSuccess() {
		t.Error(got.Message())
	}
}

func TestAWithdrawnNoticeWakesPods(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	pod := w.pod("web-0")
	w.expectAnswer("a", pod, ending("a", "4"), nodeInfo("b", "4"))
	before, after := ending("a", "4").Node(), nodeInfo("a", "4").Node()
	if hint, err := w.isSchedulableAfterNodeChange(klog.Logger{}, pod, before, after); hint != fwk.Queue || err != nil {
		t.Errorf("the notice is withdrawn: %v, %v", hint, err)
	}
	if hint, err := w.isSchedulableAfterNodeChange(klog.Logger{}, pod, after, before); hint != fwk.QueueSkip || err != nil {
		t.Errorf("the node announces its end: %v, %v", hint, err)
	}
	registered, err := w.EventsToRegister(t.Context())
	if err != nil || registered[0].Event.ActionType&fwk.UpdateNodeCondition == 0 {
		t.Errorf("a condition that is withdrawn wakes nobody: %v", err)
	}
}

func TestNoticesAreAsConfigured(t *testing.T) {
	none, err := settingsFrom(&Args{NodeNotices: []string{}})
	if err != nil || len(none.notices) != 0 {
		t.Errorf("[]: %v, %v", none.notices, err)
	}
	if len(defaultSettings().notices) != len(podstate.DefaultNotices()) {
		t.Errorf("without arguments: %v", defaultSettings().notices)
	}
	if _, err := settingsFrom(&Args{NodeNotices: []string{"karpenter"}}); err == nil || !strings.Contains(err.Error(), "nodeNotices") {
		t.Errorf("a wrong notice: %v", err)
	}
}
