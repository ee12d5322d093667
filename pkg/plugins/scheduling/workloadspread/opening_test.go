package workloadspread_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

const (
	gatedSpread   = "subsets: [" + inA + ", maxReplicas: 1}, " + inB + ", maxReplicas: 1}]\nscheduleStrategy: {binding: Gated, whenFull: Wait}"
	gatedAdaptive = "subsets: [" + inA + ", maxReplicas: 1}, " + inB + ", maxReplicas: 1}]\nscheduleStrategy: {type: Adaptive, binding: Gated, whenFull: Wait}"
)

// openGatedPort is openPort with an API server that gives patched pods versions, without which the scheduling queue ignores an update.
func openGatedPort(t *testing.T, spec string, nodes ...*corev1.Node) *port {
	t.Helper()
	p := openPort(t, spec, nil, nodes...)
	p.plugins.Install(p.scheduler)
	version := 0
	p.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if patch.GetSubresource() != "" {
			return false, nil, nil
		}
		object, err := p.client.Tracker().Get(patch.GetResource(), patch.GetNamespace(), patch.GetName())
		if err != nil {
			return true, nil, err
		}
		before, err := json.Marshal(object)
		if err != nil {
			return true, nil, err
		}
		after, err := strategicpatch.StrategicMergePatch(before, patch.GetPatch(), corev1.Pod{})
		if err != nil {
			return true, nil, err
		}
		pod := &corev1.Pod{}
		if err := json.Unmarshal(after, pod); err != nil {
			return true, nil, err
		}
		if !subset.IsGated(object.(*corev1.Pod)) && strings.Contains(string(patch.GetPatch()), v1beta1.SubsetGate) {
			return true, nil, errors.New("the policy berth-scheduler refuses this")
		}
		version++
		pod.ResourceVersion = fmt.Sprint(version)
		return true, pod, p.client.Tracker().Update(patch.GetResource(), pod, patch.GetNamespace())
	})
	return p
}

// patches are those of pods so far, which are not of their status.
func (p *port) patches() (names []string) {
	for _, action := range p.client.Actions() {
		if patch, ok := action.(clienttesting.PatchAction); ok && patch.GetResource().Resource == "pods" && patch.GetSubresource() == "" {
			names = append(names, patch.GetName())
		}
	}
	return names
}

// expectOpen checks that the pod has no gate and requires the nodes of a zone, or any node if the zone is empty. With the zone "-" it has its gate.
func (p *port) expectOpen(name, zone string) {
	p.t.Helper()
	pod := p.get(name)
	got := ""
	if affinity := pod.Spec.Affinity; affinity != nil {
		got = affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
	}
	if subset.IsGated(pod) {
		got = "-" + got
	}
	if got != zone {
		p.t.Errorf("%s may use %q, want %q", name, got, zone)
	}
	var picked v1beta1.AdmittedSubset
	if note := pod.Annotations[v1beta1.AdmittedAnnotation]; note != "" {
		if err := json.Unmarshal([]byte(note), &picked); err != nil {
			p.t.Fatal(err)
		}
	}
	if want := strings.TrimPrefix(zone, "-"); picked.Subset != want {
		p.t.Errorf("%s: picked %+v, want %q", name, picked, want)
	}
}

func TestAGateIsOpenedRightBeforeTheBinding(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openGatedPort(t, gatedSpread, nodeOf("a"), nodeOf("b"))
		for i := range 3 {
			p.pod(fmt.Sprintf("p%d", i), subset.Gate)
		}
		p.cycles()
		p.expectNode("p0", "node-a")
		p.expectOpen("p0", "a")
		p.expectNode("p1", "node-b")
		p.expectOpen("p1", "b")
		// There is no slot for the third one, so nobody else may place it either.
		p.expectNode("p2", "")
		p.expectOpen("p2", "-")
		if got := p.patches(); len(got) != 2 {
			t.Errorf("pods %v were patched, want two", got)
		}
		p.delete("p0")
		p.cycles()
		p.expectNode("p2", "node-a")
		p.expectOpen("p2", "a")
	})
}

