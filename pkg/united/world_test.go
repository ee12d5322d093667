package united

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/sites"
	"github.com/berth-project/berth/test/testkit/worlds"
)

// world is a cluster that is small enough to check at every step: children with their controllers, a scheduler, and rooms that change. Nothing of the model is
// in it.
type world struct {
	t      rapid.TB
	policy *Policy
	random *worlds.History
	now    time.Time
	// skew is how far the controller's clock is ahead.
	skew     time.Duration
	children []Child
	status   v1beta1.UnitedDeploymentStatus
	// room is how many pods each subset can run.
	room []int32
	// history says what happened, for messages.
	history []string
	pods    int
	made    int
	// waited is how many pods found no node.
	waited int
	// crashed are pods that have a node and are not ready.
	crashed map[string]bool
	// clusters are the members, and away those that do not answer, with the time since when.
	clusters []string
	away     map[string]time.Time
	// cordons say which members get no more replicas, or are drained.
	cordons map[string]string
	// slow are members that take long for writes, with what they are about to do. Since began that is so, and cached is what their caches had before.
	slow   map[string][]func()
	began  map[string]time.Time
	cached map[string][]Child
}

func newWorld(t rapid.TB, h *worlds.History, policy *Policy) *world {
	t.Helper()
	return &world{t: t, policy: policy, random: h, now: time.Unix(10_000, 0), room: make([]int32, len(policy.Subsets)), crashed: map[string]bool{}}
}

func (w *world) say(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf("%6s ", w.now.Sub(time.Unix(10_000, 0)))+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	last := w.history[max(len(w.history)-16, 0):]
	w.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(last, "\n"))
}

func (w *world) String() string {
	var parts []string
	for i := range w.children {
		c := &w.children[i]
		ready, bound := 0, 0
		for _, pod := range c.Pods {
			if pod.Ready {
				ready++
			}
			if pod.Bound {
				bound++
			}
		}
		parts = append(parts, fmt.Sprintf("%s=%d+%d(%d bound, %d ready)", c.Subset, c.Replicas-c.Trial, c.Trial, bound, ready))
	}
	return strings.Join(parts, " ")
}

func (w *world) asked() (n int32) {
	for i := range w.children {
		n += w.children[i].Replicas
	}
	return n
}

// clock is what the controller's clock shows.
func (w *world) clock() time.Time { return w.now.Add(w.skew) }

// reconcile does what the plan says. A crash ends it after some of the writes.
func (w *world) reconcile(crash bool) {
	w.t.Helper()
	status := w.status.DeepCopy()
	var seen []Child
	for _, child := range w.children {
		if _, away := w.away[child.Cluster]; !away && w.cached[child.Cluster] == nil {
			child.Pods = slices.Clone(child.Pods)
			seen = append(seen, child)
		}
	}
	observed := Observed{Now: w.clock(), Revision: "r1", Children: seen, Status: status}
	for _, name := range w.clusters {
		_, away := w.away[name]
		observed.Clusters = append(observed.Clusters, sites.Cluster{Name: name, Reachable: !away, Late: w.cached[name] != nil, Cordoned: w.cordons[name] == "cordon", Drained: w.cordons[name] == "drain"})
		if !away {
			observed.Children = append(observed.Children, w.cached[name]...)
		}
	}
	plan := w.policy.Plan(observed)
	if crash && w.random.IntN(3) == 0 {
		w.say("crash before the status")
		return
	}
	w.status = plan.Status // the first write
	w.afford(plan.Children)
	for i, wanted := range plan.Children {
		if crash && w.random.IntN(2) == 0 {
			w.say("crash before write %d of %d", i+1, len(plan.Children))
			return
		}
		if wanted.Late || w.begin(wanted) {
			continue
		}
		before := w.asked()
		if w.write(wanted, w.policy.Subsets); w.asked() > before {
			w.check()
		}
	}
	for _, label := range plan.Labels {
		for i := range w.children {
			for j := range w.children[i].Pods {
				if pod := &w.children[i].Pods[j]; pod.Name == label.Name {
					pod.Reserved = label.Reserved
				}
			}
		}
	}
}

// afford lowers what is raised by what slow members keep meanwhile.
func (w *world) afford(all []Wanted) {
	raises, kept := make([]int32, len(all)), int64(0)
	for i := range all {
		before := int32(0)
		if all[i].Child != nil {
			before = all[i].Child.Replicas
		}
		raises[i] = max(all[i].Replicas-before, 0)
		if _, slow := w.slow[all[i].Cluster]; slow {
			kept += int64(max(before-all[i].Replicas, 0))
		}
	}
	was := slices.Clone(raises)
	allocation.Afford(raises, kept)
	for i := range all {
		all[i].Replicas -= was[i] - raises[i]
		all[i].Trial = max(all[i].Trial-(was[i]-raises[i]), 0)
	}
}

