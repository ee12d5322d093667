package united

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/sites"
)

// inClusters is a policy of 10 replicas over a and b, where a is in cluster m.
func inClusters(isAdaptive bool) *Policy {
	p := policyOf(10, Subset{Name: "a", Cluster: "m"}, Subset{Name: "b"})
	if isAdaptive {
		p.Adaptive = &adaptive{Critical: critical, Unschedulable: unschedulable, Lost: sites.LostAfter}
	}
	return p
}

// known is a status that knows so many replicas of a, and cluster m away since a time.
func known(replicas, seen int32, since time.Time) *v1beta1.UnitedDeploymentStatus {
	return &v1beta1.UnitedDeploymentStatus{
		SubsetStatuses: []v1beta1.SubsetStatus{{Name: "a", Cluster: "m", Replicas: replicas, SeenReplicas: seen, ReadyReplicas: seen}},
		Clusters:       []v1beta1.ClusterStatus{{Name: "m", State: v1beta1.ClusterUnreachable, Since: metav1.NewTime(since)}},
	}
}

func TestAClusterThatDoesNotAnswer(t *testing.T) {
	now := time.Unix(10_000, 0)
	short, long := now.Add(-time.Minute), now.Add(-sites.LostAfter)
	for name, tc := range map[string]struct {
		adaptive   bool
		status     *v1beta1.UnitedDeploymentStatus
		change     func(*Policy)
		has, wantB int32
		state      v1beta1.ClusterState
		message    string
	}{
		"its replicas stay its own":                               {true, known(6, 6, short), nil, 4, 4, v1beta1.ClusterUnreachable, "cluster m has not answered since 1970-01-01T02:45:40Z"},
		"others run them when it is lost":                         {true, known(6, 6, long), nil, 4, 10, v1beta1.ClusterLost, "up to 6 replicas more than spec.replicas may run"},
		"but for its minimum":                                     {true, known(6, 6, long), func(p *Policy) { p.Subsets[0].Min = count(2) }, 4, 8, v1beta1.ClusterLost, "up to 4 replicas more"},
		"with Fixed they stay assigned":                           {false, known(5, 5, long), nil, 5, 5, v1beta1.ClusterLost, "cluster m has not answered"},
		"with Fixed others get what is theirs":                    {false, known(5, 5, short), func(p *Policy) { p.Subsets[0].Replicas = count(2) }, 5, 8, v1beta1.ClusterUnreachable, "up to 3 replicas more"},
		"others make what was not asked for surely":               {true, known(6, 2, short), nil, 4, 8, v1beta1.ClusterUnreachable, "up to 4 replicas more"},
		"nothing ends before what was asked for is known to run":  {false, known(5, 2, short), func(p *Policy) { p.Subsets[0].Replicas = count(9) }, 5, 5, v1beta1.ClusterUnreachable, "cluster m has not answered"},
		"one that does not exist gets what is due, and runs none": {false, &v1beta1.UnitedDeploymentStatus{}, func(p *Policy) { p.Subsets[0].Cluster = "other" }, 5, 5, v1beta1.ClusterUnknown, "no cluster other is registered"},
		"one of another namespace does not exist":                 {false, known(5, 5, short), func(p *Policy) { p.Subsets[0].ClusterNamespace = "elsewhere" }, 5, 5, v1beta1.ClusterUnknown, "no cluster m is registered"},
	} {
		t.Run(name, func(t *testing.T) {
			p := inClusters(tc.adaptive)
			if tc.change != nil {
				tc.change(p)
			}
			plan := p.Plan(Observed{Now: now, Revision: "r1", Status: tc.status, Children: having(p, 0, tc.has)[1:], Clusters: []sites.Cluster{{Name: "m", Namespace: "berth-members"}}})
			if len(plan.Children) != 1 || plan.Children[0].Subset != 1 || plan.Children[0].Replicas != tc.wantB {
				t.Errorf("got %+v, want %d in b", plan.Children, tc.wantB)
			}
			is := plan.Status
			if len(is.Clusters) != 1 || is.Clusters[0].State != tc.state {
				t.Errorf("clusters %+v", is.Clusters)
			}
			for _, of := range []v1beta1.ConditionType{v1beta1.ReadyCondition, v1beta1.ClustersReachable} {
				found := false
				for _, c := range is.Conditions {
					found = found || c.Type == of && c.Reason == v1beta1.ReasonUnreachable && strings.Contains(c.Message, tc.message)
				}
				if !found {
					t.Errorf("%s lacks %q: %+v", of, tc.message, is.Conditions)
				}
			}
		})
	}
}

