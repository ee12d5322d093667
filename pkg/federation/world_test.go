package federation

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/sites"
	"github.com/berth-project/berth/test/testkit/worlds"
)

// world is a federation that is small enough to check at every step: clusters with ReplicaSets, schedulers, and rooms that change. Nothing of the model is in it.
type world struct {
	t      rapid.TB
	policy *Policy
	// random is nil in a world in which nothing is left to chance.
	random *worlds.History
	now    time.Time
	// skew is how far the hub's clock is ahead.
	skew     time.Duration
	clusters []*cluster
	status   v1alpha1.FederatedReplicaSetStatus
	// history says what happened, for messages.
	history []string
	again   time.Duration
	// lost is how many bound pods the hub's writes have ended, and writes how often it has changed replicas.
	lost, writes int
}

// cluster is what is really there, and what the hub has seen of it.
type cluster struct {
	name string
	// identity stays if the name changes.
	identity string
	room     int32
	away     bool
	// lives is true if it is away because it refuses the hub.
	lives bool
	// silent is true for one look of the hub, to which nothing is known of the cluster although it answers.
	silent bool
	// slow is true for a look of the hub in which the cluster answers too late. Its cache does not have the last write.
	slow bool
	// ill is true while no pod becomes available.
	ill bool
	// since is when away last changed.
	since time.Time
	local *replicaSet
	// seen is local as the hub has seen it last. Nil after a restart of the hub, if the cluster is away.
	seen *Local
}

// replicaSet is what there is in a cluster.
type replicaSet struct {
	Replicas     int32
	FailingSince time.Time
	Pods         []pod
}

type pod struct {
	Bound, Available   bool
	UnschedulableSince time.Time
}

var start = time.Unix(1_700_000_000, 0)

func newWorld(t rapid.TB, random *worlds.History, policy *Policy, rooms ...int32) *world {
	t.Helper()
	w := &world{t: t, policy: policy, random: random, now: start}
	for i, room := range rooms {
		name := string(rune('a' + i))
		w.clusters = append(w.clusters, &cluster{name: name, identity: name, room: room})
	}
	return w
}

// policyOf is a policy under whose name a comes before b, and b before c.
func policyOf(replicas int32, rebalance bool, clusters map[string]bounds) *Policy {
	p := &Policy{
		Namespace: "shop", Replicas: replicas, Rebalance: rebalance, Clusters: clusters, MaxMoving: max((replicas+3)/4, 1),
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Unschedulable: defaultUnschedulable, Retry: defaultRetry, Lost: sites.LostAfter,
	}
	for i := 0; ; i++ {
		p.Name = fmt.Sprint("web-", i)
		r := &round{Policy: p}
		if r.hash("a") < r.hash("b") && r.hash("b") < r.hash("c") {
			return p
		}
	}
}

func (w *world) say(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf("%6s ", w.now.Sub(start))+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\n%s\n%s", fmt.Sprintf(format, args...), w, strings.Join(w.history[max(len(w.history)-30, 0):], "\n"))
}

func (w *world) String() string {
	var parts []string
	for _, c := range w.clusters {
		asked := int32(0)
		if c.local != nil {
			asked = c.local.Replicas
		}
		parts = append(parts, fmt.Sprintf("%s=%d(%d bound, %d available, room %d, away %v)", c.name, asked, c.bound(), c.available(), c.room, c.away))
	}
	return strings.Join(parts, " ") + " status: " + w.status.Summary
}

func (c *cluster) bound() (n int32) {
	if c.local != nil {
		for i := range c.local.Pods {
			if c.local.Pods[i].Bound {
				n++
			}
		}
	}
	return n
}

func (c *cluster) available() (n int32) {
	if c.local != nil {
		for i := range c.local.Pods {
			if c.local.Pods[i].Available {
				n++
			}
		}
	}
	return n
}

func (c *cluster) asked() int32 {
	if c.local == nil {
		return 0
	}
	return c.local.Replicas
}

func (w *world) asked() (n int32) {
	for _, c := range w.clusters {
		n += c.asked()
	}
	return n
}

func (w *world) bound() (n int32) {
	for _, c := range w.clusters {
		n += c.bound()
	}
	return n
}

func (w *world) available() (n int32) {
	for _, c := range w.clusters {
		n += c.available()
	}
	return n
}

