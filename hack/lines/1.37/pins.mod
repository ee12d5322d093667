// What the line for Kubernetes 1.37 has in place of what go.mod says. `make lines` derives go.mod and tools.mod in this directory from this file, the
// product's go.mod and hack/tools/go.mod: docs/decisions/0031-two-kubernetes-lines.md.
module github.com/berth-project/berth

go 1.26.0

require (
	k8s.io/kubernetes v1.37.1
	sigs.k8s.io/controller-runtime v0.25.2
	sigs.k8s.io/descheduler v0.36.0
)

// The line is without these: no version compiles with Kubernetes 1.37.
exclude sigs.k8s.io/scheduler-plugins v0.35.4-devel
