package united

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/sites"
)

// Plan says what every child is to be, and the new status.
//
// All children together never ask for more than the total, the surge, and the reservations: the plan gives a child more replicas only as far as the others, as
// they are after the first part of the plan, leave room.
func (p *Policy) Plan(in Observed) Plan {
	r := &round{Policy: p, Observed: in, Clock: sites.ClockAt(in.Now), places: make([]place, len(p.Subsets))}
	if r.Status == nil {
		r.Status = &v1beta1.UnitedDeploymentStatus{}
	}
	r.gather()
	r.assign()
	for i := range r.places {
		r.look(&r.places[i])
	}
	if p.Template != nil {
		r.divide()
		r.try()
		r.makeRoom()
	}
	r.weigh()
	return r.result()
}

// round is one call of Plan.
type round struct {
	*Policy
	Observed
	sites.Clock
	places []place
	// sites are the other clusters, by name.
	sites map[string]*site
	// leaving are the children that have to go.
	leaving []leaver
	// unplaced is how many replicas no subset takes.
	unplaced int32
}

// place is a subset with its child.
type place struct {
	*Subset
	// site is the cluster of the place.
	*site
	// before is the previous status. Empty if there is none.
	before v1beta1.SubsetStatus
	// most is what the child may ask for, of a place whose cluster does not answer, or is late.
	most int32
	// child is nil if there is none, or if its cluster does not answer.
	child *Child
	// base is how many replicas the child asks for, without reservations, and without those that are tried and not ready yet.
	base int32
	// firm is how many replicas have pods that are bound and count. With strategy Adaptive they stay where they are.
	firm int32
	// reserved are the pods that found no node and are kept as reservations, until they are ready.
	reserved int32
	// rolling: pods of more than one revision exist.
	rolling bool
	// stuck is how many pods found no node, or could not be created, for too long. refused are those that could not be created.
	stuck, refused int32
	// available is how many pods have been ready for long enough.
	available int32
	// schedulable is the new condition. Nil with strategy Fixed. failedTrials is how often in a row replicas were tried in vain.
	schedulable  *v1beta1.Condition
	failedTrials int32
	// share is what the division gives. ideal is what it would give if every subset had room and nothing ran yet, and hope the same without the
	// subsets that are known to have no room.
	share, ideal, hope int32
	// wanted is the number of replicas that the child is to ask for in the end, and next the one that it asks for now.
	wanted, next int32
	// trial is how many of these are tried.
	trial int32
}

// leaver is a child that has to go, with the replicas that it keeps for now.
type leaver struct {
	child *Child
	keeps int32
	// late is true if its cluster has not answered yet in this round.
	late bool
}

// blocked is true while the subset gets no new replicas.
func (pl *place) blocked() bool {
	return pl.schedulable != nil && pl.schedulable.Status == corev1.ConditionFalse
}

func (c *Child) ready() int32 { return c.count(func(pod *Pod) bool { return pod.Ready }) }

// available is how many pods of a child are available.
func (r *round) available(c *Child) int32 {
	return c.count(func(pod *Pod) bool { return r.isAvailable(c, pod) })
}

func (r *round) isAvailable(c *Child, pod *Pod) bool {
	return pod.Ready && r.IsOver(pod.ReadySince, c.MinReady)
}

func (c *Child) count(counts func(*Pod) bool) (n int32) {
	for i := range c.Pods {
		if counts(&c.Pods[i]) {
			n++
		}
	}
	return n
}

// proven is how many replicas the child could be lowered to so that the rest is available.
func (r *round) proven(pl *place) (n int32) {
	if !pl.child.ByOrdinal {
		return pl.available
	}
	available := map[int32]bool{}
	for i := range pl.child.Pods {
		available[pl.child.Pods[i].Ordinal] = r.isAvailable(pl.child, &pl.child.Pods[i])
	}
	for available[n] {
		n++
	}
	return n
}

