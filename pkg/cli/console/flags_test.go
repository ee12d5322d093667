package console

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
)

const kubeconfig = `
apiVersion: v1
kind: Config
current-context: staging
clusters:
- {name: staging, cluster: {server: "https://staging:6443"}}
- {name: production, cluster: {server: "https://production:6443"}}
users:
- {name: me, user: {token: secret}}
contexts:
- {name: staging, context: {cluster: staging, user: me, namespace: shop}}
- {name: production, context: {cluster: production, user: me}}
`

func TestFlagsChooseClusterUserAndNamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	me := func(server string) rest.Config { return rest.Config{Host: server, BearerToken: "secret"} }
	as := me("https://staging:6443")
	as.Impersonate = rest.ImpersonationConfig{UserName: "you", UID: "7", Groups: []string{"a,b", "c"}, Extra: map[string][]string{}}
	for name, tc := range map[string]struct {
		args               string
		want               rest.Config
		namespace, context string
	}{
		"the current context": {"", me("https://staging:6443"), "shop", "staging"},
		"another context":     {"--context=production", me("https://production:6443"), "default", "production"},
		"another namespace":   {"-n bank", me("https://staging:6443"), "bank", "staging"},
		"another server":      {"-s https://127.0.0.1:1", me("https://127.0.0.1:1"), "shop", "staging"},
		"another user":        {"--as=you --as-uid=7 --as-group=a,b --as-group=c", as, "shop", "staging"},
	} {
		t.Run(name, func(t *testing.T) {
			root, flags := NewRoot("test", "", genericiooptions.NewTestIOStreamsDiscard())
			if err := root.ParseFlags(append(strings.Fields(tc.args), "--kubeconfig="+file)); err != nil {
				t.Fatal(err)
			}
			config, err := flags.Config().ClientConfig()
			if err != nil {
				t.Fatal(err)
			}
			got := rest.Config{Host: config.Host, BearerToken: config.BearerToken, Impersonate: config.Impersonate}
			if diff := cmp.Diff(tc.want.String(), got.String()); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
			namespace, _, err := flags.Config().Namespace()
			if err != nil || namespace != tc.namespace {
				t.Errorf("namespace %q, %v, want %q", namespace, err, tc.namespace)
			}
			if context, err := flags.Context(); err != nil || context != tc.context {
				t.Errorf("context %q, %v, want %q", context, err, tc.context)
			}
		})
	}
	t.Run("no kubeconfig", func(t *testing.T) {
		t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
		_, flags := NewRoot("test", "", genericiooptions.NewTestIOStreamsDiscard())
		if _, err := flags.Config().ClientConfig(); err == nil || !strings.HasPrefix(Advise(err), "no cluster is configured") {
			t.Errorf("got %v", err)
		}
	})
}

func TestVerbosityIsAFlag(t *testing.T) {
	root, _ := NewRoot("kubectl-berth", "", genericiooptions.NewTestIOStreamsDiscard())
	if err := root.ParseFlags([]string{"-v=6"}); err != nil {
		t.Error(err)
	}
	if err := root.ParseFlags([]string{"-v=0"}); err != nil {
		t.Error(err)
	}
}
