package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// Guard decides whether operations on pods may go on. Any number of goroutines may call it.
type Guard struct {
	// store has what the rounds of the lines use too. No approval relies on its cache alone: the guard reads the budget live, or the write of the ledger
	// proves it.
	*store
	// remembered and committed list the budgets of a namespace: remembered as the API server has them in memory, committed as its store has them.
	remembered *registry
	committed  *registry
	// above reads the owners and the namespaces of pods.
	above *objects
	lines *lines
	// teller sends events about refusals. Nil sends none.
	teller *teller
}

// Request is an operation on a pod that a client asks for.
type Request struct {
	// Pod is the pod before the operation.
	Pod *corev1.Pod
	// After is the pod as an update would make it. Nil for all other operations.
	After *corev1.Pod
	// Operation is DELETE, EVICT, UPDATE, RESIZE or UNREADY. An update that takes the pod out of a budget is LEAVE for that budget. An update that
	// takes the pod out of service while its containers run is UNREADY.
	Operation v1beta1.Operation
	// Restarts is true if an update restarts a container.
	Restarts bool
	// DryRun is true if the decision must write nothing.
	DryRun bool
	// trial is true for a dry run that the real decision follows.
	trial bool
	// ByWorkload is true if the controller of a workload asks, which does not want a new pod in place of this one.
	ByWorkload bool
}

// Decide says whether the operation may go on. Every budget of the pod must allow it. If they all do, each has the operation in its ledger. With an
// error there is no verdict.
//
// Decide asks the budgets in the cache at once. For a protected pod, it also asks the API server which budgets the namespace has, because the cache may
// lack a new one. It does so at the same time, or afterwards if one of the cached budgets is likely to refuse or has others in line. Then it asks the
// budgets that the cache did not have.
//
// The API server answers that list from its memory, which is stale if the API server is cut off from its store. So if none of these budgets covers a
// protected pod, Decide has the API server list from its store. If one does, Decide misses a second budget that is only in the store.
func (g *Guard) Decide(ctx context.Context, request Request) (budget.Verdict, error) {
	answer, err := g.decide(ctx, request)
	if err == nil && !answer.Allowed && !request.DryRun {
		g.teller.refused(&request, answer)
	}
	return answer.Verdict, err
}

func (g *Guard) decide(ctx context.Context, request Request) (verdict, error) {
	if request.Operation == v1beta1.OperationEvict {
		if held := g.heldByDisruptionBudget(ctx, request.Pod); held != nil {
			return verdict{Verdict: *held}, nil
		}
	}
	found, err := g.cachedBudgets(ctx, request.Pod)
	if err != nil {
		return verdict{}, err
	}
	protected := budget.IsProtected(request.Pod)
	var remembered *reading[*v1beta1.PodUnavailableBudgetList]
	if protected && !slices.ContainsFunc(found, func(c candidate) bool { return c.isFull() || g.lines.isBusy(c.name) }) {
		remembered = g.remembered.ask(ctx, request.Pod.Namespace)
	}
	i := &inquiry{request: request, answer: notProtected(), ancestry: sync.OnceValue(func() *ancestry { return ancestryOf(ctx, g.above, request.Pod) })}
	err = g.decideAmong(ctx, i, found)
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
	// No budget may stop the deletion of a namespace.
	terminating, err := g.isTerminating(ctx, request.Pod.Namespace)
	if err != nil {
		return verdict{}, err
	}
	if terminating {
		return verdict{Verdict: budget.Verdict{Allowed: true, Reason: v1beta1.ReasonNamespaceTerminating}}, nil
	}
	return i.answer, nil
}

// isTerminating is true if the namespace is being deleted, or is gone.
func (g *Guard) isTerminating(ctx context.Context, name string) (bool, error) {
	namespace, err := g.above.ask(ctx, objectKey{corev1.SchemeGroupVersion.WithKind("Namespace"), types.NamespacedName{Name: name}}).wait(ctx)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && namespace.DeletionTimestamp != nil, err
}

// inquiry is a request and the state of its decision.
type inquiry struct {
	request Request
	// asked are the budgets that have answered.
	asked  []types.NamespacedName
	answer verdict
	// first are the budgets that refuse in a trial and would have a new pod made first.
	first []candidate
	// ancestry reads the owner chain of the pod once, when it is first needed.
	ancestry func() *ancestry
}

// decideMissing asks the budgets in the list that the guard has not asked yet.
func (g *Guard) decideMissing(ctx context.Context, i *inquiry, reading *reading[*v1beta1.PodUnavailableBudgetList]) error {
	pubs, err := reading.wait(ctx)
	if err != nil {
		return err
	}
	return g.decideAmong(ctx, i, g.policies.covering(pubs, i.request.Pod))
}

