// Package sidecar answers what a SidecarSet means: which pods get its containers, how they are injected, which pods are
// updated next, and how one pod is updated.
//
// A pod carries what is known about it: the version of each set, and what the set has given to its containers. An
// update in place changes what the set gives differently now, and nothing that others have changed. So it does not
// fight with another writer, and a crash at any step is resumed from the pod alone.
//
// The package takes plain data and returns plain data. It has no client, clock, logger or goroutine. Begin reading at
// Compile, then Inject, Next and Policy.Update.
package sidecar
