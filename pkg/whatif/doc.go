// Package whatif is the commands of "kubectl berth" that ask the scheduler's filters what they would do. They are a
// program of their own, berth-whatif, because they bring most of a scheduler with them. Begin reading at NewCommand.
//
// The Engine answers where the pods of a spread would go. It makes the pods as admission would, and lets the plugin
// WorkloadSpread and the filters of kube-scheduler schedule them on a picture of the cluster. Nothing is written. No
// pod preempts another, and no descheduler moves one. It begins at Engine.Simulate.
package whatif