// layout is what the clusters are asked for.
func (w *world) layout() string {
	var parts []string
	for _, c := range w.clusters {
		parts = append(parts, fmt.Sprint(c.asked()))
	}
	return strings.Join(parts, " ")
}

// localOf is what the hub is told of a ReplicaSet.
func localOf(set *replicaSet) *Local {
	if set == nil {
		return nil
	}
	l := &Local{Replicas: set.Replicas, FailingSince: set.FailingSince, Pods: int32(len(set.Pods))}
	for _, p := range set.Pods {
		if p.Bound {
			l.Bound++
		}
		if p.Available {
			l.Available++
		}
		if !p.UnschedulableSince.IsZero() {
			l.UnschedulableSince = append(l.UnschedulableSince, p.UnschedulableSince)
		}
	}
	return l
}

// clock is what the hub's clock shows.
func (w *world) clock() time.Time { return w.now.Add(w.skew) }

func (w *world) observe() Observed {
	in := Observed{Now: w.clock(), Status: w.status.DeepCopy()}
	for _, c := range w.clusters {
		if c.silent && !c.away {
			in.Members = append(in.Members, &Member{Cluster: sites.Cluster{Name: c.name}}) // as the adapter says it
			continue
		}
		slow := c.slow && !c.away
		if !c.away && (!slow || c.seen == nil) {
			c.seen = localOf(c.local)
		}
		in.Members = append(in.Members, &Member{Cluster: sites.Cluster{Name: c.name, Identity: c.identity, Reachable: !c.away, Lives: c.lives, Since: c.since, Late: slow}, Local: c.seen})
	}
	return in
}

// reconcile does what the plan says. A crash ends it before the status or after some of the writes.
func (w *world) reconcile(crash bool) {
	w.t.Helper()
	plan := w.policy.Plan(w.observe())
	w.again = plan.Again
	if crash && w.random.IntN(4) == 0 {
		w.say("crash before the status")
		return
	}
	w.status = *plan.Status.DeepCopy()
	for i, wanted := range plan.Clusters {
		if crash && w.random.IntN(2) == 0 {
			w.say("crash before write %d of %d", i+1, len(plan.Clusters))
			return
		}
		before := w.asked()
		w.write(wanted)
		most := int64(w.policy.Replicas) + int64(w.policy.MaxMoving)
		if slices.ContainsFunc(w.clusters, func(c *cluster) bool { return c.away }) {
			most += int64(w.status.MayExceedBy)
		}
		if asked := w.asked(); asked > before && int64(asked) > most {
			w.fail("the clusters are asked for %d of %d, with %d moving and %d by clusters that are away", asked, w.policy.Replicas, w.policy.MaxMoving, w.status.MayExceedBy)
		}
	}
}

func (w *world) write(wanted Wanted) {
	w.t.Helper()
	c := w.clusters[slices.IndexFunc(w.clusters, func(c *cluster) bool { return c.name == wanted.Member })]
	if c.away || c.slow {
		w.fail("%s is away or slow, and is written", c.name)
	}
	if wanted.Delete {
		if c.local == nil || len(c.local.Pods) > 0 {
			w.fail("%s is deleted with pods", c.name)
		}
		w.say("delete %s", c.name)
		c.local = nil
		return
	}
	if c.local == nil {
		c.local = &replicaSet{}
	}
	if c.local.Replicas != wanted.Replicas {
		w.writes++
		w.say("%s from %d to %d", c.name, c.local.Replicas, wanted.Replicas)
	}
	c.local.Replicas = wanted.Replicas
}

// live lets the controllers and schedulers of the clusters act, away or not, and time pass.
func (w *world) live(passed time.Duration) {
	w.now = w.now.Add(passed)
	for _, c := range w.clusters {
		if c.local == nil {
			continue
		}
		l := c.local
		for len(l.Pods) > int(l.Replicas) {
			at := slices.IndexFunc(l.Pods, func(p pod) bool { return !p.Bound })
			if at < 0 {
				at = max(slices.IndexFunc(l.Pods, func(p pod) bool { return !p.Available }), 0)
			}
			if l.Pods[at].Bound {
				w.lost++
				w.say("%s loses a bound pod", c.name)
			}
			l.Pods = slices.Delete(l.Pods, at, at+1)
		}
		for len(l.Pods) < int(l.Replicas) {
			l.Pods = append(l.Pods, pod{})
		}
		bound := c.bound()
		for i := range l.Pods {
			switch p := &l.Pods[i]; {
			case p.Bound:
				p.Available = p.Available || !c.ill
			case bound < c.room:
				bound++
				p.Bound, p.UnschedulableSince = true, time.Time{}
			case p.UnschedulableSince.IsZero():
				p.UnschedulableSince = w.now
			}
		}
	}
}

