package workloadspread_test

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
)

const (
	inA = `{name: a, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}`
	inB = `{name: b, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}`
	inC = `{name: c, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [c]}]}`
)

var profiles = map[string]func(*schedulerconfig.KubeSchedulerProfile){"with the gate": nil, "without the gate": withoutGate}

// besideNo keeps a pod away from nodes with a pod of the app.
func besideNo(app string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, TopologyKey: corev1.LabelHostname}}}}
	}
}

func running(name, app, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: node}}
}

// keepBusy runs n cycles while the active queue always has another pod. They take n milliseconds, far less than any backoff.
func (p *port) keepBusy(n int) {
	p.t.Helper()
	for range n {
		p.strangers++
		p.stranger(fmt.Sprintf("stranger%d", p.strangers))
		p.cycle()
	}
}

func TestAPodThatSpillsWaitsForNoBackoffWhileTheQueueIsBusy(t *testing.T) {
	for name, profile := range profiles {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				t.Helper()
				p := openPort(t, "subsets: ["+inA+"}, "+inB+"}, "+inC+"}]\nscheduleStrategy: {type: Adaptive}", profile, nodeOf("a"), nodeOf("b"), nodeOf("c"))
				p.create(running("in-a", "cat", "node-a"))
				p.create(running("in-b", "cat", "node-b"))
				p.pod("p", besideNo("cat"))
				p.keepBusy(8)
				p.expectNode("p", "node-c")
				if n := p.cyclesOf("p"); n != 3 {
					t.Errorf("%d cycles, want one for each subset: %v", n, p.popped)
				}
			})
		})
	}
}

// A wake-up that arrives in the middle of the pod's cycle would otherwise send the pod to the backoff queue.
func TestAPodThatIsWokenInTheMiddleOfItsCycleIsTriedAgainAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		spec string
		// before is called before the pod is created. failing is called while its cycle fails.
		before, failing func(*port)
		change          func(*corev1.Pod)
		wantNode        string
	}{
		"a slot comes free": {spec: oneSlotOrWait,
			before:  func(p *port) { p.pod("first"); p.cycles() },
			failing: func(p *port) { p.delete("first") }},
		"a quota is raised": {spec: oneSlotOrWait,
			before:  func(p *port) { p.pod("first"); p.cycles() },
			failing: func(p *port) { p.spread(2, twoSlotsOrWait) }},
		"its owner is seen": {spec: oneSlotOrWait,
			change: func(pod *corev1.Pod) { pod.OwnerReferences[0].Name, pod.OwnerReferences[0].UID = "late", "late-uid" },
			failing: func(p *port) {
				yes := true
				p.create(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "late", UID: "late-uid",
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web-uid", Controller: &yes}}}})
			}},
		"its spread changes after its bind was refused": {spec: oneSlotOrWait,
			before:  func(p *port) { p.server.refuse = "p" },
			failing: func(p *port) { p.spread(2, twoSlotsOrWait) }},
	} {
		for profileName, profile := range profiles {
			t.Run(name+", "+profileName, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					t.Helper()
					p := openPort(t, tc.spec, profile, nodeOf("a"))
					if tc.before != nil {
						tc.before(p)
					}
					p.failing = func(pod string) {
						if pod == "p" {
							p.failing = nil
							tc.failing(p)
						}
					}
					p.pod("p", tc.change)
					p.keepBusy(6)
					p.expectNode("p", "node-a")
					if n := p.cyclesOf("p"); n != 2 {
						t.Errorf("%d cycles, want two: %v", n, p.popped)
					}
				})
			})
		}
	}
}

func TestAPodThatNothingWokeIsNotTriedAgain(t *testing.T) {
	for name, profile := range profiles {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				t.Helper()
				p := openPort(t, oneSlotOrWait, profile, nodeOf("a"))
				p.pod("first")
				p.pod("p")
				p.cycles()
				p.keepBusy(4)
				time.Sleep(time.Minute)
				p.keepBusy(4)
				if n := p.cyclesOf("p"); n != 1 {
					t.Errorf("%d cycles, want one: %v", n, p.popped)
				}
				// The pod gets the slot that it waits for, without any backoff.
				p.delete("first")
				p.keepBusy(2)
				p.expectNode("p", "node-a")
			})
		})
	}
}
