package sandbox

import (
	"bytes"
	"embed"
	"io/fs"
)

// How nodes and pods behave: what a kubelet would report, only at once.
//
//go:embed stages/*.yaml
var stages embed.FS

//go:embed kwok-rbac.yaml
var kwokRBAC []byte

// kwokOptions lets KWOK work on many nodes and pods at a time, and serve nothing but its health.
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