func TestTheGateOfAPodThatFindsNoNodeIsOpenedInTheSubsetThatItHasClaimed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openGatedPort(t, gatedSpread, nodeOf("b"))
		heard := p.listen()
		p.pod("p0", subset.Gate)
		p.pod("p1", subset.Gate)
		p.cycles()
		p.expectNode("p0", "")
		p.expectOpen("p0", "a")
		p.expectNode("p1", "node-b")
		// As long as the pod had its gate, no autoscaler was to make a node for it: it had no terms.
		heard.expect(t, "p0", [2]string{"SchedulingGated", "a: no node belongs to it"}, [2]string{"Unschedulable", "a: no node belongs to it"})
		p.create(nodeOf("a"))
		time.Sleep(5 * time.Second) // the queue's backoff
		p.cycles()
		p.expectNode("p0", "node-a")
		if got := p.patches(); len(got) != 2 {
			t.Errorf("pods %v were patched, want each one once", got)
		}
	})
}

// Each of these events may come before, in and after a cycle. Nothing wakes the pod later: no plugin that refused it waits for its gate.
func TestAPodWithAnOpenGateThatWaitsForANodeLooksUnschedulable(t *testing.T) {
	stranger := func(pod *corev1.Pod) {
		pod.OwnerReferences, pod.Spec.NodeSelector = nil, map[string]string{"no": "where"}
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		do     func(*port)
	}{
		"the gate is opened after the cycle":              {do: func(*port) {}},
		"the gate is opened in the cycle":                 {do: func(p *port) { p.failing = func(string) { settle() } }},
		"the pod has no spread":                           {change: stranger, do: func(*port) {}},
		"the pod has no spread, and is opened in a cycle": {change: stranger, do: func(p *port) { p.failing = func(string) { settle() } }},
		"the scheduler sees the pod later than the plugin": {do: func(p *port) {
			var seen *framework.PodInfo
			cycles := 0
			eachCycle(p.scheduler, func(info *framework.QueuedPodInfo) {
				if cycles++; cycles == 1 {
					seen = info.PodInfo
				} else if cycles == 2 {
					info.PodInfo = seen
				}
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				t.Helper()
				p := openGatedPort(t, gatedSpread, nodeOf("b"))
				heard := p.listen()
				tc.do(p)
				p.pod("p0", subset.Gate, tc.change)
				p.cycles()
				time.Sleep(10 * time.Second) // the queue's backoff
				p.cycles()
				if subset.IsGated(p.get("p0")) {
					t.Fatal("p0 has its gate")
				}
				synctest.Wait()
				if said := heard["p0"]; len(said) == 0 || !strings.Contains(said[len(said)-1], "Unschedulable") {
					t.Errorf("of p0 was said %q, want that it ends with Unschedulable", said)
				}
			})
		})
	}
}

func TestExhaustedPodsOfStrategyAdaptiveWaitInTheLastSubsetWithRoom(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openGatedPort(t, gatedAdaptive, nodeOf("c"))
		p.pod("p0", subset.Gate)
		p.pod("p1", subset.Gate)
		p.pod("p2", subset.Gate)
		p.cycles()
		p.expectOpen("p0", "b")
		p.expectOpen("p1", "a")
		p.expectOpen("p2", "-")
		p.create(nodeOf("b"))
		p.create(nodeOf("a"))
		time.Sleep(5 * time.Second) // the queue's backoff
		p.cycles()
		p.expectNode("p0", "node-b")
		p.expectNode("p1", "node-a")
		p.expectOpen("p2", "-")
	})
}

