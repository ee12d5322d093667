//go:build kubernetes_1_37

package workloadspread_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// withGroups turns the gates of pod groups on. Call it before openPort.
func withGroups(t *testing.T) {
	t.Helper()
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: true})
}

// group creates a gang and its pods, of which so many must run.
func (p *port) group(name string, pods, atLeast int32) {
	p.t.Helper()
	p.create(&schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: schedulingv1beta1.PodGroupSpec{
		SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: atLeast}}}})
	p.members(name, pods)
}

// members creates pods of a group.
func (p *port) members(group string, pods int32) {
	p.t.Helper()
	for i := range pods {
		p.pod(fmt.Sprintf("%s-%d", group, i), inGroup(group))
	}
}

func inGroup(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name} }
}

// bound counts the pods of a group on each node.
func (p *port) bound(group string) map[string]int {
	p.t.Helper()
	list, err := p.client.CoreV1().Pods("ns").List(p.ctx, metav1.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	nodes := map[string]int{}
	for i := range list.Items {
		if pod := &list.Items[i]; pod.Spec.SchedulingGroup != nil && *pod.Spec.SchedulingGroup.PodGroupName == group && pod.Spec.NodeName != "" {
			nodes[pod.Spec.NodeName]++
		}
	}
	return nodes
}

// settles runs the cycles of the queue, and lets a minute pass for those that fail and for binds. A group that fails is tried again and again, until it is held.
func (p *port) settles() {
	p.t.Helper()
	for range 60 {
		p.cycles()
		time.Sleep(time.Second)
	}
}

func (p *port) expectBound(group string, want map[string]int) {
	p.t.Helper()
	if diff := cmp.Diff(want, p.bound(group)); diff != "" {
		p.t.Errorf("nodes of group %s (-want +got):\n%s", group, diff)
	}
}

// fiveAndEight are two subsets on the nodes of zones a and b.
func fiveAndEight(strategy, whenFull string) string {
	return fmt.Sprintf(`subsets:
- {name: a, maxReplicas: 5, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, maxReplicas: 8, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}
scheduleStrategy: {type: %s, whenFull: %s}`, strategy, whenFull)
}

func TestAGangGoesWholeIntoTheFirstSubsetThatTakesIt(t *testing.T) {
	withGroups(t)
	small := func(zone string) *corev1.Node {
		node := nodeOf(zone)
		node.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("3")
		return node
	}
	everywhere := `{subsets: [{name: a, maxReplicas: 5}, {name: b, maxReplicas: 8}], scheduleStrategy: {type: Adaptive, whenFull: Wait}}`
	for name, tc := range map[string]struct {
		spec          string
		nodes         []*corev1.Node
		pods, atLeast int32
		want          map[string]int
		// subsets of the pods.
		subsets map[string]int
	}{
		"the first has too few slots":                     {pods: 8, atLeast: 8, want: map[string]int{"node-b": 8}},
		"both have enough":                                {pods: 5, atLeast: 5, want: map[string]int{"node-a": 5}},
		"the nodes of the first have no room":             {nodes: []*corev1.Node{small("a"), nodeOf("b")}, pods: 5, atLeast: 5, want: map[string]int{"node-b": 5}},
		"the first has room for those that must run":      {nodes: []*corev1.Node{small("a"), nodeOf("b")}, pods: 5, atLeast: 2, want: map[string]int{"node-a": 3}},
		"none has room, and pods wait":                    {pods: 9, atLeast: 9, want: map[string]int{}},
		"none has room, and pods are let go":              {spec: fiveAndEight("Adaptive", "Schedule"), nodes: []*corev1.Node{nodeOf("c"), nodeOf("a")}, pods: 12, atLeast: 12, want: map[string]int{"node-a": 6, "node-c": 6}},
		"strategy Fixed waits for nodes":                  {spec: fiveAndEight("Fixed", "Wait"), nodes: []*corev1.Node{small("a"), nodeOf("b")}, pods: 5, atLeast: 5, want: map[string]int{}},
		"subsets of all nodes":                            {spec: everywhere, nodes: []*corev1.Node{nodeOf("a")}, pods: 8, atLeast: 8, want: map[string]int{"node-a": 8}, subsets: map[string]int{"b": 8}},
		"subsets of all nodes, of which the first has it": {spec: everywhere, nodes: []*corev1.Node{nodeOf("a")}, pods: 5, atLeast: 5, want: map[string]int{"node-a": 5}, subsets: map[string]int{"a": 5}},
		"some must run together, and the rest waits":      {pods: 10, atLeast: 8, want: map[string]int{"node-b": 8}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				t.Helper()
				spec, nodes := fiveAndEight("Adaptive", "Wait"), []*corev1.Node{nodeOf("a"), nodeOf("b")}
				if tc.spec != "" {
					spec = tc.spec
				}
				if tc.nodes != nil {
					nodes = tc.nodes
				}
				p := openPort(t, spec, nil, nodes...)
				p.group("g", tc.pods, tc.atLeast)
				p.settles()
				p.expectBound("g", tc.want)
				if tc.subsets == nil {
					return
				}
				got := map[string]int{}
				for i := range tc.pods {
					got[p.get(fmt.Sprintf("g-%d", i)).Labels[v1beta1.SubsetLabel]]++
				}
				if diff := cmp.Diff(tc.subsets, got); diff != "" {
					t.Errorf("subsets (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestAGangThatWaitsForSlotsHoldsNone(t *testing.T) {
	withGroups(t)
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openPort(t, fiveAndEight("Fixed", "Wait"), nil, nodeOf("a"), nodeOf("b"))
		p.plugins.Install(p.scheduler)
		p.group("first", 8, 8)
		p.settles()
		p.group("waits", 6, 6)
		p.settles()
		condition := p.get("waits-0").Status.Conditions[0]
		if want := `no subset has room for the 6 pods of the group "waits" that must run together. WorkloadSpread "web": a: 0/5 kept; b: 8/8 kept`; condition.Reason != "SubsetsFull" ||
			!strings.Contains(condition.Message, want) {
			t.Errorf("the gang is told %s: %s", condition.Reason, condition.Message)
		}
		if queue := p.scheduler.SchedulingQueue; len(queue.PodsInActiveQ())+len(queue.PodsInBackoffQ()) > 0 {
			t.Error("the gang is tried again although no slot came free")
		}
		p.group("fits", 5, 5)
		p.settles()
		p.expectBound("first", map[string]int{"node-b": 8})
		p.expectBound("waits", map[string]int{})
		p.expectBound("fits", map[string]int{"node-a": 5})
		for i := range 5 {
			p.delete(fmt.Sprintf("first-%d", i))
		}
		p.settles()
		p.expectBound("waits", map[string]int{})
		p.delete("first-5")
		p.settles()
		p.expectBound("waits", map[string]int{"node-b": 6})
	})
}

func TestAGangThatNeedsFewerPodsIsTriedAgain(t *testing.T) {
	withGroups(t)
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openPort(t, fiveAndEight("Fixed", "Wait"), nil, nodeOf("a"), nodeOf("b"))
		p.group("g", 9, 9)
		p.settles()
		p.expectBound("g", map[string]int{})
		group, err := p.client.SchedulingV1beta1().PodGroups("ns").Get(p.ctx, "g", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		group = group.DeepCopy()
		group.Generation, group.ResourceVersion = 2, "2"
		group.Spec.SchedulingPolicy.Gang.MinCount = 7
		if _, err := p.client.SchedulingV1beta1().PodGroups("ns").Update(p.ctx, group, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		p.settles()
		p.expectBound("g", map[string]int{"node-b": 8})
	})
}

func TestAPodThatIsReplacedGoesBackToItsGang(t *testing.T) {
	withGroups(t)
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openPort(t, fiveAndEight("Adaptive", "Wait"), nil, nodeOf("a"), nodeOf("b"))
		p.group("g", 8, 8)
		p.settles()
		p.delete("g-3")
		p.pod("new", inGroup("g"))
		p.settles()
		p.expectBound("g", map[string]int{"node-b": 8})
	})
}

func TestAGangStaysInADomainOfItsTopology(t *testing.T) {
	withGroups(t)
	rack := func(zone, rack string) *corev1.Node {
		node := nodeOf(zone)
		node.Name, node.Labels["rack"] = rack, rack
		node.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("6")
		return node
	}
	inBubble(t, func(t *testing.T) {
		t.Helper()
		tight := rack("b", "b1")
		tight.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("2")
		p := openPort(t, fiveAndEight("Adaptive", "Wait"), nil, rack("a", "a1"), tight, rack("b", "b2"))
		p.create(&schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}, Spec: schedulingv1beta1.PodGroupSpec{
			SchedulingPolicy:      schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 6}},
			SchedulingConstraints: &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: "rack"}}}}})
		p.members("g", 6)
		p.settles()
		p.expectBound("g", map[string]int{"b2": 6})
	})
}

