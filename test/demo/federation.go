package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/cmd/sandbox/federated"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/internal/scenario"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/test/harness"
)

const (
	memberCount = 3
	// Each member has room for 30 pods of the examples.
	nodesOfMember = 3
	cpuOfNode     = "10"
	// patience bounds each step, and look is how often it looks. On a busy machine, the scheduler of a member whose API server was away lists its pods again a minute later.
	patience = 3 * time.Minute
	look     = 100 * time.Millisecond
)

// federation is a hub with its members, and the FederatedReplicaSet that they run.
type federation struct {
	*federated.Federation
	scheme *runtime.Scheme
	// clients of the clusters, the hub first.
	clients []client.Client
	frs     *v1alpha1.FederatedReplicaSet
	// rush are the objects that fill a member.
	rush []client.Object
}

// step is an action on the federation, and the layout that it leads to.
type step struct {
	text string
	do   func(context.Context) error
	// want are the lines of the clusters, and what may run above the total.
	want string
}

// runFederation plays a FederatedReplicaSet over three members: even, one full, one lost, and each time even again.
func runFederation(ctx context.Context, dir string, f flags) error {
	d := &federation{scheme: runtime.NewScheme()}
	if err := errors.Join(clientgoscheme.AddToScheme(d.scheme), v1alpha1.AddToScheme(d.scheme)); err != nil {
		return err
	}
	if err := d.read(); err != nil {
		return err
	}
	var err error
	d.Federation, err = federated.Start(ctx, sandbox.Config{
		Name: "demo", Dir: dir, BinDir: harness.BinDir(), Nodes: nodesOfMember, NodeCPU: resource.MustParse(cpuOfNode), Progress: os.Stdout,
	}, memberCount)
	if err != nil {
		return err
	}
	defer d.Stop()
	for _, cluster := range d.Clusters {
		c, err := client.New(cluster.RESTConfig(), client.Options{Scheme: d.scheme})
		if err != nil {
			return err
		}
		d.clients = append(d.clients, c)
	}
	servePage(ctx, d.Hub())
	fmt.Printf("\n=== federation\n%d replicas over %d clusters, evenly. One cluster gets full, another one is lost, and both come back.\n\n", *d.frs.Spec.Replicas, memberCount)
	return d.play(ctx, f)
}

func (d *federation) play(ctx context.Context, f flags) error {
	const even = "member-1  16  16  Ready\nmember-2  17  17  Ready\nmember-3  17  17  Ready\n"
	var resume func()
	steps := []step{
		{"for member in member-1 member-2 member-3; do kubectl --context $member label namespace default federation.berth.dev/allowed=true; done\n" +
			"kubectl --context hub apply -f docs/examples/federated.yaml", d.apply, even},
		{"kubectl --context member-3 apply -f docs/examples/federated-rush.yaml    # takes the room of 11 of its pods", d.fill,
			"member-1  22  22  Ready\nmember-2  22  22  Ready\nmember-3  6  6  Full\n"},
		{"kubectl --context member-3 delete -f docs/examples/federated-rush.yaml   # the room is free again", d.empty, even},
		{"kill the API server of member-2", func(context.Context) (err error) {
			resume, err = d.Members()[1].Halt(sandbox.APIServer, 0)
			return err
		}, "member-1  25  25  Ready\nmember-2  ?  17  Lost\nmember-3  25  25  Ready\nup to 17 replicas above the total may run\n"},
		{"start the API server of member-2 again", func(ctx context.Context) error {
			resume()
			return d.Members()[1].WaitReady(ctx)
		}, even},
	}
	shown := scenario.Shown{Out: os.Stdout}
	for i, s := range steps {
		fmt.Printf("$ %s\n", s.text)
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.text, err)
		}
		reached, err := d.expect(ctx, s.text, s.want, shown.Watch)
		if err != nil {
			return err
		}
		if err := shown.End(reached); err != nil {
			return err
		}
		if i == len(steps)-1 && f.stay {
			fmt.Println("press Ctrl-C to end it")
			pause(ctx, nil)
			return nil
		}
		pause(ctx, time.After(f.pause))
	}
	return nil
}

