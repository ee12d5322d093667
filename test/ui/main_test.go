package ui

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/test/harness"
)

// the is the cluster that all tests share.
var the *harness.Cluster

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "berth-ui-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if the, err = harness.Start(context.Background(), sandbox.Config{Name: "ui", Dir: dir, Manifests: [][]byte{manifests.FederationCRD}}, product.Options{}); err != nil {
		return 1, err
	}
	defer the.Sandbox.Stop()
	return m.Run(), nil
}

// shop creates a namespace with spread and Deployment web. Four pods run on the nodes of pool "own". The others run on the nodes of pool "cloud",
// which have room for four.
func shop(t *testing.T) (namespace string) {
	t.Helper()
	namespace, err := the.CreateNamespace(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := the.DeleteNamespace(context.Background(), namespace); err != nil {
			t.Error(err)
		}
	})
	one := sandbox.Allocatable(resource.MustParse("1"), resource.MustParse("1Gi"))
	nodes := sandboxNodes(namespace, "own", nil, 2)
	nodes = append(nodes, sandboxNodes(namespace, "cloud", one, 2)...)
	t.Cleanup(func() {
		if err := the.DeleteNodes(context.Background(), nodes); err != nil {
			t.Error(err)
		}
	})
	if err := the.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	if err := the.ApplyYAML(t.Context(), namespace, strings.ReplaceAll(web, "POOL", poolLabel(namespace))); err != nil {
		t.Fatal(err)
	}
	return namespace
}

// server runs "kubectl berth ui" as a user does.
type server struct {
	url string
	cmd *exec.Cmd
}

// serve runs a server with only the rights that the page needs. What-ifs need more.
func serve(t *testing.T, namespace, port string) *server {
	t.Helper()
	return serveWith(t, "--as", "berth-page", "-n", namespace, "--port", port)
}

func serveWith(t *testing.T, flags ...string) *server {
	t.Helper()
	cmd := exec.Command(filepath.Join(harness.BinDir(), "kubectl-berth"), append([]string{"ui", "--kubeconfig", the.Sandbox.Kubeconfig()}, flags...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run make build", err)
	}
	s := &server{cmd: cmd}
	t.Cleanup(func() { s.kill(t) })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, url, found := strings.Cut(lines.Text(), " at "); found {
			s.url = url
		}
		if strings.Contains(lines.Text(), "Ctrl-C") {
			return s
		}
	}
	t.Fatalf("kubectl berth ui ended: %v", cmd.Wait())
	return nil
}

// interrupt sends Ctrl-C. The server must then exit without an error.
func (s *server) interrupt(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	s.cmd = nil
}

func (s *server) kill(t *testing.T) {
	t.Helper()
	if s.cmd == nil {
		return
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = s.cmd.Wait() // the test has killed it
	s.cmd = nil
}

// browsers are possible names of an installed browser.
var browsers = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"}

func findBrowser(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("BERTH_BROWSER"); path != "" {
		return path
	}
	for _, name := range browsers {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatalf("none of %s is on the PATH: run make browser, or set BERTH_BROWSER", strings.Join(browsers, ", "))
	return ""
}

// open opens a URL in a new browser. If the test fails, it saves a screenshot of the page.
func open(t *testing.T, url string) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(findBrowser(t)), chromedp.WindowSize(1280, 900))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's own sandbox does not work for root
	}
	allocator, freeBrowser := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(freeBrowser)
	tab, closeTab := chromedp.NewContext(allocator, chromedp.WithErrorf(t.Logf), chromedp.WithLogf(t.Logf))
	t.Cleanup(closeTab)
	// A window that is not visible has no focus and receives no keys.
	if _, err := chromedp.Call(tab, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}); err != nil {
		t.Fatalf("starting the browser: %v", err)
	}
	if err := chromedp.Do(tab, chromedp.Navigate(url)); err != nil {
		t.Fatalf("opening %s: %v", url, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			keepPicture(t, tab)
		}
	})
	return tab
}

func keepPicture(t *testing.T, tab context.Context) {
	t.Helper()
	picture, err := chromedp.Run(tab, chromedp.CaptureScreenshot())
	if err != nil {
		t.Logf("there is no picture of the page: %v", err)
		return
	}
	file, err := os.CreateTemp("", "berth-page-*.png")
	if err != nil {
		t.Log(err)
		return
	}
	defer file.Close()
	if _, err := file.Write(picture); err != nil {
		t.Log(err)
		return
	}
	t.Logf("the page looked like %s", file.Name())
}
