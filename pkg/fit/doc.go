// Package fit says whether the scheduler's own filters find a node for a pod, on a picture of the cluster that changes
// with every answer: a pod that was placed takes its room, and one that is to go leaves it. So of many pods that could
// each take the same room, one gets it.
//
// It runs the filters of kube-scheduler's default profile with their defaults, on informers of its caller's. It knows
// nothing of spreads, and places nothing. Begin reading at Filters, then Rooms.Place.
package fit
