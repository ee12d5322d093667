package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	"github.com/berth-project/berth/pkg/workload"
)

// Guard decides.
type Guard struct {
	// remembered and committed are the budgets of a namespace as the API server remembers them, and as they are.
	remembered *registry
	committed  *registry
	// above reads what is above pods.
	above      *objects
	namespaces *namespaces
	// cached finds the budgets of a namespace. What it finds is read again before it counts.
	cached client.Reader
	live   client.Reader
	clock  clock.PassiveClock
	lines  *lines
	// teller tells people of refusals, nil if nobody is told.
	teller *teller
}

// Request is an operation on a pod that somebody asks for.
type Request struct {
	// Pod as it is before the operation.
	Pod *corev1.Pod
	// After is the pod as it would be, for an update. Nil otherwise.
	After *corev1.Pod
	// Operation is DELETE, EVICT, UPDATE, RESIZE or UNREADY. An update that takes the pod out of a budget is LEAVE for that budget, and one that takes it out
	// of service while its containers run is UNREADY.
	Operation v1alpha1.Operation
	// Restarts is true if an update restarts a container.
	Restarts bool
	// DryRun has nothing written.
	DryRun bool
}

// Decide says whether the operation may go on. Every budget of the pod must agree, and has it in its ledger if they all do; an error is no
// answer.
//
// The budgets that the cache has are asked at once. A cache that does not know one yet must not open the door, so that the API server is asked meanwhile
// which the namespace has (or afterwards, if one of them is likely to refuse), and any that the cache did not have is asked after the others. It answers from its memory, which is behind if it is cut off
// from its store, so that a protected pod that is in none of these budgets has it look there. A second budget of a pod that has one is missed meanwhile.
func (g *Guard) Decide(ctx context.Context, request Request) (budget.Verdict, error) {
	answer, err := g.decide(ctx, request)
	if err == nil && !answer.Allowed && !request.DryRun {
		g.teller.refused(&request, answer)
	}
	return answer.Verdict, err
}

func (g *Guard) decide(ctx context.Context, request Request) (verdict, error) {
	if request.Operation == v1alpha1.OperationEvict {
		if held := g.heldByDisruptionBudget(ctx, request.Pod); held != nil {
			return verdict{Verdict: *held}, nil
		}
	}
	found, err := g.cachedBudgets(ctx, request.Pod)
	if err != nil {
		return verdict{}, err
	}
	protected := budget.IsProtected(request.Pod)
	var remembered *reading[*v1alpha1.PodUnavailableBudgetList]
	if protected && (request.onlyRelabels() || !slices.ContainsFunc(found, candidate.isFull)) {
		remembered = g.remembered.ask(ctx, request.Pod.Namespace)
	}
	i := &inquiry{request: request, answer: notProtected()}
	if protected && request.onlyRelabels() {
		err = g.passOver(ctx, i, remembered)
	}
	if err == nil {
		err = g.decideAmong(ctx, i, found)
	}
	if err == nil && i.answer.Allowed && protected {
		if remembered == nil {
			remembered = g.remembered.ask(ctx, request.Pod.Namespace)
		}
		err = g.decideMissing(ctx, i, remembered)
	}
	if err == nil && i.answer.Allowed && protected && !i.answer.covers {
		err = g.decideMissing(ctx, i, g.committed.ask(ctx, request.Pod.Namespace))
	}
	if err != nil {
		return verdict{}, err
	}
	if i.answer.Allowed {
		return i.answer, nil
	}
	// No budget may stop a namespace from going.
	terminating, err := g.namespaces.isTerminating(ctx, request.Pod.Namespace)
	if err != nil {
		return verdict{}, err
	}
	if terminating {
		return verdict{Verdict: budget.Verdict{Allowed: true, Reason: v1alpha1.ReasonNamespaceTerminating}}, nil
	}
	return i.answer, nil
}

// inquiry is a request, and how far it has come.
type inquiry struct {
	request Request
	// asked are the budgets that have answered.
	asked  []types.NamespacedName
	answer verdict
	// spared are budgets that could not be judged, and that the pod is none of.
	spared []candidate
	// above the pod, nil if nobody needed to know.
	above *ancestry
}

// ancestry of the pod is read once, if somebody needs to know.
func (i *inquiry) ancestry(ctx context.Context, above *objects) *ancestry {
	if i.above == nil {
		i.above = ancestryOf(ctx, above, i.request.Pod)
	}
	return i.above
}

// onlyRelabels is true for an update to which only the labels by which a budget goes can make a difference: it restarts nothing, takes nothing out of service and
// leaves the pod with its controller.
func (r *Request) onlyRelabels() bool {
	return r.After != nil && !r.Restarts && !budget.TakesOut(r.Pod, r.After) && workload.ControllerUID(r.Pod) == workload.ControllerUID(r.After)
}

