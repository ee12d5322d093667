package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/report"
)

// selection are the spreads that a command is about: those of one namespace or of all, with all labels of a selector, or the one of a name.
type selection struct {
	allNamespaces bool
	labels        string
}

func (s *selection) addTo(flags *pflag.FlagSet) {
	flags.BoolVarP(&s.allNamespaces, "all-namespaces", "A", false, "Spreads of all namespaces.")
	flags.StringVarP(&s.labels, "selector", "l", "", "Spreads with these labels, as in kubectl get -l.")
}

// kindNamed is the kind that has a name on the command line of kubectl. It is empty if there is none.
func kindNamed(name string) string {
	switch strings.ToLower(name) {
	case "ws", "workloadspread", "workloadspreads":
		return v1beta1.Kind.Kind
	case "ud", "uniteddeployment", "uniteddeployments":
		return unitedv1beta1.Kind.Kind
	case "frs", "federatedreplicaset", "federatedreplicasets":
		return federationv1alpha1.Kind.Kind
	case "sidecarset", "sidecarsets":
		return sidecarv1beta1.Kind.Kind
	}
	return ""
}

// wanted is what the command line names. An empty kind means all that are in a namespace, and an empty name all of the kind.
type wanted struct{ kind, name string }

// wantedOf reads NAME…, TYPE/NAME…, or TYPE and names. Without arguments all is wanted. An object that has the name of a type is named by TYPE/NAME.
func wantedOf(args []string) (all []wanted, _ error) {
	of := wanted{}
	if len(args) > 0 && kindNamed(args[0]) != "" {
		of.kind, args = kindNamed(args[0]), args[1:]
	}
	for _, arg := range args {
		w := wanted{of.kind, arg}
		if kind, name, found := strings.Cut(arg, "/"); found {
			if w = (wanted{kindNamed(kind), name}); w.kind == "" || name == "" || of.kind != "" {
				return nil, fmt.Errorf("%s: name objects as NAME, TYPE/NAME or TYPE NAME, where TYPE is workloadspread, uniteddeployment, federatedreplicaset or sidecarset", arg)
			}
		}
		all = append(all, w)
	}
	if len(all) == 0 {
		all = []wanted{of}
	}
	return all, nil
}

// of are the options of a list of the spreads, or of the one of a name.
func (s *selection) of(cluster *console.Cluster, name string) ([]client.ListOption, error) {
	if name != "" {
		if s.allNamespaces || s.labels != "" {
			return nil, errors.New("a name and --all-namespaces or --selector do not go together; name the namespace with -n")
		}
		return named(cluster, name), nil
	}
	var options []client.ListOption
	if !s.allNamespaces {
		options = append(options, client.InNamespace(cluster.Namespace))
	}
	if s.labels != "" {
		selector, err := labels.Parse(s.labels)
		if err != nil {
			return nil, fmt.Errorf("--selector: %w", err)
		}
		options = append(options, client.MatchingLabelsSelector{Selector: selector})
	}
	return options, nil
}

// named are the options of a list of one spread.
func named(cluster *console.Cluster, name string) []client.ListOption {
	return []client.ListOption{client.InNamespace(cluster.Namespace), client.MatchingFields{"metadata.name": name}}
}

// nameOf is the name of a spread as the command prints it.
func (s *selection) nameOf(namespace, name string) string {
	if s.allNamespaces {
		return namespace + "/" + name
	}
	return name
}

// getSpread reads one spread of the namespace.
func getSpread(ctx context.Context, cluster *console.Cluster, name string) (*v1beta1.WorkloadSpread, error) {
	spread := &v1beta1.WorkloadSpread{}
	err := cluster.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, spread)
	if apierrors.IsNotFound(err) {
		return nil, console.NoSuchSpread(name, cluster.Namespace)
	}
	return spread, err
}

// now is the time. A command runs at one moment, and synctest controls the clock of tests.
func now() time.Time { return time.Now() } //nolint:forbidigo // see above

func reportOf(spread *v1beta1.WorkloadSpread) report.Spread { return report.Of(spread, now()) }

const (
	// mostOften is the shortest time between two calls of changed.
	mostOften = 250 * time.Millisecond
	// againAfter is how long a following waits before it lists again, after the API server has ended the watch or did not answer.
	againAfter = 2 * time.Second
)

// following lists spreads once and then watches them.
type following struct {
	*console.Cluster
	options []client.ListOption
	// changed is called with the spreads, sorted by namespace and name: at once, and again when they have changed. It ends the following by returning true
	// or an error.
	changed func([]v1beta1.WorkloadSpread) (done bool, err error)
	// lost is called when the API server stops answering. The following goes on and tries again.
	lost func(error)

	spreads map[types.NamespacedName]v1beta1.WorkloadSpread
}

// run returns when changed ends it, when the context ends, or when the spreads cannot be listed and watched at first.
func (f *following) run(ctx context.Context) error {
	for first, failing := true, false; ; first = false {
		done, err := f.listAndWatch(ctx)
		switch {
		case ctx.Err() != nil && !done:
			return nil
		case done, err != nil && (first || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)):
			return err
		case err != nil && !failing:
			f.lost(err)
		}
		failing = err != nil
		select {
		case <-time.After(againAfter):
		case <-ctx.Done():
			return nil
		}
	}
}

// listAndWatch is done if changed said so or failed. Without an error and not done, the watch has ended.
func (f *following) listAndWatch(ctx context.Context) (done bool, err error) {
	var list v1beta1.WorkloadSpreadList
	if err := f.List(ctx, &list, f.options...); err != nil {
		return false, err
	}
	f.spreads = make(map[types.NamespacedName]v1beta1.WorkloadSpread, len(list.Items))
	for i := range list.Items {
		f.spreads[client.ObjectKeyFromObject(&list.Items[i])] = list.Items[i]
	}
	if done, err := f.call(); done {
		return true, err
	}
	since := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}}
	events, err := f.Watch(ctx, &v1beta1.WorkloadSpreadList{}, append(slices.Clone(f.options), since)...)
	if err != nil {
		return false, err
	}
	defer events.Stop()
	resting, news := time.After(mostOften), false
	for {
		select {
		case event, open := <-events.ResultChan():
			if !open || event.Type == watch.Error {
				return false, nil
			}
			news = f.take(event) || news
		case <-resting:
			resting = nil
		case <-ctx.Done():
			return false, nil
		}
		if news && resting == nil {
			if done, err := f.call(); done {
				return true, err
			}
			resting, news = time.After(mostOften), false
		}
	}
}

// take is true if the event changes the spreads.
func (f *following) take(event watch.Event) bool {
	spread, ok := event.Object.(*v1beta1.WorkloadSpread)
	if !ok {
		return false
	}
	if event.Type == watch.Deleted {
		delete(f.spreads, client.ObjectKeyFromObject(spread))
	} else {
		f.spreads[client.ObjectKeyFromObject(spread)] = *spread
	}
	return true
}

func (f *following) call() (done bool, err error) {
	sorted := slices.SortedFunc(maps.Values(f.spreads), func(a, b v1beta1.WorkloadSpread) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	done, err = f.changed(sorted)
	return done || err != nil, err
}
