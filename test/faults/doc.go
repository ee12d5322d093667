// Package faults runs the scheduler behind a proxy that disturbs its binds. Meanwhile pods, quotas, nodes and the scheduler itself come and go. The
// tests check that no count is ever wrong.
package faults
