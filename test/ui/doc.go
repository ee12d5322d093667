// Package ui tests the page in a browser, on a real control plane. It checks what a user sees while pods are placed,
// spill, wait and terminate.
//
// One test makes the picture of the README. After a change of the page, write it again:
// go test -count=1 ./test/ui -run Picture -update.
package ui