// begin is true if the write goes to a slow member. It ends later, and until then the cache is what it is now.
func (w *world) begin(wanted Wanted) bool {
	writes, is := w.slow[wanted.Cluster]
	if !is {
		return false
	}
	if w.cached[wanted.Cluster] == nil {
		w.cached[wanted.Cluster], w.began[wanted.Cluster] = []Child{}, w.now
		for _, child := range w.children {
			if child.Cluster == wanted.Cluster {
				child.Pods = slices.Clone(child.Pods)
				w.cached[wanted.Cluster] = append(w.cached[wanted.Cluster], child)
			}
		}
	}
	subsets, total, allAnswer := w.policy.Subsets, w.policy.Replicas, len(w.away) == 0
	w.slow[wanted.Cluster] = append(writes, func() {
		before := w.asked()
		if w.write(wanted, subsets); w.asked() > before && allAnswer && w.policy.Replicas == total { // others may run what was in a cluster that has returned since
			w.check()
		}
	})
	return true
}

// end lets a slow member do what it is about to do, in the order of the plan. Of one that does not answer any more, nobody knows whether it does.
func (w *world) end(name string) {
	w.t.Helper()
	if _, away := w.away[name]; away && w.random.IntN(2) == 0 {
		w.slow[name] = nil
	}
	w.say("%s answers at last", name)
	for _, write := range w.slow[name] {
		write()
	}
	delete(w.cached, name)
	delete(w.slow, name)
}

func (w *world) write(wanted Wanted, subsets []Subset) {
	if wanted.Child == nil {
		w.made++
		w.children = append(w.children, Child{
			Cluster: subsets[wanted.Subset].Cluster,
			Kind:    w.policy.Template.Kind, Name: fmt.Sprint("c", w.made), Subset: subsets[wanted.Subset].Name,
			Revision: "r1", Replicas: wanted.Replicas, Trial: wanted.Trial, ByOrdinal: w.policy.Template.Kind == StatefulSetKind, Created: w.now,
		})
		w.say("make %s with %d", subsets[wanted.Subset].Name, wanted.Replicas)
		return
	}
	for i := range w.children {
		child := &w.children[i]
		if child.Name != wanted.Child.Name {
			continue
		}
		if wanted.Delete {
			w.say("delete %s", child.Name)
			w.children = slices.Delete(w.children, i, i+1)
			return
		}
		if child.Replicas != wanted.Replicas || child.Trial != wanted.Trial {
			w.say("%s from %d+%d to %d+%d", child.Subset, child.Replicas-child.Trial, child.Trial, wanted.Replicas-wanted.Trial, wanted.Trial)
		}
		child.Replicas, child.Trial = wanted.Replicas, wanted.Trial
		return
	}
}

// check holds that the children ask for no more than they may. The total may have been lowered, and reservations may have become ready, so this holds after writes
// that raise a child, and after all writes of a plan.
func (w *world) check() {
	w.t.Helper()
	reserved := int32(0)
	if w.policy.Adaptive != nil && w.policy.Adaptive.Reserve {
		for i := range w.children {
			for _, pod := range w.children[i].Pods {
				if !pod.Ready && (pod.Reserved != nil && *pod.Reserved || !pod.Bound && !pod.UnschedulableSince.IsZero() && w.clock().Sub(pod.UnschedulableSince) >= w.policy.Adaptive.Critical) {
					reserved++
				}
			}
		}
	}
	most, asked := w.policy.Replicas+w.policy.Surge+reserved, w.asked()
	for i := range w.children {
		if since, away := w.away[w.children[i].Cluster]; away && w.now.Sub(since) >= sites.LostAfter {
			asked -= w.children[i].Replicas // others run them
		}
	}
	for _, s := range w.status.SubsetStatuses {
		if since, away := w.away[s.Cluster]; away && w.now.Sub(since) >= sites.Doubt {
			most += max(s.Replicas-s.SeenReplicas, s.SeenReplicas-s.Replicas) // nobody knows whether the last write has arrived
		}
	}
	for _, c := range w.status.Clusters {
		if since, away := w.away[c.Name]; away && w.now.Sub(since) >= sites.Doubt {
			most += max(c.SeenLeavingReplicas-c.LeavingReplicas, 0)
		}
	}
	if asked > most {
		w.fail("the children ask for %d of %d, with a surge of %d and %d reserved: %s", asked, w.policy.Replicas, w.policy.Surge, reserved, w)
	}
}