// round is a reconcile and some time.
func (w *world) round(crash bool, passed time.Duration) {
	w.t.Helper()
	enough, total, lost, over := w.available(), w.policy.Replicas, w.lost, w.asked() > w.policy.Replicas
	bound := w.bound()
	if bound > total+w.policy.MaxMoving && enough < bound {
		enough = 0 // the total was lowered just now: pods that crash stay where they should be, and others end because of the limit
	}
	answer, here, shares := w.whereItAnswers()
	w.reconcile(crash)
	w.live(passed)
	if now := availableIn(answer); len(answer) < len(w.clusters) && w.available() == w.bound() && bound == enough && now < min(here, total, shares) {
		w.fail("a cluster is away, and %d of %d replicas run where clusters answer; the total is %d, and their shares were %d", now, here, total, shares)
	}
	if now := w.available(); now < min(enough, total) {
		w.fail("%d pods are available, and %d of %d were before", now, enough, total)
	}
	// Without rebalancing, bound pods end only if there are too many.
	if !w.policy.Rebalance && !over && w.lost > lost && w.mayStay() {
		w.fail("a pod that runs is moved")
	}
}

// whereItAnswers are the clusters that are not away, how many of their pods are available, and what they are to have by the status.
func (w *world) whereItAnswers() (answer []*cluster, here, shares int32) {
	for _, c := range w.clusters {
		if !c.away && !c.silent {
			answer = append(answer, c)
			if s := statusOf(&w.status, c.name); s != nil {
				shares += s.Share
			}
		}
	}
	return answer, availableIn(answer), shares
}

func availableIn(clusters []*cluster) (n int32) {
	for _, c := range clusters {
		n += c.available()
	}
	return n
}

// mayStay is true if no cluster has more than its maximum, or has to go.
func (w *world) mayStay() bool {
	for _, c := range w.clusters {
		if b, wanted := w.policy.BoundsOf(c.name); c.local != nil && (!wanted || c.bound() >= b.Max) {
			return false
		}
	}
	return true
}

func (w *world) setAway(i int, away bool) {
	c := w.clusters[i]
	if c.away != away {
		c.away, c.since = away, w.clock()
		w.say("%s away: %v", c.name, away)
	}
}

// restart makes the hub forget all that it has seen.
func (w *world) restart() {
	w.say("restart of the hub")
	for _, c := range w.clusters {
		if c.seen = nil; c.away {
			c.since = w.clock()
		}
	}
}

// pause is some time between two rounds, 1 to 21 s.
func pause(i int) time.Duration { return time.Duration(1000+7919*i%20_000) * time.Millisecond }

// rest lets the world run for long, and wants no replica to move in the last part of it, but for trials.
func (w *world) rest() {
	w.t.Helper()
	for i := range 400 {
		w.round(false, pause(i))
	}
	lost := w.lost
	for i := range 400 {
		w.round(false, pause(i))
	}
	if w.lost > lost {
		w.fail("%d bound pods end at rest", w.lost-lost)
	}
}

func weight(n int32) bounds { return bounds{Max: allocation.Unlimited, Weight: n} }

