package console

import (
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
)

// Flags are the flags of kubectl that choose a cluster, a user and a namespace. clientcmd has them all. cli-runtime's
// ConfigFlags have them too, and bring kustomize and Go's plugin package with them, which double the size of a program.
type Flags struct {
	overrides clientcmd.ConfigOverrides
	config    clientcmd.ClientConfig
}

func newFlags(set *pflag.FlagSet) *Flags {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	f := &Flags{}
	f.config = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &f.overrides)
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ClusterOverrideFlags.APIServer.ShortName = "s"
	names.ClusterOverrideFlags.ProxyURL, names.AuthOverrideFlags.Username, names.AuthOverrideFlags.Password = clientcmd.FlagInfo{}, clientcmd.FlagInfo{}, clientcmd.FlagInfo{}
	clientcmd.BindOverrideFlags(&f.overrides, set, names)
	set.StringVar(&rules.ExplicitPath, "kubeconfig", "", "Path to the kubeconfig file to use for CLI requests.")
	return f
}

// Config is the kubeconfig with what the flags override. Call it after the flags were parsed.
func (f *Flags) Config() clientcmd.ClientConfig { return f.config }

// Context is the name of the context in use. Empty if there is none.
func (f *Flags) Context() (string, error) {
	if f.overrides.CurrentContext != "" {
		return f.overrides.CurrentContext, nil
	}
	raw, err := f.config.RawConfig()
	return raw.CurrentContext, err
}
