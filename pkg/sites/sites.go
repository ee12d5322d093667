// Package sites is what the models of UnitedDeployments and FederatedReplicaSets both say of clusters: since when one
// does not answer, what others may do meanwhile, and which name it has now. It is plain data, without client and clock.
package sites

import "time"

// LostAfter is for how long a cluster may not answer before others run its replicas, if its users do not say otherwise.
const LostAfter = 300 * time.Second

// Doubt is for how long others make nothing that a place may have been asked for which does not answer. A request that
// fails is no sign that the write before it failed, and most places answer the next one. It is how long a hub takes at
// most to find out that a member does not answer.
const Doubt = 20 * time.Second

// LongestRetry bounds Backoff.
const LongestRetry = time.Hour

// Backoff is for how long a place without room gets no more replicas, after so many failures in a row: twice as long
// each time, up to LongestRetry, and never less than the first time.
func Backoff(first time.Duration, failures int32) time.Duration {
	after := first
	for ; failures > 1 && after > 0 && after < LongestRetry; failures-- {
		after *= 2
	}
	return max(min(after, LongestRetry), first)
}

// Credit is how many replicas others leave to a place that does not answer: those that it was surely asked for. Of a
// lost place that is its minimum at most: the others run the rest.
func Credit(sure, minimum int32, lost bool) int32 {
	if lost {
		return min(sure, minimum)
	}
	return sure
}

// Kept is how many replicas the places that answer keep together while another place does not: what they were to have
// before, as far as it runs and the total allows it. If somebody lowers the total meanwhile, such as an autoscaler that
// misses metrics, nothing that surely runs ends for replicas that nobody sees.
func Kept(total, shares, running int64) int64 { return min(total, shares, running) }

// Cluster is a member of the federation, as it answers.
type Cluster struct {
	// Name, and what UnitedDeployments select clusters by. The labels must not be changed.
	Name, Namespace string
	Labels          map[string]string
	// Identity is the same for the same cluster, whatever its name is. Empty if it is not known.
	Identity string
	// Reachable is true if what is said of what runs there is not old.
	Reachable bool
	// Lives is true if the cluster is not reachable although nothing says that it is down: it refuses the hub, and
	// somebody has to mend that. Then others do not run its replicas.
	Lives bool
	// Since is when Reachable last changed. Zero if that is not known.
	Since time.Time
	// Late is true if the cluster has not answered yet in this round. What is said of what runs there may lack the last
	// write, and nothing is written there.
	Late bool
	// Cordoned is true if the cluster gets no more replicas, and Drained if those that it has move to others.
	Cordoned, Drained bool
}

// States of a cluster that does not answer, in the previous status.
const (
	unreachable = "Unreachable"
	unknown     = "Unknown"
	refusing    = "Refusing"
	lost        = "Lost"
)

// Silence is that of a cluster that does not answer.
type Silence struct {
	// Since is when it ceased to answer.
	Since time.Time
	// InDoubt is true for a moment after that: nobody knows whether the last write has arrived. Then others make
	// nothing that the cluster may have been asked for.
	InDoubt bool
	// Lost is true if others run its replicas, and Refuses if the cluster is not down.
	Lost, Refuses bool
}

// State is what the status says of the cluster.
func (s Silence) State() string {
	switch {
	case s.Lost:
		return lost
	case s.Refuses:
		return refusing
	default:
		return unreachable
	}
}

// Clock says what is over at a time, and when to look again.
type Clock struct {
	now time.Time
	// Again is after which time something changes by itself. 0 if nothing does.
	Again time.Duration
}

// ClockAt is a clock that stands.
func ClockAt(now time.Time) Clock { return Clock{now: now} }

// Wait makes somebody look again after a while.
func (c *Clock) Wait(d time.Duration) {
	if d = max(d, time.Millisecond); c.Again == 0 || d < c.Again {
		c.Again = d
	}
}

// IsOver is true if something has lasted for a while. Otherwise somebody looks again when it has.
func (c *Clock) IsOver(since time.Time, after time.Duration) bool {
	left := since.Add(after).Sub(c.now)
	if left > 0 {
		c.Wait(left)
	}
	return left <= 0
}

// Silent says since when a cluster does not answer, and what follows. The previous status, a state with its time, is
// right about it even if this process has just started. of is what is known of the cluster now, nil if it is no member
// any more. One that refuses the hub is not down, and is not lost unless it was.
func (c *Clock) Silent(before string, since time.Time, of *Cluster, lostAfter time.Duration) Silence {
	var known Cluster
	if of != nil {
		known = *of
	}
	s, wasLost, refuses := Silence{Since: c.now, Refuses: known.Lives}, before == lost, known.Lives
	switch {
	case wasLost, !refuses && (before == unreachable || before == unknown), refuses && before == refusing:
		s.Since = since
	case !known.Since.IsZero():
		s.Since = known.Since
	}
	s.Lost = (!refuses || wasLost) && c.IsOver(s.Since, lostAfter)
	s.InDoubt = !s.Lost && !c.IsOver(s.Since, Doubt)
	return s
}

// Names are those of the clusters that answer. A cluster may get another name: otherwise its replicas would count
// twice.
type Names struct {
	answers map[string]bool
	named   map[string]string
}

// Add takes a cluster that answers. Identity is the same for the same cluster; empty if it is not known.
func (n *Names) Add(name, identity string) {
	if n.answers == nil {
		n.answers, n.named = map[string]bool{}, map[string]string{}
	}
	n.answers[name] = true
	if identity != "" {
		n.named[identity] = name
	}
}

// Now is the name that a cluster of an earlier name has now. It is the same name, unless none of that name answers, and
// one of another name is the same cluster.
func (n *Names) Now(name, identity string) string {
	if now, is := n.named[identity]; is && !n.answers[name] {
		return now
	}
	return name
}
