package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

const (
	// DefaultPatience is long, because the machine may be busy. A scenario whose tables are met does not wait this
	// long.
	DefaultPatience = 90 * time.Second
	// lookEvery is the polling interval. A table depends on objects of several kinds, which no single watch covers.
	lookEvery = 100 * time.Millisecond

	fieldOwner = "berth-scenario"
)

// Stage is a control plane with Berth on it. A sandbox is one.
type Stage interface {
	RESTConfig() *rest.Config
	// CreateNodes returns when pods can run on the nodes.
	CreateNodes(ctx context.Context, nodes []*corev1.Node) error
	// Signal sends a signal to one replica of a component.
	Signal(component string, replica int, sig os.Signal) error
}

// Play is a scenario on a stage. It has its own nodes and its own namespace.
type Play struct {
	// Namespace of the objects. It has a generated name.
	Namespace string
	// Patience bounds every wait. Defaults to DefaultPatience.
	Patience time.Duration
	// Stepping, if set, is called before each step.
	Stepping func(text string)
	// Watching, if set, is called for each look at the cluster until a table is met or given up.
	Watching func(Checkpoint)

	scenario *Scenario
	stage    Stage
	// client reads and writes the objects of the namespace, and nodes.
	client  client.Client
	nodes   []*corev1.Node
	applied map[Reference]Object
}

// Checkpoint is an expect step with its result.
type Checkpoint struct {
	// Line of the step in the file.
	Line    int
	Section string
	// Want is the section of the file, and Got the tables of the cluster.
	Want, Got string
	// Warnings are the last events of type Warning in the namespace if the table was not met.
	Warnings string
}

// Met is true if the table is the expected one.
func (c Checkpoint) Met() bool { return c.Want == c.Got }

// SideBySide prints the expected tables to the left of the actual ones.
func (c Checkpoint) SideBySide() string {
	left, right := strings.Split("expected\n"+c.Want, "\n"), strings.Split("actual\n"+c.Got, "\n")
	width := 0
	for _, line := range left {
		width = max(width, len(line))
	}
	var b strings.Builder
	for i := range max(len(left), len(right)) {
		var l, r string
		if i < len(left) {
			l = left[i]
		}
		if i < len(right) {
			r = right[i]
		}
		b.WriteString(strings.TrimRight(fmt.Sprintf("  %-*s  %s", width, l, r), " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// Start creates the namespace and the nodes of a scenario. Play.End deletes them. After an error nothing is left.
func Start(ctx context.Context, stage Stage, scenario *Scenario) (*Play, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	all, err := client.New(stage.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "scenario-"}}
	if err := all.Create(ctx, namespace); err != nil {
		return nil, fmt.Errorf("creating a namespace: %w", err)
	}
	p := &Play{
		Namespace: namespace.Name,
		Patience:  DefaultPatience,
		scenario:  scenario,
		stage:     stage,
		client:    client.NewNamespacedClient(all, namespace.Name),
		nodes:     scenario.Nodes(),
		applied:   map[Reference]Object{},
	}
	for _, node := range p.nodes {
		node.Name = p.nodeName(node.Name)
		node.Labels[corev1.LabelHostname] = node.Name
	}
	if err := stage.CreateNodes(ctx, p.nodes); err != nil {
		return nil, errors.Join(err, p.End(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// nodeName is the name of a node on the cluster. It is new for each play, because the fake kubelet needs 10 seconds to
// notice a node whose name it knows.
func (p *Play) nodeName(name string) string { return p.Namespace + "-" + name }

// End deletes everything that the scenario has created. Pods go before their nodes.
func (p *Play) End(ctx context.Context) error {
	for ref, object := range p.applied {
		if err := p.client.Delete(ctx, object.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %s: %w", ref, err)
		}
	}
	if err := p.waitFor(ctx, "the pods of the scenario to be gone", func() (string, error) {
		// Pods that a controller creates while it learns of the deletion are deleted as well.
		if err := p.client.DeleteAllOf(ctx, &corev1.Pod{}); err != nil {
			return "", err
		}
		var pods corev1.PodList
		if err := p.client.List(ctx, &pods); err != nil || len(pods.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d pods are left", len(pods.Items)), nil
	}); err != nil {
		return err
	}
	for _, node := range p.nodes {
		if err := p.client.Delete(ctx, node); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting node %s: %w", node.Name, err)
		}
	}
	return p.client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace}})
}

// Run takes all steps. It passes each expect step to checked when its table is met, or when Patience has passed. If
// checked returns an error, the play ends with that error. An error names the step that failed.
func (p *Play) Run(ctx context.Context, checked func(Checkpoint) error) error {
	for i, step := range p.scenario.Steps {
		if p.Stepping != nil {
			p.Stepping(step.Text)
		}
		err := p.take(ctx, step, checked)
		if err == nil && i+1 < len(p.scenario.Steps) {
			err = p.rest(ctx, p.scenario.Steps[i+1].Action)
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %s: %w", p.scenario.Name, step.Line, step.Text, err)
		}
	}
	return nil
}

func (p *Play) take(ctx context.Context, step Step, checked func(Checkpoint) error) error {
	switch a := step.Action.(type) {
	case Apply:
		for _, object := range a.Objects {
			if err := p.apply(ctx, object); err != nil {
				return fmt.Errorf("applying %s: %w", ReferenceTo(object), err)
			}
		}
		return nil
	case Scale:
		field := "replicas"
		if a.Target.Kind == "Job" {
			field = "parallelism"
		}
		patch := fmt.Appendf(nil, `{"spec":{%q:%d}}`, field, a.Replicas)
		return p.client.Patch(ctx, p.applied[a.Target].DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	case Delete:
		return p.delete(ctx, a.Target)
	case Cordon:
		return p.cordon(ctx, a)
	case Kill:
		if err := p.waitForBurst(ctx); err != nil {
			return err
		}
		return p.stage.Signal(a.Component, 0, syscall.SIGKILL)
	case Expect:
		return p.expect(ctx, step.Line, a, checked)
	default:
		panic(fmt.Sprintf("step %T", a)) // the parser makes no others
	}
}

func (p *Play) apply(ctx context.Context, object Object) error {
	p.applied[ReferenceTo(object)] = object
	return p.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object.DeepCopy()), client.FieldOwner(fieldOwner), client.ForceOwnership)
}

// delete returns when the object and its pods are gone.
func (p *Play) delete(ctx context.Context, ref Reference) error {
	object := p.applied[ref].DeepCopy()
	delete(p.applied, ref)
	if err := p.client.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		return err
	}
	return p.waitFor(ctx, ref.String()+" to be gone", func() (string, error) {
		err := p.client.Get(ctx, types.NamespacedName{Name: ref.Name}, object)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is still there", err
	})
}

func (p *Play) cordon(ctx context.Context, c Cordon) error {
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, c.Unschedulable)
	for _, name := range c.Group.NodeNames() {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.nodeName(name)}}
		if err := p.client.Patch(ctx, node, client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
			return err
		}
	}
	return nil
}

