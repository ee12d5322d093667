package federation

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/sites"
)

// takenInterval is how often a cluster is looked at again that has another ReplicaSet of the name.
const takenInterval = 30 * time.Second

// Plan says what the ReplicaSet in every cluster is to be, and the new status.
//
// While all clusters answer, they are never asked for more than the total and MaxMoving together. A cluster that does not answer counts with what it may have, until it is lost.
func (p *Policy) Plan(in Observed) Plan {
	in.Now = in.Now.Truncate(time.Second) // as the API server stores times
	r := &round{Policy: p, Observed: in, Clock: sites.ClockAt(in.Now)}
	r.gather()
	for _, pl := range r.places {
		r.count(pl)
		r.judge(pl)
	}
	r.settle()
	r.divide()
	r.approach()
	return r.result()
}

// round is one call of Plan.
type round struct {
	*Policy
	Observed
	sites.Clock
	// places are the clusters that answer, by name, and absent those that do not.
	places []*place
	absent []*absentee
	// total is what the clusters that answer are to have: Replicas without those of the others. made are these.
	total int32
	made  int64
	// unplaced is how many replicas no cluster takes, and waiting how many are where there is no room for them.
	unplaced, waiting int32
}

// place is a cluster that answers.
type place struct {
	*Member
	bounds bounds
	// leaving is true for a cluster that gets no replicas any more.
	leaving bool
	// before is the previous status. Empty if there is none.
	before *v1alpha1.ClusterStatus
	// asked is what the ReplicaSet asks for. Of its pods, scheduled have a node, firm are those that it keeps, and available are available.
	asked, scheduled, firm, available int32
	// stuck is how many pods found no node, or could not be created, for too long.
	stuck int32
	// capacity of the cluster, and what is known of it.
	capacity int32
	figure   *v1alpha1.Capacity
	// full is true until the figure is tried again.
	full bool
	// returned is true for a cluster that was lost, until its surplus has gone.
	returned bool
	// rank is the place in an order of clusters that differs from one FederatedReplicaSet to another. That order is by hash.
	rank int
	hash uint64
	// share is what the division gives, and next what the ReplicaSet asks for next.
	share, next int32
}

// absentee is a cluster that does not answer.
type absentee struct {
	name   string
	before *v1alpha1.ClusterStatus
	sites.Silence
	// why is what is said of it.
	why string
	// available is how many of its pods were available when it answered last.
	available int32
	// asked is what its ReplicaSet may ask for, and sure what it asks for at least: nobody knows whether the last write has arrived. credit is what is left to it.
	asked, sure, credit int32
}

// gather sorts clusters into those that answer and those that do not. A cluster that is no member any more does not answer.
func (r *round) gather() {
	var none v1alpha1.ClusterStatus
	members, before := make(map[string]*Member, len(r.Members)), make(map[string]*v1alpha1.ClusterStatus, len(r.Members))
	names := make([]string, 0, len(r.Members)+len(r.Status.Clusters))
	for _, m := range r.Members {
		members[m.Name] = m
		names = append(names, m.Name)
	}
	names = append(names, r.namesNow(members, before)...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		was := cmp.Or(before[name], &none)
		bounds, wanted := r.BoundsOf(name)
		m := members[name]
		if m != nil && m.Reachable {
			if wanted = wanted && !m.Drained; wanted || m.Local != nil {
				r.places = append(r.places, &place{Member: m, bounds: bounds, leaving: !wanted, before: was, hash: r.hash(name)})
			}
			continue
		}
		a := &absentee{name: name, before: was, why: "does not answer"}
		if m != nil && m.Why != "" {
			a.why = m.Why
		}
		a.available = a.before.AvailableReplicas
		a.asked, a.sure = max(a.before.Wanted, a.before.Replicas), min(a.before.Wanted, a.before.Replicas)
		if m != nil && m.Local != nil {
			a.available = m.Local.Available
			a.asked, a.sure = max(a.asked, m.Local.Replicas), min(a.sure, m.Local.Replicas)
			if a.before.Name == "" {
				a.sure = m.Local.Replicas
			}
		}
		var known *sites.Cluster
		if m != nil {
			known = &m.Cluster
		}
		a.Silence = r.Silent(string(was.State), was.Since.Time, known, r.Lost)
		if a.Lost && m == nil || a.asked == 0 && (m == nil || !wanted) {
			continue // the member is gone for good, or has nothing to do with the object
		}
		a.credit = sites.Credit(a.sure, bounds.Min, a.Lost)
		r.absent = append(r.absent, a)
	}
	ranked := slices.Clone(r.places)
	slices.SortFunc(ranked, func(a, b *place) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), strings.Compare(a.Name, b.Name))
	})
	for i, pl := range ranked {
		pl.rank = i
	}
}

