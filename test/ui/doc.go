// Package ui tests the page in a browser, on a real control plane: what a person sees while pods are placed, spill, wait and go.
package ui
