// Package console is what all commands of kubectl berth share: the connection to the cluster, formats of output, tables, and advice on errors.
package console

import (
	"context"
	goflag "flag"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/version"
)

// NewRoot returns a command without subcommands, and the flags that it shares with every subcommand. Its users start it as kubectl berth.
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

// Connect makes the client that the flags describe. It sends no request yet.
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
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, v1beta1.AddToScheme, policyv1beta1.AddToScheme, unitedv1beta1.AddToScheme, federationv1alpha1.AddToScheme, sidecarv1beta1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering types: %w", err)
		}
	}
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	mapper, err := mapperFor(config, httpClient)
	if err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme, HTTPClient: httpClient, Mapper: mapper})
	if err != nil {
		return nil, err
	}
	return &Cluster{WithWatch: c, Config: config, Namespace: namespace}, nil
}

// mapperFor knows the kinds that most commands read without a request. It discovers other kinds when a command reads them.
func mapperFor(config *rest.Config, httpClient *http.Client) (meta.RESTMapper, error) {
	discovered, err := apiutil.NewDynamicRESTMapper(config, httpClient)
	if err != nil {
		return nil, err
	}
	known := meta.NewDefaultRESTMapper(nil)
	known.Add(v1beta1.GroupVersion.WithKind("WorkloadSpread"), meta.RESTScopeNamespace)
	known.Add(unitedv1beta1.Kind, meta.RESTScopeNamespace)
	known.Add(federationv1alpha1.Kind, meta.RESTScopeNamespace)
	known.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	return meta.FirstHitRESTMapper{MultiRESTMapper: meta.MultiRESTMapper{known, discovered}}, nil
}

// Get is that of the client. Its error is a meta.NoKindMatchError if the API server does not have the kind.
func (c *Cluster) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	return c.noKind(ctx, c.WithWatch.Get(ctx, key, object, options...), object)
}

// List is that of the client. Its error is a meta.NoKindMatchError if the API server does not have the kind.
func (c *Cluster) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return c.noKind(ctx, c.WithWatch.List(ctx, list, options...), list)
}

// noKind replaces the API server's answer for a path that it does not serve: that it is not found, or forbidden to whoever has no right there. Its answer for an object that does not exist
// stays.
func (c *Cluster) noKind(ctx context.Context, err error, object runtime.Object) error {
	isNotFound, isForbidden := apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse), apierrors.IsForbidden(err)
	if !isNotFound && !isForbidden {
		return err
	}
	gvk, unknown := c.GroupVersionKindFor(object)
	if unknown != nil || isForbidden && !c.lacks(ctx, gvk.GroupVersion()) {
		return err
	}
	return &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
}

// lacks is true if the API server says that it does not serve a version of a group. Everybody with an account may ask that.
func (c *Cluster) lacks(ctx context.Context, version schema.GroupVersion) bool {
	if c.Config == nil {
		return false
	}
	server, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		return false
	}
	return apierrors.IsNotFound(server.RESTClient().Get().AbsPath("/apis", version.Group, version.Version).Do(ctx).Error())
}