// TestScenarios has the layouts of the proposal for federated ReplicaSets, scenarios 1 to 7, for 50 replicas: what the clusters are asked for when all has come to rest.
func TestScenarios(t *testing.T) {
	const lots = 1000
	all := func(b bounds) map[string]bounds { return map[string]bounds{"*": b} }
	four := map[string]bounds{"*": weight(1), "c": {Max: 20, Weight: 1}}
	five := map[string]bounds{"a": weight(1_000_000), "b": weight(1), "c": weight(1)}
	for name, tc := range map[string]struct {
		clusters map[string]bounds
		rebal    bool
		rooms    [3]int32
		has      [3]int32
		away     string
		want     string
	}{
		"1: evenly":                             {all(weight(1)), true, [3]int32{lots, lots, lots}, [3]int32{}, "", "16 17 17"},
		"1: c has capacity for 6":               {all(weight(1)), true, [3]int32{lots, lots, 6}, [3]int32{}, "", "22 22 6"},
		"1: b and c are offline":                {all(weight(1)), true, [3]int32{lots, lots, lots}, [3]int32{}, "bc", "50 0 0"},
		"2: at most 2, with a weight":           {all(bounds{Max: 2, Weight: 1}), true, [3]int32{lots, lots, lots}, [3]int32{}, "", "2 2 2"},
		"2: at least 2, without a weight":       {all(bounds{Min: 2, Max: allocation.Unlimited}), true, [3]int32{lots, lots, lots}, [3]int32{}, "", "2 2 2"},
		"2: at least and at most 2":             {all(bounds{Min: 2, Max: 2}), true, [3]int32{lots, lots, lots}, [3]int32{}, "", "2 2 2"},
		"3: at least 20":                        {all(bounds{Min: 20, Max: allocation.Unlimited}), true, [3]int32{lots, lots, lots}, [3]int32{}, "", "20 20 10"},
		"4: all have capacity":                  {four, true, [3]int32{lots, lots, lots}, [3]int32{}, "", "16 17 17"},
		"4: b is offline":                       {four, true, [3]int32{lots, lots, lots}, [3]int32{}, "b", "30 0 20"},
		"4: b has no capacity":                  {four, true, [3]int32{lots, 0, lots}, [3]int32{}, "", "30 0 20"},
		"4: a and b are offline":                {four, true, [3]int32{lots, lots, lots}, [3]int32{}, "ab", "0 0 20"},
		"5: all have capacity":                  {five, false, [3]int32{lots, lots, lots}, [3]int32{}, "", "50 0 0"},
		"5: a has capacity for 40":              {five, false, [3]int32{40, lots, lots}, [3]int32{}, "", "40 5 5"},
		"6: a gets twice as many":               {map[string]bounds{"a": weight(2), "b": weight(1), "c": weight(1)}, false, [3]int32{lots, lots, lots}, [3]int32{}, "", "25 12 13"},
		"7: a has 20":                           {all(weight(1)), false, [3]int32{lots, lots, lots}, [3]int32{20}, "", "20 15 15"},
		"7: a has 20, and c has capacity for 6": {all(weight(1)), false, [3]int32{lots, lots, 6}, [3]int32{20}, "", "22 22 6"},
		"7: a has 30, and c has capacity for 6": {all(weight(1)), false, [3]int32{lots, lots, 6}, [3]int32{30}, "", "30 14 6"},
		"with rebalance a gives replicas away":  {all(weight(1)), true, [3]int32{lots, lots, 6}, [3]int32{30}, "", "22 22 6"},
		"minimums go by weight":                 {map[string]bounds{"a": {Min: 40, Max: 40, Weight: 1}, "b": {Min: 40, Max: 40, Weight: 2}}, true, [3]int32{lots, lots, lots}, [3]int32{}, "", "10 40 0"},
		"without rebalance, a cluster without a weight keeps what runs": {map[string]bounds{"a": weight(1), "b": {Max: 20}}, false, [3]int32{lots, lots, lots}, [3]int32{0, 12}, "", "38 12 0"},
		"with rebalance it does not":                                    {map[string]bounds{"a": weight(1), "b": {Max: 20}}, true, [3]int32{lots, lots, lots}, [3]int32{0, 12}, "", "50 0 0"},
		"replicas without room wait where they are":                     {all(weight(1)), false, [3]int32{16, 17, 6}, [3]int32{}, "", "22 22 6"},
		"a cluster without an entry gets nothing":                       {map[string]bounds{"a": weight(1), "b": weight(1)}, true, [3]int32{lots, lots, lots}, [3]int32{0, 0, 12}, "", "25 25 0"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil, policyOf(50, tc.rebal, tc.clusters), tc.rooms[:]...)
			for i, n := range tc.has {
				if n > 0 {
					w.clusters[i].local = &replicaSet{Replicas: n}
				}
				w.setAway(i, strings.Contains(tc.away, w.clusters[i].name))
			}
			w.live(time.Second)
			w.live(time.Second)
			for range 60 {
				w.reconcile(false)
				w.live(3 * time.Second)
			}
			if got := w.layout(); got != tc.want {
				w.fail("got %s, want %s", got, tc.want)
			}
			if c := w.status.Conditions; len(c) != 3 {
				t.Errorf("conditions %v", c)
			}
		})
	}
}

