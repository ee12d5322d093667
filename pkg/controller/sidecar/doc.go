// Package sidecar is the controller of SidecarSets. It gathers the pods of a set, asks the model in pkg/sidecar which of them are updated now and how, and writes them. It also
// writes the status, the ControllerRevisions, and the condition under which the API server calls the webhook for a new pod.
//
// maxUnavailable holds because only the leader writes, one set is reconciled by one worker at a time, and a plan is made only from pods that are not older than what this
// process has written or read. The first plan of a set in a process is made from the API server. Every write carries the resourceVersion of the pod that was planned with, or,
// after a resize, of one for which the plan still holds. Budgets are not asked here: their webhook answers each write.
//
// Begin reading at Setup, then reconciler.Reconcile.
package sidecar
