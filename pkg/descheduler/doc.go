// Package descheduler runs the descheduler framework with Berth's strategies next to all of its own, as a CronJob, a
// Job or a Deployment.
//
// It waits until the API server answers and everything is listed. It gives up after a time, and its exit code tells the
// result. Each cycle begins with fresh lists, also in a Deployment, so that what is in memory between two cycles does
// not matter. It decides nothing; the plugins do. Begin reading at Run, which says why it does not call the
// framework's.
package descheduler