// TestNothingIsMovedInVain lets clusters get lost and return, rooms change, the hub crash and restart, and the total change, at random. At every write the sum holds. While the
// total stays as it is, available pods never become fewer than the total because of a move. When all stays as it is, everything comes to rest, and all replicas that have room run.
func TestNothingIsMovedInVain(t *testing.T) {
	worlds.Check(t, "clusters", 120, nothingIsMovedInVain(false))
}

// TestNothingIsMovedInVainWhenAClockJumps is the same while the hub's clock jumps by an hour, back and forth. Once it is right again, everything comes to rest within an hour and the times that there
// always are.
func TestNothingIsMovedInVainWhenAClockJumps(t *testing.T) {
	worlds.Check(t, "clusters and a clock", 120, nothingIsMovedInVain(true))
}

// TestHistories plays the histories that found a fault.
func TestHistories(t *testing.T) {
	worlds.Replay(t, map[string]worlds.Play{"clusters": nothingIsMovedInVain(false), "clusters and a clock": nothingIsMovedInVain(true)})
}

func nothingIsMovedInVain(jumps bool) worlds.Play {
	return func(t rapid.TB, random *worlds.History) {
		clusters := map[string]bounds{"*": weight(1)}
		for _, name := range []string{"a", "b", "c", "d"} {
			b := bounds{Max: allocation.Unlimited, Weight: int32(1 + random.IntN(4))}
			if random.IntN(3) == 0 {
				b.Min = int32(random.IntN(4))
			}
			if random.IntN(4) == 0 {
				b.Max = b.Min + int32(random.IntN(8))
			}
			if random.IntN(2) == 0 {
				clusters[name] = b
			}
		}
		policy := policyOf(int32(1+random.IntN(30)), random.Yes("rebalance", 2), clusters)
		w := newWorld(t, random, policy, make([]int32, 2+random.IntN(3))...)
		w.changeRoom()
		var silent, slow *cluster // in this look
		options := []string{"room", "total", "away", "away", "silent", "slow", "restart", "clock", "clock", "ill", "round", "round", "round", "round", "round", "round", "round"}
		for range random.Steps(80) {
			was := silent
			if silent = nil; was != nil {
				was.silent = false
			}
			if slow != nil {
				slow.slow = false
			}
			switch random.Pick(options...) {
			case "room":
				w.changeRoom()
			case "total":
				policy.Replicas = int32(random.IntN(40))
				policy.MaxMoving = max((policy.Replicas+3)/4, 1)
				w.say("%d replicas", policy.Replicas)
			case "away":
				i := random.IntN(len(w.clusters))
				w.setAway(i, !w.clusters[i].away)
			case "silent":
				if silent = w.clusters[random.IntN(len(w.clusters))]; silent != was { // twice in a row is no accident
					silent.silent = true
					w.say("%s does not answer once", silent.name)
				}
			case "slow":
				slow = w.clusters[random.IntN(len(w.clusters))]
				slow.slow = true
				w.say("%s answers late", slow.name)
			case "restart":
				w.restart()
			case "ill":
				w.makeIll(random)
			case "clock":
				if jumps {
					w.skew = time.Duration(random.IntN(3)-1) * time.Hour
					w.say("the clock is %s ahead", w.skew)
				}
			}
			w.round(random.Yes("crash", 4), time.Duration(1+random.Number("after", 21))*time.Second)
			if random.Yes("late", 10) {
				w.live(time.Duration(random.IntN(400)) * time.Second)
			}
		}
		for i := range w.clusters {
			w.setAway(i, false)
			w.clusters[i].ill, w.clusters[i].silent, w.clusters[i].slow = false, false, false
		}
		if jumps {
			w.skew = 0
			w.say("the clock is right")
			i := 0
			for end := w.now.Add(time.Hour); w.now.Before(end); i++ {
				w.round(false, pause(i))
			}
		}
		w.rest()
		w.checkRest()
	}
}

// makeIll makes some pods of a cluster crash, and others there do not become available until it is well again.
func (w *world) makeIll(random *worlds.History) {
	c := w.clusters[random.IntN(len(w.clusters))]
	if c.away {
		return // nobody would know
	}
	c.ill = !c.ill
	w.say("%s ill: %v", c.name, c.ill)
	if c.local != nil && c.ill {
		for i := range c.local.Pods {
			if p := &c.local.Pods[i]; p.Available && random.IntN(2) == 0 {
				p.Available = false
			}
		}
	}
}

func (w *world) changeRoom() {
	for _, c := range w.clusters {
		if c.room = int32(w.random.IntN(20)); w.random.IntN(2) == 0 {
			c.room = 100
		}
		w.say("%s has room for %d", c.name, c.room)
	}
}

