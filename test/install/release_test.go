package install

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/test/harness"
)

var (
	distFlag = flag.String("dist", "", "directory that make release has written; empty: one for this machine, from the programs of bin")
	// releaseVersion is the version of what is in it.
	releaseVersion = flag.String("release", "v0.0.0-alpha.0", "the version of -dist")
	// suffix follows the version in names of the line that is tested.
	suffix = suffixOf(os.Getenv(harness.Line))
)

func suffixOf(line string) string {
	if line == "" {
		return ""
	}
	return "-k8s" + line
}

// releaseTag is the tag of the images of a release of the line that is tested, and the version of its chart.
func releaseTag() string { return *releaseVersion + suffix }

// TestMain removes the releases that tests share.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	for _, dir := range releases.dirs {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// releases are those that tests have made, by their lines and programs.
var releases = struct {
	sync.Mutex
	dirs map[string]string
}{dirs: map[string]string{}}

// dist is the directory of a release for the line that is tested.
func dist(t *testing.T) string {
	t.Helper()
	if *distFlag != "" {
		return *distFlag
	}
	return distOf(t, os.Getenv(harness.Line))
}

// distOf makes a release of the programs in bin, for a line of hack/lines, or for that of go.mod if it is empty.
func distOf(t *testing.T, line string) string {
	t.Helper()
	return distWith(t, line, filepath.Join(harness.Root(), "bin", line))
}

// distWith makes a release for a line, of programs in a directory, which may be those of another line.
func distWith(t *testing.T, line, programs string) string {
	t.Helper()
	releases.Lock()
	defer releases.Unlock()
	key := line + " " + programs
	if dir, is := releases.dirs[key]; is {
		return dir
	}
	dir, err := os.MkdirTemp("", "berth-dist-")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-root", harness.Root(), "-version", *releaseVersion, "-out", dir, "-programs", programs}
	if line != "" {
		args = append(args, "-line", line)
	}
	if out, err := exec.Command(filepath.Join(harness.Root(), "bin", "release"), args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", errors.Join(err, os.RemoveAll(dir)), out)
	}
	releases.dirs[key] = dir
	return dir
}

func chartOf(t *testing.T) string {
	t.Helper()
	return filepath.Join(dist(t), "charts", "berth-"+strings.TrimPrefix(releaseTag(), "v")+".tgz")
}

