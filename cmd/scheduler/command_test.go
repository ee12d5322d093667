package main

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/berth-project/berth/pkg/plugins/scheduling/workloadspread"
)

func TestTheCommandIsThatOfKubeScheduler(t *testing.T) {
	help := func(cmd *cobra.Command) string {
		var text bytes.Buffer
		cmd.SetOut(&text)
		cmd.SetArgs([]string{"--help"})
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	stock, berth := app.NewSchedulerCommand(), newCommand(&workloadspread.Family{})
	if diff := cmp.Diff(stock.UsageString(), berth.UsageString()); diff != "" {
		t.Errorf("usage (-stock +Berth):\n%s", diff)
	}
	if diff := cmp.Diff(stock.Flags().FlagUsages(), berth.Flags().FlagUsages()); diff != "" {
		t.Errorf("flags (-stock +Berth):\n%s", diff)
	}
	if diff := cmp.Diff(help(stock), help(berth)); diff != "" {
		t.Errorf("help (-stock +Berth):\n%s", diff)
	}
	for _, args := range [][]string{{"--no-such-flag"}, {"an-argument"}} {
		var errs []string
		for _, cmd := range []*cobra.Command{app.NewSchedulerCommand(), newCommand(&workloadspread.Family{})} {
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			cmd.SetArgs(args)
			err := cmd.Execute()
			if err == nil {
				t.Fatalf("%v: no error", args)
			}
			errs = append(errs, err.Error())
		}
		if errs[0] != errs[1] {
			t.Errorf("%v: stock says %q, Berth %q", args, errs[0], errs[1])
		}
	}
}
