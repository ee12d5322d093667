// Command scheduler is kube-scheduler with Berth's plugins, and with Coscheduling and CapacityScheduling where the line
// of Kubernetes has them. These two are off unless a profile enables them.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the API client
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the build
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/berth-project/berth/pkg/plugins/scheduling/workloadspread"
)

func main() {
	var berth workloadspread.Family
	os.Exit(cli.Run(newCommand(&berth, append(othersPlugins,
		app.WithPlugin(workloadspread.Name, berth.Spread),
		app.WithPlugin(workloadspread.GateName, berth.Gate),
	)...)))
}
