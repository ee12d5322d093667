package members

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"k8s.io/client-go/tools/events"
	inventory "sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	"sigs.k8s.io/cluster-inventory-api/pkg/access"

	"k8s.io/apimachinery/pkg/runtime"
)

func kubeconfig(cluster, user string) string {
	return "apiVersion: v1\nkind: Config\ncurrent-context: m\ncontexts: [{name: m, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {" + cluster + "}}]\nusers: [{name: u, user: {" + user + "}}]\n"
}

func TestAKubeconfigFromASecretIsData(t *testing.T) {
	const server, token = "server: \"https://m:6443\"", "token: secret"
	for name, tc := range map[string]struct {
		kubeconfig string
		// wantError is a part of the message. Empty means that the kubeconfig is accepted.
		wantError string
	}{
		"a token":                       {kubeconfig(server, token), ""},
		"impersonation":                 {kubeconfig(server, "token: t, as: hub, as-groups: [g]"), ""},
		"a proxy and a server name":     {kubeconfig(server+", proxy-url: \"http://p:1\", tls-server-name: name", token), ""},
		"extensions say nothing":        {kubeconfig(server+", extensions: [{name: x, extension: {a: b}}]", token+", extensions: [{name: x, extension: {a: b}}]"), ""},
		"a command":                     {kubeconfig(server, "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, interactiveMode: Never}"), "sets exec:"},
		"a command beside a token":      {kubeconfig(server, token+", exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, interactiveMode: Never}"), "sets exec:"},
		"an auth provider":              {kubeconfig(server, "auth-provider: {name: oidc}"), "sets auth-provider:"},
		"a file with a token":           {kubeconfig(server, "tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token"), "sets tokenFile:"},
		"files with a certificate":      {kubeconfig(server, "client-certificate: /c, client-key: /k"), "sets client-certificate and client-key:"},
		"a file with an authority":      {kubeconfig(server+", certificate-authority: /etc/shadow", token), "sets certificate-authority:"},
		"nothing":                       {"", "is missing or empty"},
		"another text":                  {"]", "is no kubeconfig"},
		"no current context":            {strings.Replace(kubeconfig(server, token), "current-context: m", "current-context: other", 1), `has no context "other"`},
		"a context without its cluster": {strings.Replace(kubeconfig(server, token), "cluster: c,", "cluster: gone,", 1), `has no cluster "gone"`},
		"no server":                     {kubeconfig("", token), "has the server"},
		"another scheme":                {kubeconfig("server: \"file:///etc/passwd\"", token), "has the server"},
		"an authority that is none":     {kubeconfig(server+", certificate-authority-data: bm8=", token), "do not parse"},
		"a key that is none":            {kubeconfig(server, "client-certificate-data: bm8=, client-key-data: bm8="), "do not parse"},
		"a certificate without its key": {kubeconfig(server, "client-certificate-data: bm8="), "client-key-data or client-key must be specified"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := fromSecret("m", []byte(tc.kubeconfig))
			if tc.wantError == "" {
				if err != nil {
					t.Fatal(err)
				}
				if config.ExecProvider != nil || config.AuthProvider != nil || config.BearerTokenFile != "" || config.CAFile != "" || config.CertFile != "" || config.KeyFile != "" {
					t.Errorf("the config uses files or commands: %v", config)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.wantError) {
				t.Fatalf("error %v, want %q", err, tc.wantError)
			}
			if state := stateOf(err); state != BadCredentials {
				t.Errorf("state %s, want %s", state, BadCredentials)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the message shows the token: %v", err)
			}
		})
	}
}

// A field that a later client-go adds is refused until somebody has said whether it is data.
func TestAnUnknownFieldIsRefused(t *testing.T) {
	cluster, user := &clientcmdapi.Cluster{Server: "s"}, &clientcmdapi.AuthInfo{Token: "t"}
	if refused := notData(cluster, user); refused != "" {
		t.Fatalf("refused: %s", refused)
	}
	user.Exec = &clientcmdapi.ExecConfig{}
	if refused := notData(cluster, user); refused == "" {
		t.Error("an empty command is accepted")
	}
}