func TestGroupsThatNeedNotStayTogether(t *testing.T) {
	for name, gates := range map[string]bool{"their policy is Basic": true, "the gate of placements is off": false} {
		t.Run(name, func(t *testing.T) {
			withGroups(t)
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.TopologyAwareWorkloadScheduling, gates)
			inBubble(t, func(t *testing.T) {
				t.Helper()
				p := openPort(t, fiveAndEight("Adaptive", "Wait"), nil, nodeOf("a"), nodeOf("b"))
				policy := schedulingv1beta1.PodGroupSchedulingPolicy{Basic: &schedulingv1beta1.BasicSchedulingPolicy{}}
				if !gates {
					policy = schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 8}}
				}
				p.create(&schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}, Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: policy}})
				p.members("g", 8)
				p.settles()
				p.expectBound("g", map[string]int{"node-a": 5, "node-b": 3})
				p.group("more", 6, 6) // one slot too few, and it keeps none of the others
				p.settles()
				p.expectBound("more", map[string]int{})
				for i := range 5 {
					p.pod(fmt.Sprintf("single-%d", i))
				}
				p.settles()
				for i := range 5 {
					p.expectNode(fmt.Sprintf("single-%d", i), "node-b")
				}
			})
		})
	}
}

// TestAGangWithoutNodesOpensItsGatesInOneSubset so that a node autoscaler makes nodes for all of it. Before there are some, no pod has a node.
func TestAGangWithoutNodesOpensItsGatesInOneSubset(t *testing.T) {
	withGroups(t)
	gang := &schedulingv1beta1.GangSchedulingPolicy{MinCount: 8}
	for name, tc := range map[string]struct {
		policy    schedulingv1beta1.PodGroupSchedulingPolicy
		placement bool
		want      map[string]int // open gates by zone
	}{
		"a gang":                        {policy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: gang}, placement: true, want: map[string]int{"b": 8}},
		"the gate of placements is off": {policy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: gang}, want: map[string]int{"b": 8}},
		"its policy is Basic": {policy: schedulingv1beta1.PodGroupSchedulingPolicy{Basic: &schedulingv1beta1.BasicSchedulingPolicy{}}, placement: true,
			want: map[string]int{"b": 8}},
	} {
		t.Run(name, func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.TopologyAwareWorkloadScheduling, tc.placement)
			inBubble(t, func(t *testing.T) {
				t.Helper()
				p := openGatedPort(t, strings.Replace(fiveAndEight("Adaptive", "Wait"), "whenFull", "binding: Gated, whenFull", 1), nodeOf("elsewhere"))
				p.create(&schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}, Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: tc.policy}})
				for i := range 8 {
					p.pod(fmt.Sprintf("g-%d", i), inGroup("g"), subset.Gate)
				}
				p.settles()
				for i := range 8 {
					p.expectOpen(fmt.Sprintf("g-%d", i), "b")
					if condition := p.get(fmt.Sprintf("g-%d", i)).Status.Conditions[0]; condition.Reason != corev1.PodReasonUnschedulable {
						t.Errorf("a node autoscaler reads %s: %s", condition.Reason, condition.Message)
					}
				}
				p.expectBound("g", map[string]int{})
				p.create(nodeOf("b"))
				p.settles()
				p.expectBound("g", map[string]int{"node-b": 8})
			})
		})
	}
}

