package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/cli/console"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// evictionReport says whether a pod can be evicted now, and what its budgets count.
type evictionReport struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	// Allowed is what the API server answered in a dry run. It is unknown without the right to evict.
	Allowed *bool `json:"allowed,omitempty"`
	// Says is the reason of a refusal, or why it is not known.
	Says string `json:"says,omitempty"`
	// Budgets cover the pod.
	Budgets []budgetCount `json:"budgets"`
}

// budgetCount is what a PodUnavailableBudget or PodDisruptionBudget counts.
type budgetCount struct {
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Needs     int32  `json:"needs"`
	Available int32  `json:"available"`
	Total     int32  `json:"total"`
	Allows    int32  `json:"allows"`
	// Unknown says why the pods could not be counted, for instance for lack of rights. The numbers are 0 then, and the
	// budget may not cover the pod.
	Unknown string `json:"unknown,omitempty"`
	// Missing are the pods that do not count as available. A PodDisruptionBudget does not tell its own.
	Missing []missingPod `json:"missing,omitempty"`
}

// missingPod is a pod that does not count as available.
type missingPod struct {
	Name  string       `json:"name"`
	State budget.State `json:"state"`
	Why   string       `json:"why"`
}

// evictionCommand is "kubectl berth eviction".
type evictionCommand struct {
	out    io.Writer
	output console.Output
}

func newEviction(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &evictionCommand{out: streams.Out}
	cmd := &cobra.Command{
		Use:   "eviction POD...",
		Short: "Whether a pod can be evicted now, which budgets hold it, and which pods they miss",
		Long: `Whether a pod can be evicted now: the API server's answer in a dry run, which needs the right to evict. Below, each budget that covers the pod with its count, and the pods that
do not count as available, each with the reason. It evicts nothing.

A pod that may restart for its latest spec counts as available again after a time that berth-controller measures. This command cannot know how long it has waited: the answer of the API server counts.`,
		Example:           "  kubectl berth eviction web-7c9d8-x2x4k",
		ValidArgsFunction: console.CompleteNames(flags, 1, console.Pods),
		RunE:              console.OnCluster(flags, c.run),
	}
	c.output.AddTo(cmd.Flags())
	return cmd
}

func (c *evictionCommand) run(ctx context.Context, cluster *console.Cluster, args []string) error {
	return c.output.ForPods(ctx, c.out, cluster, args, "EvictionReport", func(pod *corev1.Pod) (any, error) {
		r := evictionReport{Namespace: pod.Namespace, Pod: pod.Name, Budgets: []budgetCount{}}
		r.Allowed, r.Says = tryEviction(ctx, cluster, pod)
		r.Budgets = append(append(r.Budgets, unavailableBudgets(ctx, cluster, pod)...), disruptionBudgets(ctx, cluster, pod)...)
		return &r, nil
	}, func(r any) error { return c.print(r.(*evictionReport)) })
}

// tryEviction asks the API server. allowed is nil if it did not answer the question.
func tryEviction(ctx context.Context, cluster *console.Cluster, pod *corev1.Pod) (allowed *bool, says string) {
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
	err := cluster.SubResource("eviction").Create(ctx, pod, eviction, client.DryRunAll)
	switch {
	case err == nil:
		return ptr.To(true), ""
	case apierrors.IsTooManyRequests(err):
		return ptr.To(false), err.Error()
	default:
		return nil, err.Error()
	}
}

// unavailableBudgets counts as the webhook does.
func unavailableBudgets(ctx context.Context, cluster *console.Cluster, pod *corev1.Pod) (counts []budgetCount) {
	var list policyv1beta1.PodUnavailableBudgetList
	if err := cluster.List(ctx, &list, client.InNamespace(pod.Namespace)); err != nil {
		return []budgetCount{{Kind: "PodUnavailableBudget", Name: "*", Unknown: err.Error()}}
	}
	reader := census.New(cluster, cluster.SubResource("scale"), cluster, clock.RealClock{})
	for i := range list.Items {
		pub := &list.Items[i]
		policy, errs := budget.Compile(pub)
		if len(errs) > 0 || policy.Target == nil && !policy.Selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		count, err := reader.Take(ctx, pub, policy, "")
		if err != nil {
			counts = append(counts, budgetCount{Kind: "PodUnavailableBudget", Name: pub.Name, Unknown: err.Error()})
			continue
		}
		if !count.Covers(pod.UID) {
			continue
		}
		facts := count.Facts
		facts.Ledger = pub.Status.Ledger
		tally := policy.Tally(facts)
		of := budgetCount{Kind: "PodUnavailableBudget", Name: pub.Name, Needs: tally.Desired, Available: tally.Available, Total: tally.Total, Allows: tally.Allowed}
		for _, missing := range budget.MissingPods(facts) {
			one := missingPod{missing.Name, missing.State, cmp.Or(missing.Why, string(missing.State))}
			if entry := slices.IndexFunc(facts.Ledger, func(e policyv1beta1.LedgerEntry) bool { return e.UID == missing.UID }); entry >= 0 {
				one.Why += ", allowed " + duration.HumanDuration(now().Sub(facts.Ledger[entry].Time.Time)) + " ago"
			}
			of.Missing = append(of.Missing, one)
		}
		counts = append(counts, of)
	}
	return counts
}

// disruptionBudgets tell what their status says.
func disruptionBudgets(ctx context.Context, cluster *console.Cluster, pod *corev1.Pod) (counts []budgetCount) {
	var list policyv1.PodDisruptionBudgetList
	if err := cluster.List(ctx, &list, client.InNamespace(pod.Namespace)); err != nil {
		return []budgetCount{{Kind: "PodDisruptionBudget", Name: "*", Unknown: err.Error()}}
	}
	for i := range list.Items {
		pdb := &list.Items[i]
		if selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector); err == nil && selector.Matches(labels.Set(pod.Labels)) {
			s := &pdb.Status
			counts = append(counts, budgetCount{Kind: "PodDisruptionBudget", Name: pdb.Name, Needs: s.DesiredHealthy, Available: s.CurrentHealthy, Total: s.ExpectedPods, Allows: s.DisruptionsAllowed})
		}
	}
	return counts
}

func (c *evictionCommand) print(r *evictionReport) error {
	answer := "nobody knows whether it can be evicted: " + r.Says
	switch {
	case r.Allowed != nil && *r.Allowed:
		answer = "can be evicted now"
	case r.Allowed != nil:
		answer = "cannot be evicted now: " + r.Says
	}
	if _, err := fmt.Fprintf(c.out, "pod/%s   %s\n", r.Pod, answer); err != nil {
		return err
	}
	if len(r.Budgets) == 0 {
		_, err := fmt.Fprintln(c.out, "  no budget covers it")
		return err
	}
	rows, missing := [][]string{{"  BUDGET", "NEEDS", "AVAILABLE", "OF", "ALLOWS"}}, [][]string{{"  MISSING", "BUDGET", "STATE", "WHY"}}
	for _, of := range r.Budgets {
		if of.Unknown != "" {
			missing = append(missing, []string{"  ?", of.Name, "unknown", of.Unknown})
			continue
		}
		rows = append(rows, []string{"  " + of.Kind + "/" + of.Name, number(of.Needs), number(of.Available), number(of.Total), number(of.Allows)})
		for _, pod := range of.Missing {
			missing = append(missing, []string{"  pod/" + pod.Name, of.Name, string(pod.State), pod.Why})
		}
	}
	err := c.output.Table(c.out, rows)
	if err == nil && len(missing) > 1 {
		err = c.output.Table(c.out, missing)
	}
	return err
}