// decideAmong asks the given budgets that have not answered yet. For a protected pod it always asks a budget that is alone, because that budget knows
// best. If there are several, or the pod is not protected, it skips those of workloads that do not own the pod. A later list may have a skipped budget
// again, with another workload by then, so decideAmong looks at it again.
//
// A pod of several budgets is replaced first if each of them allows its operation or would have a new pod made first. One of the latter has it made.
func (g *Guard) decideAmong(ctx context.Context, i *inquiry, found []candidate) error {
	found = slices.DeleteFunc(found, func(c candidate) bool { return slices.Contains(i.asked, c.name) })
	if len(i.asked)+len(found) > 1 || !budget.IsProtected(i.request.Pod) {
		found = slices.DeleteFunc(found, func(c candidate) bool { return !i.mayCover(c, nil) })
	}
	if len(found) > 1 && !i.request.DryRun {
		trial := *i
		trial.request.DryRun, trial.request.trial = true, true // so that the first budget records nothing if the second one refuses
		if err := g.decideEach(ctx, &trial, found); err != nil || !trial.answer.Allowed {
			i.answer = trial.answer
			return err
		}
		found = append(trial.first, slices.DeleteFunc(found, func(c candidate) bool {
			return slices.ContainsFunc(trial.first, func(f candidate) bool { return f.name == c.name })
		})...)
	}
	return g.decideEach(ctx, i, found)
}

