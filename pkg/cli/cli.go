// Package cli is "kubectl berth". Each command gathers objects from the cluster or from files, makes a report of them with pure functions, and prints
// it as a table for people or as JSON or YAML for programs. Begin reading at NewCommand.
package cli

import (
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/descheduler/pkg/framework/pluginregistry"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

// Strategies registers the descheduler's strategies, as cmd/descheduler does.
type Strategies = func(*cycle.World, pluginregistry.Registry)

// NewCommand is the whole program. Pass its errors to Advise.
func NewCommand(streams genericiooptions.IOStreams, strategies Strategies) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	root := &cobra.Command{
		Use:           "kubectl-berth",
		Short:         "Where the pods of a workload run, how many of them run there, and why",
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl berth"},
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	flags.AddFlags(root.PersistentFlags())
	root.AddCommand(newStatus(flags, streams), newExplain(flags, streams), newSimulate(flags, streams), newDrift(flags, streams), newRebalance(flags, streams, strategies), newConvert(streams), newUI(flags, streams))
	return root
}

// cluster is the access to the API server.
type cluster struct {
	client.WithWatch
	config *rest.Config
	// namespace of the command line or of the kubeconfig context.
	namespace string
}

func connect(flags *genericclioptions.ConfigFlags) (*cluster, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering types: %w", err)
		}
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return &cluster{WithWatch: c, config: config, namespace: namespace}, nil
}

// spreadNames completes the name of a spread on the command line.
func spreadNames(flags *genericclioptions.ConfigFlags) cobra.CompletionFunc {
	return namesOf(flags, "", func() client.ObjectList { return &v1alpha1.WorkloadSpreadList{} })
}

// podNames completes pod/NAME on the command line.
func podNames(flags *genericclioptions.ConfigFlags) cobra.CompletionFunc {
	return namesOf(flags, "pod/", func() client.ObjectList { return &corev1.PodList{} })
}

// namesOf completes one name of the namespace, with a prefix. If the API server does not answer, it offers nothing.
func namesOf(flags *genericclioptions.ConfigFlags, prefix string, newList func() client.ObjectList) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list := newList()
		cluster, err := connect(flags)
		if err == nil {
			err = cluster.List(cmd.Context(), list, client.InNamespace(cluster.namespace))
		}
		if err == nil {
			err = meta.EachListItem(list, func(item runtime.Object) error {
				names = append(names, prefix+item.(client.Object).GetName())
				return nil
			})
		}
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
