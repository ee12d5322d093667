package rule

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/workload"
)

const (
	// mostProblems is how many a status lists.
	mostProblems = 10
	// tooLong is for how long a rule may pick nothing before that is a warning.
	tooLong = 24 * time.Hour
)

// reporter writes the status of rules.
type reporter struct {
	*world
	client client.Client
	events events.EventRecorder
	clock  clock.PassiveClock
	pace   frame.Pace
}

var _ reconcile.Reconciler = &reporter{}

// facts are what is known of a rule.
type facts struct {
	generation int64
	// errs say why the rule is invalid. Then nothing else is known.
	errs field.ErrorList
	// unreadable says why workloads cannot be read.
	unreadable *lineage.Unwatchable
	// picked are the workloads that the rule picks, others those of them that another spread or rule divides, and missing those that have no spread.
	picked, others, missing int
	// spreads are those that the rule has made.
	spreads []*v1beta1.WorkloadSpread
	// problems are sorted by the names of the workloads.
	problems []v1alpha1.Problem
}

// Reconcile writes the status of one rule, and events about what is new in it.
func (r *reporter) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	object, err := r.rule(ctx, request.NamespacedName)
	if object == nil || err != nil {
		r.pace.Forget(request.NamespacedName)
		return reconcile.Result{}, err
	}
	if wait := r.pace.Wait(request.NamespacedName, r.clock.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	known, err := r.gather(ctx, object)
	if err != nil {
		return reconcile.Result{}, err
	}
	before := statusOf(object).DeepCopy()
	after := describe(known, before, metav1.NewTime(r.clock.Now()))
	result := reconcile.Result{RequeueAfter: againAfter(known, &after, r.clock.Now())}
	if equality.Semantic.DeepEqual(*before, after) {
		return result, nil
	}
	*statusOf(object) = after
	if written, err := frame.WriteStatus(ctx, r.client, object, client.FieldOwner("berth-rules")); !written {
		return reconcile.Result{RequeueAfter: frame.BatchWindow}, err
	}
	r.pace.Wrote(request.NamespacedName, r.clock.Now())
	r.tell(ctx, object, before, &after)
	return result, nil
}

func statusOf(rule client.Object) *v1alpha1.RuleStatus {
	if cluster, is := rule.(*v1alpha1.ClusterSpreadRule); is {
		return &cluster.Status
	}
	return &rule.(*v1alpha1.SpreadRule).Status
}