// live lets the controllers of the children and the scheduler act, and time pass.
func (w *world) live(passed time.Duration) {
	w.now = w.now.Add(passed)
	for i := range w.children {
		child := &w.children[i]
		for len(child.Pods) > int(child.Replicas) {
			at := w.victim(child)
			if child.Pods[at].Bound {
				w.say("%s loses a bound pod", child.Subset)
			}
			child.Pods = slices.Delete(child.Pods, at, at+1)
		}
		for len(child.Pods) < int(child.Replicas) {
			w.pods++
			child.Pods = append(child.Pods, Pod{Name: fmt.Sprint("p", w.pods), Revision: "r1", Ordinal: int32(len(child.Pods)), UnschedulableSince: time.Time{}})
		}
	}
	for s, name := range []string{"a", "b", "c", "d"}[:len(w.room)] {
		var bound int32
		for i := range w.children {
			if w.children[i].Subset == name {
				for j := range w.children[i].Pods {
					if w.children[i].Pods[j].Bound {
						bound++
					}
				}
			}
		}
		for i := range w.children {
			if w.children[i].Subset != name {
				continue
			}
			for j := range w.children[i].Pods {
				switch pod := &w.children[i].Pods[j]; {
				case pod.Bound:
					pod.Ready = !w.crashed[pod.Name]
				case bound < w.room[s]:
					bound++
					pod.Bound, pod.UnschedulableSince = true, time.Time{}
				case pod.UnschedulableSince.IsZero():
					pod.UnschedulableSince = w.now
					w.waited++
				}
			}
		}
	}
}

// victim is the pod that the child's controller deletes first: one that is not bound, then one that is not ready. A StatefulSet deletes the highest ordinal.
func (w *world) victim(child *Child) int {
	last := len(child.Pods) - 1
	if child.ByOrdinal {
		return last
	}
	for _, spare := range []func(*Pod) bool{func(p *Pod) bool { return !p.Bound }, func(p *Pod) bool { return !p.Ready }} {
		for i := last; i >= 0; i-- {
			if spare(&child.Pods[i]) {
				return i
			}
		}
	}
	return last
}

func (w *world) bound() (n int32) {
	for i := range w.children {
		n += w.children[i].count(func(pod *Pod) bool { return pod.Bound })
	}
	return n
}

func (w *world) ready() (n int32) {
	for i := range w.children {
		for _, pod := range w.children[i].Pods {
			if pod.Ready {
				n++
			}
		}
	}
	return n
}

const (
	critical      = 30 * time.Second
	unschedulable = 5 * time.Minute
)

// TestNothingThatRunsIsDeletedToFindOut lets the room of subsets change at random under Adaptive UnitedDeployments, with crashes between writes. At every write the
// sum holds. While the total stays as it is, ready pods never become fewer than the total because of a move. When the room stays as it is, everything comes to rest,
// and what rests is what the room allows, from the first subset on.
func TestNothingThatRunsIsDeletedToFindOut(t *testing.T) {
	worlds.Check(t, "rooms", 150, roomsChange)
}

// TestNothingThatRunsIsDeletedWhenAClockJumps is the same while the controller's clock jumps by an hour, back and forth. Once it is right again, everything comes to rest within an hour and the times
// that there always are: a condition whose time is an hour ahead is an hour longer in force.
func TestNothingThatRunsIsDeletedWhenAClockJumps(t *testing.T) {
	worlds.Check(t, "rooms and a clock", 100, roomsChangeAndAClockJumps)
}

// TestHistories plays the histories that found a fault.
func TestHistories(t *testing.T) {
	worlds.Replay(t, map[string]worlds.Play{"rooms": roomsChange, "rooms and a clock": roomsChangeAndAClockJumps, "children": childrenGo, "clusters": clustersGoAndReturn})
}

var (
	roomsChange               = nothingIsDeletedToFindOut(false, "reserve", "plain")
	roomsChangeAndAClockJumps = nothingIsDeletedToFindOut(true, "reserve", "plain")
)

