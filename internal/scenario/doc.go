// Package scenario plays scenarios on a real control plane. A scenario is one txtar file: a cluster, objects, steps,
// and the table that is expected after a step. The command berth-sandbox play, the demo and the integration tests use
// it.
//
// It decides no placement and imitates no controller: it applies the objects and looks at the pods. It starts no
// control plane.
//
// Read in this order: Parse and Scenario say what a file may contain; Observe and Layout.Table make the table; Start
// and Play.Run play a scenario.
package scenario
