// Package subset is the model of WorkloadSpread. It answers which subset a pod may use, how many pods each subset may and should
// hold, which pods are above that, and why.
//
// It takes plain data (a spec, pods, nodes) and returns plain data. It has no client, clock, logger or goroutine, and nothing in
// it waits. Every placement rule of the project stands here and nowhere else; schedulers, controllers, webhooks, the simulator and
// the command line gather the data, ask once, and act on the answer.
//
// Read in this order: Compile turns a spec into a Policy or says everything that is wrong with it; Policy.Plan says what each
// subset may hold at a number of replicas; a Tally counts what is there; Policy.Admit picks the subset of one more pod; Policy.Fits says
// whether a node belongs to it; Policy.Surplus lists the pods above the plan.
package subset
