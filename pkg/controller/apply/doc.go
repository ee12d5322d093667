// Package apply writes objects in clusters, for controllers that make workloads: it creates, applies, scales or deletes what a plan says, says how that ended, and remembers what it has applied.
// Each write carries the resourceVersion that was read, so that it fails if somebody was faster. It decides nothing.
//
// Begin reading at Step. Remote is what goes on in members of a federation, without anybody waiting for a slow one.
package apply
