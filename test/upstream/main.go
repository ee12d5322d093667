// Command upstream runs Kubernetes' own integration tests of the scheduler on a scheduler that has Berth's plugins in each profile, or on the stock scheduler. The tests are those of
// the module k8s.io/kubernetes, and their files are as they are. In a copy of the module, the function that makes a scheduler adds the plugins.
//
// Arguments are those of `go test`, also for the benchmarks of its scheduler_perf (make bench-upstream). With -stock nothing is added.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// The two files of the module that are changed: the package that makes the scheduler of every test, and a new file of the package that all tests import.
const (
	scheduler = "pkg/scheduler/scheduler.go"
	util      = "test/integration/util/berth.go"
)

func main() {
	stock := flag.Bool("stock", false, "run the tests on the stock scheduler")
	dir := flag.String("dir", "../../bin/upstream", "directory of the copy of the module, which the next run finds again")
	packages := flag.String("packages", "k8s.io/kubernetes/test/integration/scheduler/...", "packages of tests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *stock, strings.Fields(*packages), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "upstream:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, stock bool, packages, args []string) error {
	command := []string{"test", "-vet=off"}
	if !stock {
		mod, err := change(ctx, dir)
		if err != nil {
			return err
		}
		command = append(command, "-modfile="+mod)
	}
	test := exec.CommandContext(ctx, "go", slices.Concat(command, packages, args)...)
	test.Stdout, test.Stderr = os.Stdout, os.Stderr
	return test.Run()
}

// edits are made to the package that makes schedulers. Each text must be there once.
var edits = [][2]string{
	{"	registry := frameworkplugins.NewInTreeRegistry()\n", `	finish := func(*Scheduler) {}
	if Extend != nil {
		options.profiles, options.frameworkOutOfTreeRegistry, finish = Extend(options.profiles, options.frameworkOutOfTreeRegistry)
	}
	registry := frameworkplugins.NewInTreeRegistry()
`},
	{"	return sched, nil\n", "	finish(sched)\n	return sched, nil\n"},
	{"// New returns a Scheduler\n", `// Extend changes the profiles and plugins of each new Scheduler. It returns what to do with it once it is made.
var Extend func([]schedulerapi.KubeSchedulerProfile, frameworkruntime.Registry) ([]schedulerapi.KubeSchedulerProfile, frameworkruntime.Registry, func(*Scheduler))

// New returns a Scheduler
`},
}

// kubernetes is the directory of the module k8s.io/kubernetes.
func kubernetes(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module k8s.io/kubernetes: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// edited is the file of the module that makes schedulers, with the edits.
func edited(module string) (string, error) {
	text, err := os.ReadFile(filepath.Join(module, scheduler))
	if err != nil {
		return "", err
	}
	changed := string(text)
	for _, edit := range edits {
		if n := strings.Count(changed, edit[0]); n != 1 {
			return "", fmt.Errorf("%s has this text %d times, want once:\n%s", scheduler, n, edit[0])
		}
		changed = strings.Replace(changed, edit[0], edit[1], 1)
	}
	return changed, nil
}

// change makes a copy of the module with Berth's plugins, and a go.mod that names it. It returns the go.mod.
func change(ctx context.Context, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	module, err := kubernetes(ctx)
	if err != nil {
		return "", err
	}
	made := filepath.Join(dir, filepath.Base(module))
	if err := os.CopyFS(made, os.DirFS(module)); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("copying the module: %w", err)
	}
	changed, err := edited(module)
	if err != nil {
		return "", err
	}
	plugins, err := os.ReadFile("testdata/berth.go")
	if err != nil {
		return "", err
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return "", err
	}
	sum, err := os.ReadFile("go.sum")
	if err != nil {
		return "", err
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "go.mod")
	mods := strings.Replace(string(mod), "=> ../..", "=> "+root, 1) + "\nreplace k8s.io/kubernetes => " + made + "\n"
	for path, content := range map[string]string{
		filepath.Join(made, scheduler): changed, filepath.Join(made, util): string(plugins), file: mods, filepath.Join(dir, "go.sum"): string(sum),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	return file, nil
}