func TestAClusterThatIsNotSelectedKeepsWhatItHas(t *testing.T) {
	for _, adaptive := range []bool{false, true} {
		p := inClusters(adaptive)
		p.ClusterSelector = map[string]string{"tier": "gold"}
		children := having(p, 3, 3)
		children[0].Cluster = "m"
		plan := p.Plan(Observed{Now: time.Unix(10_000, 0), Revision: "r1", Children: children, Clusters: []sites.Cluster{{Name: "m", Reachable: true, Labels: map[string]string{"tier": "tin"}}}})
		if got := numbers(&plan); got != "3 7" {
			t.Errorf("adaptive %t: got %s", adaptive, got)
		}
		if ready := plan.Status.Conditions[0]; ready.Reason != v1beta1.ReasonNotSelected || !strings.Contains(ready.Message, "a in m") {
			t.Errorf("condition %+v", ready)
		}
		p.ClusterSelector["tier"] = "tin"
		plan = p.Plan(Observed{Now: time.Unix(10_000, 0), Revision: "r1", Children: children, Clusters: []sites.Cluster{{Name: "m", Reachable: true, Labels: map[string]string{"tier": "tin"}}}})
		if got := fmt.Sprint(plan.Children[len(plan.Children)-1].Replicas > 3, plan.Status.SubsetStatuses[0].SeenReplicas); got != "true 3" {
			t.Errorf("adaptive %t: selected, got %s", adaptive, got)
		}
	}
}

// TestWhatAClusterSaysCannotOverflow: a compromised member says what it likes.
func TestWhatAClusterSaysCannotOverflow(t *testing.T) {
	p := inClusters(false)
	children := having(p, 5, 5)
	children[0].Cluster = "m"
	for i := range 3 {
		children = append(children, Child{Kind: DeploymentKind, Cluster: "m", Name: fmt.Sprint("x", i), Subset: "gone", Replicas: allocation.Unlimited, Trial: allocation.Unlimited, Deleting: i < 2})
	}
	plan := p.Plan(Observed{Now: time.Unix(10_000, 0), Revision: "r1", Children: children, Clusters: []sites.Cluster{{Name: "m", Reachable: true}}})
	for _, w := range plan.Children {
		if w.Subset >= 0 && w.Replicas > 5 {
			t.Errorf("%s gets %d", p.Subsets[w.Subset].Name, w.Replicas)
		}
	}
}

// TestAClusterThatGetsAnotherNameKeepsItsChildren, whether targetCluster follows or not.
func TestAClusterThatGetsAnotherNameKeepsItsChildren(t *testing.T) {
	for _, target := range []string{"m", "d"} {
		p, now := inClusters(false), time.Unix(10_000, 0)
		observe := func(name string, status *v1beta1.UnitedDeploymentStatus) Plan {
			children := having(p, 5, 5)
			children[0].Cluster = name
			return p.Plan(Observed{Now: now, Revision: "r1", Status: status, Children: children, Clusters: []sites.Cluster{{Name: name, Identity: "uid", Namespace: "berth-members", Reachable: true}}})
		}
		first := observe("m", &v1beta1.UnitedDeploymentStatus{})
		p.Subsets[0].Cluster = target
		plan := observe("d", &first.Status)
		for _, w := range plan.Children {
			if w.Subset < 0 || w.Child == nil || w.Replicas != 5 {
				t.Errorf("target %s: %+v", target, w)
			}
		}
		if c := plan.Status.Clusters; len(c) != 1 || c[0].Name != target || c[0].Identity != "uid" || c[0].State != v1beta1.ClusterReady {
			t.Errorf("target %s: %+v", target, c)
		}
	}
}

