// Package ui tests the page in a browser, on a real control plane. It checks what a user sees while pods are placed, spill, wait and terminate.
package ui