func readJSON(t *testing.T, into any, path ...string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path...))
	if err == nil {
		err = json.Unmarshal(content, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestEveryFileOfAReleaseIsAccountedFor by its checksum, and by the provenance.
func TestEveryFileOfAReleaseIsAccountedFor(t *testing.T) {
	t.Parallel()
	dir := dist(t)
	sums := map[string]string{}
	content, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		sum, path, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[path] = sum
	}
	err = filepath.WalkDir(dir, func(path string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() || file.Name() == "SHA256SUMS" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if got := fmt.Sprintf("%x", sha256.Sum256(content)); got != sums[name] {
			t.Errorf("SHA256SUMS has %q for %s, which is %s", sums[name], name, got)
		}
		delete(sums, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range sums {
		t.Errorf("SHA256SUMS has %s, which does not exist", name)
	}

	var provenance struct {
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				InternalParameters   struct{ Go string }
				ResolvedDependencies []struct {
					Digest struct{ GitCommit string }
				}
			}
		}
	}
	readJSON(t, &provenance, dir, "provenance"+suffix+".json")
	if from := provenance.Predicate.BuildDefinition.ResolvedDependencies; len(from) != 1 || len(from[0].Digest.GitCommit) != 40 {
		t.Errorf("the provenance names no commit: %+v", from)
	}
	if *distFlag != "" {
		pinned, err := os.ReadFile(filepath.Join(harness.Root(), ".go-version"))
		if err != nil {
			t.Fatal(err)
		}
		if with, want := provenance.Predicate.BuildDefinition.InternalParameters.Go, "go"+strings.TrimSpace(string(pinned)); with != want {
			t.Errorf("the programs were built with %q, .go-version says %q", with, want)
		}
	}
	var layout struct {
		Manifests []struct {
			Digest      string
			Annotations map[string]string
		}
	}
	readJSON(t, &layout, dir, "images", "index.json")
	install, err := os.ReadFile(filepath.Join(dir, "install"+suffix+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var images []string
	for _, one := range layout.Manifests {
		name := one.Annotations["org.opencontainers.image.ref.name"]
		images = append(images, name)
		reference := "ghcr.io/berth-project/" + name
		found := false
		for _, s := range provenance.Subject {
			found = found || s.Name == reference && "sha256:"+s.Digest["sha256"] == one.Digest
		}
		if !found {
			t.Errorf("the provenance does not have %s with %s", reference, one.Digest)
		}
		if strings.HasPrefix(name, "berth-") && !strings.Contains(string(install), "image: "+reference+"@"+one.Digest+"\n") {
			t.Errorf("install.yaml does not have %s@%s", reference, one.Digest)
		}
	}
	slices.Sort(images)
	tag := releaseTag()
	want := []string{"berth-controller:" + tag, "berth-descheduler:" + tag, "berth-scheduler:" + tag, "charts/berth:" + strings.TrimPrefix(tag, "v")}
	if !slices.Equal(images, want) {
		t.Errorf("images %v, want %v", images, want)
	}
	for _, program := range []string{"berth-scheduler", "berth-controller", "berth-descheduler", "kubectl-berth", "berth-whatif"} {
		var bom struct {
			BomFormat  string
			Components []struct{ Name string }
		}
		readJSON(t, &bom, dir, "sbom", program+"-"+runtime.GOOS+"-"+runtime.GOARCH+".cdx.json")
		if bom.BomFormat != "CycloneDX" || !slices.ContainsFunc(bom.Components, func(c struct{ Name string }) bool { return c.Name == "k8s.io/client-go" }) {
			t.Errorf("the SBOM of %s does not have client-go", program)
		}
	}
	notes, err := os.ReadFile(filepath.Join(dir, "release-notes.md"))
	if err != nil || !strings.Contains(string(notes), "### Added") || strings.Contains(string(notes), "](docs/") {
		t.Errorf("the release notes say nothing, or have links that lead nowhere: %v", err)
	}
}

// registry is a registry on this machine.
type registry struct {
	address string
	mu      sync.Mutex
	pulled  map[string]image
	dir     string
}

// startRegistry starts a registry with the images and the charts of releases, one for each line. It pushes them as maintainers do, from the files that are published.
func startRegistry(t *testing.T, dists ...string) *registry {
	t.Helper()
	program := filepath.Join(harness.Root(), "bin", "release")
	cmd := exec.CommandContext(t.Context(), program, "registry")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the test's end has killed it
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	r := &registry{address: strings.TrimSpace(address), pulled: map[string]image{}, dir: t.TempDir()}
	assets := filepath.Join(t.TempDir(), "assets")
	if out, err := exec.CommandContext(t.Context(), program, append([]string{"assets", "-to", assets}, dists...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	images, err := filepath.Glob(filepath.Join(assets, "images-*.tar"))
	if err != nil || len(images) != len(dists) {
		t.Fatalf("the assets have the images %v: %v", images, err)
	}
	for _, from := range images {
		if out, err := exec.CommandContext(t.Context(), program, "push", "-from", from, "-to", r.address+"/berth-project").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return r
}

// image is one that was pulled and unpacked.
type image struct {
	root       string
	entrypoint []string
	user       string
	platforms  []string
}

func (i *image) program() string { return filepath.Join(i.root, i.entrypoint[0]) }

// read reads a blob or a manifest, and compares it with its digest.
func (r *registry) read(ctx context.Context, repository, kind, reference string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/v2/%s/%s/%s", r.address, repository, kind, reference), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s: %w", request.URL, response.Status, content, err)
	}
	if sum := fmt.Sprintf("sha256:%x", sha256.Sum256(content)); strings.HasPrefix(reference, "sha256:") && reference != sum {
		return fmt.Errorf("%s is %s", request.URL, sum)
	}
	if raw, is := into.(*[]byte); is {
		*raw = content
		return nil
	}
	return json.Unmarshal(content, into)
}

// pull does what a node does: it gets the image for its platform, by the digest if the reference has one, and unpacks it. The registry stands in for the one
// of the reference.
func (r *registry) pull(ctx context.Context, reference string) (i image, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, known := r.pulled[reference]; known {
		return i, nil
	}
	_, repository, _ := strings.Cut(reference, "/")
	repository, digest, _ := strings.Cut(repository, "@")
	repository, tag, _ := strings.Cut(repository, ":")
	if digest != "" {
		tag = digest
	}
	type descriptor struct {
		Digest   string
		Platform struct{ OS, Architecture string }
	}
	var index struct{ Manifests []descriptor }
	if err := r.read(ctx, repository, "manifests", tag, &index); err != nil {
		return i, err
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	for _, one := range index.Manifests {
		i.platforms = append(i.platforms, one.Platform.OS+"/"+one.Platform.Architecture)
		if one.Platform.OS == runtime.GOOS && one.Platform.Architecture == runtime.GOARCH {
			if err := r.read(ctx, repository, "manifests", one.Digest, &manifest); err != nil {
				return i, err
			}
		}
	}
	var config struct {
		Config struct {
			Entrypoint []string
			User       string
		}
	}
	if err := r.read(ctx, repository, "blobs", manifest.Config.Digest, &config); err != nil {
		return i, err
	}
	i.entrypoint, i.user = config.Config.Entrypoint, config.Config.User
	i.root = filepath.Join(r.dir, fmt.Sprint(len(r.pulled)))
	for _, layer := range manifest.Layers {
		var packed []byte
		if err := r.read(ctx, repository, "blobs", layer.Digest, &packed); err != nil {
			return i, err
		}
		if err := unpackLayer(packed, i.root); err != nil {
			return i, err
		}
	}
	if len(i.entrypoint) != 1 {
		return i, fmt.Errorf("%s starts %v, want one program", reference, i.entrypoint)
	}
	r.pulled[reference] = i
	return i, nil
}

func unpackLayer(packed []byte, root string) error {
	plain, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	for files := tar.NewReader(plain); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(root, filepath.Clean("/"+header.Name))
		content, err := io.ReadAll(files)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o755)
		}
		if err == nil {
			err = os.WriteFile(path, content, header.FileInfo().Mode())
		}
		if err != nil {
			return err
		}
	}
}

// expectRunsAlone starts the program of an image with nothing but the image's files, as the image's user.
func expectRunsAlone(t *testing.T, i *image, name string) {
	t.Helper()
	program, err := elf.Open(i.program())
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	needsLibraries := slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if needsLibraries && *distFlag != "" {
		t.Errorf("%s needs libraries that the image does not have", name)
	}
	cmd := exec.CommandContext(t.Context(), i.program(), "--version")
	cmd.Dir, cmd.Env = i.root, []string{}
	if !needsLibraries && os.Getuid() == 0 { // the programs of make build may need libraries of this machine
		cmd.Path, cmd.Dir = i.entrypoint[0], "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: i.root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		for dir := i.root; len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the image's user must get in
				t.Fatal(err)
			}
		}
	}
	out, err := cmd.CombinedOutput()
	want := name + " "
	if *distFlag != "" {
		want += *releaseVersion + ", built on Kubernetes 1."
	}
	if err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("%s --version: %v, %q, want %q", name, err, out, want)
	}
}