// namesNow are the names of the clusters of the previous status. If no member of the old name answers, and one of another name is the same cluster, it has got that name. Otherwise its replicas would
// count twice. It fills in what was before, by the name of now.
func (r *round) namesNow(members map[string]*Member, before map[string]*v1alpha1.ClusterStatus) (names []string) {
	var now sites.Names
	if slices.ContainsFunc(r.Status.Clusters, func(c v1alpha1.ClusterStatus) bool { return members[c.Name] == nil || !members[c.Name].Reachable }) {
		for _, m := range r.Members {
			if m.Reachable {
				now.Add(m.Name, m.Identity)
			}
		}
	}
	for i := range r.Status.Clusters {
		was := &r.Status.Clusters[i]
		name := now.Now(was.Name, was.Identity)
		if name == was.Name || before[name] == nil {
			before[name] = was
		}
		names = append(names, name)
	}
	return names
}

// hash orders clusters differently for each FederatedReplicaSet, so that those of one replica are not all in the same cluster. FNV alone keeps the order of names
// that differ in one letter.
func (r *round) hash(cluster string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(r.Namespace + "/" + r.Name + "\x00" + cluster))
	n := h.Sum64()
	n = (n ^ n>>33) * 0xff51afd7ed558ccd
	return n ^ n>>33
}

// count counts the pods of a place.
func (r *round) count(pl *place) {
	pl.returned = pl.before.State == v1alpha1.ClusterLost || pl.before.State == v1alpha1.ClusterReturned
	if pl.Taken {
		r.Wait(takenInterval) // nobody tells when the other ReplicaSet goes
	}
	if pl.Late {
		pl.asked = pl.before.Wanted // the last write may have arrived
	}
	if pl.Local == nil {
		return
	}
	pl.asked, pl.available, pl.scheduled = max(pl.asked, pl.Local.Replicas), pl.Local.Available, pl.Local.Bound
	for _, since := range pl.Local.UnschedulableSince {
		if !since.IsZero() && r.IsOver(since, r.Unschedulable) {
			pl.stuck++
		}
	}
	pl.firm = min(pl.scheduled, pl.asked)
	if pl.Late && pl.before.Name != "" { // the last write may have ended some
		pl.firm, pl.available = min(pl.firm, pl.before.Wanted), min(pl.available, pl.before.Wanted)
	}
	if missing := pl.asked - pl.Local.Pods; missing > 0 && !pl.Local.FailingSince.IsZero() && r.IsOver(pl.Local.FailingSince, r.Unschedulable) {
		pl.stuck += missing
	}
}

