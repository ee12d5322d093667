package allocation

import "slices"

// Place is where a place stands on the way to its share. No number is negative.
type Place struct {
	Name string
	// Asked is how many replicas the place is asked for now.
	Asked int32
	// Running is how many have a node, and Ready how many are ready.
	Running, Ready int32
	// Share is what Divide gives the place. 0 for one that has to go.
	Share int32
	// Wanted is what the place is to be asked for in the end: its share, and what is tried or reserved there.
	Wanted int32
}

// Approach returns how many replicas each place is to be asked for next, in the order of the places, so that all end up
// with what is wanted, and nothing that runs goes before there is something in its place:
//
//   - Running replicas of a place that has too many stay as long as places lack ready ones, as far as the limit allows.
//     Ready ones stay before others. The rest goes at once.
//   - Into what is left below the limit, places first keep what they have, and then they grow. If there is too little
//     for what they have, replicas that do not run go.
//
// Nothing that runs and is wanted goes. A caller that carries out what is lowered before what is raised never has more
// than limit replicas in all places, unless more than that run.
func Approach(limit int32, places []Place) []int32 {
	growing, going := make([]Claim, len(places)), make([]Claim, len(places))
	var run, lack int32
	for i := range places {
		p := &places[i]
		have := min(p.Asked, p.Wanted)
		growing[i] = Claim{Name: p.Name, Order: i, Min: min(p.Running, have), Max: have, Capacity: Unlimited}
		going[i] = Claim{Name: p.Name, Order: i, Min: p.Ready - p.Wanted, Max: p.Running - p.Wanted, Capacity: Unlimited}
		run += growing[i].Min
		lack += max(p.Share-p.Ready, 0)
	}
	keeps := Divide(min(lack, max(limit-run, 0)), going, true)
	for _, n := range keeps {
		limit -= n
	}
	limit = max(limit, run)
	for i, n := range Divide(limit, growing, true) {
		growing[i].Min, growing[i].Max = n, places[i].Wanted
	}
	next := Divide(limit, growing, true)
	for i := range next {
		next[i] += keeps[i]
	}
	return next
}

// Overflow adds to what Divide gave what it has left over for want of capacity: replicas that wait. They wait where
// replicas are asked for now, in the slice has, if the maximums allow that, or else where they are due.
func Overflow(total int32, claims []Claim, got, has []int32) []int32 {
	var sum int64
	for _, n := range got {
		sum += int64(n)
	}
	if sum >= int64(total) {
		return got
	}
	waiting, open := slices.Clone(claims), slices.Clone(claims)
	for i := range claims {
		open[i].Min, open[i].Max, open[i].Capacity = got[i], max(claims[i].Max, got[i]), Unlimited
		waiting[i] = open[i]
		waiting[i].Max = min(max(got[i], has[i]), open[i].Max)
	}
	for i, n := range Divide(total, waiting, true) {
		open[i].Min = n
	}
	return Divide(total, open, true)
}

// Afford takes from the raises of places, from the last ones first, what other places keep that were to give it up: a
// place whose write fails keeps no others from growing into the rest.
func Afford(raises []int32, kept int64) {
	for i := len(raises) - 1; i >= 0 && kept > 0; i-- {
		less := min(int64(raises[i]), kept)
		raises[i] -= int32(less)
		kept -= less
	}
}
