// Package apply writes one object in one cluster, for controllers that make workloads: it creates, applies, scales or deletes what a plan says, says how that ended, and remembers what it has applied.
// Each write carries the resourceVersion that was read, so that it fails if somebody was faster. It decides nothing.
//
// Begin reading at Step.
package apply
