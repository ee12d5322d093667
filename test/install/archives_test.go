package install

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/test/harness"
)

// plugin is the part of Krew's manifest that Krew requires, or that berth.yaml uses.
type plugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string     `json:"version"`
		Homepage         string     `json:"homepage"`
		ShortDescription string     `json:"shortDescription"`
		Description      string     `json:"description"`
		Platforms        []platform `json:"platforms"`
	} `json:"spec"`
}

type platform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	Sha256 string `json:"sha256"`
	Bin    string `json:"bin"`
	Files  []struct {
		From string `json:"from"`
		To   string `json:"to"`
	} `json:"files"`
}

// readManifest fails the test unless Krew accepts the manifest: the rules are those of its package internal/index/validation.
func readManifest(t *testing.T, dir string) *plugin {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "krew", "berth"+suffix+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	platforms := 1
	if *distFlag != "" {
		platforms = 5
	}
	p := &plugin{}
	if err := yaml.UnmarshalStrict(content, p); err != nil {
		t.Fatal(err)
	}
	for what, is := range map[string]bool{
		"apiVersion":           p.APIVersion == "krew.googlecontainertools.github.com/v1alpha2",
		"kind":                 p.Kind == "Plugin",
		"the name of the file": p.Metadata.Name == "berth",
		"version":              p.Spec.Version == releaseTag(),
		"homepage":             p.Spec.Homepage == "https://github.com/berth-project/berth",
		"a short description":  p.Spec.ShortDescription != "" && len(p.Spec.ShortDescription) <= 80 && !strings.ContainsAny(p.Spec.ShortDescription, "\r\n"),
		"platforms":            len(p.Spec.Platforms) == platforms,
	} {
		if !is {
			t.Fatalf("%s is missing or wrong:\n%s", what, content)
		}
	}
	for _, on := range p.Spec.Platforms {
		labels := on.Selector.MatchLabels
		name, bin := "kubectl-berth-"+releaseTag()+"-"+labels["os"]+"-"+labels["arch"]+".tar.gz", "kubectl-berth"
		if labels["os"] == "windows" {
			name, bin = strings.TrimSuffix(name, "tar.gz")+"zip", bin+".exe"
		}
		archive, err := os.ReadFile(filepath.Join(dir, "kubectl", name))
		if err != nil {
			t.Fatal(err)
		}
		for what, is := range map[string]bool{
			"selector": len(labels) == 2 && labels["os"] != "" && labels["arch"] != "",
			"uri":      on.URI == "https://github.com/berth-project/berth/releases/download/"+*releaseVersion+"/"+name,
			"sha256":   on.Sha256 == fmt.Sprintf("%x", sha256.Sum256(archive)),
			"bin":      on.Bin == bin,
			"files":    len(on.Files) == 4,
		} {
			if !is {
				t.Fatalf("%s of %v is missing or wrong:\n%s", what, labels, content)
			}
		}
	}
	return p
}

