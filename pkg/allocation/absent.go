package allocation

import "time"

// LostAfter is for how long a cluster may not answer before others run its replicas, if its users do not say otherwise.
const LostAfter = 300 * time.Second

// Doubt is for how long others make nothing that a place may have been asked for which does not answer. A request that fails is no sign that the write before it failed, and most places answer the next
// one. It is how long a hub takes at most to find out that a member does not answer.
const Doubt = 20 * time.Second

// Credit is how many replicas others leave to a place that does not answer: those that it was surely asked for. Of a lost place that is its minimum at most: the others run the rest.
func Credit(sure, minimum int32, lost bool) int32 {
	if lost {
		return min(sure, minimum)
	}
	return sure
}

// Kept is how many replicas the places that answer keep together while another place does not: what they were to have before, as far as it runs and the total allows it. If somebody lowers the total
// meanwhile, such as an autoscaler that misses metrics, nothing that surely runs ends for replicas that nobody sees.
func Kept(total, shares, running int64) int64 { return min(total, shares, running) }
