package subset

// SubsetAt is the home of the pod with this position in its StatefulSet, counted from 1: the subset that gets the
// position-th pod as the workload grows from nothing. So the first subset has the lowest ordinals, and a StatefulSet
// that deletes the highest ordinals goes back through the layouts of its growth. It is None for a position at which
// every subset is full. It is false if the position is not known: below 1, or above the seats that a seating knows.
func (p *Policy) SubsetAt(plan *Plan, position int32) (home int, known bool) {
	if position < 1 {
		return None, false
	}
	if p.seats != nil {
		return p.seats.subsetAt(position)
	}
	for i, quota := range plan.Quota {
		if quota == NoLimit || position <= quota {
			return i, true
		}
		position -= quota
	}
	return None, true
}

// TargetsByOrdinal are the Targets of a StatefulSet: how many of its first pods each subset is the home of. They differ
// from Targets where minimums in percent of several subsets grow at the same size: a pod that exists does not change
// its home.
func (p *Policy) TargetsByOrdinal(plan *Plan, pods int32) (targets []int32, unplaced int32) {
	if p.seats == nil || p.seats.repeats() || !p.GoByOrdinal() || pods > mostSeats {
		return p.Targets(plan, pods)
	}
	targets, unplaced = make([]int32, len(p.Subsets)), max(pods, 0)
	for position := int32(1); position <= pods; position++ {
		if home, _ := p.SubsetAt(plan, position); home != None {
			targets[home]++
			unplaced--
		}
	}
	return targets, unplaced
}

// GoByOrdinal is true if the positions of pods in their StatefulSet decide where they belong. If the spread divides
// some pods of its workload, positions say nothing: other pods have positions between them.
func (p *Policy) GoByOrdinal() bool { return p.podSelector.Empty() }

// At is the candidate with the home of this position. Without a known home the candidate has none.
func (p *Policy) At(plan *Plan, position int32, pod Candidate) Candidate {
	pod.Home, pod.HasHome = p.SubsetAt(plan, position)
	return pod
}