// checkRest holds that all replicas run that the bounds and rooms allow.
func (w *world) checkRest() {
	w.t.Helper()
	room := int64(0)
	for _, c := range w.clusters {
		if b, wanted := w.policy.BoundsOf(c.name); wanted {
			room += min(int64(max(c.room, c.bound())), int64(b.Max))
		}
	}
	if got := int64(w.available()); got != min(int64(w.policy.Replicas), room) {
		w.fail("%d of %d are available at rest, and there is room for %d", got, w.policy.Replicas, room)
	}
	if w.status.MayExceedBy != 0 {
		w.fail("all clusters answer, and the total may be exceeded by %d", w.status.MayExceedBy)
	}
	for _, c := range w.status.Clusters {
		if c.State != v1alpha1.ClusterReady && c.State != v1alpha1.ClusterFull {
			w.fail("%s is %s", c.Name, c.State)
		}
	}
}

// until runs rounds for some time.
func (w *world) until(passed time.Duration) {
	w.t.Helper()
	for end := w.now.Add(passed); w.now.Before(end); {
		w.reconcile(false)
		w.live(5 * time.Second)
	}
}

func (w *world) expect(want string) {
	w.t.Helper()
	if got := w.layout(); got != want {
		w.fail("got %s, want %s", got, want)
	}
}

func (w *world) expectState(name string, want v1alpha1.ClusterState) {
	w.t.Helper()
	if c := statusOf(&w.status, name); c == nil || c.State != want {
		w.fail("%s is %+v, want %s", name, c, want)
	}
}

func statusOf(s *v1alpha1.FederatedReplicaSetStatus, name string) *v1alpha1.ClusterStatus {
	for i := range s.Clusters {
		if s.Clusters[i].Name == name {
			return &s.Clusters[i]
		}
	}
	return nil
}

func TestAClusterIsLostAndReturns(t *testing.T) {
	for name, tc := range map[string]struct {
		rebalance  bool
		clusters   map[string]bounds
		lost, back string
		mayExceed  int32
	}{
		"running replicas stay where they are made": {false, map[string]bounds{"*": weight(1)}, "25 25 17", "25 25 0", 17},
		"shares are the same as before":             {true, map[string]bounds{"*": weight(1)}, "25 25 17", "16 17 17", 17},
		"a minimum is not made elsewhere":           {false, map[string]bounds{"*": {Min: 12, Max: allocation.Unlimited, Weight: 1}}, "19 19 17", "19 19 12", 5},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil, policyOf(50, tc.rebalance, tc.clusters), 100, 100, 100)
			w.until(time.Minute)
			w.expect("16 17 17")
			w.setAway(2, true)
			w.until(4 * time.Minute)
			w.expect("16 17 17")
			w.expectState("c", v1alpha1.ClusterUnreachable)
			if w.status.MayExceedBy != 0 {
				w.fail("may exceed by %d", w.status.MayExceedBy)
			}
			w.restart() // the time goes on
			w.until(2 * time.Minute)
			w.expect(tc.lost)
			w.expectState("c", v1alpha1.ClusterLost)
			if w.status.MayExceedBy != tc.mayExceed {
				w.fail("may exceed by %d, want %d", w.status.MayExceedBy, tc.mayExceed)
			}
			w.setAway(2, false)
			w.until(2 * time.Minute)
			w.expect(tc.back)
			w.expectState("c", v1alpha1.ClusterReady)
		})
	}
}

// TestAClusterThatGetsAnotherNameKeepsItsReplicas: its ClusterProfile is deleted and made again, or an older one leads to it. It is not two clusters.
func TestAClusterThatGetsAnotherNameKeepsItsReplicas(t *testing.T) {
	for _, rebalance := range []bool{true, false} {
		for _, duplicate := range []bool{true, false} {
			w := newWorld(t, nil, policyOf(12, rebalance, map[string]bounds{"*": weight(1)}), 100, 100, 100)
			w.until(time.Minute)
			w.expect("4 4 4")
			w.clusters[2].name = "d"
			if duplicate {
				w.clusters = append(w.clusters, &cluster{name: "c", away: true, lives: true, since: w.now})
			}
			w.until(10 * time.Minute)
			if got := strings.TrimSuffix(w.layout(), " 0"); got != "4 4 4" || w.lost > 0 || w.status.MayExceedBy != 0 {
				w.fail("got %s, and %d pods have ended", got, w.lost)
			}
		}
	}
}

