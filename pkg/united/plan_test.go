package united

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/sites"
)

func count(n int32) replicaCount   { return replicaCount{IsSet: true, Value: n} }
func percent(n int32) replicaCount { return replicaCount{IsSet: true, IsPercent: true, Value: n} }

// policyOf is a policy with Deployments as children.
func policyOf(replicas int32, subsets ...Subset) *Policy {
	return &Policy{
		Namespace: "shop", Name: "web", Replicas: replicas, Surge: max((replicas+3)/4, 1), Subsets: subsets,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template:      &Template{Kind: DeploymentKind, Spec: map[string]any{"template": map[string]any{}}},
	}
}

// having are children with so many ready pods, in the order of the subsets.
func having(p *Policy, ready ...int32) (children []Child) {
	for i, n := range ready {
		child := Child{Kind: DeploymentKind, Name: p.Subsets[i].Name + "-1", Subset: p.Subsets[i].Name, Replicas: n, Revision: "r1", Rolled: true}
		for range n {
			child.Pods = append(child.Pods, Pod{Name: fmt.Sprint(child.Name, "-", len(child.Pods)), Revision: "r1", Bound: true, Ready: true, Ordinal: int32(len(child.Pods))})
		}
		children = append(children, child)
	}
	return children
}

// numbers are the wanted replicas in the order of the subsets, with trials after a plus.
func numbers(plan *Plan) string {
	all := map[int]string{}
	for _, w := range plan.Children {
		if w.Subset >= 0 {
			if all[w.Subset] = fmt.Sprint(w.Replicas - w.Trial); w.Trial > 0 {
				all[w.Subset] += fmt.Sprint("+", w.Trial)
			}
		}
	}
	var list []string
	for i := range len(all) {
		list = append(list, all[i])
	}
	return strings.Join(list, " ")
}

