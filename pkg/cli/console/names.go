package console

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// Kind is a kind of objects that the command line can name.
type Kind struct {
	schema.GroupVersionKind
	// names are those that kubectl takes too.
	names []string
	// NewList makes an empty list.
	NewList func() client.ObjectList
	// Everywhere is true for objects in no namespace.
	Everywhere bool
}

// The kinds that commands know.
var (
	Spreads   = &Kind{v1beta1.Kind, []string{"workloadspread", "workloadspreads", "ws"}, func() client.ObjectList { return &v1beta1.WorkloadSpreadList{} }, false}
	United    = &Kind{unitedv1beta1.Kind, []string{"uniteddeployment", "uniteddeployments", "ud"}, func() client.ObjectList { return &unitedv1beta1.UnitedDeploymentList{} }, false}
	Federated = &Kind{federationv1alpha1.Kind, []string{"federatedreplicaset", "federatedreplicasets", "frs"},
		func() client.ObjectList { return &federationv1alpha1.FederatedReplicaSetList{} }, false}
	SidecarSets = &Kind{sidecarv1beta1.Kind, []string{"sidecarset", "sidecarsets"}, func() client.ObjectList { return &sidecarv1beta1.SidecarSetList{} }, true}
	Pods        = &Kind{corev1.SchemeGroupVersion.WithKind("Pod"), []string{"pod", "pods", "po"}, func() client.ObjectList { return &corev1.PodList{} }, false}
)

// NameOf is what -o name prints, as kubectl does.
func NameOf(kind, group, name string) string {
	return strings.TrimSuffix(strings.ToLower(kind)+"."+group, ".") + "/" + name
}

// Named is what the command line names. An empty name means all of the kinds.
type Named struct {
	Kinds []*Kind
	Name  string
}

// Namespaced is true if one of the kinds is in namespaces.
func (n Named) Namespaced() bool {
	return slices.ContainsFunc(n.Kinds, func(kind *Kind) bool { return !kind.Everywhere })
}

// NoSuch is the error for a name that nothing has.
func (n *Named) NoSuch(namespace string) error {
	if !n.Namespaced() {
		return fmt.Errorf("there is no %s %q; list them with kubectl berth status %s", kindsOf(n.Kinds), n.Name, n.Kinds[0].names[1])
	}
	return fmt.Errorf("there is no %s %q in namespace %q; list them with kubectl berth status, or with kubectl berth status -A for all namespaces", kindsOf(n.Kinds), n.Name, namespace)
}

// kindsOf is "A, B or C".
func kindsOf(kinds []*Kind) string {
	text := kinds[0].Kind
	for i, kind := range kinds[1:] {
		if i == len(kinds)-2 {
			text += " or " + kind.Kind
		} else {
			text += ", " + kind.Kind
		}
	}
	return text
}

func kindNamed(name string, kinds []*Kind) []*Kind {
	for _, kind := range kinds {
		if slices.Contains(kind.names, strings.TrimSuffix(strings.ToLower(name), "."+kind.Group)) {
			return []*Kind{kind}
		}
	}
	return nil
}

// ParseNames reads NAME…, TYPE/NAME…, or TYPE and names. A name without a type is one of the first kinds, of which
// there are so many. An object that has the name of a type is named by TYPE/NAME.
func ParseNames(args []string, first int, kinds ...*Kind) (all []Named, _ error) {
	of := kinds[:first]
	typed := len(args) > 0 && kindNamed(args[0], kinds) != nil
	if typed {
		of, args = kindNamed(args[0], kinds), args[1:]
	}
	for _, arg := range args {
		n := Named{of, arg}
		if kind, name, found := strings.Cut(arg, "/"); found {
			if n = (Named{kindNamed(kind, kinds), name}); n.Kinds == nil || name == "" || typed {
				return nil, fmt.Errorf("%s: name objects as NAME, TYPE/NAME or TYPE NAME, where TYPE is a %s", arg, strings.ToLower(kindsOf(kinds)))
			}
		}
		all = append(all, n)
	}
	if len(all) == 0 {
		all = []Named{{of, ""}}
	}
	return all, nil
}

// Names are those that ParseNames reads, of one kind. None is an error.
func Names(args []string, kind *Kind) (names []string, _ error) {
	all, err := ParseNames(args, 1, kind)
	if err == nil && all[0].Name == "" {
		err = fmt.Errorf("say which %s is meant as NAME, %s/NAME or %[2]s NAME", strings.ToLower(kind.Kind), kind.names[0])
	}
	for _, n := range all {
		names = append(names, n.Name)
	}
	return names, err
}

// GetSpread reads a spread of the namespace.
func (c *Cluster) GetSpread(ctx context.Context, name string) (*v1beta1.WorkloadSpread, error) {
	spread := &v1beta1.WorkloadSpread{}
	err := c.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, spread)
	if apierrors.IsNotFound(err) {
		return nil, (&Named{[]*Kind{Spreads}, name}).NoSuch(c.Namespace)
	}
	return spread, err
}

// ForPods reports on each pod that the command line names. A single one is printed as an object, and not as a list.
func (o *Output) ForPods(ctx context.Context, out io.Writer, cluster *Cluster, args []string, kind string, of func(*corev1.Pod) (any, error), print func(any) error) error {
	names, err := Names(args, Pods)
	if err != nil {
		return err
	}
	var all []any
	for i, name := range names {
		pod := &corev1.Pod{}
		if err := cluster.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, pod); err != nil {
			return err
		}
		r, err := of(pod)
		if err != nil {
			return err
		}
		all, names[i] = append(all, r), NameOf("pod", "", name)
	}
	var content any = all
	if len(all) == 1 {
		content = all[0]
	}
	if done, err := o.Structured(out, kind, content, names...); done {
		return err
	}
	for _, r := range all {
		if err := print(r); err != nil {
			return err
		}
	}
	return nil
}

// CompleteNames completes names of the namespace that are not on the command line yet, after a type too: TYPE/ and TYPE
// NAME. If the API server does not answer, it offers nothing.
func CompleteNames(flags *Flags, first int, kinds ...*Kind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begin string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		of, prefix := kinds[:first], ""
		if len(args) > 0 && kindNamed(args[0], kinds) != nil {
			of = kindNamed(args[0], kinds)
		} else if kind, _, found := strings.Cut(begin, "/"); found {
			of, prefix = kindNamed(kind, kinds), kind+"/"
		}
		cluster, err := Connect(flags)
		for _, kind := range of {
			list, options := kind.NewList(), []client.ListOption{}
			if err != nil {
				break
			}
			if !kind.Everywhere {
				options = append(options, client.InNamespace(cluster.Namespace))
			}
			if cluster.List(cmd.Context(), list, options...) != nil {
				continue
			}
			_ = meta.EachListItem(list, func(item runtime.Object) error { // the function returns none
				if name := prefix + item.(client.Object).GetName(); !slices.Contains(args, name) {
					names = append(names, name)
				}
				return nil
			})
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
