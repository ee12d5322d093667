// Command release makes everything that a version of Berth consists of, in one directory: images, chart, manifests, archives of kubectl berth, lists of what
// is inside, and checksums. The same commit and the same version of Go give the same files. Begin reading at release.make.
//
//	release -version v1.2.3 -out dist              makes the files
//	release assets -to dist-assets dist dist-1.37  packs the releases of all lines into files without directories, as people download them
//	release push -from dist -to ghcr.io/someone    pushes the images and the chart of a release, or of one of the files images-TAG.tar
//	release registry                               serves a registry on this machine until it is killed, for tests
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"golang.org/x/mod/semver"
)

// The platforms of a release: nodes run the images, people run kubectl berth.
const (
	nodePlatforms   = "linux/amd64,linux/arm64"
	pluginPlatforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	command := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("release "+command, flag.ContinueOnError)
	switch command {
	case "":
		r := release{}
		flags.StringVar(&r.root, "root", ".", "Root of the repository.")
		flags.StringVar(&r.version, "version", "", "The version, such as v1.2.3.")
		flags.StringVar(&r.out, "out", "dist", "Directory for the files. A release that is there is replaced at the end.")
		flags.StringVar(&r.registry, "registry", "ghcr.io/berth-project", "Where users pull the images from: images are REGISTRY/berth-scheduler and so on, the chart is REGISTRY/charts/berth.")
		flags.StringVar(&r.programs, "programs", "", "Directory with programs for this machine, which go into the release in place of programs for -nodes and -plugins. For tests of everything else.")
		line := flags.String("line", defaultLine, "The Kubernetes version that the programs are built on.")
		nodes := flags.String("nodes", nodePlatforms, "Platforms of the images.")
		plugins := flags.String("plugins", pluginPlatforms, "Platforms of the archives.")
		if err := flags.Parse(args); err != nil {
			return err
		}
		var known bool
		if r.line, known = lines[*line]; !known {
			return fmt.Errorf("-line=%s: nothing is known of this version: add it to hack/tools/release/line.go", *line)
		}
		var err error
		if r.nodes, err = parsePlatforms(*nodes); err != nil {
			return fmt.Errorf("-nodes: %w", err)
		}
		if r.plugins, err = parsePlatforms(*plugins); err != nil {
			return fmt.Errorf("-plugins: %w", err)
		}
		return r.make(ctx)
	case "push":
		from := flags.String("from", "dist", "Directory with a release, or a file images-TAG.tar of its assets.")
		to := flags.String("to", "", "Registry and path below which the images and the chart go.")
		if err := flags.Parse(args); err != nil {
			return err
		}
		return push(ctx, *from, *to)
	case "assets":
		to := flags.String("to", "dist-assets", "Directory for the files. Assets that are there are replaced.")
		if err := flags.Parse(args); err != nil {
			return err
		}
		return replace(*to, func(dir string) error { return writeAssets(dir, flags.Args()) })
	case "registry":
		if err := flags.Parse(args); err != nil {
			return err
		}
		return serveRegistry(ctx)
	}
	return fmt.Errorf("%s is no command: there are assets, push and registry, and without a command it makes a release", command)
}

// release is what a release is made of and where it goes.
type release struct {
	root, out, version, registry, programs string
	line                                   line
	nodes, plugins                         []platform
	// source is the commit. subjects are the images by their names, for the provenance.
	source   source
	subjects []subject
	// notices is the file with the licences of others, after writeNotices.
	notices entry
}

// tag is the tag of the images, and the version by which the chart calls its programs.
func (r *release) tag() string { return r.version + r.line.suffix }

// named is the name of a file that people download, which no other line has.
func (r *release) named(name string) string {
	extension := filepath.Ext(name)
	return strings.TrimSuffix(name, extension) + r.line.suffix + extension
}

func (r *release) make(ctx context.Context) error {
	if !semver.IsValid(r.version) || semver.Canonical(r.version) != r.version {
		return fmt.Errorf("VERSION=%s is no version: give one like v1.2.3", r.version)
	}
	var err error
	if r.source, err = readSource(ctx, r.root); err != nil {
		return err
	}
	if r.source.modified && r.programs == "" {
		return errors.New("the working tree has changes, so nobody could make this release again: commit them, or take them back")
	}
	return replace(r.out, func(dir string) error {
		r.out = dir
		return r.writeAll(ctx)
	})
}

func (r *release) writeAll(ctx context.Context) error {
	work, err := os.MkdirTemp("", "berth-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	programs, err := r.build(ctx, work)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{noticesFile, func() error { return r.writeNotices(ctx, programs) }},
		{"images", func() error { return r.writeImages(programs) }},
		{"install.yaml", r.writeInstall},
		{"kubectl", func() error { return r.writeArchives(programs) }},
		{"sbom", func() error { return r.writeSBOMs(programs) }},
		{"sandbox", func() error { return r.writeSandboxes(programs) }},
		{"release-notes.md", r.writeNotes},
		{"provenance.json", func() error { return r.writeProvenance(programs) }},
		{"SHA256SUMS", func() error { return writeSums(r.out) }},
	} {
		fmt.Fprintln(os.Stderr, "release: writing", step.name)
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// replace lets write write a directory that replaces another one at the end. So the directory holds the whole of the release before, or the whole of the new one.
func replace(dir string, write func(dir string) error) error {
	if err := replaceable(dir); err != nil {
		return err
	}
	part := filepath.Clean(dir) + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	defer os.RemoveAll(part)
	if err := write(part); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(part, dir)
}

// replaceable is nil if nothing is lost with a directory but a release.
func replaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if _, missing := os.Stat(filepath.Join(dir, "SHA256SUMS")); err == nil && missing != nil {
		return fmt.Errorf("%s has files of somebody else, which would be removed: name another directory", dir)
	}
	return err
}

// write writes a file below the directory of the release.
func (r *release) write(content []byte, path ...string) error {
	file := filepath.Join(append([]string{r.out}, path...)...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}

// serveRegistry serves an empty registry, which forgets everything at its end. It prints its address.
func serveRegistry(ctx context.Context) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(os.Stderr, "", 0))), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() }) // the registry keeps nothing that could be lost
	fmt.Println(listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