// installPlugin does what Krew does: it moves the files that the manifest names to a directory, and puts a link to bin on the PATH.
func installPlugin(t *testing.T, dir string, on *platform) (link string) {
	t.Helper()
	archive, err := os.ReadFile(filepath.Join(dir, "kubectl", filepath.Base(on.URI)))
	if err != nil {
		t.Fatal(err)
	}
	unpacked := unpack(t, string(archive))
	store, bin := t.TempDir(), t.TempDir()
	for _, file := range on.Files {
		if file.To != "." {
			t.Errorf("%s goes to %s", file.From, file.To)
		}
		if err := os.Rename(filepath.Join(unpacked, file.From), filepath.Join(store, filepath.Base(file.From))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(store, "LICENSE")); err != nil {
		t.Error(err)
	}
	link = filepath.Join(bin, "kubectl-berth")
	if err := os.Symlink(filepath.Join(store, on.Bin), link); err != nil {
		t.Fatal(err)
	}
	return link
}

func unpack(t *testing.T, archive string) string {
	t.Helper()
	plain, err := gzip.NewReader(strings.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for files := tar.NewReader(plain); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.ModTime.Year() != 1980 {
			t.Errorf("%s has an owner or a time, so no two archives are the same: %+v", header.Name, header)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		file, err := os.OpenFile(filepath.Join(dir, filepath.Base(header.Name)), os.O_CREATE|os.O_WRONLY, header.FileInfo().Mode())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(file, files); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestArchive(t *testing.T) {
	dir := dist(t)
	platforms := readManifest(t, dir).Spec.Platforms
	here := slices.IndexFunc(platforms, func(p platform) bool {
		return p.Selector.MatchLabels["os"] == runtime.GOOS && p.Selector.MatchLabels["arch"] == runtime.GOARCH
	})
	link := installPlugin(t, dir, &platforms[here])
	t.Run("kubectl-berth is below 60 MB", func(t *testing.T) {
		info, err := os.Stat(link)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%.1f MB", float64(info.Size())/1e6)
		if info.Size() > 60e6 {
			t.Errorf("it has %d bytes", info.Size())
		}
	})
	t.Run("it finds berth-whatif beside itself, behind the link", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), link, "explain", "--help")
		cmd.Env = []string{"PATH=", "HOME=" + t.TempDir()}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "kubectl berth explain POD... [flags]") || !strings.Contains(string(out), "--output") {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("status starts fast", func(t *testing.T) { expectFastStart(t, link) })
}

// discovery are the kinds that "kubectl berth status" lists, as an API server without aggregated discovery names them.
var discovery = map[string]string{
	"/api": `{"kind": "APIVersions", "versions": ["v1"]}`,
	"/apis": `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [
		{"name": "apps.kruise.io", "versions": [{"groupVersion": "apps.kruise.io/v1beta1", "version": "v1beta1"}]},
		{"name": "federation.berth.dev", "versions": [{"groupVersion": "federation.berth.dev/v1alpha1", "version": "v1alpha1"}]}]}`,
	"/apis/apps.kruise.io/v1beta1": `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps.kruise.io/v1beta1", "resources": [
		{"name": "workloadspreads", "namespaced": true, "kind": "WorkloadSpread"}, {"name": "uniteddeployments", "namespaced": true, "kind": "UnitedDeployment"}]}`,
	"/apis/federation.berth.dev/v1alpha1": `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "federation.berth.dev/v1alpha1", "resources": [
		{"name": "federatedreplicasets", "namespaced": true, "kind": "FederatedReplicaSet"}]}`,
}

// expectFastStart measures "kubectl berth status" against a server on this machine. It counts requests and CPU time, because the time that passes depends on
// what else the machine does.
func expectFastStart(t *testing.T, program string) {
	t.Helper()
	const limit = 150 * time.Millisecond
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		if answer, is := discovery[r.URL.Path]; is {
			_, _ = io.WriteString(w, answer)
			return
		}
		kind := map[string]string{"workloadspreads": "WorkloadSpreadList", "uniteddeployments": "UnitedDeploymentList", "federatedreplicasets": "FederatedReplicaSetList"}[path.Base(r.URL.Path)]
		version, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/apis/"), "/namespaces/")
		_, _ = io.WriteString(w, `{"kind": "`+kind+`", "apiVersion": "`+version+`", "metadata": {"resourceVersion": "1"}, "items": []}`)
	}))
	defer server.Close()
	var cpu, passed []time.Duration
	for range 10 {
		cmd := exec.CommandContext(t.Context(), program, "status", "--server", server.URL, "-n", "shop")
		cmd.Env = []string{"HOME=" + t.TempDir()}
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "No resources found in shop namespace.\n" {
			t.Fatalf("%v: %s", err, out)
		}
		passed = append(passed, time.Since(began))
		cpu = append(cpu, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	}
	t.Logf("the fastest of 10 took %s, with %s of CPU", slices.Min(passed), slices.Min(cpu))
	if slices.Min(cpu) > limit {
		t.Errorf("it takes %s of CPU, want at most %s", slices.Min(cpu), limit)
	}
	if len(asked) != 70 { // a list of each of three kinds, two of the groups, and the kinds of two of them
		t.Errorf("10 runs sent %d requests: %v", len(asked), asked)
	}
}

// TestNothingOfOthersIsRemoved: make release replaces a release, and no other directory.
func TestNothingOfOthersIsRemoved(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "mine")
	if err := os.WriteFile(mine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(harness.Root(), "bin")
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "release"), "-root", harness.Root(), "-version", "v1.2.3", "-programs", bin, "-out", dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "has files of somebody else") {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
}

func TestAVersionThatIsNone(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), filepath.Join(harness.Root(), "bin", "release"), "-root", harness.Root(), "-version", "main", "-out", t.TempDir()).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "VERSION=main is no version: give one like v1.2.3") {
		t.Errorf("%v: %s", err, out)
	}
}
