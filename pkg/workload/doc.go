// Package workload answers what a workload asks for: how many pods, and which of several spreads divides them. It is the only place
// where replicas are read from objects.
//
// It takes objects that somebody else has read and returns numbers or an error that says what was found instead; it has no client and
// never looks at pods. Placement rules are in package subset. Begin reading at Replicas.
package workload
