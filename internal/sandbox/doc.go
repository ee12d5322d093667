// Package sandbox runs a Kubernetes control plane on one machine: etcd, kube-apiserver, kube-controller-manager, KWOK in
// place of kubelets, and whatever components the caller adds. Everything but the nodes is real, so RBAC, admission,
// conflicts, restarts and races are real too. Config.Kubelets adds real nodes, whose containers run.
//
// It listens on nothing but loopback and the bridge of its real nodes, leaves no process behind (containers of a sandbox that was killed end with the next
// Start or CleanUp: footprint.go), and knows nothing of the product that runs on
// it: the caller passes manifests as bytes and components as binaries with arguments.
//
// Begin reading at Start in sandbox.go; config.go is what a caller fills in, process.go keeps one child alive.
package sandbox