// TestAGangWithGatesIsBoundWhereItHasNodes without a stop in between.
func TestAGangWithGatesIsBoundWhereItHasNodes(t *testing.T) {
	withGroups(t)
	inBubble(t, func(t *testing.T) {
		t.Helper()
		p := openGatedPort(t, strings.Replace(fiveAndEight("Adaptive", "Wait"), "whenFull", "binding: Gated, whenFull", 1), nodeOf("a"), nodeOf("b"))
		p.create(&schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}, Spec: schedulingv1beta1.PodGroupSpec{
			SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 8}}}})
		for i := range 8 {
			p.pod(fmt.Sprintf("g-%d", i), inGroup("g"), subset.Gate)
		}
		p.settles()
		p.expectBound("g", map[string]int{"node-b": 8})
		for i := range 8 {
			p.expectOpen(fmt.Sprintf("g-%d", i), "b")
		}
	})
}

// convoy is a port with two gangs and single pods among random events.
type convoy struct {
	*port
	draw     *rand.Rand
	quotas   [2]int
	room     [2]int // of the node of each subset
	adaptive bool
	gangs    [2]struct{ size, atLeast int }
	// pods are the names of those of each gang, and of the single ones.
	pods [3][]string
	made int
	log  []string
}

// TestNoHistoryOfGangsOfAWholeSchedulerBreaksARule plays random histories of a whole scheduler, and looks at the API server alone.
func TestNoHistoryOfGangsOfAWholeSchedulerBreaksARule(t *testing.T) {
	withGroups(t)
	for seed := range *histories {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				t.Helper()
				c := &convoy{draw: rand.New(rand.NewPCG(seed, 0))}
				c.sets(t)
				for range 50 {
					c.step()
					c.judge()
				}
				c.rest()
			})
		})
	}
}