// passOver leaves out the budgets whose pod the pod is and stays, by their selectors. The list of the namespace's budgets says so by itself: nothing is
// counted. A budget that names a workload goes by the workload's selector, and is asked.
func (g *Guard) passOver(ctx context.Context, i *inquiry, reading *reading[*v1alpha1.PodUnavailableBudgetList]) error {
	pubs, err := reading.wait(ctx)
	if err != nil {
		return err
	}
	for _, c := range covering(pubs, i.request.Pod) {
		if c.target == nil && !budget.Leaves(i.request.Pod, i.request.After, c.selector) {
			i.asked, i.answer.covers = append(i.asked, c.name), true
		}
	}
	return nil
}

// decideMissing asks the budgets that were read and that nobody has asked yet.
func (g *Guard) decideMissing(ctx context.Context, i *inquiry, reading *reading[*v1alpha1.PodUnavailableBudgetList]) error {
	pubs, err := reading.wait(ctx)
	if err != nil {
		return err
	}
	return g.decideAmong(ctx, i, covering(pubs, i.request.Pod))
}

// decideAmong asks those of the budgets that nobody has asked yet. If there are several, those of workloads that the pod is none of are left out; one
// alone knows best. One that is left out may be found again as it is later, and is asked if it names another workload then.
func (g *Guard) decideAmong(ctx context.Context, i *inquiry, found []candidate) error {
	found = slices.DeleteFunc(found, func(c candidate) bool {
		return slices.Contains(i.asked, c.name) || slices.ContainsFunc(i.spared, c.isSame)
	})
	several := len(i.asked)+len(found) > 1
	var candidates []candidate
	for _, c := range found {
		if c.target != nil && several && !i.ancestry(ctx, g.above).mayBeOf(c.target) {
			continue
		}
		candidates = append(candidates, c)
	}
	if len(candidates) == 0 {
		return nil
	}
	more, err := g.decideAll(ctx, i, candidates)
	if err != nil {
		return err
	}
	for _, c := range candidates {
		if !slices.ContainsFunc(i.spared, c.isSame) {
			i.asked = append(i.asked, c.name)
		}
	}
	i.answer = i.answer.and(more)
	return nil
}

// decideAll asks one budget after the other. Several are tried before the first of them records anything.
func (g *Guard) decideAll(ctx context.Context, i *inquiry, candidates []candidate) (verdict, error) {
	if len(candidates) > 1 && !i.request.DryRun {
		trial := i.request
		trial.DryRun = true
		if answer, err := g.decideEach(ctx, i, candidates, trial); err != nil || !answer.Allowed {
			return answer, err
		}
	}
	return g.decideEach(ctx, i, candidates, i.request)
}

func (g *Guard) decideEach(ctx context.Context, i *inquiry, candidates []candidate, request Request) (verdict, error) {
	answer := notProtected()
	for _, c := range candidates {
		if slices.ContainsFunc(i.spared, c.isSame) {
			continue
		}
		one, err := g.lines.ask(ctx, c.name, request)
		if err != nil && g.spares(ctx, i, c, err) {
			klog.FromContext(ctx).V(2).Info("Passed over a budget that cannot be judged", "budget", c.name, "pod", klog.KObj(request.Pod), "error", err)
			i.spared = append(i.spared, c)
			continue
		}
		if err != nil {
			return verdict{}, fmt.Errorf("asking PodUnavailableBudget %s: %w", c.name, err)
		}
		if answer = answer.and(one); !answer.Allowed {
			return answer, nil
		}
	}
	return answer, nil
}

// spares is true if a budget that cannot be judged is nothing to the pod, because it names a workload that the pod is none of. A pod of nobody could be
// adopted by the workload later. It is held for that, but not if Berth may not read the workload: the budget lets nothing go then, for as long as it lasts.
func (g *Guard) spares(ctx context.Context, i *inquiry, c candidate, err error) bool {
	switch {
	case c.target == nil:
		return false
	case apierrors.IsForbidden(err):
		return !i.ancestry(ctx, g.above).isOf(c.target)
	default:
		return !i.ancestry(ctx, g.above).mayBeOf(c.target)
	}
}

// notProtected is what a budget says to what is nothing to it.
func notProtected() verdict {
	return verdict{Verdict: budget.Verdict{Allowed: true, Reason: v1alpha1.ReasonNotProtected}}
}

// and is the verdict of those who have let something through, and of one more.
func (v verdict) and(next verdict) verdict {
	covers := v.covers || next.covers
	if !next.Allowed || next.Reason != v1alpha1.ReasonNotProtected {
		v = next
	}
	v.covers = covers
	return v
}

