// Package whatif answers where the pods of a spread would go. It makes the pods as admission would, and lets the plugin WorkloadSpread and the filters
// of kube-scheduler schedule them on a picture of the cluster. Nothing is written. No pod preempts another, and no descheduler moves one.
//
// Begin reading at Engine.Simulate.
package whatif
