// Command stock is the descheduler of kubernetes-sigs as it is, with Berth's plugins in its registry. It is how somebody adds them to a descheduler of
// their own. The tests run it.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"sigs.k8s.io/descheduler/cmd/descheduler/app"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/plugins/descheduling"
)

func main() {
	command := app.NewDeschedulerCommand(os.Stdout)
	setUp := command.PreRunE // makes the registry
	command.PreRunE = func(cmd *cobra.Command, args []string) error {
		if err := setUp(cmd, args); err != nil {
			return err
		}
		descheduling.AddTo(pluginregistry.PluginRegistry)
		return nil
	}
	os.Exit(cli.Run(command))
}
