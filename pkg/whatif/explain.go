package whatif

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/pkg/subset"
)

// podReport says where a pod is, and why it is not in another subset.
type podReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Spread that divides the pod. Empty if none does.
	Spread string `json:"spread,omitempty"`
	// Node is empty if the pod has none.
	Node string `json:"node,omitempty"`
	// Subset that the pod is in. Empty if it is in none.
	Subset string `json:"subset,omitempty"`
	// Tiers are the subsets in order, as they are now for a pod like this one.
	Tiers []tier `json:"tiers,omitempty"`
	// Why it is in this subset, on this node or pending.
	Why string `json:"why"`
	// Next is what the spread does, or waits for, if the pod has no node.
	Next string `json:"next,omitempty"`
	// Scheduler is the scheduler's last message about the pod, if it found no node.
	Scheduler string `json:"scheduler,omitempty"`
}

// tier is one subset, as it is for one pod.
type tier struct {
	Subset string `json:"subset"`
	// Kept is how many pods hold a slot in the pod's quota scope, including this pod.
	Kept int32 `json:"kept"`
	// Quota is nil if there is no limit.
	Quota *int32 `json:"quota,omitempty"`
	// Min and Target are the minimum of the subset, and how many pods it should hold. Nil if the spread has neither
	// shares nor minimums.
	Min    *int32 `json:"min,omitempty"`
	Target *int32 `json:"target,omitempty"`
	// Nodes of the subset, and how many of them would take the pod now.
	Nodes int `json:"nodes"`
	Fit   int `json:"fit"`
	// Refused counts the reasons of the other nodes.
	Refused map[string]int `json:"refused,omitempty"`
	// Verdict in one word: Holds, Full, NoNodeFits, Open, or RoomUnknown if the filters alone cannot tell.
	Verdict string `json:"verdict"`
}

// Verdicts on a tier.
const (
	verdictHolds      = "Holds"
	verdictFull       = "Full"
	verdictNoNodeFits = string(v1beta1.ReasonNoNodeFits)
	verdictOpen       = "Open"
	verdictUnknown    = string(v1beta1.ReasonRoomUnknown)
)

// explainPod makes the report of a pod.
func explainPod(ctx context.Context, e *Engine, pod *corev1.Pod) (*podReport, error) {
	r := &podReport{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Scheduler: lastWord(pod)}
	divided, err := e.DividedBy(ctx, pod)
	if err != nil {
		return nil, err
	}
	if divided == nil {
		r.Why = "no WorkloadSpread divides it: none names its workload, or its targetFilter leaves the pod out"
		return r, nil
	}
	r.Spread = divided.Spread.Name
	policy := divided.Policy
	if policy == nil {
		r.Why = fmt.Sprintf("WorkloadSpread %s is invalid, so the scheduler holds its pods: %s", r.Spread, divided.Invalid)
		return r, nil
	}
	observed := subset.Observe(pod, e.Node(pod.Spec.NodeName))
	index, adopted := policy.SubsetOf(&observed, r.Spread)
	adopted = adopted || observed.BoundByOthers()
	var rooms *fit.Rooms
	if e.Filters != nil {
		if rooms, err = e.Filters.Take(e.Pods, e.Nodes); err != nil {
			return nil, err
		}
	}
	plan := policy.Plan(divided.Replicas)
	pods := plan.Replicas
	if policy.IsPart {
		pods = divided.Spread.Status.Pods()
	}
	targets, _ := policy.Targets(&plan, pods)
	kept := divided.Tally.Kept(policy.ScopeOf(observed.Revision))
	for i := range policy.Subsets {
		tier := tier{Subset: policy.Subsets[i].Name, Kept: kept.At(i)}
		if quota := plan.Quota[i]; quota != subset.NoLimit {
			tier.Quota = &quota
		}
		if policy.IsRanked() {
			tier.Min, tier.Target = &plan.Min[i], &targets[i]
		}
		if err := tier.survey(ctx, e, rooms, divided, pod, i); err != nil {
			return nil, err
		}
		switch {
		case i == index:
			tier.Verdict = verdictHolds
		case subset.Free(plan.Quota[i], tier.Kept) == 0:
			tier.Verdict = verdictFull
		}
		r.Tiers = append(r.Tiers, tier)
	}
	r.Subset = policy.Subset(index).Name
	home, known := policy.SubsetAt(&plan, e.Position(pod, policy, divided.Ordinals))
	switch {
	case !observed.Active:
		r.Why = "it has ended or is being deleted, and takes no slot"
	case pod.Spec.NodeName != "":
		waits := func(open int) string {
			return report.Waits(divided.Spread, policy, open, podstate.BoundSince(pod), e.Now()).Clause()
		}
		if known && !adopted {
			r.Why = whyByOrdinal(r, home, index, waits)
		} else {
			r.Why = why(r, policy, index, adopted, waits)
		}
	default:
		r.Next = report.Of(divided.Spread, e.Now()).Next
		if r.Why = whyHeld(divided, pod); r.Why != "" {
			break
		}
		if e.Filters == nil {
			r.Why = "only the filters can tell, and they need all nodes and pods"
			break
		}
		outcome, err := e.Try(ctx, divided, pod)
		if err != nil {
			return nil, err
		}
		r.Why = whyPending(divided, outcome)
	}
	return r, nil
}

