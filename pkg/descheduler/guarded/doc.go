// Package guarded is the only way by which a descheduler ends a pod. It evicts and never deletes. It evicts the very pod that was decided on and no other
// pod of its name, and a pending pod only as it was then. Each call has a deadline, is sent once, and leaves a typed result, which the descheduler
// framework would turn into a text.
//
// Plugins get it as the handle's evictor and as its client; see Client.Handle. It decides nothing. Begin reading at Client.
package guarded