// TestAClusterThatRefusesTheHubIsNotLost: its token has ended. The time until it is lost begins when it ceases to answer.
func TestAClusterThatRefusesTheHubIsNotLost(t *testing.T) {
	p, now, b := inClusters(true), time.Unix(10_000, 0), int32(4)
	status := known(6, 6, now)
	status.Clusters[0].State = v1beta1.ClusterReady
	after := func(d time.Duration, lives bool, since time.Time, wantB int32, want v1beta1.ClusterState) {
		t.Helper()
		now = now.Add(d)
		plan := p.Plan(Observed{Now: now, Revision: "r1", Status: status, Children: having(p, 0, b)[1:], Clusters: []sites.Cluster{{Name: "m", Namespace: "berth-members", Lives: lives, Since: since}}})
		if b, status = plan.Children[0].Replicas, &plan.Status; b != wantB || status.Clusters[0].State != want {
			t.Errorf("b is asked for %d, want %d; m is %s, want %s", b, wantB, status.Clusters[0].State, want)
		}
	}
	began := now
	after(time.Minute, true, began, 4, v1beta1.ClusterRefusing)
	after(time.Hour, true, began, 4, v1beta1.ClusterRefusing)
	silent := now
	after(time.Minute, false, silent, 4, v1beta1.ClusterUnreachable)
	after(sites.LostAfter, false, silent, 10, v1beta1.ClusterLost)
}

// TestWhatAnswersStaysIfTheTotalIsLowered, in one step or in small ones, while the cluster of the first subset does not answer.
func TestWhatAnswersStaysIfTheTotalIsLowered(t *testing.T) {
	for _, adaptive := range []bool{false, true} {
		p := inClusters(adaptive)
		if p.Subsets[0].Max = count(10); adaptive {
			p.Subsets[0].Max = replicaCount{}
		}
		now := time.Unix(10_000, 0)
		status := known(10, 10, now.Add(-time.Minute))
		status.SubsetStatuses = append(status.SubsetStatuses, v1beta1.SubsetStatus{Name: "b", Replicas: 10, Share: 10})
		b := int32(10)
		for _, total := range []int32{20, 19, 18, 12, 10, 9, 4} {
			p.Replicas = total
			for range 3 {
				plan := p.Plan(Observed{Now: now, Revision: "r1", Status: status, Children: having(p, 0, b)[1:], Clusters: []sites.Cluster{{Name: "m", Namespace: "berth-members"}}})
				b, status = plan.Children[0].Replicas, &plan.Status
			}
			if b != min(total, 10) {
				t.Errorf("adaptive %t: of %d, b is asked for %d", adaptive, total, b)
			}
		}
	}
}

// TestAClusterIsCordonedAndDrained: a is in cluster m.
func TestAClusterIsCordonedAndDrained(t *testing.T) {
	cordoned, drained := func(c *sites.Cluster) { c.Cordoned = true }, func(c *sites.Cluster) { c.Cordoned, c.Drained = true, true }
	for name, tc := range map[string]struct {
		change func(*Policy)
		member func(*sites.Cluster)
		a, b   int32
		want   string
		state  v1beta1.ClusterState
		reason v1beta1.Reason
	}{
		"cordoned: it gets no more":                        {nil, cordoned, 3, 3, "3 7", v1beta1.ClusterCordoned, v1beta1.ReasonInProgress},
		"cordoned: it keeps what it has":                   {nil, cordoned, 5, 5, "5 5", v1beta1.ClusterCordoned, v1beta1.ReasonReady},
		"cordoned: it gives what it should":                {nil, cordoned, 8, 2, "8 5", v1beta1.ClusterCordoned, v1beta1.ReasonInProgress},
		"drained: others make theirs first":                {nil, drained, 5, 5, "5 8", v1beta1.ClusterDrained, v1beta1.ReasonInProgress},
		"drained: what others run goes":                    {nil, drained, 5, 8, "2 10", v1beta1.ClusterDrained, v1beta1.ReasonInProgress},
		"drained: nothing is left":                         {nil, drained, 0, 10, "0 10", v1beta1.ClusterDrained, v1beta1.ReasonReady},
		"drained: what nobody else takes stays":            {func(p *Policy) { p.Subsets[1].Max = count(6) }, drained, 4, 6, "4 6", v1beta1.ClusterDrained, v1beta1.ReasonReady},
		"drained: the same with specified replicas":        {func(p *Policy) { p.Subsets[0].Replicas, p.Subsets[1].Replicas = count(5), count(5) }, drained, 5, 5, "5 5", v1beta1.ClusterDrained, v1beta1.ReasonReady},
		"drained: nothing is made there for a total above": {func(p *Policy) { p.Subsets[1].Max = count(4) }, drained, 4, 4, "4 4", v1beta1.ClusterDrained, v1beta1.ReasonUnplaced},
		"none of both":                                     {nil, func(*sites.Cluster) {}, 5, 5, "5 5", v1beta1.ClusterReady, v1beta1.ReasonReady},
	} {
		for _, adaptive := range []bool{false, true} {
			p := inClusters(adaptive)
			if tc.change != nil {
				tc.change(p)
			}
			if adaptive && p.Subsets[0].Replicas.IsSet {
				continue
			}
			if adaptive && tc.change == nil {
				p.Subsets[0].Max = count(5)
			}
			children := having(p, tc.a, tc.b)
			children[0].Cluster = "m"
			m := sites.Cluster{Name: "m", Reachable: true}
			tc.member(&m)
			plan := p.Plan(Observed{Now: time.Unix(10_000, 0), Revision: "r1", Children: children, Clusters: []sites.Cluster{m}})
			ready := plan.Status.Conditions[0]
			if got := numbers(&plan); got != tc.want || plan.Status.Clusters[0].State != tc.state || ready.Reason != tc.reason {
				t.Errorf("%s, adaptive %t: got %s, %s, %+v", name, adaptive, got, plan.Status.Clusters[0].State, ready)
			}
		}
	}
}

