//go:build kubernetes_1_37

package main

import "k8s.io/kubernetes/cmd/kube-scheduler/app"

// othersPlugins are plugins of others that are compiled in. No version of scheduler-plugins compiles with Kubernetes
// 1.37.
var othersPlugins []app.Option