// TestAClusterThatRefusesTheHubIsNotLost: its token has ended. The time until it is lost begins when it ceases to answer.
func TestAClusterThatRefusesTheHubIsNotLost(t *testing.T) {
	w := newWorld(t, nil, policyOf(12, true, map[string]bounds{"*": weight(1)}), 100, 100, 100)
	w.until(time.Minute)
	w.setAway(2, true)
	w.clusters[2].lives = true
	w.until(time.Hour)
	w.expect("4 4 4")
	w.expectState("c", v1alpha1.ClusterRefusing)
	w.clusters[2].lives, w.clusters[2].since = false, w.now
	w.until(4 * time.Minute)
	w.expect("4 4 4")
	w.expectState("c", v1alpha1.ClusterUnreachable)
	w.until(2 * time.Minute)
	w.expect("6 6 4")
	w.clusters[2].lives = true // it answers again, and others have its replicas
	w.until(time.Minute)
	w.expect("6 6 4")
}

func TestTheTotalIsFollowedWhileAClusterIsAway(t *testing.T) {
	w := newWorld(t, nil, policyOf(30, true, map[string]bounds{"*": weight(1)}), 100, 100, 100)
	w.until(time.Minute)
	w.expect("10 10 10")
	w.setAway(2, true)
	w.policy.Replicas = 40
	w.until(time.Minute)
	w.expect("15 15 10")
	w.policy.Replicas = 6
	w.until(time.Minute)
	w.expect("3 3 10") // nobody knows whether any of the 10 runs
	if w.status.MayExceedBy != 10 {
		w.fail("may exceed by %d, want 10", w.status.MayExceedBy)
	}
	w.policy.Replicas = 5 // in small steps, too
	w.until(time.Minute)
	if here := w.clusters[0].asked() + w.clusters[1].asked(); here != 5 {
		w.fail("%d are left where clusters answer", here)
	}
	w.policy.Replicas = 6
	w.setAway(2, false)
	w.until(time.Minute)
	w.expect("2 2 2")
}

// TestAFullClusterIsTriedAgain: c has room for 6 of 17. It is tried after 300, 600, 1200, ... seconds, and nothing that runs ends for it. When it has room, it gets its share step by step.
func TestAFullClusterIsTriedAgain(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, true, map[string]bounds{"*": weight(1)}), 100, 100, 6)
	w.policy.MaxMoving = 4
	w.until(3 * time.Minute)
	w.expect("22 22 6")
	w.expectState("c", v1alpha1.ClusterFull)
	tries, was := 0, int32(6)
	for range 4 * 60 * 12 {
		w.reconcile(false)
		w.live(5 * time.Second)
		if asked := w.clusters[2].asked(); asked > was {
			tries++
		}
		was = w.clusters[2].asked()
	}
	if tries < 4 || tries > 6 { // after about 0:05, 0:16, 0:37, 1:18, 2:19, 3:20
		w.fail("c is tried %d times in four hours", tries)
	}
	if w.lost > 0 {
		w.fail("%d pods end to find out", w.lost)
	}
	w.clusters[2].room = 100
	before, most := w.clusters[2].asked(), int32(0)
	for range 70 * 12 {
		w.reconcile(false)
		most, before = max(most, w.clusters[2].asked()-before), w.clusters[2].asked()
		w.live(5 * time.Second)
	}
	w.expect("16 17 17")
	if most != 4 {
		w.fail("c grows by %d at a time, want 4", most)
	}
	if c := statusOf(&w.status, "c"); c.Capacity != nil || c.State != v1alpha1.ClusterReady {
		w.fail("c is %+v", c)
	}
}

// TestAFederationCanLoseItsStatus: nothing that runs moves if somebody deletes the status.
func TestAFederationCanLoseItsStatus(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, false, map[string]bounds{"*": weight(1)}), 100, 100, 6)
	w.until(3 * time.Minute)
	w.expect("22 22 6")
	w.status = v1alpha1.FederatedReplicaSetStatus{}
	w.until(3 * time.Minute)
	w.expect("22 22 6")
}

