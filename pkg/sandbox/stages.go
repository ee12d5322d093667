package sandbox

import (
	"bytes"
	"embed"
	"io/fs"
)

// The stages make nodes and pods behave as kubelets report them, but at once.
//
//go:embed stages/*.yaml
var stages embed.FS

//go:embed kwok-rbac.yaml
var kwokRBAC []byte

// kwokOptions lets KWOK handle many nodes and pods at the same time, and makes it serve only its health check.
const kwokOptions = `apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  enableDebuggingHandlers: false
  podPlayStageParallelism: 16
  nodePlayStageParallelism: 16
  nodeLeaseParallelism: 16
  podsOnNodeSyncParallelism: 8
`

// kwokConfig returns KWOK's options and all stages as one file.
func kwokConfig() []byte {
	documents := [][]byte{[]byte(kwokOptions)}
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