// decideEach asks one budget after the other, until one refuses.
func (g *Guard) decideEach(ctx context.Context, i *inquiry, candidates []candidate) error {
	for _, c := range candidates {
		one, err := g.lines.ask(ctx, c.name, i.request)
		if err != nil && !i.mayCover(c, err) {
			klog.FromContext(ctx).V(2).Info("Skipped a budget that cannot be judged and does not cover the pod", "budget", c.name, "pod", klog.KObj(i.request.Pod), "error", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("asking PodUnavailableBudget %s: %w", c.name, err)
		}
		i.asked = append(i.asked, c.name)
		if i.request.trial && one.Reason == v1beta1.ReasonReplacedFirst {
			i.first = append(i.first, c)
			continue
		}
		if i.answer = i.answer.and(one); !i.answer.Allowed {
			return nil
		}
	}
	return nil
}

// mayCover is false for a budget that names a workload which does not own the pod. err is the error with which the budget could not be judged, nil if there
// is none. The workload could later adopt a pod that has no controller, so the budget covers such a pod. It does not if Berth may not read the workload:
// then it would hold the pod for as long as Berth lacks the right.
func (i *inquiry) mayCover(c candidate, err error) bool {
	switch {
	case c.target == nil:
		return true
	case apierrors.IsForbidden(err):
		return i.ancestry().isOf(c.target)
	default:
		return i.ancestry().mayBeOf(c.target)
	}
}

// notProtected is the verdict of a budget that the operation does not concern.
func notProtected() verdict {
	return verdict{Verdict: budget.Verdict{Allowed: true, Reason: v1beta1.ReasonNotProtected}}
}

// and combines the verdict of the budgets that have allowed the operation with the verdict of one more.
func (v verdict) and(next verdict) verdict {
	covers := v.covers || next.covers
	if !next.Allowed || next.Reason != v1beta1.ReasonNotProtected {
		v = next
	}
	v.covers = covers
	return v
}

// cachedBudgets returns the budgets in the cache that may cover the pod.
func (g *Guard) cachedBudgets(ctx context.Context, pod *corev1.Pod) ([]candidate, error) {
	var pubs v1beta1.PodUnavailableBudgetList
	// Objects from the cache are shared. Nobody may change them.
	if err := g.cached.List(ctx, &pubs, client.InNamespace(pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the budgets of namespace %s: %w", pod.Namespace, err)
	}
	return g.policies.covering(&pubs, pod), nil
}

// store does the reads and writes of the rounds of a line.
type store struct {
	live     client.Reader
	cached   client.Reader
	writer   client.SubResourceWriter
	census   *census.Census
	policies *policies
	clock    clock.PassiveClock
}

// errChanged is returned by decideOnce if somebody else wrote the budget in between.
var errChanged = errors.New("the budget has changed meanwhile")

// decideOnce is one round of the algorithm. It reads the budget, its pods and workloads, asks the model, and writes the ledger. It returns errChanged
// if the write conflicts, and then nothing has happened. It uses what the previous round learned, as far as that is still valid.
//
// If the round is likely to write, the budget comes from the watch or from this process's last write. The write succeeds only if that was the latest
// budget, and so proves every verdict of the round. If no write proves the verdicts, decideOnce judges by the budget as the API server has it. The
// exception is a round that refuses every request by a young budget; see knowledge.isYoung.
func (s *store) decideOnce(ctx context.Context, name types.NamespacedName, requests []Request, k *knowledge) ([]verdict, error) {
	known := s.known(ctx, name, k.budget)
	if !k.contested && (mayLetGo(known, requests) || known != nil && k.isYoung(s.clock.Now())) {
		verdicts, err := s.decideBy(ctx, known, requests, k)
		if verdicts != nil || err != nil {
			return verdicts, err
		}
	}
	asked, pub := s.clock.Now(), &v1beta1.PodUnavailableBudget{}
	err := s.live.Get(ctx, name, pub)
	if apierrors.IsNotFound(err) || err == nil && pub.DeletionTimestamp != nil {
		return nothingTo(len(requests)), nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the budget: %w", err)
	}
	k.budget, k.at = pub, asked
	if err := s.take(ctx, pub, requests, k); err != nil {
		return nil, err
	}
	if k.counted.policy == nil {
		return nothingTo(len(requests)), nil
	}
	verdicts, decision := s.judge(ctx, pub, &k.counted, requests)
	if !decision.Changed {
		return verdicts, nil
	}
	return s.write(ctx, pub, decision, verdicts, k)
}

// countAhead counts for a round that is likely to write. decideOnce counts again if that fails, and reports the error.
func (s *store) countAhead(ctx context.Context, name types.NamespacedName, requests []Request, k *knowledge) error {
	if known := s.known(ctx, name, k.budget); !k.contested && mayLetGo(known, requests) {
		return s.take(ctx, known, requests, k)
	}
	return nil
}

// decideBy is a round with a budget that may not be the latest. It returns neither verdicts nor an error if the round needs a live read of the budget.
func (s *store) decideBy(ctx context.Context, known *v1beta1.PodUnavailableBudget, requests []Request, k *knowledge) ([]verdict, error) {
	if err := s.take(ctx, known, requests, k); err != nil || k.counted.policy == nil {
		return nil, nil //nolint:nilerr // the latest budget may differ; if it does not, its round reports the error
	}
	verdicts, decision := s.judge(ctx, known, &k.counted, requests)
	if !decision.Changed {
		if k.isYoung(s.clock.Now()) && !slices.ContainsFunc(verdicts, func(v verdict) bool { return v.Allowed }) {
			return verdicts, nil
		}
		return nil, nil
	}
	verdicts, err := s.write(ctx, known, decision, verdicts, k)
	if errors.Is(err, errChanged) {
		return nil, nil
	}
	return verdicts, err
}

// judge returns the verdicts of the budget by the count, and the decision: what must be written before the verdicts hold.
func (s *store) judge(ctx context.Context, pub *v1beta1.PodUnavailableBudget, counted *snapshot, requests []Request) ([]verdict, budget.Decision) {
	verdicts := nothingTo(len(requests))
	policy, count := counted.policy, counted.count
	facts := count.Facts
	facts.Ledger, facts.Replacing = pub.Status.Ledger, pub.Status.Replacing
	for i := range verdicts {
		verdicts[i].covers = count.Covers(requests[i].Pod.UID) || policy.Target == nil && count.Selector.Matches(labels.Set(requests[i].Pod.Labels))
	}
	trial, binding := sort(count, requests)
	if policy.ReplaceFirst > 0 {
		for _, asked := range []asked{trial, binding} {
			for i, v := range policy.Decide(facts, asked.requests, s.now()).Verdicts {
				if r := &requests[asked.index[i]]; !v.Allowed && !r.ByWorkload && (!r.DryRun || r.trial) { // a dry run must not promise what nobody has written down
					s.lookForObstacle(ctx, count.Find(r.Pod.UID), &asked.requests[i])
				}
			}
		}
	}
	for i, index := range trial.index { // each alone: a dry run takes no room from the next
		verdicts[index].Verdict = policy.Decide(facts, trial.requests[i:i+1], s.now()).Verdicts[0]
	}
	decision := policy.Decide(facts, binding.requests, s.now())
	for i, index := range binding.index {
		verdicts[index].Verdict = decision.Verdicts[i]
	}
	for i := range verdicts {
		if !verdicts[i].Allowed {
			verdicts[i].by = &corev1.ObjectReference{APIVersion: v1beta1.GroupVersion.String(), Kind: "PodUnavailableBudget", Namespace: pub.Namespace, Name: pub.Name, UID: pub.UID}
		}
	}
	return verdicts, decision
}

// mostVolumes of a pod are looked at, because each claim is one read.
const mostVolumes = 32

// lookForObstacle says in a request for which there is no room whether a new pod can be made before this one is deleted or evicted.
func (s *store) lookForObstacle(ctx context.Context, pod *corev1.Pod, r *budget.Request) {
	switch {
	case r.Operation != v1beta1.OperationDelete && r.Operation != v1beta1.OperationEvict, budget.HandoverOf(pod) != nil:
		return
	case !budget.IsReplaceable(pod):
		r.Obstacle = "it has no ReplicaSet of a Deployment"
		return
	case len(pod.Spec.Volumes) > mostVolumes:
		r.Obstacle = fmt.Sprintf("it has more than %d volumes", mostVolumes)
		return
	}
	for i := range pod.Spec.Volumes {
		source, claim := pod.Spec.Volumes[i].PersistentVolumeClaim, &corev1.PersistentVolumeClaim{}
		if source == nil {
			continue
		}
		if err := s.live.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: source.ClaimName}, claim); err != nil {
			r.Obstacle = "volume claim " + source.ClaimName + " cannot be read: " + err.Error()
			return
		}
		if budget.IsExclusive(claim) {
			r.Obstacle = "only one pod, or the pods of one node, may write volume claim " + source.ClaimName
			return
		}
	}
	r.Replaceable = true
}

