package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The programs, by their directories below cmd.
var (
	components = []string{"scheduler", "controller", "descheduler"}
	plugin     = []string{"kubectl-berth", "whatif"}
)

// nameOf is the name of the program of a directory below cmd.
func nameOf(command string) string {
	if command == "kubectl-berth" || command == controlPlane {
		return command
	}
	return "berth-" + command
}

type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "-" + p.arch }

// exe is the name of a program's file.
func (p platform) exe(name string) string {
	if p.os == "windows" {
		return name + ".exe"
	}
	return name
}

func parsePlatforms(text string) ([]platform, error) {
	var all []platform
	for one := range strings.SplitSeq(text, ",") {
		system, arch, ok := strings.Cut(one, "/")
		if !ok {
			return nil, fmt.Errorf("%q is no platform: give os/arch, such as linux/amd64", one)
		}
		all = append(all, platform{system, arch})
	}
	return all, nil
}

// program is one program for one platform.
type program struct {
	command string
	platform
	path string
}

// build builds the programs. With r.programs it takes those, and makes a release for this machine only.
func (r *release) build(ctx context.Context, work string) ([]program, error) {
	var all []program
	if r.programs != "" {
		here := platform{runtime.GOOS, runtime.GOARCH}
		r.nodes, r.plugins = []platform{here}, []platform{here}
		commands := slices.Concat(components, plugin)
		if r.line.suffix == "" {
			commands = append(commands, "sandbox", controlPlane)
		}
		for _, command := range commands {
			all = append(all, program{command, here, filepath.Join(r.programs, nameOf(command))})
		}
		return all, nil
	}
	for _, on := range unique(r.nodes, r.plugins) {
		var commands []string
		if slices.Contains(r.nodes, on) {
			commands = components
		}
		if slices.Contains(r.plugins, on) || slices.Contains(r.nodes, on) {
			commands = slices.Concat(commands, plugin)
		}
		tries := slices.Contains(r.nodes, on) && r.line.suffix == ""
		if tries {
			commands = append(commands, "sandbox")
		}
		fmt.Fprintf(os.Stderr, "release: building %s for %s\n", strings.Join(commands, ", "), on)
		dir := filepath.Join(work, on.String())
		clients := slices.DeleteFunc(slices.Clone(commands), func(command string) bool { return slices.Contains(linked, command) })
		schedulers := slices.DeleteFunc(slices.Clone(commands), func(command string) bool { return slices.Contains(clients, command) })
		for _, err := range []error{r.goBuild(ctx, on, dir, clients), r.goBuild(ctx, on, dir, schedulers, r.line.flags...)} {
			if err != nil {
				return nil, fmt.Errorf("building for %s: %w", on, err)
			}
		}
		for _, command := range commands {
			path := filepath.Join(dir, on.exe(nameOf(command)))
			if err := os.Rename(filepath.Join(dir, "of", on.exe(command)), path); err != nil {
				return nil, err
			}
			all = append(all, program{command, on, path})
		}
		if tries {
			path := filepath.Join(dir, controlPlane)
			if err := r.buildControlPlane(ctx, on, path); err != nil {
				return nil, fmt.Errorf("building the control plane for %s: %w", on, err)
			}
			all = append(all, program{controlPlane, on, path})
		}
	}
	return all, nil
}

func unique(lists ...[]platform) []platform {
	var all []platform
	for _, p := range slices.Concat(lists...) {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// goBuild builds commands into the directory "of" below dir. Paths, the state of the repository and the environment of this machine do not get into them.
func (r *release) goBuild(ctx context.Context, on platform, dir string, commands []string, flags ...string) error {
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X github.com/berth-project/berth/internal/version.release=" + r.version,
		"-o", filepath.Join(dir, "of") + string(filepath.Separator)}, flags...)
	for _, command := range commands {
		args = append(args, "./cmd/"+command)
	}
	if err := os.MkdirAll(filepath.Join(dir, "of"), 0o755); err != nil {
		return err
	}
	env, err := r.goEnv(ctx, on)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = r.root, os.Stderr, os.Stderr, env
	return cmd.Run()
}

// goEnv is the environment of go build. Go and all that changes a program are those of the commit and of the platform. Without GOENV=off, the go command takes what
// "go env -w" has written for each variable that is empty here. Only where modules come from stays as it is on this machine: go.sum says what is in them.
func (r *release) goEnv(ctx context.Context, on platform) ([]string, error) {
	pinned, err := os.ReadFile(filepath.Join(r.root, ".go-version"))
	if err != nil {
		return nil, fmt.Errorf("the version of Go that builds releases: %w", err)
	}
	env := os.Environ()
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY", "GOSUMDB", "GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GOINSECURE", "GOAUTH", "GOVCS"} {
		cmd := exec.CommandContext(ctx, "go", "env", name)
		cmd.Dir = r.root
		value, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go env %s: %w", name, err)
		}
		env = append(env, name+"="+strings.TrimSpace(string(value)))
	}
	return append(env, "GOENV=off", "GOTOOLCHAIN=go"+strings.TrimSpace(string(pinned)), "GOOS="+on.os, "GOARCH="+on.arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0",
		"GO111MODULE=on", "GOWORK=off", "GOFLAGS=", "GOEXPERIMENT=", "GOFIPS140=off", "GO_EXTLINK_ENABLED="), nil
}

// source is the commit that a release is made of.
type source struct {
	commit string
	// at is the time of the commit. It is the only time in a release, so that nobody can tell when it was made.
	at       time.Time
	modified bool
}

func readSource(ctx context.Context, root string) (s source, err error) {
	git := func(args ...string) (string, error) {
		var errs bytes.Buffer
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir, cmd.Stderr = root, &errs
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w: %s: a release is made of a commit", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
		}
		return strings.TrimSpace(string(out)), nil
	}
	said, err := git("log", "-1", "--format=%H %ct")
	if err != nil {
		return s, err
	}
	commit, at, _ := strings.Cut(said, " ")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return s, err
	}
	changes, err := git("status", "--porcelain")
	return source{commit: commit, at: time.Unix(seconds, 0).UTC(), modified: changes != ""}, err
}