// expect waits until the layout is as wanted, or until its patience ends.
func (d *federation) expect(ctx context.Context, section, want string, watching func(scenario.Checkpoint)) (scenario.Checkpoint, error) {
	c := scenario.Checkpoint{Section: section, Want: table(want)}
	err := wait.PollUntilContextTimeout(ctx, look, patience, true, func(ctx context.Context) (bool, error) {
		layout, err := d.layout(ctx)
		if err != nil {
			return false, err
		}
		c.Got = table(layout)
		watching(c)
		return c.Met(), nil
	})
	if err != nil && !c.Met() && ctx.Err() == nil {
		err = nil // the difference says more
	}
	return c, err
}

// layout is what each member has by its own API server, and how the hub sees it: available pods, replicas that are asked for, and the state. What the hub has not seen yet is in it: of a member
// that dies in that moment, the hub cannot say more than what it saw last.
func (d *federation) layout(ctx context.Context) (string, error) {
	frs := &v1alpha1.FederatedReplicaSet{}
	if err := d.clients[0].Get(ctx, client.ObjectKeyFromObject(d.frs), frs); err != nil {
		return "", err
	}
	var text strings.Builder
	for _, c := range frs.Status.Clusters {
		available, asked, state := "?", c.Wanted, string(c.State)
		for i, member := range d.Members() {
			if member.Name != c.Name {
				continue
			}
			set := &appsv1.ReplicaSet{}
			switch err := d.clients[i+1].Get(ctx, client.ObjectKeyFromObject(d.frs), set); {
			case err == nil:
				available, asked = fmt.Sprint(set.Status.AvailableReplicas), *set.Spec.Replicas
				if c.Replicas != asked {
					state = fmt.Sprintf("%s with %d", state, c.Replicas)
				}
			case apierrors.IsNotFound(err):
				available, asked = "0", 0
			case !utilnet.IsConnectionRefused(err) && ctx.Err() == nil && !apierrors.IsServiceUnavailable(err) && !utilnet.IsProbableEOF(err):
				return "", fmt.Errorf("reading the ReplicaSet of %s: %w", c.Name, err)
			}
		}
		fmt.Fprintf(&text, "%s  %s  %d  %s\n", c.Name, available, asked, state)
	}
	if frs.Status.MayExceedBy > 0 {
		fmt.Fprintf(&text, "up to %d replicas above the total may run\n", frs.Status.MayExceedBy)
	}
	return text.String(), nil
}

// table writes a layout as a table.
func table(layout string) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CLUSTER\tAVAILABLE\tASKED\tSTATE")
	for line := range strings.Lines(layout) {
		fmt.Fprint(w, strings.ReplaceAll(line, "  ", "\t"))
	}
	_ = w.Flush() // a builder takes everything
	return strings.TrimRight(text.String(), "\n")
}

func (d *federation) apply(ctx context.Context) error {
	for _, member := range d.clients[1:] {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}
		allow := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, v1alpha1.AllowedLabel))
		if err := member.Patch(ctx, namespace, allow); err != nil {
			return err
		}
	}
	return d.clients[0].Create(ctx, d.frs.DeepCopy())
}

// fill gives member 3 other work, with a higher priority. The scheduler of the member preempts pods for it.
func (d *federation) fill(ctx context.Context) error {
	for _, object := range d.rush {
		if err := d.clients[3].Create(ctx, object.DeepCopyObject().(client.Object)); err != nil {
			return err
		}
	}
	return nil
}

func (d *federation) empty(ctx context.Context) error {
	for _, object := range d.rush {
		if err := d.clients[3].Delete(ctx, object.DeepCopyObject().(client.Object), client.PropagationPolicy("Background")); err != nil {
			return err
		}
	}
	return nil
}

// read reads the examples.
func (d *federation) read() error {
	decoder := serializer.NewCodecFactory(d.scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, name := range []string{"federated.yaml", "federated-rush.yaml"} {
		content, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "examples", name))
		if err != nil {
			return err
		}
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			object, _, err := decoder.Decode([]byte(document), nil, nil)
			if err != nil {
				return fmt.Errorf("docs/examples/%s: %w", name, err)
			}
			switch o := object.(type) {
			case *v1alpha1.FederatedReplicaSet:
				o.Namespace = corev1.NamespaceDefault
				d.frs = o
			case *appsv1.ReplicaSet:
				o.Namespace = corev1.NamespaceDefault
				d.rush = append(d.rush, o)
			case *schedulingv1.PriorityClass:
				d.rush = append(d.rush, o)
			}
		}
	}
	return nil
}