// judge says how many replicas the place can run, by what became of its pods:
//
//   - Pods that found no node for too long make a figure: what is scheduled there. The place gets no more until it is tried again, each time after twice as long.
//   - Then it gets MaxMoving more than the figure. As these get nodes, the figure grows, and the next ones follow.
//   - A figure that is no limit any more is dropped, and so is one that nobody tried for long.
func (r *round) judge(pl *place) {
	pl.capacity = allocation.Unlimited
	before, retry := pl.before.Capacity, r.Now
	if before != nil && before.RetryTime == nil { // an earlier version knew figures that are never tried
		before = nil
	}
	if before != nil {
		retry = before.RetryTime.Time
	}
	tried := !retry.After(r.Now)
	switch {
	case before == nil && pl.stuck == 0:
		return
	case pl.stuck > 0 && (before == nil || tried):
		failures := int32(1)
		if before != nil {
			failures += before.Failures
		}
		pl.figure, pl.full = r.failed(r.Now, pl.firm, failures, v1alpha1.CapacityObserved), true
	case tried && r.Now.Sub(retry) >= sites.LongestRetry:
		return
	default:
		pl.figure, pl.full = before.DeepCopy(), !tried
		known := max(before.Replicas, pl.firm)
		if pl.stuck > 0 {
			known = pl.firm
		}
		if known > before.Replicas && tried {
			pl.figure.Failures = 0
		}
		if known != before.Replicas {
			pl.figure.Replicas, pl.figure.Time = known, metav1.NewTime(r.Now)
		}
	}
	pl.capacity = pl.figure.Replicas
	if pl.full {
		r.Wait(pl.figure.RetryTime.Sub(r.Now))
		return
	}
	pl.capacity += min(r.MaxMoving, allocation.Unlimited-pl.capacity)
	r.Wait(retry.Add(sites.LongestRetry).Sub(r.Now))
}

// failed is the figure of a cluster that had no room, for the so many-th time in a row.
func (p *Policy) failed(now time.Time, replicas, failures int32, source v1alpha1.CapacitySource) *v1alpha1.Capacity {
	return &v1alpha1.Capacity{
		Replicas: replicas, Time: metav1.NewTime(now), Source: source, Failures: failures,
		RetryTime: ptr.To(metav1.NewTime(now.Add(sites.Backoff(p.Retry, failures)))),
	}
}

// Refuse notes in a status that a cluster has refused the ReplicaSet. It gets no more replicas until it is tried again. It is false if that is noted already, and the cluster is not to be tried yet: a
// refusal that is repeated before changes nothing, not even the message.
func (p *Policy) Refuse(status *v1alpha1.FederatedReplicaSetStatus, cluster, message string, now time.Time) bool {
	now = now.Truncate(time.Second)
	for i := range status.Clusters {
		s := &status.Clusters[i]
		if s.Name != cluster {
			continue
		}
		failures := int32(1)
		if c := s.Capacity; c != nil {
			if c.Source == v1alpha1.CapacityRefused && c.RetryTime != nil && c.RetryTime.After(now) {
				return false
			}
			failures += c.Failures
		}
		s.Capacity = p.failed(now, s.ScheduledReplicas, failures, v1alpha1.CapacityRefused)
		s.State, s.Since, s.Message = v1alpha1.ClusterFull, metav1.NewTime(now), message
		return true
	}
	return false
}

// settle says how many replicas the clusters that answer are to have: what others do not have. They make no replica that others may have, but nothing that runs here ends for a replica there
// that was not available, or because the total is lowered meanwhile.
func (r *round) settle() {
	here, there, shares := int64(0), int64(0), int64(0)
	for _, a := range r.absent {
		may := a.credit
		if a.InDoubt {
			may = a.asked
		}
		r.made += int64(may)
		there += int64(min(a.available, a.credit))
	}
	for _, pl := range r.places {
		here += int64(pl.firm)
		shares += int64(pl.before.Share)
	}
	total := int64(r.Replicas)
	r.total = int32(max(total-r.made, min(here, total-there), sites.Kept(total, shares, here)))
}