func nothingIsDeletedToFindOut(jumps bool, kinds ...string) worlds.Play {
	return func(t rapid.TB, random *worlds.History) {
		kind := random.Pick(kinds...)
		subsets := []Subset{{Name: "a"}, {Name: "b"}, {Name: "c"}}[:2+random.IntN(2)]
		for i := range subsets {
			if random.IntN(3) == 0 {
				subsets[i].Min = count(int32(random.IntN(4)))
			}
			if i < len(subsets)-1 && random.IntN(2) == 0 {
				subsets[i].Max = count(subsets[i].Min.Value + int32(random.IntN(8)))
			}
		}
		policy := policyOf(int32(1+random.IntN(20)), subsets...)
		policy.Adaptive = &adaptive{Critical: critical, Unschedulable: unschedulable, Reserve: kind == "reserve"}
		if kind != "reserve" && random.IntN(3) == 0 {
			policy.Template.Kind = StatefulSetKind
		}
		w := newWorld(t, random, policy)
		w.changeRoom(random)
		for range random.Steps(60) {
			switch random.IntN(12) {
			case 0:
				w.changeRoom(random)
			case 1:
				policy.Replicas = int32(random.IntN(25))
				policy.Surge = max((policy.Replicas+3)/4, 1)
				w.say("%d replicas", policy.Replicas)
			case 2, 3:
				if jumps {
					w.skew = time.Duration(random.IntN(3)-1) * time.Hour
					w.say("the clock is %s ahead", w.skew)
				}
			case 4:
				if policy.Template.Kind != StatefulSetKind { // it ends the highest ordinals, whether they are ready or not
					w.crash(random)
				}
			}
			w.round(random.IntN(4) == 0)
		}
		if jumps {
			w.skew = 0
			w.say("the clock is right")
			for end := w.now.Add(time.Hour); w.now.Before(end); {
				w.round(false)
			}
		}
		w.rest()
	}
}

// round is a reconcile and some time.
func (w *world) round(crash bool) {
	w.t.Helper()
	// As long as there are no more pods than wanted, a move takes none away.
	before := min(w.ready(), w.policy.Replicas)
	if w.bound() > w.policy.Replicas+w.policy.Surge && len(w.crashed) > 0 {
		before = 0 // the total was lowered just now: pods that crash stay where they should be, and others end because of the limit
	}
	if w.reconcile(crash); !crash {
		w.check()
	}
	w.live(time.Duration(1+w.random.IntN(20)) * time.Second)
	if w.ready() < before {
		w.fail("%d pods are ready, and %d were before: %s", w.ready(), before, w)
	}
}

// crash makes some of the pods that are ready crash, or all recover.
func (w *world) crash(random *worlds.History) {
	if clear(w.crashed); random.IntN(3) == 0 {
		w.say("no pod crashes any more")
	}
	for i := range w.children {
		for j := range w.children[i].Pods {
			if pod := &w.children[i].Pods[j]; pod.Ready && random.IntN(3) == 0 {
				w.say("%s of %s crashes", pod.Name, w.children[i].Subset)
				w.crashed[pod.Name], pod.Ready = true, false
			}
		}
	}
}

// changeRoom gives subsets other room. Nodes that run pods stay.
func (w *world) changeRoom(random *worlds.History) {
	for i := range w.room {
		w.room[i] = int32(random.IntN(15))
	}
	w.room[len(w.room)-1] = 100
	w.say("room %v", w.room)
}

// rest lets everything come to rest with the room as it is, and checks what rests.
func (w *world) rest() {
	w.t.Helper()
	clear(w.crashed)
	for end := w.now.Add(4 * sites.LongestRetry); w.now.Before(end); w.now = w.now.Add(time.Minute) { // the last trial may have failed just now, and the next ones begin with one replica
		w.round(false)
	}
	before := len(w.history)
	for range 150 {
		w.round(false)
	}
	for _, line := range w.history[before:] {
		if strings.Contains(line, "loses a bound pod") {
			w.fail("a bound pod is lost at rest: %s", w)
		}
	}
	if w.ready() < w.policy.Replicas {
		w.fail("%d of %d are ready at rest, with room %v: %s", w.ready(), w.policy.Replicas, w.room, w)
	}
	// Each subset has what it should, as far as it has room.
	left := w.policy.Replicas
	for i := range w.policy.Subsets {
		left -= w.policy.Subsets[i].Min.Of(w.policy.Replicas)
	}
	for i := range w.policy.Subsets {
		s := &w.policy.Subsets[i]
		var ready int32
		for j := range w.children {
			for _, pod := range w.children[j].Pods {
				if w.children[j].Subset == s.Name && pod.Ready {
					ready++
				}
			}
		}
		if left < 0 || i == len(w.policy.Subsets)-1 {
			break
		}
		want := s.Min.Of(w.policy.Replicas) + left
		if s.Max.IsSet {
			want = min(want, s.Max.Of(w.policy.Replicas))
		}
		want = min(want, max(w.room[i], ready))
		if ready < want {
			w.fail("subset %s has %d ready pods and could have %d, with room %v: %s", s.Name, ready, want, w.room, w)
		}
		left -= max(want-s.Min.Of(w.policy.Replicas), 0)
	}
}