// TestTheUserSaysWhenAClusterIsLost.
func TestTheUserSaysWhenAClusterIsLost(t *testing.T) {
	p, now := inClusters(true), time.Unix(10_000, 0)
	for lost, want := range map[time.Duration]int32{10 * time.Minute: 4, time.Minute: 10} {
		p.Adaptive.Lost = lost
		plan := p.Plan(Observed{Now: now, Revision: "r1", Status: known(6, 6, now.Add(-2*time.Minute)), Children: having(p, 0, 4)[1:], Clusters: []sites.Cluster{{Name: "m"}}})
		if got := plan.Children[0].Replicas; got != want {
			t.Errorf("lost after %v: got %d, want %d", lost, got, want)
		}
	}
}

// TestALateClusterKeepsNoOthersWaiting: cluster m of a has not answered yet. The last write may have arrived there or not.
func TestALateClusterKeepsNoOthersWaiting(t *testing.T) {
	for name, tc := range map[string]struct {
		asked, seen, ready int32
		total, b           int32
		wantA, wantB       int32
	}{
		"others get theirs":                         {5, 5, 5, 20, 5, 5, 10},
		"what may have been asked for counts":       {8, 5, 5, 16, 8, 8, 8},
		"what may still run counts":                 {3, 8, 8, 6, 3, 8, 3},
		"nothing ends for what may have ended":      {2, 6, 6, 4, 6, 6, 2},
		"a child that is being made is not missed":  {5, 0, 0, 10, 5, 5, 5},
		"it is not lowered before it answers again": {5, 5, 5, 2, 5, 5, 1},
	} {
		p := inClusters(false)
		p.Replicas, p.Surge = tc.total, max((tc.total+3)/4, 1)
		status := &v1beta1.UnitedDeploymentStatus{SubsetStatuses: []v1beta1.SubsetStatus{{Name: "a", Cluster: "m", Replicas: tc.asked, SeenReplicas: tc.seen}, {Name: "b", Replicas: tc.b}}}
		children := having(p, tc.seen, tc.b)
		if children[0].Cluster = "m"; tc.seen == 0 {
			children = children[1:]
		}
		plan := p.Plan(Observed{Now: time.Unix(10_000, 0), Revision: "r1", Status: status, Children: children, Clusters: []sites.Cluster{{Name: "m", Reachable: true, Late: true}}})
		got := map[int]int32{}
		for _, w := range plan.Children {
			if got[w.Subset] = w.Replicas; w.Late != (w.Subset == 0) {
				t.Errorf("%s: %+v", name, w)
			}
		}
		if got[0] != tc.wantA || got[1] != tc.wantB || plan.Status.SubsetStatuses[0].Replicas != tc.wantA || plan.Status.Clusters[0].State != v1beta1.ClusterReady {
			t.Errorf("%s: got %v, want %d %d; %+v", name, got, tc.wantA, tc.wantB, plan.Status)
		}
	}
}
