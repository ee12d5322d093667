package workloadspread_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	oneSlotOrWait  = "subsets: [" + inA + ", maxReplicas: 1}]\nscheduleStrategy: {whenFull: Wait}"
	twoSlotsOrWait = "subsets: [" + inA + ", maxReplicas: 2}]\nscheduleStrategy: {whenFull: Wait}"
)

// said has the reasons and messages of condition PodScheduled that events have shown, by pod. Each change adds one.
type said map[string][]string

// listen follows the pods until the end of the test. Read the result only after settle.
func (p *port) listen() said {
	p.t.Helper()
	watch, err := p.client.CoreV1().Pods("ns").Watch(p.ctx, metav1.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(watch.Stop)
	heard := said{}
	go func() {
		for event := range watch.ResultChan() {
			pod := event.Object.(*corev1.Pod)
			for _, c := range pod.Status.Conditions {
				words := string(c.Status) + " " + c.Reason + " " + c.Message
				if before := heard[pod.Name]; c.Type == corev1.PodScheduled && (len(before) == 0 || before[len(before)-1] != words) {
					heard[pod.Name] = append(before, words)
				}
			}
		}
	}()
	return heard
}

// expect compares the entries of a pod with the expected beginnings and parts, in this order.
func (s said) expect(t *testing.T, pod string, want ...[2]string) {
	t.Helper()
	synctest.Wait()
	matches := len(s[pod]) == len(want)
	for i := range min(len(want), len(s[pod])) {
		matches = matches && strings.HasPrefix(s[pod][i], "False "+want[i][0]+" ") && strings.Contains(s[pod][i], want[i][1])
	}
	if !matches {
		t.Errorf("of %s was said %q, want %q", pod, s[pod], want)
	}
}

func tooLarge(pod *corev1.Pod) {
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("11")
}

// Cluster autoscaler and Karpenter add nodes for pods whose condition PodScheduled has the reason Unschedulable.
func TestOnlyAPodThatANodeWouldHelpLooksUnschedulable(t *testing.T) {
	fullFor := [2]string{"SubsetsFull", `SubsetsFull: WorkloadSpread "web": a: 1/1 kept`}
	for name, tc := range map[string]struct {
		spec string
		do   func(*port)
		want map[string][][2]string
	}{
		"a pod over quota waits for a slot": {
			spec: oneSlotOrWait,
			do:   func(p *port) { p.pod("first"); p.cycles(); p.pod("p"); p.pod("q"); p.cycles() },
			want: map[string][][2]string{"first": nil, "p": {fullFor}, "q": {fullFor}}},
		"a pod with a slot waits for a node": {
			spec: oneSlotOrWait,
			do:   func(p *port) { p.pod("p", tooLarge); p.cycles() },
			want: map[string][][2]string{"p": {{"Unschedulable", "Insufficient cpu"}}}},
		"a pod that waited for a slot waits for a node once it has one": {
			spec: oneSlotOrWait,
			do: func(p *port) {
				p.pod("first")
				p.cycles()
				p.pod("p", tooLarge)
				p.cycles()
				p.delete("first")
				p.cycles()
			},
			want: map[string][][2]string{"p": {fullFor, {"Unschedulable", "Insufficient cpu"}}}},
		"a pod whose quota is lowered while it waits for a node waits for a slot": {
			spec: twoSlotsOrWait,
			do: func(p *port) {
				p.pod("first")
				p.cycles()
				p.pod("p", tooLarge)
				p.cycles()
				p.spread(2, oneSlotOrWait)
				p.cycles()
			},
			want: map[string][][2]string{"p": {{"Unschedulable", "Insufficient cpu"}, {"SubsetsFull", `WorkloadSpread "web": a: 2/1 kept`}}}},
		"pods that no subset has a node for wait for a slot when the last is taken": {
			spec: "subsets: [" + inA + ", maxReplicas: 2}]\nscheduleStrategy: {type: Adaptive, whenFull: Wait}",
			do: func(p *port) {
				p.pod("p", tooLarge)
				p.pod("q", tooLarge)
				p.cycles()
				p.pod("first")
				p.pod("second")
				p.cycles()
			},
			want: map[string][][2]string{
				"p": {{"Unschedulable", "a: 0/1 nodes fit: 1 Insufficient cpu"}, {"SubsetsFull", "a: 2/2 kept"}},
				"q": {{"Unschedulable", "a: 0/1 nodes fit: 1 Insufficient cpu"}, {"SubsetsFull", "a: 2/2 kept"}}}},
		"a pod of a spread that cannot be used": {
			spec: "subsets: [" + inA + ", maxReplicas: 150%}]",
			do:   func(p *port) { p.pod("p"); p.cycles() },
			want: map[string][][2]string{"p": {{"InvalidSpread", "maxReplicas"}}}},
		"a pod whose owner was not seen yet": {
			spec: oneSlotOrWait,
			do: func(p *port) {
				p.pod("p", func(pod *corev1.Pod) { pod.OwnerReferences[0].Name, pod.OwnerReferences[0].UID = "late", "late-uid" })
				p.cycles()
			},
			want: map[string][][2]string{"p": {{"WorkloadNotObserved", `waiting to see ReplicaSet "late"`}}}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				t.Helper()
				p := openPort(t, tc.spec, nil, nodeOf("a"))
				p.plugins.Install(p.scheduler)
				heard := p.listen()
				tc.do(p)
				for pod, want := range tc.want {
					heard.expect(t, pod, want...)
				}
			})
		})
	}
}

func TestPlacingAPodWritesNoCondition(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openPort(t, oneSlotOrWait, nil, nodeOf("a"))
		p.plugins.Install(p.scheduler)
		p.pod("p")
		p.cycles()
		p.expectNode("p", "node-a")
		var verbs []string
		for _, action := range p.client.Actions() {
			if action.GetResource().Resource == "pods" && !slices.Contains([]string{"get", "list", "watch"}, action.GetVerb()) {
				verbs = append(verbs, action.GetVerb())
			}
		}
		if want := []string{"update"}; !slices.Equal(verbs, want) { // the bind, as the object store records it
			t.Errorf("writes %v, want %v", verbs, want)
		}
	})
}

// A scheduler that does not know Install works, but an autoscaler may add nodes for nothing.
func TestWithoutInstallAPodOverQuotaLooksUnschedulable(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openPort(t, oneSlotOrWait, nil, nodeOf("a"))
		heard := p.listen()
		p.pod("first")
		p.cycles()
		p.pod("p")
		p.cycles()
		heard.expect(t, "p", [2]string{"Unschedulable", `SubsetsFull: WorkloadSpread "web": a: 1/1 kept`})
	})
}