// write writes the ledger of a decision, with the resourceVersion of the budget that was judged. It returns the verdicts that hold afterwards.
func (s *store) write(ctx context.Context, pub *v1beta1.PodUnavailableBudget, decision budget.Decision, verdicts []verdict, k *knowledge) ([]verdict, error) {
	at, written := s.clock.Now(), pub.DeepCopy()
	budget.Publish(&written.Status, pub.Generation, decision.Ledger, decision.Tally)
	written.Status.Replacing = decision.Replacing
	written.Status.LedgerRevision = budget.Newest(append(k.counted.count.Revisions(), pub.Status.LedgerRevision)...)
	switch err := s.writer.Update(ctx, written); {
	case apierrors.IsConflict(err):
		return nil, errChanged
	case apierrors.IsNotFound(err): // the budget was deleted meanwhile and protects nothing
		return nothingTo(len(verdicts)), nil
	case err != nil:
		return nil, fmt.Errorf("writing the ledger: %w", err)
	}
	k.budget, k.at = written, at
	klog.FromContext(ctx).V(2).Info("Wrote ledger", "budget", klog.KObj(pub), "entries", len(decision.Ledger), "available", decision.Tally.Available, "desired", decision.Tally.Desired)
	return verdicts, nil
}

// nothingTo are the verdicts of a budget that the requests do not concern.
func nothingTo(requests int) []verdict {
	verdicts := make([]verdict, requests)
	for i := range verdicts {
		verdicts[i] = notProtected()
	}
	return verdicts
}

// asked are requests to the model, each with its index in the round.
type asked struct {
	index    []int
	requests []budget.Request
}

func (a *asked) add(index int, r budget.Request) {
	a.index = append(a.index, index)
	a.requests = append(a.requests, r)
}

// sort turns the requests into requests to the model. It leaves out those that do not concern this budget.
//
// The pods were read after the client made the request. So a pod that is not among them was deleted or relabelled meanwhile, or never existed. The
// webhook allows its operation and does not record it: otherwise a user who writes reviews could fill the ledger with pods that nobody finds. For the
// same reason, the name in the ledger is that of the pod that was read.
func sort(count *census.Count, requests []Request) (trial, binding asked) {
	for i := range requests {
		r := &requests[i]
		operation := r.Operation
		if r.After != nil {
			switch {
			case budget.Leaves(r.Pod, r.After, count.Selector, count.Ignored), count.Loses(r.Pod, r.After):
				operation = v1beta1.OperationLeave
			case r.Restarts:
			case budget.TakesOut(r.Pod, r.After):
				operation = v1beta1.OperationUnready
			default:
				continue
			}
		}
		// Find also returns a pod that the selector picks and that is not yet one of the budget's. It could become one before the operation happens.
		pod := count.Find(r.Pod.UID)
		if pod == nil {
			continue
		}
		one := budget.Request{Name: pod.Name, UID: pod.UID, Operation: operation, Generation: r.Pod.Generation}
		if r.After != nil {
			one.Generation = r.After.Generation
		}
		switch operation {
		case v1beta1.OperationUnready:
			one.Revision = r.Pod.ResourceVersion
		case v1beta1.OperationLeave:
			one.Exempts = budget.IsExempt(r.After, count.Ignored)
		}
		if r.DryRun {
			trial.add(i, one)
		} else {
			binding.add(i, one)
		}
	}
	return trial, binding
}
