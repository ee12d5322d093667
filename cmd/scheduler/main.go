// Command scheduler is kube-scheduler with Berth's plugins, and with Coscheduling and CapacityScheduling, which are off unless a profile enables
// them.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the API client
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the build
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme" // Args of the plugins from scheduler-plugins
	"sigs.k8s.io/scheduler-plugins/pkg/capacityscheduling"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"

	"github.com/berth-project/berth/pkg/plugins/scheduling/workloadspread"
)

func main() {
	var berth workloadspread.Family
	os.Exit(cli.Run(newCommand(&berth,
		app.WithPlugin(workloadspread.Name, berth.Spread),
		app.WithPlugin(workloadspread.GateName, berth.Gate),
		app.WithPlugin(coscheduling.Name, coscheduling.New),
		app.WithPlugin(capacityscheduling.Name, capacityscheduling.New),
	)))
}
