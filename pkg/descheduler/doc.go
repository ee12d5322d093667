// Package descheduler runs the descheduler framework with Berth's strategies next to all of its own, as a CronJob, a Job or a Deployment.
//
// The framework's own run loop waits for ever for what it may not read, and ends well whatever happens. This one looks beforehand whether
// everything can be read, gives up after a time, and says by its exit code how it went. Every cycle, also of a Deployment, begins with fresh
// lists: a cycle is decided on what there was at one moment, and what is in memory between two cycles does not matter. It decides nothing; that
// is done by plugins. Begin reading at Run.
package descheduler
