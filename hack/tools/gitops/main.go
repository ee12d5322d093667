// Command gitops applies manifests, or says whether a cluster has what they ask for, by the libraries of Argo CD and Flux. It fails if an object of these API groups differs.
//
//	gitops -kubeconfig FILE -namespace NAMESPACE -way WAY -groups GROUPS [-apply] MANIFEST...
//
// Each way is one in which these products compare: flux; argo, with what was applied last; argo-merge, by the rules of server-side apply; argo-server, by a dry run.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/argoproj/gitops-engine/pkg/diff"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/gitops-engine/pkg/utils/tracing"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/utils"
	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// product applies one object, and says how the cluster differs from it. The text is empty if it does not.
type product struct {
	apply  func(context.Context, *unstructured.Unstructured) error
	differ func(context.Context, *unstructured.Unstructured) (string, error)
}

// attempts is how often an object is compared that changed between the look at it and the dry run.
const attempts = 10

var errUnsteady = errors.New("it changed each time that it was compared")

func main() {
	kubeconfig := flag.String("kubeconfig", "", "of the cluster")
	namespace := flag.String("namespace", metav1.NamespaceDefault, "of objects that name none")
	way := flag.String("way", "", "flux, argo, argo-merge or argo-server")
	groups := flag.String("groups", "", "whose objects are compared, separated by commas")
	apply := flag.Bool("apply", false, "apply the manifests before")
	flag.Parse()
	if err := run(context.Background(), *kubeconfig, *namespace, *way, strings.Split(*groups, ","), *apply, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, namespace, way string, groups []string, apply bool, files []string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cluster, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	var p *product
	if way == "flux" {
		p = flux(cluster)
	} else {
		var end func()
		if p, end, err = argo(config, cluster, way); err != nil {
			return err
		}
		defer end()
	}
	var found error
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		objects, err := utils.ReadObjects(bytes.NewReader(content))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, object := range objects {
			namespaced, err := cluster.IsObjectNamespaced(object)
			if err == nil && namespaced && object.GetNamespace() == "" {
				object.SetNamespace(namespace)
			}
			if err == nil && apply {
				err = p.apply(ctx, object)
			}
			difference := ""
			if err == nil && slices.Contains(groups, object.GroupVersionKind().Group) {
				difference, err = p.differ(ctx, object)
			}
			if err == nil && difference != "" {
				err = errors.New(difference)
			}
			if err != nil {
				found = errors.Join(found, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err))
			}
		}
	}
	return found
}

// flux is the kustomize-controller of Flux.
func flux(cluster client.Client) *product {
	manager := ssa.NewResourceManager(cluster, nil, ssa.Owner{Field: "kustomize-controller", Group: "kustomize.toolkit.fluxcd.io"})
	return &product{
		apply: func(ctx context.Context, object *unstructured.Unstructured) error {
			_, err := manager.Apply(ctx, object.DeepCopy(), ssa.DefaultApplyOptions())
			return err
		},
		differ: func(ctx context.Context, object *unstructured.Unstructured) (string, error) {
			for range attempts {
				entry, live, merged, err := manager.Diff(ctx, object.DeepCopy(), ssa.DefaultDiffOptions())
				if err != nil || entry.Action == ssa.UnchangedAction {
					return "", err
				}
				if live != nil && live.GetResourceVersion() != merged.GetResourceVersion() {
					continue // it changed in between
				}
				return fmt.Sprintf("%s\n- %v\n+ %v", entry.Action, live, merged), nil
			}
			return "", errUnsteady
		},
	}
}

// argo is the application controller of Argo CD. The function removes its files.
func argo(config *rest.Config, cluster client.Client, way string) (_ *product, end func(), _ error) {
	const manager = "argocd-controller"
	kubectl := &kube.KubectlCmd{Log: logr.Discard(), Tracer: tracing.NopTracer{}}
	schema, parser, err := kubectl.LoadOpenAPISchema(config)
	if err != nil {
		return nil, nil, err
	}
	operations, remove, err := kubectl.ManageResources(config, schema)
	if err != nil {
		return nil, nil, err
	}
	runs, removeRuns, err := kube.ManageServerSideDiffDryRuns(config, schema, kubectl.Tracer, kubectl.Log, nil)
	if err != nil {
		remove()
		return nil, nil, err
	}
	end = func() { remove(); removeRuns() }
	options := []diff.Option{diff.WithLogr(kubectl.Log), diff.WithManager(manager), diff.WithGVKParser(parser), diff.WithNormalizer(withoutStatus{})}
	switch way {
	case "argo":
	case "argo-merge":
		options = append(options, diff.WithStructuredMergeDiff(true))
	case "argo-server":
		options = append(options, diff.WithServerSideDiff(true), diff.WithServerSideDryRunner(diff.NewK8sServerSideDryRunner(runs)))
	default:
		end()
		return nil, nil, fmt.Errorf("no way is called %q", way)
	}
	return &product{
		apply: func(ctx context.Context, object *unstructured.Unstructured) error {
			_, err := operations.ApplyResource(ctx, object.DeepCopy(), cmdutil.DryRunNone, false, true, way != "argo", manager)
			return err
		},
		differ: func(ctx context.Context, object *unstructured.Unstructured) (string, error) {
			for range attempts {
				live, merged := &unstructured.Unstructured{}, &unstructured.Unstructured{}
				live.SetGroupVersionKind(object.GroupVersionKind())
				if err := cluster.Get(ctx, client.ObjectKeyFromObject(object), live); err != nil {
					return "", err
				}
				result, err := diff.Diff(object.DeepCopy(), live, options...)
				if err != nil || !result.Modified {
					return "", err
				}
				if err := merged.UnmarshalJSON(result.PredictedLive); err != nil {
					return "", err
				}
				if live.GetResourceVersion() != merged.GetResourceVersion() {
					continue // it changed in between
				}
				return fmt.Sprintf("differs\n- %s\n+ %s", result.NormalizedLive, result.PredictedLive), nil
			}
			return "", errUnsteady
		},
	}, end, nil
}

// withoutStatus leaves the status out, as Argo CD does unless it is told not to.
type withoutStatus struct{}

func (withoutStatus) Normalize(object *unstructured.Unstructured) error {
	delete(object.Object, "status")
	return nil
}
