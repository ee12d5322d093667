// Command suites runs packages of tests, the longest first, and prints a line for each when it ends: how many tests it has, and how long the rest will
// take by the last run. A test that fails is never run again, and ends as a failed run: it shows a broken promise of the product, or a test that waits
// for too little. For each such test, suites prints its output, which has the seed and the history, and the command that repeats it.
//
// With -rounds it runs everything that often, beside as many busy cores as -load says, and counts how often each test failed.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"time"

	"gotest.tools/gotestsum/testjson"
)

// suites is what is known of the packages, by import path.
type suites struct {
	// took is how long each package took the last time. A package without a time counts as nothing.
	took map[string]time.Duration
	// at is how many run at a time.
	at int
	// left are the packages that have not ended.
	left  []string
	began time.Time
}

var _ testjson.EventHandler = &suites{}

func main() {
	times := flag.String("times", "", "file with the times of the last run; it is written again")
	at := flag.Int("p", 2, "how many packages run at a time")
	rounds := flag.Int("rounds", 1, "how often everything runs")
	load := flag.Int("load", 0, "how many cores are kept busy meanwhile")
	packages := flag.String("packages", "", "the packages, as for go list")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	for range *load {
		go func() {
			for ctx.Err() == nil {
			}
		}()
	}
	if err := run(ctx, *times, *at, *rounds, strings.Fields(*packages), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, times string, at, rounds int, patterns, args []string) error {
	listed, err := exec.CommandContext(ctx, "go", append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}"}, patterns...)...).Output()
	if err != nil {
		return fmt.Errorf("listing %s: %w", patterns, errors.Join(err, said(err)))
	}
	packages := strings.Fields(string(listed))
	took := read(times)
	slices.SortStableFunc(packages, func(a, b string) int { return cmp.Compare(took[b], took[a]) })
	failures := map[string]int{}
	for round := range rounds {
		if rounds > 1 {
			fmt.Printf("round %d of %d\n", round+1, rounds)
		}
		s := &suites{took: took, at: at, left: slices.Clone(packages), began: time.Now()}
		failed, err := s.test(ctx, packages, args)
		if err != nil {
			return err
		}
		for _, command := range failed {
			failures[command]++
		}
		if err := write(times, took); err != nil {
			return err
		}
	}
	if len(failures) == 0 {
		return nil
	}
	var lines []string
	for command, n := range failures {
		lines = append(lines, fmt.Sprintf("%d of %d: %s", n, rounds, command))
	}
	slices.Sort(lines)
	return fmt.Errorf("failed, and nothing is run again; to repeat:\n%s", strings.Join(lines, "\n"))
}

// said is what a command wrote to its standard error.
func said(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return errors.New(string(exit.Stderr))
	}
	return nil
}

// test runs the packages once, and returns the commands that repeat what failed.
func (s *suites) test(ctx context.Context, packages, args []string) (failed []string, err error) {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-json", fmt.Sprintf("-p=%d", s.at)}, packages, args)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that tests clean up
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	said, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting go test: %w", err)
	}
	execution, err := testjson.ScanTestOutput(testjson.ScanConfig{Stdout: out, Stderr: said, Handler: s, IgnoreNonJSONOutputLines: true})
	ended := cmd.Wait()
	if err != nil {
		return nil, fmt.Errorf("reading what go test says: %w", errors.Join(err, ended))
	}
	testjson.PrintSummary(os.Stdout, execution, testjson.SummarizeFailed|testjson.SummarizeErrors|testjson.SummarizeOutput)
	printSlowest(execution)
	for _, name := range execution.Packages() {
		if execution.Package(name).TestMainFailed() {
			failed = append(failed, "go test -count=1 "+name)
		}
	}
	for _, test := range testjson.FilterFailedUnique(execution.Failed()) {
		if test.Test != "" {
			failed = append(failed, fmt.Sprintf("go test -count=1 -run '%s' %s", pattern(test.Test.Name()), test.Package))
		}
	}
	if ended != nil && len(failed) == 0 {
		return nil, fmt.Errorf("go test: %w", ended)
	}
	return failed, nil
}

// slow is how long a test takes that is worth a line at the end.
const slow = 10 * time.Second

// printSlowest prints the slow tests, so that whoever adds one sees what it costs.
func printSlowest(execution *testjson.Execution) {
	var tests []testjson.TestCase
	for _, name := range execution.Packages() {
		for _, test := range execution.Package(name).TestCases() {
			if test.Elapsed >= slow && !test.Test.IsSubTest() {
				tests = append(tests, test)
			}
		}
	}
	slices.SortFunc(tests, func(a, b testjson.TestCase) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for _, test := range tests {
		fmt.Printf("slow   %6.1fs %s %s\n", test.Elapsed.Seconds(), short(test.Package), test.Test.Name())
	}
}

// short is a package's path below the repository.
func short(name string) string {
	_, below, found := strings.Cut(name, "/berth/")
	if !found {
		return name
	}
	return below
}

// pattern is the -run of a test.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// Event implements testjson.EventHandler.
func (s *suites) Event(event testjson.TestEvent, execution *testjson.Execution) error {
	if !event.PackageEvent() || !event.Action.IsTerminal() {
		return nil
	}
	of := execution.Package(event.Package)
	s.left = slices.DeleteFunc(s.left, func(name string) bool { return name == event.Package })
	mark := "ok    "
	if event.Action == testjson.ActionFail {
		mark = "FAILED"
	}
	took := of.Elapsed()
	if took > 0 && event.Action == testjson.ActionPass {
		s.took[event.Package] = took
	}
	fmt.Printf("%s %-55s %4d tests %7.1fs   %d left, about %.0fs\n", mark, short(event.Package), of.Total, took.Seconds(), len(s.left), s.rest().Seconds())
	for _, test := range of.Failed { // now, and not after the other suites
		fmt.Printf("       %s\n       %s\n", test.Test, strings.Join(of.OutputLines(test), "       "))
	}
	return nil
}

// rest is how long the packages that are left would take if as many ran at a time as now: at least as long as the longest of them.
func (s *suites) rest() time.Duration {
	var all, longest time.Duration
	for _, name := range s.left {
		all += s.took[name]
		longest = max(longest, s.took[name])
	}
	return max(all/time.Duration(s.at), longest)
}

// Err implements testjson.EventHandler.
func (s *suites) Err(text string) error {
	if !strings.HasPrefix(text, "go: downloading ") {
		fmt.Fprintln(os.Stderr, text)
	}
	return nil
}

// read reads times in seconds. Without a file there are none.
func read(times string) map[string]time.Duration {
	took := map[string]time.Duration{}
	text, err := os.ReadFile(times)
	if err != nil {
		return took
	}
	var seconds map[string]float64
	if json.Unmarshal(text, &seconds) == nil { // a broken file is like none: it is written again
		for name, n := range seconds {
			took[name] = time.Duration(n * float64(time.Second))
		}
	}
	return took
}

func write(times string, took map[string]time.Duration) error {
	if times == "" {
		return nil
	}
	seconds := map[string]float64{}
	for name, d := range took {
		seconds[name] = d.Seconds()
	}
	text, err := json.MarshalIndent(seconds, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(times, append(text, '\n'), 0o644)
}