func TestAPodWaitsForTheGatesOfOthers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		t.Helper()
		other := func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/queue"})
		}
		p := openGatedPort(t, gatedSpread, nodeOf("a"), nodeOf("b"))
		p.pod("both", subset.Gate, other)
		p.pod("other", other)
		p.cycles()
		p.expectNode("both", "")
		p.expectNode("other", "")
		for _, name := range []string{"both", "other"} {
			patch := []byte(`{"spec":{"schedulingGates":[{"$patch":"delete","name":"example.com/queue"}]}}`)
			if _, err := p.client.CoreV1().Pods("ns").Patch(p.ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			settle()
			p.cycles()
		}
		p.expectNode("both", "node-a")
		p.expectOpen("both", "a")
		p.expectNode("other", "node-b")
	})
}

func TestAPodWhoseGateCannotBeOpenedKeepsItsSlotAndIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openGatedPort(t, gatedSpread, nodeOf("a"), nodeOf("b"))
		refused := 0
		p.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.GetSubresource() == "" && refused < 1 {
				refused++
				return true, nil, errors.New("refused")
			}
			return false, nil, nil
		})
		p.pod("p0", subset.Gate)
		p.cycle()
		p.expectNode("p0", "")
		p.expectOpen("p0", "-")
		p.pod("p1", subset.Gate)
		p.cycles()
		p.expectNode("p1", "node-b")
		time.Sleep(2 * time.Second)
		p.cycles()
		p.expectNode("p0", "node-a")
		p.expectOpen("p0", "a")
	})
}

func TestAPodIsBoundIfItsGateWasOpenedAfterTheQueueHasSeenIt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openGatedPort(t, gatedSpread, nodeOf("b"))
		var seen *framework.PodInfo
		eachCycle(p.scheduler, func(info *framework.QueuedPodInfo) {
			if seen == nil {
				seen = info.PodInfo
			}
			info.PodInfo = seen
		})
		p.pod("p0", subset.Gate)
		p.cycles()
		p.expectNode("p0", "")
		p.expectOpen("p0", "a")
		p.create(nodeOf("a"))
		time.Sleep(10 * time.Second) // the queue's backoff
		p.cycles()
		p.expectNode("p0", "node-a")
	})
}

func TestAPodWithAGateAndWithoutASpreadIsPlacedAnywhere(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openGatedPort(t, gatedSpread, nodeOf("a"))
		p.pod("p0", subset.Gate, func(pod *corev1.Pod) { pod.OwnerReferences = nil })
		p.pod("p1", subset.Gate, func(pod *corev1.Pod) {
			pod.OwnerReferences, pod.Spec.NodeSelector = nil, map[string]string{"no": "where"}
		})
		p.cycles()
		p.expectOpen("p0", "")
		p.expectOpen("p1", "")
		var bound []string
		for _, action := range p.client.Actions() {
			if create, ok := action.(clienttesting.CreateActionImpl); ok && create.GetSubresource() == "binding" {
				bound = append(bound, create.GetObject().(*corev1.Binding).Name)
			}
		}
		if len(bound) != 1 || bound[0] != "p0" {
			t.Errorf("bound %v, want p0", bound)
		}
	})
}

// A pod beyond all quotas may run on any node, and a node autoscaler has to make one for it.
func TestTheGateOfAPodBeyondAllQuotasIsOpenedIfItFindsNoNode(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openGatedPort(t, strings.Replace(gatedSpread, "Wait", "Schedule", 1), nodeOf("a"), nodeOf("b"))
		for i := range 2 {
			p.pod(fmt.Sprintf("p%d", i), subset.Gate)
		}
		p.cycles()
		for _, zone := range []string{"a", "b"} { // nobody else fits
			node := nodeOf(zone)
			node.Spec.Unschedulable = true
			if _, err := p.client.CoreV1().Nodes().Update(p.ctx, node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		p.pod("p2", subset.Gate)
		p.cycles()
		time.Sleep(10 * time.Second) // the queue's backoff
		p.cycles()
		p.expectNode("p2", "")
		p.expectOpen("p2", "")
	})
}