func TestAProfileChoosesAmongTheCommandsOfTheHub(t *testing.T) {
	providers := access.New([]access.Provider{{
		Name: "cloud", ProfileSourcedCLIArgsPolicy: access.ProfileSourcedCLIArgsPolicyAppend,
		ExecConfig: &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "get-token", Args: []string{"--quiet"}},
	}})
	profile := func(provider string) *inventory.ClusterProfile {
		return &inventory.ClusterProfile{Status: inventory.ClusterProfileStatus{AccessProviders: []inventory.AccessProvider{{Name: provider, Cluster: clientcmdv1.Cluster{
			Server: "https://m", Extensions: []clientcmdv1.NamedExtension{{
				Name: "clusterprofiles.multicluster.x-k8s.io/exec/additional-args", Extension: runtime.RawExtension{Raw: []byte(`["--cluster=m"]`)},
			}},
		}}}}}
	}
	// The second time, the arguments of the first must not be there.
	for range 2 {
		config, err := fromProviders(providers, profile("cloud"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"--quiet", "--cluster=m"}, config.ExecProvider.Args); diff != "" {
			t.Errorf("arguments (-want +got):\n%s", diff)
		}
		if config.ExecProvider.Command != "get-token" || config.Host != "https://m" {
			t.Errorf("command %s, server %s", config.ExecProvider.Command, config.Host)
		}
	}
	for name, tc := range map[string]struct {
		providers *access.Config
		profile   *inventory.ClusterProfile
		want      string
	}{
		"a provider that the hub does not have": {providers, profile("other"), "do not fit each other"},
		"a hub without providers":               {nil, profile("cloud"), SecretAnnotation},
		"a provider without a command":          {access.New([]access.Provider{{Name: "cloud"}}), profile("cloud"), "no exec config found"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := fromProviders(tc.providers, tc.profile)
			var known *problem
			if !errors.As(err, &known) || known.state != BadCredentials || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestTheHubWarnsOnceOfAMemberThatProvesNothing: anybody in the network may be it.
func TestTheHubWarnsOnceOfAMemberThatProvesNothing(t *testing.T) {
	for config, want := range map[*rest.Config]int{
		{Host: "https://m"}: 0, {Host: "http://m"}: 1, {Host: "https://m", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}: 1,
	} {
		recorder := events.NewFakeRecorder(2)
		l := &link{config: config, set: &Set{events: recorder}}
		l.warnOfTrust()
		l.warnOfTrust()
		if warnings := len(recorder.Events); warnings != want {
			t.Errorf("%+v: %d warnings, want %d", config, warnings, want)
		}
	}
}

// TestTheHubWarnsOnceBeforeCredentialsEnd, if they say when they do.
func TestTheHubWarnsOnceBeforeCredentialsEnd(t *testing.T) {
	token := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	for name, tc := range map[string]struct {
		token    string
		warnings int
	}{
		"it ends tomorrow":      {token(fmt.Sprintf(`{"exp":%d}`, time.Now().Add(24*time.Hour).Unix())), 1},
		"it ends in a month":    {token(fmt.Sprintf(`{"exp":%d}`, time.Now().Add(720*time.Hour).Unix())), 0},
		"it does not end":       {token(`{}`), 0},
		"it is no such token":   {"a.b", 0},
		"its claims are broken": {"a.!.c", 0},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(2)
			l := &link{status: Status{Name: "m", Expires: expiryOf(&rest.Config{BearerToken: tc.token})}, set: &Set{events: recorder}}
			l.warnOfExpiry()
			l.warnOfExpiry()
			if got := len(recorder.Events); got != tc.warnings {
				t.Errorf("%d warnings", got)
			}
		})
	}
}