// TestChildrenGoWhenOthersAreReady removes and adds subsets, switches the kind, and makes duplicates, with crashes between writes. At every write the sum holds, and
// ready pods never become fewer than the total. In the end only the right children are left.
func TestChildrenGoWhenOthersAreReady(t *testing.T) { worlds.Check(t, "children", 100, childrenGo) }

func childrenGo(t rapid.TB, random *worlds.History) {
	t.Helper()
	policy := policyOf(int32(1+random.IntN(12)), Subset{Name: "a"}, Subset{Name: "b"})
	if random.IntN(2) == 0 {
		policy.Adaptive = &adaptive{Critical: critical, Unschedulable: unschedulable, Lost: sites.LostAfter}
	}
	w := newWorld(t, random, policy)
	w.room = []int32{100, 100, 100, 100}
	for range 4 {
		w.round(false)
	}
	for range 4 {
		switch random.IntN(4) {
		case 0:
			names := [][]string{{"a", "b"}, {"b", "c"}, {"c"}, {"a", "c", "d"}}[random.IntN(4)]
			policy.Subsets = nil
			for _, name := range names {
				policy.Subsets = append(policy.Subsets, Subset{Name: name})
			}
			w.say("subsets %v", names)
		case 1:
			if policy.Template.Kind == DeploymentKind {
				policy.Template = &Template{Kind: CloneSetKind}
			} else {
				policy.Template = &Template{Kind: DeploymentKind}
			}
			w.say("kind %s", policy.Template.Kind)
		case 2:
			copied := w.children[random.IntN(len(w.children))]
			w.made++
			copied.Name, copied.Pods = fmt.Sprint("c", w.made), nil
			w.children = append(w.children, copied)
			w.say("copy of %s with %d", copied.Subset, copied.Replicas)
		case 3:
			w.crash(random)
		}
		for range 5 + random.IntN(20) {
			w.round(random.IntN(4) == 0)
		}
	}
	clear(w.crashed)
	for range 100 {
		w.round(false)
	}
	if len(w.children) != len(policy.Subsets) || w.asked() != policy.Replicas || w.ready() != policy.Replicas {
		w.fail("it ends with %d children for %d subsets: %s", len(w.children), len(policy.Subsets), w)
	}
}

// TestClustersGoAwayAndReturn has subsets in the cluster of the UnitedDeployment and in members that go away and return at random, with crashes between writes. Whatever is raised,
// all children together, in clusters that answer or not, ask for no more than the total and the surge, but for clusters that have been away for so long that others run their replicas.
// No pod ends that is missed. With strategy Fixed nobody runs what is in a cluster that does not answer. In the end, everything is as it should be.
func TestClustersGoAwayAndReturn(t *testing.T) { worlds.Check(t, "clusters", 300, clustersGoAndReturn) }

