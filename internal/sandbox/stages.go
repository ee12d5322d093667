package sandbox

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
)

// The stages make nodes and pods behave as kubelets report them, but at once.
//
//go:embed stages/*.yaml
var stages embed.FS

//go:embed kwok-rbac.yaml
var kwokRBAC []byte

// kwokOptions lets KWOK work on many nodes and pods at a time, and serve nothing but its health, at an address that is to be filled in.
const kwokOptions = `apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  %s
  nodeLeaseDurationSeconds: 40
  nodeIP: 10.0.0.1
  cidr: 10.244.0.0/16
  serverAddress: %s
  enableDebuggingHandlers: false
  podPlayStageParallelism: 16
  nodePlayStageParallelism: 16
  nodeLeaseParallelism: 16
  podsOnNodeSyncParallelism: 8
`

// kwokConfig returns KWOK's options and all stages as one file. KWOK serves its health at the address. It leaves real nodes alone unless it has all nodes.
func kwokConfig(address string, all bool) []byte {
	manage := "manageAllNodes: true"
	if !all {
		manage = fmt.Sprintf("manageNodesWithLabelSelector: %s!=%s", KubeletLabel, Kubelet)
	}
	documents := [][]byte{fmt.Appendf(nil, kwokOptions, manage, address)}
	names, err := fs.Glob(stages, "stages/*.yaml")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	for _, name := range names {
		content, err := stages.ReadFile(name)
		if err != nil {
			panic(err) // the file is part of the binary
		}
		documents = append(documents, content)
	}
	return bytes.Join(documents, []byte("---\n"))
}
