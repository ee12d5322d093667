// Package console is what all commands of kubectl berth share: the connection to the cluster, formats of output,
// tables, and advice on errors.
package console

import (
	"context"
	"errors"
	goflag "flag"
	"fmt"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/internal/version"
	"github.com/berth-project/berth/pkg/crd/versions"
)

// NewRoot returns a command without subcommands, and the flags that it shares with every subcommand. Its users start it
// as kubectl berth.
func NewRoot(name, short string, streams genericiooptions.IOStreams) (*cobra.Command, *Flags) {
	root := &cobra.Command{
		Use:           name,
		Short:         short,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl berth"},
		Version:       version.Get(),
	}
	root.SetVersionTemplate(version.Line(name) + "\n")
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	logs := goflag.NewFlagSet(name, goflag.ContinueOnError)
	klog.InitFlags(logs)
	root.PersistentFlags().AddGoFlag(logs.Lookup("v"))
	return root, newFlags(root.PersistentFlags())
}

// Cluster is the access to the API server.
type Cluster struct {
	client.WithWatch
	Config *rest.Config
	// Namespace of the command line or of the kubeconfig context.
	Namespace string
}

// OnCluster is what a command runs that begins by connecting to the cluster of the flags.
func OnCluster(flags *Flags, run func(ctx context.Context, cluster *Cluster, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cluster, err := Connect(flags)
		if err != nil {
			return err
		}
		return run(cmd.Context(), cluster, args)
	}
}

// Connect makes the client that the flags describe. It sends no request yet. It asks which kinds there are when it
// reads the first object.
func Connect(flags *Flags) (*Cluster, error) {
	config, err := flags.Config().ClientConfig()
	if err != nil {
		return nil, err
	}
	namespace, _, err := flags.Config().Namespace()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), versions.AddStored(scheme)); err != nil {
		return nil, fmt.Errorf("registering types: %w", err)
	}
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return &Cluster{WithWatch: c, Config: config, Namespace: namespace}, nil
}