// TestImagesOfAReleaseRun: a node pulls them from a registry, by the digests of install.yaml, and what is installed works.
func TestImagesOfAReleaseRun(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, dist(t))
	for _, component := range []string{"scheduler", "controller", "descheduler"} {
		name := "berth-" + component
		i, err := r.pull(t.Context(), "ghcr.io/berth-project/"+name+":"+releaseTag())
		if err != nil {
			t.Fatal(err)
		}
		platforms := []string{runtime.GOOS + "/" + runtime.GOARCH}
		if *distFlag != "" {
			platforms = []string{"linux/amd64", "linux/arm64"}
		}
		if i.user != "65532:65532" || !slices.Equal(i.entrypoint, []string{"/" + name}) || !slices.Equal(i.platforms, platforms) {
			t.Errorf("%s: %+v", name, i)
		}
		if content, err := os.ReadFile(filepath.Join(i.root, "etc", "ssl", "certs", "ca-certificates.crt")); err != nil || !bytes.Contains(content, []byte("BEGIN CERTIFICATE")) {
			t.Errorf("%s has no authorities: %v", name, err)
		}
		expectRunsAlone(t, &i, name)
	}

	c, k := start(t)
	k.use(func(ctx context.Context, reference string) (string, error) {
		i, err := r.pull(ctx, reference)
		return i.program(), err
	})
	install := filepath.Join(dist(t), "install"+suffix+".yaml")
	c.kubectl(t, "apply", "-f", install)
	expectRunning(t, k, "scheduler", "controller", "united")
	c.awaitWatches(t)
	c.kubectl(t, "apply", "-f", example)
	c.kubectl(t, "rollout", "status", "deployment/api", "--timeout=60s")
	c.expectZones(t, "zone-a:2 zone-b:2 zone-c:6")
	runDescheduler(t, k)
	expectNoLitter(t, k)
	if out := c.kubectl(t, "berth", "doctor"); strings.Contains(out, " unknown ") {
		t.Errorf("the doctor: %s", out)
	}
	out := c.kubectl(t, "berth", "version")
	for _, component := range []string{"berth-scheduler", "berth-controller", "berth-descheduler"} {
		if !regexp.MustCompile(component + ` +` + regexp.QuoteMeta(*releaseVersion)).MatchString(out) {
			t.Errorf("no %s of version %s: %s", component, *releaseVersion, out)
		}
	}
	pods := c.leavePending(t)
	c.kubectl(t, "delete", "-f", install, "--timeout=80s")
	c.expectGone(t, pods)
}

// use tells the kubelet where the program of an image is.
func (k *kubelet) use(programOf func(ctx context.Context, reference string) (string, error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.programOf = programOf
}

// programFor is the program of a container. Without use it is the one of bin that the image is named after.
func (k *kubelet) programFor(ctx context.Context, container *corev1.Container) (string, error) {
	k.mu.Lock()
	programOf := k.programOf
	k.mu.Unlock()
	if programOf != nil {
		return programOf(ctx, container.Image)
	}
	return filepath.Join(harness.Root(), "bin", imageName(container.Image)), nil
}
