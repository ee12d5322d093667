package cli

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"

	"github.com/berth-project/berth/pkg/cli/console"
)

// apiServer answers discovery with the kinds of apps.kruise.io or without, and refuses every list.
func apiServer(t *testing.T, withSpreads bool) string {
	t.Helper()
	answers := map[string]string{
		"/api":  `{"kind": "APIVersions", "versions": []}`,
		"/apis": `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`,
	}
	if withSpreads {
		answers["/apis"] = `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "apps.kruise.io",
			"versions": [{"groupVersion": "apps.kruise.io/v1beta1", "version": "v1beta1"}], "preferredVersion": {"groupVersion": "apps.kruise.io/v1beta1", "version": "v1alpha1"}}]}`
		answers["/apis/apps.kruise.io/v1beta1"] = `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps.kruise.io/v1beta1",
			"resources": [{"name": "workloadspreads", "namespaced": true, "kind": "WorkloadSpread", "verbs": ["list", "watch"]}]}`
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if answer, found := answers[r.URL.Path]; found {
			_, _ = io.WriteString(w, answer)
			return
		}
		if strings.Contains(r.URL.Path, "workloadspreads") {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "workloadspreads is forbidden: you may not list them"}`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": "there is no such thing"}`)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestUISaysInOneLineWhyItCannotShowACluster(t *testing.T) {
	closed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ server, want string }{
		"no cluster":     {"http://" + closed.Addr().String(), "no API server answers at http://127.0.0.1:"},
		"no definitions": {apiServer(t, false), "the cluster does not know WorkloadSpreads; install Berth's CRDs"},
		"no permission":  {apiServer(t, true), "workloadspreads is forbidden: you may not list them; ask for a role"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			cmd := NewCommand(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut})
			cmd.SetArgs([]string{"ui", "--kubeconfig", kubeconfig, "--server", tc.server, "-n", "shop"})
			err := cmd.ExecuteContext(t.Context())
			if err == nil {
				t.Fatalf("it runs: %s", &out)
			}
			advice := console.Advise(err)
			if !strings.HasPrefix(advice, tc.want) || strings.Contains(advice, "\n") {
				t.Errorf("got %q for %v, want %q", advice, err, tc.want)
			}
			if out.Len()+errOut.Len() > 0 {
				t.Errorf("it prints %s%s", &out, &errOut)
			}
		})
	}
}

// The path of the page is a secret. With a fixed port and a key it stays the same, so that an open page finds its
// server after a restart.
func TestTheSecretOfThePage(t *testing.T) {
	keyed, bare := &rest.Config{BearerToken: "t"}, &rest.Config{}
	for name, tc := range map[string]struct {
		one, other *rest.Config
		ports      [2]uint16
		same       bool
	}{
		"a fixed port": {keyed, keyed, [2]uint16{1, 1}, true}, "two ports": {keyed, keyed, [2]uint16{1, 2}, false}, "another user": {keyed, &rest.Config{BearerToken: "u"}, [2]uint16{1, 1}, false},
		"any port": {keyed, keyed, [2]uint16{}, false}, "no key": {bare, bare, [2]uint16{1, 1}, false},
	} {
		one, err := secretOf(tc.one, tc.ports[0])
		if err != nil {
			t.Fatal(err)
		}
		other, err := secretOf(tc.other, tc.ports[1])
		if err != nil || (one == other) != tc.same || len(one) < 26 || len(other) < 26 {
			t.Errorf("%s: %q and %q, %v", name, one, other, err)
		}
	}
}
