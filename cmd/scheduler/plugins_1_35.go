//go:build !kubernetes_1_37

package main

import (
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme" // Args of the plugins from scheduler-plugins
	"sigs.k8s.io/scheduler-plugins/pkg/capacityscheduling"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
)

// othersPlugins are plugins of others that are compiled in.
var othersPlugins = []app.Option{
	app.WithPlugin(coscheduling.Name, coscheduling.New),
	app.WithPlugin(capacityscheduling.Name, capacityscheduling.New),
}