// survey asks the filters about a pod like this one in a subset.
func (t *tier) survey(ctx context.Context, e *Engine, rooms *fit.Rooms, d *Divided, pod *corev1.Pod, index int) error {
	if rooms == nil {
		t.Verdict = verdictUnknown
		return nil
	}
	like, unknown := e.Replacement(pod, d.Policy, d.Spread.Name, index)
	if unknown == nil {
		if pod.Spec.NodeName == "" {
			like.Name, like.UID = pod.Name, pod.UID // its claims may exist
		}
		survey, err := rooms.Survey(ctx, like, pod, d.Policy.Subsets[index].Holds)
		if err != nil {
			return fmt.Errorf("asking the filters about subset %s: %w", t.Subset, err)
		}
		t.Nodes, t.Fit, t.Refused, unknown = survey.Nodes, survey.Fit, survey.Refused, survey.Unknown
	}
	switch {
	case unknown != nil:
		t.Verdict, t.Refused = verdictUnknown, map[string]int{unknown.Error(): 1}
	case t.Fit == 0:
		t.Verdict = verdictNoNodeFits
	default:
		t.Verdict = verdictOpen
	}
	return nil
}

// lastWord is the scheduler's last message about a pod that it found no node for.
func lastWord(pod *corev1.Pod) string {
	if c := podstate.Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return c.Message
	}
	return ""
}

// why a pod is on its node. waits says what keeps it from an open subset.
func why(r *podReport, policy *subset.Policy, index int, adopted bool, waits func(open int) string) string {
	switch {
	case adopted && index == subset.None:
		return "it was not bound for a subset of this spread, and its node belongs to none"
	case adopted:
		return fmt.Sprintf("it was not bound for a subset of this spread; its node belongs to %s", r.Subset)
	case index == subset.None:
		return "every subset was full when it was bound, and the spread lets such pods go anywhere (whenFull: Schedule)"
	case policy.IsRanked():
		return whyRanked(r, policy, index, waits)
	case index == 0:
		return fmt.Sprintf("%s comes first, and had quota and a node for it", r.Subset)
	}
	earlier := make([]string, index)
	for i := range earlier {
		earlier[i] = r.Tiers[i].Subset
	}
	reason := "had no quota left"
	if policy.Strategy == v1beta1.AdaptiveScheduleStrategy {
		reason = "had no quota left or no node for it"
	}
	text := fmt.Sprintf("%s %s when it was bound", strings.Join(earlier, ", "), reason)
	if open := slices.IndexFunc(r.Tiers[:index], func(t tier) bool { return t.Verdict == verdictOpen }); open >= 0 {
		text += fmt.Sprintf("; %s is open now, and the descheduler's RebalanceToPreferredSubset would move the pod back%s", r.Tiers[open].Subset, waits(open))
	}
	return text
}

