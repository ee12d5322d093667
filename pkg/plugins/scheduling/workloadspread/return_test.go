package workloadspread_test

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/utils/ptr"
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

// A pod of strategy Adaptive finds a node in the first subset, again and again, and cannot be bound there.
func TestAPodThatCannotBeBoundInASubsetGoesOn(t *testing.T) {
	for name, tc := range map[string]struct{ strategy, want string }{
		"Adaptive goes on":        {"type: Adaptive", "node-b"},
		"Fixed has nowhere to go": {"type: Fixed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				p := openPort(t, "subsets: ["+inA+"}, "+inB+"}]\nscheduleStrategy: {"+tc.strategy+"}", nil, nodeOf("a"), nodeOf("b"))
				p.server.refuseNode = "node-a"
				p.pod("p")
				for range 60 {
					p.cycles()
					time.Sleep(time.Second)
				}
				p.expectNode("p", tc.want)
				p.server.refuseNode = ""
				p.pod("next")
				p.cycles()
				p.expectNode("next", "node-a") // what refuses one pod need not refuse another
			})
		})
	}
}

// A pod of strategy Adaptive that no subset has a node for waits like one of strategy Fixed, and goes on as soon as it can.
func TestAPodThatHasTriedAllSubsetsGoesOnWithItsNeighbours(t *testing.T) {
	required := func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cat"}}, TopologyKey: corev1.LabelHostname}}}}
	}
	cat := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cat", UID: "cat-uid", Labels: map[string]string{"app": "cat"}},
		Spec: corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "main"}}}}
	first := nodeOf("a")
	nominated := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "nominated", UID: "nominated-uid"},
		Spec: corev1.PodSpec{SchedulerName: "berth-scheduler", Priority: ptr.To[int32](1000), PreemptionPolicy: ptr.To(corev1.PreemptNever), NodeSelector: map[string]string{"no": "where"},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: first.Status.Allocatable[corev1.ResourceCPU]}}}}},
		Status: corev1.PodStatus{NominatedNodeName: "node-a"}}
	small := func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}
	}
	for name, tc := range map[string]struct {
		before *corev1.Pod
		pod    func(*corev1.Pod)
		news   func(*port)
	}{
		"a pod comes that its affinity requires": {nil, required, func(p *port) { p.create(cat.DeepCopy()) }},
		"a pod gets the label":                   {func() *corev1.Pod { c := cat.DeepCopy(); c.Labels = map[string]string{}; return c }(), required, func(p *port) { p.relabel("cat", "app", "cat") }},
		"a nominated pod is deleted":             {nominated, small, func(p *port) { p.delete("nominated") }},
	} {
		for _, strategy := range []string{"Fixed", "Adaptive"} {
			t.Run(name+", "+strategy, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					p := openPort(t, "subsets: ["+inA+"}, "+inB+"}]\nscheduleStrategy: {type: "+strategy+"}", nil, first.DeepCopy())
					if tc.before != nil {
						p.create(tc.before.DeepCopy())
						p.cycles()
					}
					p.pod("p", tc.pod)
					play := func(seconds int) {
						for range seconds {
							p.cycles()
							time.Sleep(time.Second)
						}
					}
					play(95) // from now on it is tried once in a minute
					p.expectNode("p", "")
					tc.news(p)
					play(11) // the longest backoff of the queue is 10 s
					p.expectNode("p", "node-a")
				})
			})
		}
	}
}