// gather reads what a rule does from the cache.
func (r *reporter) gather(ctx context.Context, object client.Object) (*facts, error) {
	known := &facts{generation: object.GetGeneration()}
	rule, errs := r.store.Compiled(object)
	var spreads v1beta1.WorkloadSpreadList
	if err := r.List(ctx, &spreads, client.InNamespace(object.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing spreads: %w", err)
	}
	byName, named := map[types.NamespacedName]*v1beta1.WorkloadSpread{}, map[string]map[workload.Owner]bool{}
	for i := range spreads.Items {
		spread := &spreads.Items[i]
		byName[client.ObjectKeyFromObject(spread)] = spread
		switch maker, made := workload.MakerOf(spread); {
		case made && maker == client.ObjectKeyFromObject(object):
			known.spreads = append(known.spreads, spread)
		case !made:
			if named[spread.Namespace] == nil {
				named[spread.Namespace] = map[workload.Owner]bool{}
			}
			named[spread.Namespace][workload.TargetOf(spread)] = true
		}
	}
	if known.errs = errs; rule == nil {
		return known, nil
	}
	workloads, unreadable, err := r.workloads(ctx, object.GetNamespace(), rule.Kind)
	if known.unreadable = unreadable; unreadable != nil || err != nil {
		return known, err
	}
	inNamespace, err := r.applying(ctx, object.GetNamespace())
	if err != nil {
		return nil, err
	}
	for _, w := range workloads {
		in := inNamespace(w.GetNamespace())
		if !slices.Contains(in, rule) || !rule.Picks(rule.Kind, w) {
			continue
		}
		known.picked++
		if named[w.GetNamespace()][workload.Owner{Kind: rule.Kind, Name: w.GetName()}] {
			known.others++
			continue
		}
		verdict := lineage.PickRule(in, rule.Kind, w)
		key := types.NamespacedName{Namespace: w.GetNamespace(), Name: lineage.SpreadName(rule.Kind, w.GetName())}
		refused := ""
		switch {
		case verdict.Rule != rule:
			known.others++
		default:
			if byName[key] == nil {
				known.missing++
			}
			if why, is := r.refused.Load(key); is {
				refused = why.(string)
			}
		}
		if problem := problemOf(rule, verdict, w, byName[key], refused); problem != nil {
			problem.Namespace, problem.Name = w.GetNamespace(), w.GetName()
			known.problems = append(known.problems, *problem)
		}
	}
	slices.SortFunc(known.problems, func(a, b v1alpha1.Problem) int {
		return strings.Compare(string(a.Reason)+"/"+a.Namespace+"/"+a.Name, string(b.Reason)+"/"+b.Namespace+"/"+b.Name)
	})
	return known, nil
}

// applying returns a function that says which rules apply in a namespace.
func (r *reporter) applying(ctx context.Context, namespace string) (func(string) []*lineage.Rule, error) {
	if namespace != "" {
		in, err := r.store.In(ctx, namespace)
		return func(string) []*lineage.Rule { return in }, err
	}
	known := map[string][]*lineage.Rule{}
	all, err := r.store.All(ctx, "")
	if err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NamespaceList"}}
	if err := r.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	for i := range list.Items {
		for _, rule := range all {
			if item := &list.Items[i]; rule.AppliesIn(item.Name, labels.Set(item.Labels)) {
				known[item.Name] = append(known[item.Name], rule)
			}
		}
	}
	return func(name string) []*lineage.Rule { return known[name] }, nil
}

// problemOf says what is wrong with a workload that the rule picks and no spread of somebody divides. It is nil if nothing is.
func problemOf(rule *lineage.Rule, verdict lineage.Verdict, object client.Object, spread *v1beta1.WorkloadSpread, refused string) *v1alpha1.Problem {
	problem := func(reason v1alpha1.Reason, format string, values ...any) *v1alpha1.Problem {
		return &v1alpha1.Problem{Reason: reason, Message: frame.AtMost(longestMessage, fmt.Sprintf(format, values...))}
	}
	if len(verdict.Equals) > 0 && (verdict.Rule == rule || slices.Contains(verdict.Equals, rule)) {
		var names []string
		for _, other := range verdict.Equals {
			names = append(names, other.String())
		}
		return problem(v1alpha1.ReasonRulesConflict, "%s and %s pick it; %s, the oldest, divides it; change a selector, or delete a rule", verdict.Rule, strings.Join(names, ", "), verdict.Rule)
	}
	if verdict.Rule != rule {
		return nil
	}
	if spread != nil && !workload.MadeByRule(spread) {
		return problem(v1alpha1.ReasonNameTaken, "WorkloadSpread %s of another workload has the name of the one that the rule would make; give that one another name", spread.Name)
	}
	if refused != "" {
		return problem(v1alpha1.ReasonSpreadRefused, "its spread is refused: %s", refused)
	}
	if spread != nil {
		if ready := meta.FindStatusCondition(spread.Status.Conditions, v1beta1.ConditionReady); ready != nil && ready.Status == metav1.ConditionFalse {
			return problem(v1alpha1.ReasonSpreadNotReady, "WorkloadSpread %s: %s: %s", spread.Name, ready.Reason, ready.Message)
		}
	}
	if replicas, err := workload.Replicas(object, nil); err == nil && replicas == 1 && rule.UsesPercent {
		return problem(v1alpha1.ReasonPercentageOfOnePod, "it has one replica, which cannot be divided: percentages put it into one subset; use counts, or leave workloads of one replica out of the selector")
	}
	return nil
}

// longestMessage of a problem, in bytes. There may be mostProblems of them in a status.
const longestMessage = 500

// describe is the status of a rule. It is pure.
func describe(known *facts, before *v1alpha1.RuleStatus, now metav1.Time) v1alpha1.RuleStatus {
	status := v1alpha1.RuleStatus{
		ObservedGeneration: known.generation, Workloads: int32(len(known.spreads)), Conditions: slices.Clone(before.Conditions),
		Problems: known.problems[:min(len(known.problems), mostProblems)],
	}
	var subsets []int
	for _, spread := range known.spreads {
		if meta.IsStatusConditionTrue(spread.Status.Conditions, v1beta1.ConditionReady) {
			status.ReadyWorkloads++
		}
		for i := range spread.Status.SubsetStatuses {
			if i == len(subsets) {
				subsets = append(subsets, 0)
			}
			subsets[i] += int(spread.Status.SubsetStatuses[i].Replicas)
		}
	}
	var numbers []string
	for _, n := range subsets {
		numbers = append(numbers, strconv.Itoa(n))
	}
	status.Summary = strings.Join(numbers, "/")
	conflict := slices.IndexFunc(known.problems, func(p v1alpha1.Problem) bool { return p.Reason == v1alpha1.ReasonRulesConflict })
	ready := frame.True(v1alpha1.ConditionReady, v1alpha1.ReasonRuleReady, "the rule divides %d of %d workloads; %d have a spread or another rule that wins",
		known.picked-known.others, known.picked, known.others)
	switch {
	case len(known.errs) > 0:
		ready = frame.False(v1alpha1.ConditionReady, v1alpha1.ReasonInvalidRule, "%s; the spreads that the rule has made stay as they are", known.errs.ToAggregate())
	case known.unreadable != nil:
		ready = frame.False(v1alpha1.ConditionReady, v1alpha1.ReasonKindUnreadable, "workloads of kind %s cannot be read: %s", known.unreadable.Kind, whyUnreadable(known.unreadable))
	case conflict >= 0:
		problem := known.problems[conflict]
		ready = frame.False(v1alpha1.ConditionReady, v1alpha1.ReasonRulesConflict, "%s/%s: %s", problem.Namespace, problem.Name, problem.Message)
	}
	ready.Set(&status.Conditions, known.generation, now)
	if len(known.errs) > 0 || known.unreadable != nil {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionPicking)
		return status
	}
	picking := frame.True(v1alpha1.ConditionPicking, v1alpha1.ReasonPicks, "the rule picks a workload")
	if known.picked == 0 {
		picking = frame.False(v1alpha1.ConditionPicking, v1alpha1.ReasonPicksNothing, "the rule picks no workload now")
		if was := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionPicking); was != nil && was.Status == metav1.ConditionFalse && now.Sub(was.LastTransitionTime.Time) >= tooLong {
			picking = frame.False(v1alpha1.ConditionPicking, v1alpha1.ReasonPicksNothingForADay, "the rule has picked no workload for a day; compare its selectors with the labels of workloads and namespaces")
		}
	}
	picking.Set(&status.Conditions, known.generation, now)
	return status
}

