//go:build linux

// Command kubelet is the kubelet of Kubernetes, for the real nodes of a sandbox. Its main package is Kubernetes' own, and stands here so that the
// module files of this directory and of every line in hack/lines have what it needs.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	os.Exit(cli.Run(app.NewKubeletCommand(context.Background())))
}