// TestMovesKeepTheirPace: of 50 replicas in a, 34 move, 5 at a time.
func TestMovesKeepTheirPace(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, true, map[string]bounds{"*": weight(1)}), 100, 100, 100)
	w.policy.MaxMoving = 5
	w.clusters[0].local = &replicaSet{Replicas: 50}
	w.live(time.Second)
	w.live(time.Second)
	for range 40 {
		starting := -w.available()
		w.reconcile(false)
		for _, c := range w.clusters {
			starting += c.asked()
		}
		if starting > 5 {
			w.fail("%d move at once", starting)
		}
		w.live(5 * time.Second)
		if w.available() < 50 {
			w.fail("%d are available", w.available())
		}
	}
	w.expect("16 17 17")
}

// TestNothingMovesForBalanceWhileAClusterIsAway, because it may come back.
func TestNothingMovesForBalanceWhileAClusterIsAway(t *testing.T) {
	w := newWorld(t, nil, policyOf(30, true, map[string]bounds{"*": weight(1)}), 100, 100, 100)
	w.until(time.Minute)
	w.expect("10 10 10")
	w.setAway(2, true)
	w.policy.Clusters = map[string]bounds{"*": weight(1), "a": weight(3)}
	w.until(time.Minute)
	w.expect("10 10 10")
	w.setAway(2, false)
	w.until(2 * time.Minute)
	w.expect("18 6 6")
}

// TestAClusterThatWasFullGrowsStepByStep: it takes no more than MaxMoving of many new replicas, even if these are not moved.
func TestAClusterThatWasFullGrowsStepByStep(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, false, map[string]bounds{"*": weight(1)}), 100, 100, 6)
	w.policy.MaxMoving = 4
	w.until(3 * time.Minute)
	w.expect("22 22 6")
	w.until(5 * time.Minute)
	w.policy.Replicas = 80
	w.reconcile(false)
	w.expect("35 35 10")
}

// TestAFigureIsForgotten if nobody has tried it for an hour: nothing has moved, and nothing was missing.
func TestAFigureIsForgotten(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, false, map[string]bounds{"*": weight(1)}), 100, 100, 6)
	w.until(3 * time.Minute)
	if c := statusOf(&w.status, "c"); c.Capacity == nil || c.Capacity.Replicas != 6 {
		w.fail("c is %+v", c)
	}
	w.until(80 * time.Minute)
	w.expect("22 22 6")
	if c := statusOf(&w.status, "c"); c.Capacity != nil {
		w.fail("c is %+v", c)
	}
}

// TestAFullClusterThatLosesNodesIsSmaller: two of its six pods lose their node.
func TestAFullClusterThatLosesNodesIsSmaller(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, false, map[string]bounds{"*": weight(1)}), 100, 100, 6)
	w.until(2 * time.Minute)
	w.expect("22 22 6")
	c := w.clusters[2]
	c.room = 4
	c.local.Pods[0], c.local.Pods[1] = pod{UnschedulableSince: w.now}, pod{UnschedulableSince: w.now}
	w.until(90 * time.Second)
	w.expect("23 23 4")
}

// TestBackOffBeginsAgainAfterSuccess: c had no room five times. Two of the pods that were tried have a node now.
func TestBackOffBeginsAgainAfterSuccess(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, true, map[string]bounds{"*": weight(1)}), 100, 100, 8)
	w.until(2 * time.Minute)
	w.expect("21 21 8")
	c := statusOf(&w.status, "c")
	c.Capacity.Replicas, c.Capacity.Failures, c.Capacity.RetryTime.Time = 6, 5, w.now
	w.reconcile(false)
	if c := statusOf(&w.status, "c"); c.Capacity.Failures != 0 || c.Capacity.Replicas != 8 {
		w.fail("c is %+v", c.Capacity)
	}
	w.live(time.Second)
	w.until(70 * time.Second)
	if c := statusOf(&w.status, "c"); c.Capacity.Failures != 1 {
		w.fail("c is %+v", c.Capacity)
	}
}

// TestTheSurplusLeavesTheOneThatReturned, even if the hub ends after it has written that it has returned.
func TestTheSurplusLeavesTheOneThatReturned(t *testing.T) {
	w := newWorld(t, nil, policyOf(50, false, map[string]bounds{"*": weight(1)}), 100, 100, 100)
	w.until(time.Minute)
	w.setAway(2, true)
	w.until(6 * time.Minute)
	w.expect("25 25 17")
	w.setAway(2, false)
	w.status = w.policy.Plan(w.observe()).Status
	w.expectState("c", v1alpha1.ClusterReturned)
	w.until(time.Minute)
	w.expect("25 25 0")
}
