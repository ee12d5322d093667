// Package guarded is the only way by which a descheduler ends a pod. It evicts and never deletes, evicts that very pod and no other of its name,
// and a pending pod only as it was when it was decided on. Every call has a deadline, is sent once, and leaves a typed result, which the
// descheduler framework would make a text of.
//
// Plugins get it as the handle's evictor and as its client; see Client.Handle. It decides nothing. Begin reading at Client.
package guarded
