// Package subset is the model of WorkloadSpread. It says which subset a pod may use, how many pods each subset may and
// should hold, which pods are above that, and why.
//
// It takes plain data (a spec, pods, nodes) and returns plain data. It has no client, clock, logger or goroutine, and
// nothing in it waits. It holds every placement rule of the project. Schedulers, controllers, webhooks, the simulator
// and the command line gather data, ask it once, and act on the answer.
//
// Read in this order: Compile turns a spec into a Policy or returns every error in it. Policy.Plan says what each
// subset may hold at a number of replicas. A Tally counts the pods. Policy.Admit picks the subset of one more pod.
// Subset.Fits says whether a pod may use a node. Policy.Surplus lists the pods above the plan.
package subset
