package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/internal/scenario"
)

// playFlags are the flags of play as they were given.
type playFlags struct {
	name     string
	binDir   string
	patience time.Duration
}

func playCommand() *cobra.Command {
	var flags playFlags
	command := &cobra.Command{
		Use:   "play FILE...",
		Short: "Play scenarios on a sandbox of their own, print their tables, and fail if a table is not the expected one",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, files []string) error {
			scenarios, err := readScenarios(files)
			if err != nil {
				return err
			}
			return flags.play(command.Context(), command.OutOrStdout(), command.ErrOrStderr(), scenarios)
		},
	}
	set := command.Flags()
	set.StringVar(&flags.name, "name", "play", "name of the sandbox, to have several at a time")
	set.StringVar(&flags.binDir, "bin-dir", "", binDirUsage)
	set.DurationVar(&flags.patience, "timeout", scenario.DefaultPatience, "how long to wait for each table")
	return command
}

// readScenarios reports the errors of all files at once.
func readScenarios(files []string) ([]*scenario.Scenario, error) {
	scenarios, errs := make([]*scenario.Scenario, len(files)), make([]error, len(files))
	for i, file := range files {
		var content []byte
		if content, errs[i] = os.ReadFile(file); errs[i] == nil {
			scenarios[i], errs[i] = scenario.Parse(file, content)
		}
	}
	return scenarios, errors.Join(errs...)
}

// play starts a sandbox, plays the scenarios one after the other, and stops the sandbox. Tables go to out.
func (f playFlags) play(ctx context.Context, out, progress io.Writer, scenarios []*scenario.Scenario) error {
	if err := sandbox.CheckName(f.name); err != nil {
		return fmt.Errorf("--%w", err)
	}
	config := sandbox.Config{Name: f.name, Dir: sandboxDir(f.name), BinDir: f.binDir, Progress: progress}
	if config.BinDir == "" {
		config.BinDir = defaultBinDir()
	}
	config, err := product.Compose(config, product.Options{})
	if err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	s, err := start(ctx, config)
	if err != nil {
		return err
	}
	defer s.Stop()
	tables, unmet := 0, 0
	for _, one := range scenarios {
		err := f.playOne(ctx, s, one, func(c scenario.Checkpoint) error {
			tables++
			if c.Met() {
				fmt.Fprintf(out, "%s:%d\n%s", one.Name, c.Line, c.Got)
				return nil
			}
			unmet++
			fmt.Fprintf(out, "%s:%d: table %s is not met\n%s%s", one.Name, c.Line, c.Section, c.SideBySide(), c.Warnings)
			return nil
		})
		if err != nil {
			return err
		}
	}
	if unmet > 0 {
		return fmt.Errorf("%d of %d tables are not met; the logs of the components are in %s", unmet, tables, filepath.Join(config.Dir, "logs"))
	}
	return nil
}

func (f playFlags) playOne(ctx context.Context, s *sandbox.Sandbox, one *scenario.Scenario, checked func(scenario.Checkpoint) error) error {
	play, err := scenario.Start(ctx, s, one)
	if err != nil {
		return err
	}
	play.Patience = f.patience
	err = play.Run(ctx, checked)
	if ctx.Err() != nil {
		return errors.New("interrupted: nothing is left running")
	}
	return errors.Join(err, play.End(ctx))
}
