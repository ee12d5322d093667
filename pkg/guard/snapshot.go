package guard

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// knowledge is what a line has learned in previous rounds. It belongs to the line. After the line ends, lines.keep holds it for a moment for the next
// line of the budget.
type knowledge struct {
	// counted is the last count. It may be used as long as it is young.
	counted snapshot
	// budget is the budget as this process last wrote or read it, and at is when. Nil if it has done neither.
	budget *v1beta1.PodUnavailableBudget
	at     time.Time
	// contested is true after another writer was faster. The known budget is then not likely to be the latest.
	contested bool
}

// isYoung is true if the budget was the latest within the last 250 ms (oldestSnapshot). A refusal by it holds nobody back for longer than that.
func (k *knowledge) isYoung(now time.Time) bool {
	return k.budget != nil && now.Sub(k.at) < oldestSnapshot
}

// snapshot is the count for a budget, and when it was taken. See docs/decisions/0021-facts-of-a-count.md.
//
// A snapshot is valid for a ledger that was read before or after it, if its pods are not older than status.ledgerRevision. Take a pod that counts as available at the snapshot's revision. Until the ledger is written, only three things can make the pod
// unavailable: an operation that is in the ledger, an operation that makes the write fail, or the pod itself. Take a pod that does not serve at that
// revision. No earlier decision has seen it serve later, so none relies on it.
//
// If the guard asked for the very latest pods, the API server would wait for its store, a tenth of a second each time. Meanwhile the guard would lose
// every race for the ledger.
type snapshot struct {
	count *census.Count
	// policy is nil if the budget cannot be compiled. Such a budget protects nothing. Another spec of the budget has another policy.
	policy *budget.Policy
	at     time.Time
}

// oldestSnapshot is how old a snapshot may be. Its age does not matter for operations. It matters for pods that fail by themselves, and for workloads
// that are scaled.
const oldestSnapshot = 250 * time.Millisecond

// serves is true if the snapshot is valid for these requests to the budget, which has the policy.
func (s *snapshot) serves(policy *budget.Policy, pub *v1beta1.PodUnavailableBudget, requests []Request, now time.Time) bool {
	oldest := oldestPods(pub.Status.LedgerRevision, requests)
	return s.count != nil && s.policy == policy && now.Sub(s.at) < oldestSnapshot && s.count.KnowsSubsetsOf(pub) &&
		oldest != "" && budget.Newest(oldest, s.count.Revision) == s.count.Revision
}

// oldestPods is the minimum resourceVersion of the list of pods: the newest of the ledger's revision and of the pods that are judged.
func oldestPods(ledgerRevision string, requests []Request) string {
	revisions := make([]string, 0, 1+len(requests))
	revisions = append(revisions, ledgerRevision)
	for i := range requests {
		revisions = append(revisions, requests[i].Pod.ResourceVersion)
	}
	return budget.Newest(revisions...)
}

// take counts for the budget, unless the last count is still valid.
func (s *store) take(ctx context.Context, pub *v1beta1.PodUnavailableBudget, requests []Request, k *knowledge) error {
	now, policy := s.clock.Now(), s.policies.of(pub)
	if k.counted.serves(policy, pub, requests, now) {
		return nil
	}
	k.counted = snapshot{at: now}
	if policy == nil {
		return nil // the controller reports the errors in the budget's conditions
	}
	count, err := s.census.Take(ctx, pub, policy, oldestPods(pub.Status.LedgerRevision, requests))
	if err != nil {
		return err
	}
	k.counted.policy, k.counted.count = policy, count
	return nil
}

// known returns the newest version of the budget that this process has: from the watch, or as this process last wrote or read it. Nil if it has none.
// The caller must not change it.
func (s *store) known(ctx context.Context, name types.NamespacedName, last *v1beta1.PodUnavailableBudget) *v1beta1.PodUnavailableBudget {
	watched := &v1beta1.PodUnavailableBudget{}
	if err := s.cached.Get(ctx, name, watched, client.UnsafeDisableDeepCopy); err != nil {
		return last
	}
	if last == nil {
		return watched
	}
	if order, err := resourceversion.CompareResourceVersion(last.ResourceVersion, watched.ResourceVersion); err == nil && order < 0 {
		return watched
	}
	return last
}

// mayLetGo is true if a round with this budget is likely to write, although it may not be the latest. The number of reads depends on it, and no verdict
// does.
func mayLetGo(known *v1beta1.PodUnavailableBudget, requests []Request) bool {
	return known != nil && known.DeletionTimestamp == nil && known.Status.UnavailableAllowed > 0 &&
		slices.ContainsFunc(requests, func(r Request) bool { return !r.DryRun })
}
