package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// clusterSuite runs the product on a real control plane, and judges what the API server shows.
type clusterSuite struct {
	in, run string
	// command is the program, below cmd, that has the faults.
	command string
	faults  []string
}

// clusterSuites are tried with some faults each, because a trial takes minutes. Each judge is there: test/checker, test/linear, and the watcher of children.
var clusterSuites = []clusterSuite{
	{"./test/faults", "TestSpoiltBinds", "scheduler", []string{"ledger-no-doubt", "ledger-old-revision", "subset-off-by-one"}},
	{"./test/faults", "TestSpoiltWrites", "controller", []string{"united-no-surge"}},
	{"./test/budget", "TestAHistoryOfABudgetHasAnOrder", "controller", []string{"budget-counted-twice", "budget-off-by-one"}},
}

// tryOnClusters tries the faults with these names in a copy of the repository, each with its suites, and returns the table. Its other rows are those of the page. bin has the programs
// without a fault. It fails if a suite does not pass without a fault, or does not notice one.
func tryOnClusters(ctx context.Context, tree, bin, page string, faults []fault, names *regexp.Regexp) ([]string, error) {
	table := []string{"| suite | fault | noticed | time |", "|---|---|---|---|"}
	if err := os.CopyFS(filepath.Join(tree, "bin"), os.DirFS(bin)); err != nil {
		return nil, err
	}
	var missed []error
	for _, s := range clusterSuites {
		program, passed := filepath.Join(tree, "bin", "berth-"+s.command), false
		for _, name := range s.faults {
			begin := fmt.Sprintf("| %s `%s` | %s |", strings.TrimPrefix(s.in, "./"), s.run, name)
			if !names.MatchString(name) {
				row, err := rowOf(page, begin)
				if err != nil {
					return nil, err
				}
				table = append(table, row)
				continue
			}
			if !passed {
				switch noticed, _, err := s.try(ctx, tree); {
				case err != nil:
					return nil, err
				case noticed:
					return nil, fmt.Errorf("%[1]s fails without a fault, so it cannot show one: see go test %[1]s -run %[2]s", s.in, s.run)
				}
				passed = true
			}
			at := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
			if at < 0 {
				return nil, fmt.Errorf("there is no fault %s", name)
			}
			path, err := filepath.Abs(faults[at].path)
			if err == nil {
				err = errors.Join(apply(ctx, tree, path), goBuild(ctx, tree, program, s.command))
			}
			if err != nil {
				return nil, err
			}
			noticed, took, err := s.try(ctx, tree)
			if err != nil {
				return nil, fmt.Errorf("%s with fault %s: %w", s.in, name, err)
			}
			row := fmt.Sprintf("%s **yes** | %.0f s |", begin, took.Seconds())
			if !noticed {
				row = strings.Replace(row, "**yes**", "no", 1)
				missed = append(missed, fmt.Errorf("%s does not notice %s", s.in, name))
			}
			fmt.Println(row)
			table = append(table, row)
			if err := apply(ctx, tree, "-R", path); err != nil {
				return nil, err
			}
		}
		if passed {
			if err := goBuild(ctx, tree, program, s.command); err != nil {
				return nil, err
			}
		}
	}
	return table, errors.Join(missed...)
}

// try runs the suite once. An error is not a failed test: nothing could be tried, or the time was over.
func (s *clusterSuite) try(ctx context.Context, tree string) (failed bool, took time.Duration, err error) {
	began := time.Now()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-failfast", "-timeout=20m", "-run", s.run, s.in)
	cmd.Dir = tree
	output, err := cmd.CombinedOutput()
	took = time.Since(began)
	switch {
	case err == nil && !bytes.Contains(output, []byte("no tests to run")):
		return false, took, nil
	case err != nil && bytes.Contains(output, []byte("--- FAIL")) && !bytes.Contains(output, []byte("panic: test timed out")):
		return true, took, nil
	}
	return false, took, fmt.Errorf("go test %s -run %s: %w\n%s", s.in, s.run, err, output)
}

func goBuild(ctx context.Context, tree, to, command string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, "./cmd/"+command)
	cmd.Dir = tree
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", command, err, output)
	}
	return nil
}
