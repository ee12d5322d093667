// Package faults runs the scheduler behind a proxy that spoils its binds, while pods, quotas, nodes and the scheduler itself come and go, and
// checks that no count is ever wrong. It has tests alone.
package faults