func whyUnreadable(problem *lineage.Unwatchable) string {
	switch problem.Why {
	case lineage.Forbidden:
		return fmt.Sprintf(`Berth may not list %s; create a ClusterRole with get, list and watch on it and the label rbac.berth.dev/aggregate-to-workload-reader: "true"`, problem.Resource)
	case lineage.NotServed:
		return "the API server has no such kind; install it, or correct the target"
	default:
		return "objects of the kind are not workloads (" + string(problem.Why) + "); correct the target"
	}
}

// againAfter is when the report may change without an event, or 0.
func againAfter(known *facts, status *v1alpha1.RuleStatus, now time.Time) time.Duration {
	if known.unreadable != nil {
		return lineage.RetryInterval
	}
	if known.missing > 0 { // the API server may refuse it, of which no event tells
		return frame.StatusInterval
	}
	picking := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionPicking)
	if picking == nil || picking.Reason != string(v1alpha1.ReasonPicksNothing) {
		return 0
	}
	return max(picking.LastTransitionTime.Add(tooLong).Sub(now), time.Second)
}

// tell sends events about what is new: at the rule, and at each workload that has a problem.
func (r *reporter) tell(ctx context.Context, rule client.Object, before, after *v1alpha1.RuleStatus) {
	for _, now := range after.Conditions {
		was := meta.FindStatusCondition(before.Conditions, now.Type)
		if was == nil && now.Status == metav1.ConditionTrue || was != nil && was.Reason == now.Reason {
			continue
		}
		holds := now.Status == metav1.ConditionTrue || now.Reason == string(v1alpha1.ReasonPicksNothing)
		frame.Reported(holds, v1alpha1.Reason(now.Reason), now.Message).Send(r.events, rule, nil)
	}
	kind := targetOf(rule)
	for _, problem := range after.Problems {
		if slices.Contains(before.Problems, problem) {
			continue
		}
		regarding := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: problem.Namespace, Name: problem.Name}}
		regarding.APIVersion, regarding.Kind = kind.APIVersion, kind.Kind
		if owner, err := r.workload(ctx, kind, problem); err == nil && owner != nil {
			regarding.UID = owner.GetUID()
		}
		frame.Warning(problem.Reason, "ReportStatus", "%s", problem.Message).Send(r.events, regarding, rule)
	}
}

func targetOf(rule client.Object) v1alpha1.Target {
	if cluster, is := rule.(*v1alpha1.ClusterSpreadRule); is {
		return cluster.Spec.Target
	}
	return rule.(*v1alpha1.SpreadRule).Spec.Target
}

// workload reads that of a problem. It is nil if it is gone.
func (r *reporter) workload(ctx context.Context, target v1alpha1.Target, of v1alpha1.Problem) (client.Object, error) {
	object := r.kinds.NewObject(schema.FromAPIVersionAndKind(target.APIVersion, target.Kind).GroupKind())
	if object == nil {
		return nil, nil
	}
	if err := r.Get(ctx, types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, object); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, err
	}
	return object, nil
}