// whyByOrdinal is why for a pod of a StatefulSet. home is the subset of its ordinal.
func whyByOrdinal(r *podReport, home, index int, waits func(open int) string) string {
	switch {
	case home == index && home != subset.None:
		return fmt.Sprintf("%s is the subset of its ordinal", r.Subset)
	case home == index:
		return "its ordinal is above all quotas, and the spread lets such pods go anywhere (whenFull: Schedule)"
	case home == subset.None:
		return fmt.Sprintf("its ordinal is above all quotas by now; %s had a free slot when it was bound", r.Subset)
	}
	tier := r.Tiers[home]
	text := fmt.Sprintf("%s is the subset of its ordinal; when the pod was bound, %s had no quota left or no node for it, or the ordinal belonged elsewhere", tier.Subset, tier.Subset)
	if tier.Verdict == verdictOpen {
		text += fmt.Sprintf("; %s is open now, and the descheduler's RebalanceToPreferredSubset would move the pod there%s", tier.Subset, waits(home))
	}
	return text
}

// whyRanked is why a pod is in its subset if the spread has shares or minimums.
func whyRanked(r *podReport, policy *subset.Policy, index int, waits func(open int) string) string {
	in := &r.Tiers[index]
	rule := "pods go to the first subset that is not full"
	if policy.HasShares() {
		rule = "pods go to the subset that is furthest below its share"
	}
	if slices.ContainsFunc(r.Tiers, func(t tier) bool { return *t.Min > 0 }) {
		rule = "minimums come first, and above them " + rule
	}
	of := ""
	if policy.Strategy == v1beta1.AdaptiveScheduleStrategy {
		of = ", of the subsets with a node for it,"
	}
	text := fmt.Sprintf("%s was due for the next pod%s when it was bound: %s; it has %s now, and its target is %d", in.Subset, of, rule, report.Pods(in.Kept, "", ""), *in.Target)
	if below := slices.IndexFunc(r.Tiers, func(t tier) bool { return t.Kept < *t.Target && t.Verdict == verdictOpen }); below >= 0 && in.Kept > *in.Target {
		text += fmt.Sprintf("; %s is below its target and open, and the descheduler's RebalanceToPreferredSubset would move a pod there%s", r.Tiers[below].Subset, waits(below))
	}
	return text
}

// whyHeld says what about the pod itself keeps Berth's scheduler from it. Empty if nothing does.
func whyHeld(d *Divided, pod *corev1.Pod) string {
	if gates := subset.OtherGates(pod); len(gates) > 0 {
		return fmt.Sprintf("it has the scheduling gate %s, which the component that set it must remove", gates[0].Name)
	}
	within, early := d.Policy.AdmittedTo(subset.AdmittedOf(pod), d.Spread.Name)
	switch scheduler := pod.Spec.SchedulerName; {
	case scheduler == v1beta1.SchedulerName:
		return ""
	case d.Policy.SchedulerOf(scheduler) == scheduler && early && within != subset.None:
		return fmt.Sprintf("admission gave it subset %s, and scheduler %s has not bound it; the events of the pod say why", d.Policy.Subsets[within].Name, scheduler)
	default:
		return fmt.Sprintf("it names scheduler %s, which does not divide pods; leave schedulerName out of the workload's template, or name %s", scheduler, v1beta1.SchedulerName)
	}
}