// divide sets the shares.
func (r *round) divide() {
	claims := make([]allocation.Claim, len(r.places))
	open := make([]allocation.Claim, len(r.places))
	// While replicas may come back with a cluster, nothing that runs moves.
	rebalance := r.Rebalance && !slices.ContainsFunc(r.absent, func(a *absentee) bool { return !a.Lost && a.asked > 0 })
	for i, pl := range r.places {
		claims[i] = r.claim(pl, rebalance)
		open[i] = claims[i]
		open[i].Capacity = allocation.Unlimited
	}
	r.lower(claims)
	share := allocation.Divide(r.total, claims, rebalance)
	waiting, has := slices.Clone(claims), make([]int32, len(claims))
	for i, pl := range r.places {
		has[i] = pl.asked
		if pl.full && pl.figure.Source == v1alpha1.CapacityRefused { // no pod can wait there
			waiting[i].Max = min(waiting[i].Max, max(claims[i].Capacity, share[i]))
		}
	}
	placed := share
	share = allocation.Overflow(r.total, waiting, share, has)
	r.unplaced = r.total
	for i, pl := range r.places {
		pl.share = share[i]
		r.unplaced -= share[i]
		r.waiting += share[i] - placed[i]
	}
	tried := func(pl *place) bool { return pl.figure != nil && !pl.full }
	if !slices.ContainsFunc(r.places, tried) {
		return
	}
	for i, ideal := range allocation.Divide(r.total, open, true) {
		if pl := r.places[i]; tried(pl) && pl.firm >= ideal {
			pl.figure = nil // it is no limit any more
		}
	}
}

// claim is what the preferences give a place. Minimums go by weight and then in the order of the ranks; what does not divide evenly goes in the opposite order.
func (r *round) claim(pl *place, rebalance bool) allocation.Claim {
	c := allocation.Claim{
		Name: pl.Name, Min: pl.bounds.Min, Max: pl.bounds.Max, Weight: pl.bounds.Weight, Capacity: pl.capacity, Current: pl.firm,
		Order: pl.rank - int(pl.bounds.Weight)*len(r.places), Tie: -pl.rank,
	}
	if c.Weight == 0 {
		c.Max = c.Min
		if !rebalance {
			c.Max = min(max(c.Min, pl.firm), pl.bounds.Max)
		}
	}
	switch {
	case pl.leaving || pl.Taken:
		c.Min, c.Max = 0, 0
	case pl.Cordoned:
		c.Min, c.Max = min(c.Min, pl.asked), min(c.Max, pl.asked)
	}
	return c
}

// lower makes clusters that have returned keep only what others do not have: the surplus leaves them, and not those that have taken over.
func (r *round) lower(claims []allocation.Claim) {
	left := r.total
	kept := func(i int) int32 {
		return max(min(claims[i].Min, claims[i].Max), min(claims[i].Current, claims[i].Max))
	}
	for i, pl := range r.places {
		if !pl.returned {
			left = max(left-kept(i), 0)
		}
	}
	for i, pl := range r.places {
		if pl.returned {
			claims[i].Current = min(claims[i].Current, left)
			left -= min(kept(i), left)
		}
	}
}

// approach says what each ReplicaSet asks for next. What runs may stay above the limit while a cluster does not answer, and then nothing is raised.
func (r *round) approach() {
	places := make([]allocation.Place, len(r.places))
	for i, pl := range r.places {
		places[i] = allocation.Place{Name: pl.Name, Asked: pl.asked, Running: pl.firm, Ready: pl.available, Share: pl.share, Wanted: pl.share}
	}
	limit := r.total + min(r.MaxMoving, allocation.Unlimited-r.total)
	next := allocation.Approach(limit, places)
	room := max(int64(r.Replicas)-r.made, 0) + int64(r.MaxMoving)
	for i, pl := range r.places {
		if pl.Late {
			next[i] = pl.asked
		}
		room -= int64(min(next[i], pl.asked))
	}
	for i, pl := range r.places {
		pl.next = min(next[i], pl.asked)
		more := min(int64(next[i]-pl.next), max(room, 0))
		pl.next += int32(more)
		room -= more
	}
}
