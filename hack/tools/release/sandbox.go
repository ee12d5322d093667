package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/mod/modfile"
)

// controlPlane is the program that is Kubernetes' control plane, etcd, kubectl and KWOK, by the names of links to it.
const controlPlane = "control-plane"

var (
	// tryOut are the programs with which people try Berth on one machine, besides the control plane.
	tryOut       = []string{"sandbox", "scheduler", "controller", "kubectl-berth", "whatif"}
	controlNames = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok"}
)

// buildControlPlane builds the control plane of the default line from its own module.
func (r *release) buildControlPlane(ctx context.Context, on platform, path string) error {
	module := filepath.Join(r.root, "hack", "tools")
	version, err := versionOf(filepath.Join(module, "go.mod"), "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	env, err := r.goEnv(ctx, on)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X k8s.io/component-base/version.gitVersion="+version, "-o", path, "./controlplane")
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = module, os.Stderr, os.Stderr, env
	return cmd.Run()
}

// versionOf is the version at which a go.mod requires a module.
func versionOf(file, module string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	parsed, err := modfile.Parse(file, content, nil)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(parsed.Require, func(r *modfile.Require) bool { return r.Mod.Path == module })
	if at < 0 {
		return "", fmt.Errorf("%s does not require %s", file, module)
	}
	return parsed.Require[at].Mod.Version, nil
}

// writeSandboxes writes for each platform of nodes an archive that needs nothing else on the machine: the sandbox with its control plane, the manifests of the
// examples, licences, and what writeSBOMs has written. The default line is enough to try Berth, so other lines have none. Its name has no version, so that a link to the latest release can have it.
func (r *release) writeSandboxes(programs []program) error {
	if r.line.suffix != "" {
		return nil
	}
	const dir = "berth-sandbox/"
	examples, err := filepath.Glob(filepath.Join(r.root, "docs", "examples", "*.yaml"))
	if err != nil {
		return err
	}
	for _, on := range r.nodes {
		var entries []entry
		var errs error
		pick := func(path, name string, mode int64) {
			e, err := fileEntry(path, dir+name, mode)
			entries = append(entries, e)
			if err != nil && errs == nil {
				errs = err
			}
		}
		for _, p := range programs {
			if p.platform == on && (p.command == controlPlane || slices.Contains(tryOut, p.command)) {
				pick(p.path, nameOf(p.command), 0o755)
				sbom := sbomOf(p)
				pick(filepath.Join(r.out, "sbom", sbom), "sbom/"+sbom, 0o644)
			}
		}
		for _, name := range controlNames {
			entries = append(entries, entry{name: dir + name, mode: 0o777, link: controlPlane})
		}
		pick(filepath.Join(r.root, "cmd", "kubectl-berth", "kubectl_complete-berth"), "kubectl_complete-berth", 0o755)
		pick(filepath.Join(r.root, "LICENSE"), "LICENSE", 0o644)
		entries = append(entries, entry{name: dir + r.notices.name, mode: r.notices.mode, content: r.notices.content})
		for _, example := range examples {
			pick(example, "examples/"+filepath.Base(example), 0o644)
		}
		if errs != nil {
			return errs
		}
		archive, err := tarGz(entries)
		if err != nil {
			return err
		}
		if err := r.write(archive, "sandbox", fmt.Sprintf("berth-sandbox-%s.tar.gz", on)); err != nil {
			return err
		}
	}
	return nil
}
