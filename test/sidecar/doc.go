// Package sidecar tests SidecarSets on a real control plane.
package sidecar