func (c *convoy) say(format string, args ...any) { c.log = append(c.log, fmt.Sprintf(format, args...)) }

func (c *convoy) fatalf(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf("%s\nFAULT: %s", strings.Join(c.log, "\n"), fmt.Sprintf(format, args...))
}

func (c *convoy) sets(t *testing.T) {
	t.Helper()
	c.quotas, c.room = [2]int{2 + c.draw.IntN(7), 2 + c.draw.IntN(7)}, [2]int{2 + c.draw.IntN(9), 2 + c.draw.IntN(9)}
	c.adaptive = c.draw.IntN(3) > 0
	var nodes []*corev1.Node
	for i, zone := range []string{"a", "b"} {
		node := nodeOf(zone)
		node.Status.Allocatable[corev1.ResourceCPU] = *resource.NewQuantity(int64(c.room[i]), resource.DecimalSI)
		nodes = append(nodes, node)
	}
	strategy := map[bool]string{true: "Adaptive", false: "Fixed"}[c.adaptive]
	c.port = openPort(t, fmt.Sprintf(`subsets:
- %s, maxReplicas: %d}
- %s, maxReplicas: %d}
scheduleStrategy: {type: %s, whenFull: Wait}`, inA, c.quotas[0], inB, c.quotas[1], strategy), nil, nodes...)
	c.say("quotas %v, room %v, %s", c.quotas, c.room, strategy)
	for i := range c.gangs {
		size := 2 + c.draw.IntN(6)
		c.gangs[i].size, c.gangs[i].atLeast = size, 1+c.draw.IntN(size)
		c.say("gang %d is %+v", i, c.gangs[i])
		c.group(fmt.Sprintf("g%d", i), 0, int32(c.gangs[i].atLeast)) //nolint:gosec // small
	}
}