// assign gives each subset the child that it keeps: of several, the one with most ready pods. All other children have to go.
func (r *round) assign() {
	for i := range r.places {
		r.places[i].Subset = &r.Subsets[i]
		r.places[i].site = cmp.Or(r.sites[r.Subsets[i].Cluster], &site{exists: true})
		for _, before := range r.Status.SubsetStatuses {
			if before.Name == r.Subsets[i].Name && before.Cluster == r.Subsets[i].Cluster {
				r.places[i].before = before
			}
		}
	}
	children := make([]*Child, 0, len(r.Children))
	for i := range r.Children {
		if s := r.sites[r.Children[i].Cluster]; s == nil || !s.away {
			children = append(children, &r.Children[i])
		}
	}
	slices.SortFunc(children, func(a, b *Child) int {
		return cmp.Or(cmp.Compare(b.ready(), a.ready()), a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
	for _, child := range children {
		at := slices.IndexFunc(r.places, func(pl place) bool { return pl.Name == child.Subset && pl.is(child.Cluster) })
		right := r.Template == nil || child.Kind == r.Template.Kind
		if at >= 0 && right && !child.Deleting && r.places[at].child == nil {
			r.places[at].child = child
			continue
		}
		in := r.sites[child.Cluster]
		r.leaving = append(r.leaving, leaver{child, child.Replicas, in != nil && in.late})
	}
}

// look counts the pods of a place, and says whether it is schedulable.
func (r *round) look(pl *place) {
	if pl.away {
		r.recall(pl)
		return
	}
	var bound, highest int32
	if pl.child != nil {
		pl.available = r.available(pl.child)
		if missing := pl.child.Replicas - int32(len(pl.child.Pods)); missing > 0 && r.Adaptive != nil && !pl.child.FailingSince.IsZero() && r.IsOver(pl.child.FailingSince, r.Adaptive.Critical) {
			pl.stuck, pl.refused = missing, missing
		}
		for i := range pl.child.Pods {
			pod := &pl.child.Pods[i]
			pl.rolling = pl.rolling || pod.Revision != pl.child.Revision
			stuck := r.isStuck(pod)
			if stuck {
				pl.stuck++
			}
			if r.isReserved(pod, stuck) {
				pl.reserved++
				continue
			}
			if pod.Bound {
				bound++
				highest = max(highest, pod.Ordinal+1)
			}
		}
		pl.base = min(max(pl.child.Replicas-max(pl.child.Trial, pl.reserved), r.proven(pl), 0), pl.child.Replicas)
		if pl.child.ByOrdinal {
			bound = highest
		}
		pl.firm = min(bound, pl.base)
		if pl.rolling {
			pl.firm = pl.base
		}
	}
	if r.Adaptive != nil {
		r.judge(pl)
	}
	if pl.late { // the last write may have arrived, and may have ended some
		pl.most = pl.before.Replicas
		if pl.child != nil {
			pl.most = max(pl.most, pl.child.Replicas)
		}
		if pl.before.Name != "" {
			pl.base = min(pl.base, pl.before.Replicas)
			pl.firm, pl.available = min(pl.firm, pl.base), min(pl.available, pl.base)
		}
	}
}

// isStuck is true for a pod that found no node for too long.
func (r *round) isStuck(pod *Pod) bool {
	return r.Adaptive != nil && !pod.Bound && !pod.UnschedulableSince.IsZero() && r.IsOver(pod.UnschedulableSince, r.Adaptive.Critical)
}

// isReserved is true for a pod that found no node, from then until it is ready.
func (r *round) isReserved(pod *Pod, stuck bool) bool {
	return r.Adaptive != nil && r.Adaptive.Reserve && (stuck || pod.Reserved != nil && *pod.Reserved && !pod.Ready)
}

// judge sets the condition of a place. A pod that is stuck while its child rolls out may be one of the surge, and says nothing about the subset.
func (r *round) judge(pl *place) {
	before, left := ConditionIn(pl.before.Conditions, v1beta1.SubsetSchedulable), time.Duration(0)
	blocked := before != nil && before.Status == corev1.ConditionFalse
	pl.failedTrials = pl.before.FailedTrials
	switch {
	case blocked:
		left = before.LastTransitionTime.Add(r.Adaptive.Pause(pl.failedTrials)).Sub(r.Now)
	case before != nil && r.Now.Sub(before.LastTransitionTime.Time) >= sites.LongestRetry, pl.child != nil && pl.child.Trial > 0 && pl.base == pl.child.Replicas:
		pl.failedTrials = 0 // what is tried runs, or nobody has tried for long
	}
	set := func(status corev1.ConditionStatus, reason v1beta1.Reason, message string) {
		pl.schedulable = &v1beta1.Condition{Type: v1beta1.SubsetSchedulable, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(r.Now)}
	}
	switch {
	case pl.stuck > 0 && !pl.rolling && (!blocked || left <= 0):
		if !blocked && !r.Adaptive.Reserve { // with reservations nothing is tried: these pods go on waiting
			pl.failedTrials++
		}
		set(corev1.ConditionFalse, v1beta1.ReasonReschedule, messageOf(pl))
		r.Wait(r.Adaptive.Pause(pl.failedTrials))
	case before == nil:
		set(corev1.ConditionTrue, v1beta1.ReasonSchedulable, "")
	case !blocked:
		pl.schedulable = before
	case left > 0:
		pl.schedulable = before
		r.Wait(left)
	default:
		set(corev1.ConditionTrue, v1beta1.ReasonRecovered, "")
	}
}

func messageOf(pl *place) string {
	pods, why := "pods", "found no node"
	if pl.stuck == 1 {
		pods = "pod"
	}
	if pl.refused > 0 {
		why = "could not be created"
	}
	if pl.refused > 0 && pl.refused < pl.stuck {
		why = "found no node or could not be created"
	}
	return fmt.Sprintf("%d %s %s", pl.stuck, pods, why)
}

// divide sets the shares and ideals, and what follows from them without trials.
func (r *round) divide() {
	claims := r.claims()
	ideal := allocation.Divide(r.Replicas, claims, true)
	for i := range r.places {
		// A cluster that does not answer gets no more, and keeps with strategy Fixed what the spec gives it.
		if pl := &r.places[i]; pl.closed || pl.away && r.Adaptive != nil {
			claims[i].Max = min(claims[i].Max, pl.base)
		}
	}
	r.drain(claims)
	share := allocation.Divide(r.Replicas, claims, true)
	if r.keepHere(claims, share) {
		share = allocation.Divide(r.Replicas, claims, true)
	}
	hope := share
	if r.Adaptive != nil {
		for i := range r.places {
			if pl := &r.places[i]; pl.reserved > 0 || pl.blocked() {
				claims[i].Capacity = pl.firm
			}
		}
		has := make([]int32, len(r.places)) // without reservations and trials
		for i := range r.places {
			has[i] = r.places[i].base
		}
		hope = allocation.Divide(r.Replicas, claims, true)
		// Pods that wait show cluster autoscalers what is missing.
		share = allocation.Overflow(r.Replicas, claims, r.keep(claims), has)
	}
	r.unplaced = r.Replicas
	for i := range r.places {
		pl := &r.places[i]
		pl.share, pl.ideal, pl.hope = share[i], ideal[i], hope[i]
		pl.wanted = pl.share + min(pl.reserved, max(pl.ideal-pl.share, 0))
		r.unplaced -= pl.share
	}
}

// drain leaves to places whose clusters are drained only what no other place takes.
func (r *round) drain(claims []allocation.Claim) {
	others, left := slices.Clone(claims), r.Replicas
	for i := range r.places {
		if pl := &r.places[i]; pl.status.State == v1beta1.ClusterDrained {
			others[i].Max = 0
		} else if pl.away {
			others[i].Max = min(others[i].Max, pl.base)
		}
	}
	for _, n := range allocation.Divide(r.Replicas, others, true) {
		left -= n
	}
	for i := range r.places {
		if r.places[i].status.State == v1beta1.ClusterDrained {
			claims[i].Max = min(claims[i].Max, left)
			claims[i].Min = claims[i].Max
			left -= claims[i].Max
		}
	}
}

// keepHere lowers the claims of places whose cluster does not answer, so that what runs in the others stays although the total was lowered. It is false if it has changed nothing. The shares are what the
// claims give now.
func (r *round) keepHere(claims []allocation.Claim, share []int32) (changed bool) {
	var shares, running, there int64
	for i := range r.places {
		pl := &r.places[i]
		if !pl.away {
			running += int64(pl.firm)
			shares += int64(pl.before.Share)
			continue
		}
		if r.Adaptive == nil {
			claims[i].Max = min(claims[i].Max, share[i])
		}
		there += int64(claims[i].Max)
	}
	over := there - (int64(r.Replicas) - sites.Kept(int64(r.Replicas), shares, running))
	for i := len(claims) - 1; i >= 0 && over > 0; i-- {
		if r.places[i].away {
			less := min(over, int64(claims[i].Max))
			claims[i].Max -= int32(less)
			claims[i].Min = min(claims[i].Min, claims[i].Max)
			over -= less
			changed = changed || less > 0
		}
	}
	return changed
}

// claims are those of the spec.
//
//   - With minimums or maximums, or with strategy Adaptive, subsets are filled in order.
//   - Otherwise the specified replicas come first. Percentages of all subsets that add up to 100 are weights. The others share evenly.
func (r *round) claims() []allocation.Claim {
	claims := make([]allocation.Claim, len(r.places))
	shares := r.areShares()
	inOrder := r.Adaptive != nil || slices.ContainsFunc(r.Subsets, func(s Subset) bool { return s.Min.IsSet || s.Max.IsSet })
	for i := range r.places {
		pl := &r.places[i]
		claim := allocation.Claim{Name: pl.Name, Order: i, Max: allocation.Unlimited, Capacity: allocation.Unlimited}
		switch {
		case inOrder:
			claim.Min = pl.Min.Of(r.Replicas)
			if pl.Max.IsSet {
				claim.Max = pl.Max.Of(r.Replicas)
			}
		case shares:
			claim.Weight = pl.Replicas.Value
		case pl.Replicas.IsSet:
			claim.Min = pl.Replicas.Of(r.Replicas)
			claim.Max = claim.Min
		default:
			claim.Weight = 1
		}
		claim.Tie = i - int(pl.base)*len(r.places) // the remainder goes to those that have most, and then in order
		claims[i] = claim
	}
	return claims
}

// keep divides so that what is firm stays where it is, within the maximums. Other replicas go to minimums first, and then in order. If there are fewer replicas
// than are firm, none goes anywhere, and those above the minimums go first, from the end.
func (r *round) keep(claims []allocation.Claim) []int32 {
	firm, bound := slices.Clone(claims), slices.Clone(claims)
	var sum int64
	for i := range claims {
		firm[i].Min = min(r.places[i].firm, claims[i].Max)
		firm[i].Max = max(firm[i].Min, claims[i].Min)
		bound[i].Max = firm[i].Min
		bound[i].Min = min(firm[i].Min, claims[i].Min)
		sum += int64(firm[i].Min)
	}
	if sum > int64(r.Policy.Replicas) {
		return allocation.Divide(r.Policy.Replicas, bound, true)
	}
	filled := slices.Clone(claims)
	for i, n := range allocation.Divide(r.Policy.Replicas, firm, true) {
		filled[i].Min = n
	}
	return allocation.Divide(r.Policy.Replicas, filled, true)
}

// try gives the first subset that has less than one can hope for, and could have room again, a few replicas more than its share. If their pods become ready, they are
// part of the base in a later round, and other subsets get as many fewer. If they find no node, the subset is blocked again, and the trial is over.
func (r *round) try() {
	if r.Adaptive == nil || len(r.leaving) > 0 {
		return
	}
	ongoing := func(pl *place) bool { return pl.child != nil && pl.child.Trial > 0 && pl.base < pl.child.Replicas }
	for i := range r.places {
		if pl := &r.places[i]; ongoing(pl) && !pl.blocked() && pl.reserved == 0 && pl.hope > pl.share {
			pl.trial = min(pl.child.Replicas-pl.base, pl.hope-pl.share, r.Surge)
			pl.wanted += pl.trial
			return
		}
	}
	if slices.ContainsFunc(r.places, func(pl place) bool {
		return pl.share != pl.base || pl.rolling || pl.away && !pl.Lost
	}) {
		return // one thing at a time
	}
	above := slices.ContainsFunc(r.places, func(pl place) bool { return pl.share > pl.hope })
	for i := range r.places {
		pl := &r.places[i]
		if !pl.blocked() && pl.reserved == 0 && pl.hope > pl.share && pl.available >= pl.share && above {
			pl.trial = min(pl.hope-pl.share, max(r.Surge>>min(pl.failedTrials, 30), 1)) // half as many each time
			pl.wanted += pl.trial
			return
		}
	}
}

// makeRoom says how far each child goes for now. Bound pods that have to go, because their child has to or gets fewer replicas, stay as long as other children lack
// ready pods, and as the total and the surge allow. The others grow into the room that is left below the total and the surge.
func (r *round) makeRoom() {
	limit := r.Policy.Replicas + r.Surge
	places := make([]allocation.Place, 0, len(r.places)+len(r.leaving))
	unplaced := r.unplaced
	for i := range r.places {
		pl := &r.places[i]
		due := int32(0)
		if pl.away || pl.closed { // what others run until the cluster answers or takes it, as far as somebody does
			due = min(unplaced, max(pl.ideal-pl.share, 0))
			unplaced -= due
		}
		if pl.away {
			places = append(places, allocation.Place{Name: pl.Name, Asked: pl.base, Running: pl.base, Ready: pl.available, Share: pl.share + due, Wanted: pl.base})
			continue
		}
		limit += pl.wanted - pl.share - pl.trial // a trial is part of the surge, and a reservation is not
		p := allocation.Place{Name: pl.Name, Running: pl.firm, Ready: pl.available, Share: pl.share + due, Wanted: pl.wanted}
		if pl.child != nil {
			p.Asked = pl.child.Replicas
		}
		if pl.late {
			p.Asked = pl.most
		}
		places = append(places, p)
	}
	for _, l := range r.leaving {
		p := allocation.Place{Name: l.child.Name, Ready: r.available(l.child)}
		if l.late { // it may have been lowered: others must not count on it
			p.Ready = 0
		} else if l.child.Deleting {
			limit = max(limit-l.child.Replicas, 0)
		} else {
			p.Running = min(l.child.Replicas, l.child.count(func(pod *Pod) bool { return pod.Bound }))
		}
		places = append(places, p)
	}
	for _, s := range r.sites {
		if s.away && !s.Lost {
			limit = max(limit-s.leaving, 0)
		}
	}
	next := allocation.Approach(limit, places)
	inDoubt := r.isInDoubt()
	for i := range r.places {
		if r.places[i].next = next[i]; inDoubt {
			r.places[i].next = min(next[i], places[i].Asked)
		}
		switch pl := &r.places[i]; {
		case pl.away:
			pl.next = pl.before.Replicas
		case pl.late:
			pl.next = pl.most
		}
	}
	for i := range r.leaving {
		if l := &r.leaving[i]; !l.child.Deleting && !l.late {
			l.keeps = next[len(r.places)+i]
		}
	}
	r.leaveRoom(limit, places)
}

// leaveRoom raises places only as far as those leave room that are late, and may have been asked for more than others count on.
func (r *round) leaveRoom(limit int32, asked []allocation.Place) {
	room, late := int64(limit), false
	for i := range r.places {
		pl := &r.places[i]
		room -= int64(min(pl.next, asked[i].Asked))
	}
	for i := range r.leaving {
		room -= int64(r.leaving[i].keeps)
	}
	for _, s := range r.sites {
		if s.late {
			may := int64(s.mostLeaving)
			for i := range r.leaving {
				if r.leaving[i].child.Cluster == s.name {
					may -= int64(r.leaving[i].keeps)
				}
			}
			room, late = room-max(may, 0), true
		}
	}
	for i := range r.places {
		if pl := &r.places[i]; late && pl.next > asked[i].Asked && !pl.away {
			more := min(pl.next-asked[i].Asked, int32(max(room, 0)))
			pl.next = asked[i].Asked + more
			room -= int64(more)
		}
	}
}
