// Package sidecar tests SidecarSets on a real control plane, with three controllers, of which one leads.
//
//   - sidecar_test.go: the articles' examples, updates, budgets.
//   - admission_test.go: subsets that change sidecars, a canary, pods that no webhook saw.
//   - writers_test.go: others who write the same pods.
//   - takeover_test.go: leaders that are killed.
//
// Those that kill run one after another, and the others at the same time after them.
package sidecar