func TestReplicasAreDivided(t *testing.T) {
	a, b, c := Subset{Name: "a"}, Subset{Name: "b"}, Subset{Name: "c"}
	with := func(s Subset, change func(*Subset)) Subset { change(&s); return s }
	replicas := func(s Subset, n replicaCount) Subset { return with(s, func(s *Subset) { s.Replicas = n }) }
	least := func(s Subset, n replicaCount) Subset { return with(s, func(s *Subset) { s.Min = n }) }
	most := func(s Subset, n replicaCount) Subset { return with(s, func(s *Subset) { s.Max = n }) }
	both := func(s Subset, from, to int32) Subset { return least(most(s, count(to)), count(from)) }
	for name, tc := range map[string]struct {
		replicas int32
		subsets  []Subset
		has      []int32
		want     string
	}{
		"subsets without numbers share evenly":                   {6, []Subset{a, b, c}, nil, "2 2 2"},
		"the remainder goes to the first":                        {7, []Subset{a, b, c}, nil, "3 2 2"},
		"the remainder goes to the one that has most":            {7, []Subset{a, b, c}, []int32{2, 2, 3}, "2 2 3"},
		"specified replicas come first":                          {10, []Subset{replicas(a, count(5)), b, c}, nil, "5 3 2"},
		"specified replicas are cut from the end":                {6, []Subset{replicas(a, count(5)), replicas(b, count(5))}, nil, "5 1"},
		"specified replicas that do not add up leave some out":   {10, []Subset{replicas(a, count(3)), replicas(b, count(3))}, nil, "3 3"},
		"a percentage is rounded to the nearest":                 {10, []Subset{replicas(a, percent(25)), b}, nil, "3 7"},
		"percentages of all subsets add up: 50, 25 and 25 of 4":  {4, []Subset{replicas(a, percent(50)), replicas(b, percent(25)), replicas(c, percent(25))}, nil, "2 1 1"},
		"percentages of all subsets add up: 50 and 50 of 5":      {5, []Subset{replicas(a, percent(50)), replicas(b, percent(50))}, nil, "3 2"},
		"percentages of all subsets add up: 33, 33 and 34 of 10": {10, []Subset{replicas(a, percent(33)), replicas(b, percent(33)), replicas(c, percent(34))}, nil, "3 3 4"},
		"a maximum is filled first":                              {6, []Subset{most(a, count(2)), b}, nil, "2 4"},
		"minimums come first, in order":                          {5, []Subset{both(a, 1, 4), least(b, count(3))}, nil, "2 3"},
		"above the minimums, up to the maximum in order":         {9, []Subset{both(a, 1, 4), least(b, count(3))}, nil, "4 5"},
		"below the sum of the minimums, earlier subsets win":     {3, []Subset{both(a, 2, 4), least(b, count(3))}, nil, "2 1"},
		"scale-down is the reverse":                              {4, []Subset{both(a, 1, 4), least(b, count(2))}, []int32{4, 5}, "2 2"},
		"a minimum in percent":                                   {10, []Subset{least(a, percent(15)), most(b, count(3)), c}, nil, "10 0 0"},
		"nothing is left of nothing":                             {0, []Subset{least(a, count(2)), b}, []int32{2, 2}, "0 0"},
	} {
		t.Run(name, func(t *testing.T) {
			p := policyOf(tc.replicas, tc.subsets...)
			plan := p.Plan(Observed{Now: time.Unix(1000, 0), Revision: "r1", Children: having(p, tc.has...)})
			if got := numbers(&plan); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestUnplacedReplicasAreSaid(t *testing.T) {
	p := policyOf(10, Subset{Name: "a", Max: count(2)}, Subset{Name: "b", Max: count(3)})
	plan := p.Plan(Observed{Now: time.Unix(1000, 0), Revision: "r1", Children: having(p, 2, 3)})
	for _, c := range plan.Status.Conditions {
		if c.Type == v1beta1.ReadyCondition && (c.Status != corev1.ConditionFalse || c.Reason != v1beta1.ReasonUnplaced || !strings.Contains(c.Message, "5 of 10")) {
			t.Errorf("got %+v", c)
		}
	}
}

func TestChildrenThatGetFewerComeFirst(t *testing.T) {
	p := policyOf(6, Subset{Name: "a", Replicas: count(4)}, Subset{Name: "b", Replicas: count(1)}, Subset{Name: "c", Replicas: count(1)})
	children := having(p, 1, 4)
	children[1].Pods = nil // pods that run would stay until those of the others are ready
	plan := p.Plan(Observed{Now: time.Unix(1000, 0), Revision: "r1", Children: children})
	var order []string
	for _, w := range plan.Children {
		order = append(order, fmt.Sprint(p.Subsets[w.Subset].Name, w.Replicas, w.direction() > 0))
	}
	if diff := cmp.Diff([]string{"b1 false", "a4 true", "c1 true"}, order, cmp.Transformer("", func(s string) string { return strings.ReplaceAll(s, " ", "") })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestReadyPodsStayBeforeOthers: two children go, and c lacks two ready pods. One of a's two pods is not ready.
func TestReadyPodsStayBeforeOthers(t *testing.T) {
	p := policyOf(3, Subset{Name: "a"}, Subset{Name: "b"}, Subset{Name: "c"})
	children := having(p, 2, 1, 1)
	children[0].Pods[0].Ready = false
	p.Subsets = p.Subsets[2:]
	plan := p.Plan(Observed{Now: time.Unix(1000, 0), Revision: "r1", Children: children})
	var left []string
	for _, w := range plan.Children {
		left = append(left, fmt.Sprint(w.Child.Name, ":", w.Replicas))
	}
	slices.Sort(left)
	if got := strings.Join(left, " "); got != "a-1:1 b-1:1 c-1:2" {
		t.Errorf("got %s, want a-1:1 b-1:1 c-1:2", got)
	}
}

func TestTemplatesAreHeld(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Policy, []Child)
		want   string
	}{
		"all are updated at once":                        {func(*Policy, []Child) {}, "a:r2 b:r2 c:r2"},
		"paused":                                         {func(p *Policy, _ []Child) { p.Paused = true }, "a:r1 b:r1 c:r1"},
		"in order":                                       {func(p *Policy, _ []Child) { p.InOrder = true }, "a:r2 b:r1 c:r1"},
		"in order, the first is done":                    {func(p *Policy, c []Child) { p.InOrder = true; c[0].Revision = "r2" }, "a:r2 b:r2 c:r1"},
		"in order, the first is not ready":               {func(p *Policy, c []Child) { p.InOrder = true; c[0].Revision, c[0].Rolled = "r2", false }, "a:r2 b:r1 c:r1"},
		"a Deployment whose partition covers it":         {func(p *Policy, _ []Child) { p.Subsets[1].Partition = 2 }, "a:r2 b:r1 c:r2"},
		"a Deployment whose partition does not cover it": {func(p *Policy, _ []Child) { p.Subsets[1].Partition = 1 }, "a:r2 b:r2 c:r2"},
		"a patch is held as a template is": {func(p *Policy, c []Child) {
			for i := range c {
				c[i].Revision = "r2"
			}
			p.Subsets[1].PatchText, p.Paused = "{}", true
		}, "a:r2 b:r2 held c:r2"},
	} {
		t.Run(name, func(t *testing.T) {
			p := policyOf(6, Subset{Name: "a"}, Subset{Name: "b"}, Subset{Name: "c"})
			children := having(p, 2, 2, 2)
			tc.change(p, children)
			plan := p.Plan(Observed{Now: time.Unix(1000, 0), Revision: "r2", Children: children})
			var got []string
			for _, w := range plan.Children {
				text := p.Subsets[w.Subset].Name + ":" + w.Revision
				if w.Held && w.Revision == "r2" {
					text += " held"
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestAScaleDownDoesNotWaitForPodsThatCrash: a has five pods that are not ready, and b five that are. Of b no more stay than the surge allows.
func TestAScaleDownDoesNotWaitForPodsThatCrash(t *testing.T) {
	p := policyOf(5, Subset{Name: "a", Max: count(5)}, Subset{Name: "b"})
	children := having(p, 5, 5)
	for i := range children[0].Pods {
		children[0].Pods[i].Ready = false
	}
	plan := p.Plan(Observed{Now: time.Unix(1000, 0), Revision: "r1", Children: children})
	if got := numbers(&plan); got != "5 2" {
		t.Errorf("got %s, want 5 2", got)
	}
}

// TestPodsCountWhenTheyAreAvailable: replicas move from a to b, whose pods are ready for less time than minReadySeconds.
func TestPodsCountWhenTheyAreAvailable(t *testing.T) {
	now := time.Unix(1000, 0)
	p := policyOf(4, Subset{Name: "a", Replicas: count(0)}, Subset{Name: "b"})
	children := having(p, 4, 1)
	children[1].MinReady, children[1].Pods[0].ReadySince = 30*time.Second, now.Add(-10*time.Second)
	plan := p.Plan(Observed{Now: now, Revision: "r1", Children: children})
	if got := numbers(&plan); got != "4 1" || plan.Again != 20*time.Second || plan.Status.ReadyReplicas != 5 {
		t.Errorf("got %s, again after %v, %d ready", got, plan.Again, plan.Status.ReadyReplicas)
	}
	plan = p.Plan(Observed{Now: now.Add(20 * time.Second), Revision: "r1", Children: children})
	if got := numbers(&plan); got != "3 2" {
		t.Errorf("got %s, want 3 2", got)
	}
}

// TestPodsThatCannotBeMadeCount: a quota in the namespace lets a have 4 pods of 10.
func TestPodsThatCannotBeMadeCount(t *testing.T) {
	now := time.Unix(1000, 0)
	p := policyOf(10, Subset{Name: "a"}, Subset{Name: "b"})
	p.Adaptive = &adaptive{Critical: critical, Unschedulable: unschedulable, Lost: sites.LostAfter}
	children := having(p, 10, 0)
	children[0].Pods, children[0].FailingSince = children[0].Pods[:4], now.Add(time.Second-critical)
	plan := p.Plan(Observed{Now: now, Revision: "r1", Children: children})
	if got := numbers(&plan); got != "10 0" || plan.Again != time.Second {
		t.Errorf("got %s, again after %v: it fails for less than the critical time", got, plan.Again)
	}
	plan = p.Plan(Observed{Now: now.Add(time.Second), Revision: "r1", Children: children})
	if c := ConditionIn(plan.Status.SubsetStatuses[0].Conditions, v1beta1.SubsetSchedulable); numbers(&plan) != "4 6" || c == nil || c.Message != "6 pods could not be created" {
		t.Errorf("got %s, condition %+v", numbers(&plan), c)
	}
}

// TestAStatefulSetThatWaitsForAPodInVainGetsItReplaced: the last rollout was broken, and the template is the previous one again. The StatefulSet waits for the broken pod before it replaces it.
func TestAStatefulSetThatWaitsForAPodInVainGetsItReplaced(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, tc := range map[string]struct {
		change func(*Policy, *Child)
		want   []string
	}{
		"the broken pod":                                   {func(*Policy, *Child) {}, []string{"a-1-2"}},
		"not before it had its time":                       {func(_ *Policy, c *Child) { c.Pods[2].ReadySince = now.Add(time.Second - stuckAfter) }, nil},
		"not one that is ready":                            {func(_ *Policy, c *Child) { c.Pods[2].Ready = true }, nil},
		"not one with the template":                        {func(_ *Policy, c *Child) { c.Pods[2].Revision = "r1" }, nil},
		"not one that the partition keeps":                 {func(p *Policy, c *Child) { p.Subsets[0].Partition, c.Partition = 3, 3 }, nil},
		"not of a Deployment":                              {func(_ *Policy, c *Child) { c.ByOrdinal = false }, nil},
		"not before the child has the template":            {func(_ *Policy, c *Child) { c.Revision = "r0" }, nil},
		"not before the StatefulSet has seen the template": {func(_ *Policy, c *Child) { c.Observed = false }, nil},
		"not in another cluster":                           {func(p *Policy, c *Child) { p.Subsets[0].Cluster, c.Cluster = "m", "m" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := policyOf(3, Subset{Name: "a"})
			child := &having(p, 3)[0]
			child.ByOrdinal, child.Observed = true, true
			child.Pods[2].Revision, child.Pods[2].Ready, child.Pods[2].ReadySince = "r2", false, now.Add(-stuckAfter)
			tc.change(p, child)
			plan := p.Plan(Observed{Now: now, Revision: "r1", Children: []Child{*child}, Clusters: []sites.Cluster{{Name: "m", Reachable: true}}})
			var got []string
			for _, pod := range plan.Replaced {
				got = append(got, pod.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
