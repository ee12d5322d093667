// Command upstream runs Kubernetes' own integration tests of the scheduler on a scheduler that has Berth's plugins in each profile, or on the stock scheduler. The tests are those of
// the module k8s.io/kubernetes, and their files are as they are. In a copy of the module, the function that makes a scheduler adds the plugins.
//
// Arguments are those of `go test`, also for the benchmarks of its scheduler_perf (make bench-upstream). With -stock it adds none.
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

// util is a new file of the package that all tests import.
const util = "test/integration/util/berth.go"

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
	mod, err := change(ctx, dir, stock)
	if err != nil {
		return err
	}
	test := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-vet=off", "-tags=upstream", "-modfile=" + mod}, packages, args)...)
	test.Stdout, test.Stderr = os.Stdout, os.Stderr
	return test.Run()
}

// edits are made to files of the module. Each text must be there once.
var edits = map[string][][2]string{
	// The package that makes the scheduler of every test.
	"pkg/scheduler/scheduler.go": {
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
	},
	// The benchmark with an owner makes the namespace of its pods: their template has the UID of their owner.
	"test/integration/scheduler_perf/scheduler_perf.go": {
		{"		if err != nil {\n			return fmt.Errorf(\"failed to create namespace for Pod", "		if err != nil && !apierrors.IsAlreadyExists(err) {\n			return fmt.Errorf(\"failed to create namespace for Pod"},
	},
}

// kubernetes is the directory of the module k8s.io/kubernetes.
func kubernetes(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module k8s.io/kubernetes: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// edited are the files of the module that are edited, by their paths, with the edits.
func edited(module string) (map[string]string, error) {
	files := map[string]string{}
	for path, all := range edits {
		text, err := os.ReadFile(filepath.Join(module, path))
		if err != nil {
			return nil, err
		}
		changed := string(text)
		for _, edit := range all {
			if n := strings.Count(changed, edit[0]); n != 1 {
				return nil, fmt.Errorf("%s has this text %d times, want once:\n%s", path, n, edit[0])
			}
			changed = strings.Replace(changed, edit[0], edit[1], 1)
		}
		files[path] = changed
	}
	return files, nil
}

// change makes a copy of the module, with Berth's plugins if it is not to stay stock, and a go.mod that names it. It returns the go.mod.
func change(ctx context.Context, dir string, stock bool) (string, error) {
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
	files, err := edited(module)
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
	if stock {
		plugins = []byte("package util\n")
	}
	files[util] = string(plugins)
	written := map[string]string{file: mods, filepath.Join(dir, "go.sum"): string(sum)}
	for path, content := range files {
		written[filepath.Join(made, path)] = content
	}
	for path, content := range written {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	return file, nil
}