// waitForBurst waits until a twentieth of the pods of the previous step is bound, so that most of them are not bound
// yet.
func (p *Play) waitForBurst(ctx context.Context) error {
	return p.waitFor(ctx, "some pods to be bound", func() (string, error) {
		now, err := p.look(ctx)
		if err != nil {
			return "", err
		}
		var want int32
		for _, object := range p.applied {
			if owner := now.object(ownerOf(object)); owner != nil {
				replicas, _ := workload.ReplicasNow(owner)
				want += replicas
			}
		}
		bound := 0
		for _, pod := range now.Pods {
			if pod.Spec.NodeName != "" {
				bound++
			}
		}
		if bound*20 < int(want) || bound == 0 {
			return fmt.Sprintf("%d of %d pods are bound", bound, want), nil
		}
		return "", nil
	})
}

// rest waits until the effects of a step are complete. Kill and expect do not need that: kill strikes in the middle,
// and expect waits by itself.
func (p *Play) rest(ctx context.Context, next Action) error {
	switch next.(type) {
	case Kill, Expect:
		return nil
	}
	return p.waitFor(ctx, "the cluster to come to rest", func() (string, error) {
		now, err := p.look(ctx)
		if err != nil {
			return "", err
		}
		return now.underWay(p.applied), nil
	})
}

// expect waits until the tables are the expected ones and nothing changes them any more.
func (p *Play) expect(ctx context.Context, line int, a Expect, checked func(Checkpoint) error) error {
	c := Checkpoint{Line: line, Section: a.Section, Want: a.Table}
	err := p.waitFor(ctx, "table "+a.Section, func() (string, error) {
		now, err := p.look(ctx)
		if err != nil {
			return "", err
		}
		if c.Got, err = now.tables(ctx); err != nil {
			return "", err
		}
		if p.Watching != nil {
			p.Watching(c)
		}
		if !c.Met() {
			return "it is not met", nil
		}
		return now.underWay(p.applied), nil
	})
	var late *tooLate
	switch {
	case errors.As(err, &late) && !c.Met():
		c.Warnings = late.warnings
	case err != nil:
		return err
	}
	return checked(c)
}

// tooLate is the error of a wait that took longer than Patience.
type tooLate struct{ what, missing, warnings string }

func (e *tooLate) Error() string {
	return fmt.Sprintf("waited in vain for %s: %s\n%s", e.what, e.missing, e.warnings)
}

// waitFor polls the condition until it returns an empty string. The string says what is missing.
func (p *Play) waitFor(ctx context.Context, what string, condition func() (missing string, err error)) error {
	var missing string
	err := wait.PollUntilContextTimeout(ctx, lookEvery, p.Patience, true, func(context.Context) (bool, error) {
		var err error
		missing, err = condition()
		return missing == "", err
	})
	switch {
	case wait.Interrupted(err) && ctx.Err() == nil:
		return &tooLate{what, missing, p.warnings(ctx)}
	case err != nil:
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

// warnings returns the last 10 warning events of the namespace, one in each line.
func (p *Play) warnings(ctx context.Context) string {
	var events corev1.EventList
	if err := p.client.List(ctx, &events, client.MatchingFields{"type": corev1.EventTypeWarning}); err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range events.Items[max(0, len(events.Items)-10):] {
		fmt.Fprintf(&b, "%s/%s %s: %s\n", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	return b.String()
}
