// Command controlplane is the control plane of a sandbox in one binary: etcd, the API server, the controller manager, the scheduler, kubectl and KWOK.
// It runs the one that it is started as: `make tools` makes a link with the name of each. What they share is compiled and linked once.
//
// Each is started as its own main package starts it, but for KWOK (see runKWOK). What the packages of the others register when they are initialized is taken back where it would show:
// their flags, and their hold on client-go's feature gates. The Makefile has the linker write the version of Kubernetes into it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	_ "time/tzdata" // for time zones of CronJobs

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	_ "k8s.io/client-go/plugin/pkg/client/auth"

	"github.com/berth-project/berth/hack/tools/controlplane/clientgates"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllermanager.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "etcd":
		standAlone()
		etcdmain.Main(os.Args)
	case "kubectl":
		standAlone()
		runKubectl()
	case "kwok":
		standAlone()
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := runKWOK(ctx, os.Args[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "kwok: %v\n", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintf(os.Stderr, "%s: start it as etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl or kwok, by a link of that name\n", name)
		os.Exit(2)
	}
}

// standAlone takes back what the components of Kubernetes have registered for all of the program.
func standAlone() {
	pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ExitOnError)
	clientgates.Restore()
}

// runKubectl is main of k8s.io/kubernetes/cmd/kubectl.
func runKubectl() {
	// Building the command logs already. An error is reported when the command line is parsed.
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