// refusedBy completes a refusal with the budget that it is of, and with how long it is likely to last. An approval stays as it is.
func (v *verdict) refusedBy(pub *v1alpha1.PodUnavailableBudget, t budget.Tally, pods []*corev1.Pod, now time.Time) {
	if v.Allowed {
		return
	}
	v.by = &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "PodUnavailableBudget", Namespace: pub.Namespace, Name: pub.Name, UID: pub.UID}
	if v.Reason != v1alpha1.ReasonBudgetExhausted && v.Reason != v1alpha1.ReasonBudgetUnhealthy || t.Desired >= t.Total {
		return
	}
	if wait, takes := budget.ExpectedWait(pods, int(t.Desired+1-t.Available), now); wait > 0 {
		v.Message += fmt.Sprintf(" (in about %s: its pods take %s to become ready)", wait, takes)
	}
}

// cachedBudgets are the budgets that may cover the pod, as far as the cache has them.
func (g *Guard) cachedBudgets(ctx context.Context, pod *corev1.Pod) ([]candidate, error) {
	var pubs v1alpha1.PodUnavailableBudgetList
	// Objects from a cache are shared and are only read.
	if err := g.cached.List(ctx, &pubs, client.InNamespace(pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the budgets of namespace %s: %w", pod.Namespace, err)
	}
	return covering(&pubs, pod), nil
}

// store is what a line needs of the API server.
type store struct {
	live   client.Reader
	cached client.Reader
	writer client.SubResourceWriter
	census *census.Census
	clock  clock.PassiveClock
	// fresh remembers what this process wrote lately.
	fresh *freshness
}

// errChanged is returned by decideOnce if the budget was written by somebody else in between.
var errChanged = errors.New("the budget has changed meanwhile")

// decideOnce is one round of the algorithm: the budget, its pods and workloads, then the model, then the ledger, or errChanged and nothing has
// happened. What is known from the round before is used as far as it serves.
//
// The budget comes from the watch, or from this process's last write, if the answer is likely to be written: the write succeeds only if that was the
// latest budget, and so proves every verdict of the round. What no write proves is judged by the budget as the API server has it.
func (s *store) decideOnce(ctx context.Context, name types.NamespacedName, requests []Request, k *knowledge) ([]verdict, error) {
	known := s.known(ctx, name, k.budget)
	if !k.contested && (mayLetGo(known, requests) || known != nil && k.isYoung(s.clock.Now())) {
		verdicts, err := s.decideBy(ctx, known, requests, k)
		if verdicts != nil || err != nil {
			return verdicts, err
		}
		if k.counted.count == nil {
			known = nil // there is no counting for it
		}
	}
	asked := s.clock.Now()
	pub, err := s.read(ctx, name, known, requests, k)
	if apierrors.IsNotFound(err) || err == nil && pub.DeletionTimestamp != nil {
		return nothingTo(requests), nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the budget: %w", err)
	}
	k.budget, k.at = pub, asked
	if err := s.take(ctx, pub, requests, k); err != nil {
		return nil, err
	}
	if k.counted.policy == nil {
		return nothingTo(requests), nil
	}
	verdicts, decision := s.judge(pub, &k.counted, requests)
	if !decision.Changed {
		return verdicts, nil
	}
	return s.write(ctx, pub, decision, verdicts, k)
}

// decideBy is a round with a budget that may not be the latest. It has no verdicts and no error if no write has proven that it is.
func (s *store) decideBy(ctx context.Context, known *v1alpha1.PodUnavailableBudget, requests []Request, k *knowledge) ([]verdict, error) {
	if err := s.take(ctx, known, requests, k); err != nil || k.counted.policy == nil {
		return nil, nil //nolint:nilerr // the latest budget may be another one, and says what is wrong if it is not
	}
	verdicts, decision := s.judge(known, &k.counted, requests)
	if !decision.Changed {
		if k.isYoung(s.clock.Now()) && !slices.ContainsFunc(verdicts, func(v verdict) bool { return v.Allowed }) {
			return verdicts, nil
		}
		return nil, nil
	}
	verdicts, err := s.write(ctx, known, decision, verdicts, k)
	if errors.Is(err, errChanged) {
		conflicts.Inc()
		return nil, nil
	}
	return verdicts, err
}

// judge says what the budget makes of the requests by what was counted, and what is to be written before its verdicts hold.
func (s *store) judge(pub *v1alpha1.PodUnavailableBudget, counted *snapshot, requests []Request) ([]verdict, budget.Decision) {
	verdicts := nothingTo(requests)
	policy, count := counted.policy, counted.count
	facts := count.Facts
	facts.Ledger = pub.Status.Ledger
	for i := range verdicts {
		verdicts[i].covers = count.Covers(requests[i].Pod.UID) || policy.Target == nil && isPicked(requests[i].Pod, count)
	}
	trial, binding := s.sort(pub, count, requests)
	for _, index := range trial.index { // each by itself: what is tried takes nothing from the next
		one := policy.Decide(facts, trial.take(index), s.now())
		verdicts[index].Verdict = one.Verdicts[0]
		verdicts[index].refusedBy(pub, one.Tally, count.Pods, s.clock.Now())
	}
	decision := policy.Decide(facts, binding.requests, s.now())
	for i, index := range binding.index {
		verdicts[index].Verdict = decision.Verdicts[i]
		verdicts[index].refusedBy(pub, decision.Tally, count.Pods, s.clock.Now())
	}
	return verdicts, decision
}

// write writes the ledger of a decision, with the resourceVersion of the budget that it was made by, and returns the verdicts that hold then.
func (s *store) write(ctx context.Context, pub *v1alpha1.PodUnavailableBudget, decision budget.Decision, verdicts []verdict, k *knowledge) ([]verdict, error) {
	at, written := s.clock.Now(), pub.DeepCopy()
	budget.Publish(&written.Status, pub.Generation, decision.Ledger, decision.Tally)
	switch err := s.writer.Update(ctx, written); {
	case apierrors.IsConflict(err):
		return nil, errChanged
	case apierrors.IsNotFound(err): // deleted meanwhile, and nothing holds any more
		for i := range verdicts {
			verdicts[i] = notProtected()
		}
		return verdicts, nil
	case err != nil:
		return nil, fmt.Errorf("writing the ledger: %w", err)
	}
	s.fresh.wrote(pub.UID, pub.Status.Ledger, decision.Ledger)
	k.budget, k.at = written, at
	klog.FromContext(ctx).V(2).Info("Wrote ledger", "budget", klog.KObj(pub), "entries", len(decision.Ledger), "available", decision.Tally.Available, "desired", decision.Tally.Desired)
	return verdicts, nil
}

// nothingTo are the verdicts of a budget that has no say.
func nothingTo(requests []Request) []verdict {
	verdicts := make([]verdict, len(requests))
	for i := range verdicts {
		verdicts[i] = notProtected()
	}
	return verdicts
}

// asked are requests of the model, each with its place among the requests of the round.
type asked struct {
	index    []int
	requests []budget.Request
}

func (a *asked) add(index int, r budget.Request) {
	a.index = append(a.index, index)
	a.requests = append(a.requests, r)
}

func (a *asked) take(index int) []budget.Request {
	at := slices.Index(a.index, index)
	return a.requests[at : at+1]
}

func isPicked(pod *corev1.Pod, count *census.Count) bool {
	return count.Selector.Matches(labels.Set(pod.Labels))
}

// sort says what each request is to this budget. One that is nothing to it is left out.
//
// The pods were read after the request was made, so that a pod that is not among them was deleted or relabelled meanwhile, or never existed. Its operation
// is let through and not recorded: whoever wrote the review could fill the ledger with pods that nobody finds. The name in the ledger is that of the pod
// that was read, for the same reason.
func (s *store) sort(pub *v1alpha1.PodUnavailableBudget, count *census.Count, requests []Request) (trial, binding asked) {
	for i := range requests {
		r := &requests[i]
		operation := r.Operation
		if r.After != nil {
			switch {
			case budget.Leaves(r.Pod, r.After, count.Selector), count.Loses(r.Pod, r.After):
				operation = v1alpha1.OperationLeave
			case r.Restarts:
			case budget.TakesOut(r.Pod, r.After):
				operation = v1alpha1.OperationUnready
			default:
				continue
			}
		}
		// A pod that the selector picks and that is not the budget's now could become so before the operation happens.
		pod := count.Find(r.Pod.UID)
		if pod == nil {
			continue
		}
		one := budget.Request{
			Name: pod.Name, UID: pod.UID, Operation: operation, Generation: r.Pod.Generation,
			Fresh: s.fresh.has(pub.UID, pub.Status.Ledger, r.Pod.UID),
		}
		if r.After != nil {
			one.Generation = r.After.Generation
		}
		switch operation {
		case v1alpha1.OperationUnready:
			one.Revision = r.Pod.ResourceVersion
		case v1alpha1.OperationLeave:
			one.Exempts = budget.IsExempt(r.After)
		}
		if r.DryRun {
			trial.add(i, one)
		} else {
			binding.add(i, one)
		}
	}
	return trial, binding
}

const (
	// freshFor is how long an entry that this process wrote needs no renewal. It is over well before the entry may expire and the request
	// that relies on it has ended; see ShortestExpiry.
	freshFor = 20 * time.Second
)