func (c *convoy) step() {
	switch of := c.draw.IntN(2); c.draw.IntN(10) {
	case 0, 1, 2, 3:
		c.join(of)
	case 4:
		c.leave(of)
	case 5:
		if len(c.pods[2]) < 4 {
			c.join(2)
		}
	case 6:
		c.leave(2)
	case 7, 8:
		if queue := c.scheduler.SchedulingQueue; len(queue.PodsInActiveQ())+len(queue.PodsInBackoffQ()) > 0 {
			c.say("a cycle")
			c.cycle()
		}
	default:
		seconds := 1 + c.draw.IntN(12)
		c.say("%d s pass", seconds)
		c.passes(seconds)
	}
}

func (c *convoy) passes(seconds int) {
	for range seconds {
		c.cycles()
		time.Sleep(time.Second)
	}
}

func (c *convoy) join(of int) {
	if of < 2 && len(c.pods[of]) == c.gangs[of].size {
		return
	}
	c.made++
	name := fmt.Sprintf("p%d", c.made)
	c.pods[of] = append(c.pods[of], name)
	c.say("%s of %d comes", name, of)
	if of < 2 {
		c.pod(name, inGroup(fmt.Sprintf("g%d", of)))
	} else {
		c.pod(name)
	}
}

func (c *convoy) leave(of int) {
	if len(c.pods[of]) == 0 {
		return
	}
	i := c.draw.IntN(len(c.pods[of]))
	c.say("%s is deleted", c.pods[of][i])
	c.delete(c.pods[of][i])
	c.pods[of] = slices.Delete(c.pods[of], i, i+1)
}

// places counts the pods of a gang, or the single ones, in each subset, and those without a node.
func (c *convoy) places(of int) (in [2]int, pending int) {
	for _, name := range c.pods[of] {
		if i := slices.Index([]string{"a", "b"}, c.get(name).Labels[v1beta1.SubsetLabel]); i >= 0 {
			in[i]++
		} else {
			pending++
		}
	}
	return in, pending
}

func (c *convoy) taken() (in [2]int) {
	for of := range c.pods {
		places, _ := c.places(of)
		in[0], in[1] = in[0]+places[0], in[1]+places[1]
	}
	return in
}

func (c *convoy) judge() {
	c.t.Helper()
	for i, n := range c.taken() {
		if n > c.quotas[i] {
			c.fatalf("subset %d has %d pods", i, n)
		}
	}
	for of := range c.gangs {
		if in, _ := c.places(of); in[0] > 0 && in[1] > 0 {
			c.fatalf("gang %d is divided: %v", of, in)
		}
	}
}

// rest lets all pods come, and a minute pass. Then no gang waits that has room.
func (c *convoy) rest() {
	c.t.Helper()
	c.say("rest")
	for of, gang := range c.gangs {
		for range gang.size {
			c.join(of)
		}
	}
	c.passes(60)
	c.judge()
	taken := c.taken()
	_, singles := c.places(2) // each may have a slot in any subset
	for of, gang := range c.gangs {
		in, pending := c.places(of)
		needs := max(gang.atLeast-in[0]-in[1], 1)
		var offered []int
		for _, slots := range []int{pending, needs} {
			for i := range taken {
				if c.quotas[i]-taken[i]-singles >= slots && in[1-i] == 0 {
					offered = append(offered, i)
				}
			}
		}
		if pending == 0 || len(offered) == 0 {
			continue
		}
		if !c.adaptive {
			offered = offered[:1]
		}
		for _, i := range offered {
			if singles == 0 && c.room[i]-taken[i] >= needs {
				c.fatalf("gang %d waits for %d slots, and subset %d has %d free, and room for %d: %v", of, needs, i, c.quotas[i]-taken[i], c.room[i]-taken[i], c.get(c.pods[of][len(c.pods[of])-1]).Status.Conditions)
			}
		}
	}
}
