package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli"
	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/whatif"
)

// program is the name by which the binary of these tests is berth-whatif.
const program = "berth-whatif"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == program {
		os.Exit(console.Main(whatif.NewCommand(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})))
	}
	os.Exit(m.Run())
}

// install puts berth-whatif on the PATH.
func install(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, program)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
}

// berth runs "kubectl berth".
func berth(args ...string) (out, errOut string, code int) {
	var printed, complained bytes.Buffer
	root := cli.NewCommand(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &printed, ErrOut: &complained})
	root.SetArgs(args)
	code = console.Main(root)
	return printed.String(), complained.String(), code
}

const spread = `
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: a, maxReplicas: 2}, {name: b}]
`

func TestCommandsOfBerthWhatifAreCommandsOfKubectlBerth(t *testing.T) {
	install(t)
	file := filepath.Join(t.TempDir(), "spread.yaml")
	if err := os.WriteFile(file, []byte(spread), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		// out and errOut are parts of what is printed. Empty if nothing is.
		out, errOut string
		code        int
	}{
		"it runs":                      {[]string{"simulate", "-f", file, "--replicas", "3"}, "a          0      2      2", "", 0},
		"flags before the command":     {[]string{"-n", "shop", "--request-timeout=1s", "simulate", "-f", file, "--replicas=3"}, "3 replicas", "", 0},
		"--help":                       {[]string{"explain", "--help"}, "kubectl berth explain POD... [flags]", "", 0},
		"help":                         {[]string{"help", "simulate"}, "--from-cluster", "", 0},
		"the list of commands":         {[]string{"--help"}, console.Simulate.Short, "", 0},
		"an unknown flag":              {[]string{"explain", "--why"}, "", "kubectl berth: unknown flag: --why\n", 1},
		"a wrong argument":             {[]string{"explain", "node/web", "--server=http://127.0.0.1:1"}, "", "kubectl berth: node/web: name objects as NAME, TYPE/NAME or TYPE NAME, where TYPE is a pod\n", 1},
		"no cluster":                   {[]string{"explain", "pod/web", "--server=http://127.0.0.1:1"}, "", "kubectl berth: no API server answers at http://127.0.0.1:1", 1},
		"completion of commands":       {[]string{"__complete", "expl"}, "explain\t" + console.Explain.Short + "\n", "ShellCompDirectiveNoFileComp", 0},
		"completion of flags":          {[]string{"__complete", "explain", "--out"}, "--output\tOutput format", "ShellCompDirective", 0},
		"completion after other flags": {[]string{"__complete", "-n", "shop", "simulate", "--from-cluster", "--sc"}, "--scale\t", "ShellCompDirective", 0},
		"completion of kubectl's":      {[]string{"__complete", "explain", "--kubec"}, "--kubeconfig\t", "ShellCompDirective", 0},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := berth(tc.args...)
			if code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			for _, stream := range []struct{ name, got, want string }{{"standard output", out, tc.out}, {"standard error", errOut, tc.errOut}} {
				if !strings.Contains(stream.got, stream.want) || stream.want == "" && stream.got != "" {
					t.Errorf("%s has %q, want %q", stream.name, stream.got, stream.want)
				}
			}
			if n := strings.Count(errOut, "kubectl berth: "); n > 1 {
				t.Errorf("it says %d times what is wrong: %s", n, errOut)
			}
		})
	}
}

func TestKubectlBerthSaysThatBerthWhatifIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	out, errOut, code := berth("explain", "pod/web")
	if out != "" || code != 1 || strings.Count(errOut, "\n") != 1 || !strings.Contains(errOut, "kubectl berth: the program berth-whatif, which runs this command, is neither in "+filepath.Dir(os.Args[0])) {
		t.Errorf("exit code %d, printed %q and %q", code, out, errOut)
	}
}
