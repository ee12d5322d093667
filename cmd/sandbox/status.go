package main

import (
	"cmp"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/berth-project/berth/internal/sandbox"
)

func statusCommand() *cobra.Command {
	var name string
	command := &cobra.Command{
		Use:   "status",
		Short: "Show what the components of a sandbox are doing",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			current, err := readState(name)
			if err != nil {
				return err
			}
			if current == nil || !current.Supervisor.runs() {
				return fmt.Errorf("sandbox %q does not run: start it with `berth-sandbox up --name %s`", name, name)
			}
			if !current.Ready {
				fmt.Fprintf(command.OutOrStdout(), "sandbox %q is starting (pid %d)\n", name, current.Supervisor.PID)
				return nil
			}
			table := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "NAME\tPID\tSTATE\tADDRESS\tRESTARTS")
			for _, component := range current.Components {
				fmt.Fprintf(table, "%s-%d\t%d\t%s\t%s\t%d\n",
					component.Name, component.Replica, component.PID, component.State, cmp.Or(component.Address, "-"), component.Restarts)
			}
			if err := table.Flush(); err != nil {
				return err
			}
			if current.Page != "" {
				fmt.Fprintf(command.OutOrStdout(), "\nsee it at %s\n", current.Page)
			}
			for _, component := range current.Components {
				if component.State == sandbox.Crashing {
					fmt.Fprintf(command.OutOrStdout(), "\n%s-%d keeps ending, see %s:\n%s\n",
						component.Name, component.Replica, component.Log, component.LogTail)
				}
			}
			return nil
		},
	}
	addNameFlag(command.Flags(), &name)
	return command
}