// whyPending says what became of the pod when the scheduler's plugins looked at it now. What happens next is in the
// report of the spread.
func whyPending(d *Divided, outcome outcome) string {
	switch {
	case outcome.Bound != nil:
		if in := subset.RecordOf(outcome.Bound); in.Subset != "" {
			return fmt.Sprintf("%s has quota left and a node for it; the scheduler should bind it soon", in.Subset)
		}
		return "every quota that counts for it is used up, and the spread lets such pods go anywhere (whenFull: Schedule); the scheduler should bind it soon"
	case outcome.Reason == v1beta1.ReasonAdmittedSubsetFull:
		return "the only subset that it can use is full now; berth-controller replaces the pod if another subset has quota left"
	case outcome.Waits != nil:
		return fmt.Sprintf("%s is the subset for it, and has no node for it", outcome.Waits.Name)
	case outcome.Reason == v1beta1.ReasonNoNodeFits:
		return "no subset with quota left has a node for it"
	case outcome.Reason == v1beta1.ReasonSubsetsFull:
		text := "every subset is full, and the spread makes such pods wait (whenFull: Wait)"
		if ready := meta.FindStatusCondition(d.Spread.Status.Conditions, v1beta1.ConditionReady); ready != nil && ready.Reason == string(v1beta1.ReasonRolloutBlocked) {
			text += "; " + ready.Message
		}
		return text
	case outcome.Reason != "":
		return fmt.Sprintf("the scheduler holds it: %s", outcome.Reason)
	default:
		return "the scheduler refuses it before it looks for a subset"
	}
}

// explainCommand is "kubectl berth explain".
type explainCommand struct {
	out, errOut io.Writer
	output      console.Output
}

func newExplain(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &explainCommand{out: streams.Out, errOut: streams.ErrOut}
	cmd := &cobra.Command{
		Use:               console.Explain.Use,
		Short:             console.Explain.Short,
		Example:           "  kubectl berth explain pod/web-5d4f8-x2lkp",
		ValidArgsFunction: console.CompleteNames(flags, 1, console.Pods),
		RunE:              console.OnCluster(flags, c.run),
	}
	c.output.AddTo(cmd.Flags())
	return cmd
}

func (c *explainCommand) run(ctx context.Context, cluster *console.Cluster, args []string) error {
	var e *Engine
	return c.output.ForPods(ctx, c.out, cluster, args, "PodReport", func(pod *corev1.Pod) (_ any, err error) {
		if e == nil {
			if e, err = look(ctx, cluster); apierrors.IsForbidden(err) {
				fmt.Fprintln(c.errOut, "kubectl berth: without nodes:", console.Advise(err))
				e, err = lookInNamespace(ctx, cluster)
			}
		}
		if err != nil {
			return nil, err
		}
		return explainPod(ctx, e, pod)
	}, func(r any) error { return c.print(r.(*podReport)) })
}

func (c *explainCommand) print(r *podReport) error {
	heading := []string{"pod/" + r.Name, cmp.Or(r.Spread, "no spread"), "node " + cmp.Or(r.Node, "-"), "subset " + cmp.Or(r.Subset, "-")}
	if err := console.PrintTable(c.out, [][]string{heading}); err != nil {
		return err
	}
	if len(r.Tiers) > 0 {
		head := []string{"  SUBSET", "KEPT", "QUOTA", "NODES THAT FIT NOW", "VERDICT"}
		if r.Tiers[0].Target != nil {
			head = slices.Insert(head, 3, "TARGET")
		}
		rows := [][]string{head}
		for _, t := range r.Tiers {
			quota := subset.FormatQuota(ptr.Deref(t.Quota, subset.NoLimit))
			row := []string{"  " + t.Subset, strconv.Itoa(int(t.Kept)), quota, fitting(t), t.Verdict}
			if t.Target != nil {
				row = slices.Insert(row, 3, strconv.Itoa(int(*t.Target)))
			}
			rows = append(rows, row)
		}
		if err := c.output.Table(c.out, rows); err != nil {
			return err
		}
	}
	text := "  why: " + r.Why + "\n"
	if r.Next != "" {
		text += "  next: " + r.Next + "\n"
	}
	if r.Scheduler != "" {
		text += "  the scheduler said: " + r.Scheduler + "\n"
	}
	_, err := io.WriteString(c.out, text)
	return err
}

// fitting is "0/40: 38 Insufficient cpu, 2 untolerated taint".
func fitting(t tier) string {
	text := fmt.Sprintf("%d/%d", t.Fit, t.Nodes)
	if len(t.Refused) > 0 {
		text += ": " + subset.FormatReasons(t.Refused)
	}
	return text
}