func clustersGoAndReturn(t rapid.TB, random *worlds.History) {
	t.Helper()
	all := []Subset{{Name: "a", Cluster: "m1"}, {Name: "b", Cluster: "m1"}, {Name: "c", Cluster: "m2"}, {Name: "d"}}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	policy := policyOf(int32(1+random.IntN(20)), all[:2+random.IntN(3)]...)
	if random.IntN(2) == 0 {
		policy.Adaptive = &adaptive{Critical: critical, Unschedulable: unschedulable, Lost: sites.LostAfter}
		for i := range policy.Subsets {
			if random.IntN(3) == 0 {
				policy.Subsets[i].Min = count(int32(random.IntN(4)))
			}
		}
	}
	w := newWorld(t, random, policy)
	w.room, w.clusters, w.away = []int32{100, 100, 100, 100}, []string{"m1", "m2"}, map[string]time.Time{}
	w.slow, w.began, w.cached, w.cordons = map[string][]func(){}, map[string]time.Time{}, map[string][]Child{}, map[string]string{}
	for range random.Steps(80) {
		switch random.IntN(13) {
		case 0, 1:
			name := w.clusters[random.IntN(2)]
			if _, away := w.away[name]; away {
				delete(w.away, name)
				w.say("%s returns", name)
			} else {
				w.away[name] = w.now
				for _, c := range w.status.Clusters {
					if c.Name == name && (c.State == v1beta1.ClusterUnreachable || c.State == v1beta1.ClusterLost) {
						w.away[name] = c.Since.Time // nobody has noticed that it was there meanwhile
					}
				}
				w.say("%s goes away", name)
			}
		case 2:
			policy.Replicas = int32(random.IntN(25))
			policy.Surge = max((policy.Replicas+3)/4, 1)
			w.say("%d replicas", policy.Replicas)
		case 3:
			if random.IntN(3) == 0 {
				policy.Subsets = slices.Clone(all[:1+random.IntN(4)])
				w.say("subsets %v", policy.Subsets)
			}
		case 4:
			if len(w.away) > 0 && random.IntN(3) == 0 {
				w.now = w.now.Add(sites.LostAfter)
			}
		case 5, 6:
			name := w.clusters[random.IntN(2)]
			if _, slow := w.slow[name]; slow && w.cached[name] == nil {
				delete(w.slow, name)
				w.say("%s is quick again", name)
			} else if !slow {
				w.slow[name] = nil
				w.say("%s becomes slow", name)
			}
		case 7:
			name := w.clusters[random.IntN(2)]
			w.cordons[name] = random.Pick("", "", "cordon", "drain")
			w.say("%s: %q", name, w.cordons[name])
		}
		w.clustersRound(random.IntN(4) == 0)
	}
	for _, name := range w.clusters {
		w.end(name)
	}
	clear(w.cordons)
	clear(w.away)
	w.say("all return")
	for range 100 {
		w.clustersRound(false)
	}
	if len(w.children) != len(policy.Subsets) || w.asked() != policy.Replicas || w.ready() != policy.Replicas {
		w.fail("it ends with %d children for %d subsets, %d replicas: %s", len(w.children), len(policy.Subsets), policy.Replicas, w)
	}
	if len(w.status.Clusters) != len(policy.Clusters()) {
		w.fail("the status remembers %v", w.status.Clusters)
	}
}

// clustersRound is a reconcile and some time, in which a ready pod ends only if there are enough.
func (w *world) clustersRound(crash bool) {
	w.t.Helper()
	enough := w.ready() >= w.policy.Replicas
	for _, name := range w.clusters {
		if w.cached[name] != nil && w.now.Sub(w.began[name]) >= 15*time.Second { // as members.DefaultDeadline
			w.end(name)
			enough = false // it does what was right then, and the total may be another one now
		}
	}
	w.reconcile(crash)
	w.live(time.Duration(1+w.random.IntN(20)) * time.Second)
	if enough && w.ready() < w.policy.Replicas {
		w.fail("%d pods are ready, and %d are wanted: %s", w.ready(), w.policy.Replicas, w)
	}
}

// TestTrialsBackOff: the first of two subsets never has room. In six hours, few pods are made that find no node, and the subset is asked for at most once an hour in the end. When it has room, it gets all of its replicas.
func TestTrialsBackOff(t *testing.T) {
	policy := policyOf(1000, Subset{Name: "a"}, Subset{Name: "b"})
	policy.Adaptive = &adaptive{Critical: critical, Unschedulable: unschedulable}
	w := newWorld(t, nil, policy)
	w.room = []int32{0, 2000}
	changes, was := 0, v1beta1.Reason("")
	play := func(d time.Duration) {
		for end := w.now.Add(d); w.now.Before(end); {
			w.reconcile(false)
			if is := ConditionIn(w.status.SubsetStatuses[0].Conditions, v1beta1.SubsetSchedulable); is.Reason != was {
				changes, was = changes+1, is.Reason
			}
			w.live(10 * time.Second)
		}
	}
	play(10 * time.Minute)
	if first := w.waited; first < 1000 {
		t.Errorf("%d pods waited at first", first)
	}
	w.waited, changes = 0, 0
	play(6 * time.Hour)
	if w.waited > 500 || changes > 20 {
		t.Errorf("%d pods were made that found no node, and the condition changed %d times", w.waited, changes)
	}
	w.room[0] = 400
	play(2 * time.Hour)
	if got := w.String(); got != "b=600+0(600 bound, 600 ready) a=400+0(400 bound, 400 ready)" && got != "a=400+0(400 bound, 400 ready) b=600+0(600 bound, 600 ready)" {
		t.Errorf("got %s", got)
	}
}
