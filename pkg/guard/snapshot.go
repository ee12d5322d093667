package guard

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	"github.com/berth-project/berth/pkg/panics"
)

// knowledge is what a line has from the rounds before. It belongs to the line, and is kept for the next line of the budget for a moment.
type knowledge struct {
	// counted is what was counted last. It serves as long as it is young.
	counted snapshot
	// budget as this process has written or read it last, and when. Nil if it has not.
	budget *v1alpha1.PodUnavailableBudget
	at     time.Time
	// contested is true after somebody else was faster: what is known is not likely to be the latest.
	contested bool
}

// isYoung is true if the budget was the latest a moment ago. What refuses by it holds back nobody for longer than that.
func (k *knowledge) isYoung(now time.Time) bool {
	return k.budget != nil && now.Sub(k.at) < oldestSnapshot
}

// snapshot is what was counted for a budget, and when. See docs/decisions/0021-facts-of-a-count.md.
//
// It serves for a ledger that was read before it, or after it, if its pods are not older than the revision by which that ledger was last
// cleaned: a pod that counts as available at the snapshot's revision can only be lost, until the ledger is written, by an operation that is in
// the ledger, by one that makes the write fail, or by itself. So pods of any such revision are exact. Asking for the very latest ones would
// have the API server wait for its store, a tenth of a second on end, and lose every race for the ledger meanwhile.
type snapshot struct {
	count *census.Count
	// policy is nil if the budget cannot be compiled, and protects nothing.
	policy *budget.Policy
	uid    types.UID
	// generation and annotations are what the policy was compiled from.
	generation  int64
	annotations [3]string
	at          time.Time
}

func annotationsOf(pub *v1alpha1.PodUnavailableBudget) [3]string {
	return [3]string{
		pub.Annotations[v1alpha1.ProtectOperationsAnnotation], pub.Annotations[v1alpha1.ProtectTotalReplicasAnnotation], pub.Annotations[v1alpha1.NoProtectNeedsRoomAnnotation],
	}
}

// oldestSnapshot is how old a snapshot may be. Its age does not matter for operations, and does for pods that fail by themselves and workloads
// that are scaled.
const oldestSnapshot = 250 * time.Millisecond

// serves is true if the budget can be judged by the snapshot.
func (s *snapshot) serves(pub *v1alpha1.PodUnavailableBudget, requests []Request, now time.Time) bool {
	oldest := oldestPods(pub.Status.LedgerRevision, requests)
	return s.count != nil && s.uid == pub.UID && s.generation == pub.Generation && s.annotations == annotationsOf(pub) &&
		now.Sub(s.at) < oldestSnapshot &&
		oldest != "" && budget.Newest(oldest, s.count.Revision) == s.count.Revision
}

// oldestPods is the resourceVersion that the pods must have at least: that by which the ledger was last cleaned, because what it does not hold
// any more must show in the pods; and those of the pods that are judged.
func oldestPods(ledgerRevision string, requests []Request) string {
	revisions := make([]string, 0, 1+len(requests))
	revisions = append(revisions, ledgerRevision)
	for i := range requests {
		revisions = append(revisions, requests[i].Pod.ResourceVersion)
	}
	return budget.Newest(revisions...)
}

// take counts for the budget, unless what was counted serves.
func (s *store) take(ctx context.Context, pub *v1alpha1.PodUnavailableBudget, requests []Request, k *knowledge) error {
	now := s.clock.Now()
	if k.counted.serves(pub, requests, now) {
		return nil
	}
	k.counted = snapshot{uid: pub.UID, generation: pub.Generation, annotations: annotationsOf(pub), at: now}
	policy, errs := budget.Compile(pub)
	if len(errs) > 0 {
		return nil // the controller says so in the budget's conditions
	}
	count, err := s.census.Take(ctx, pub.Namespace, policy, oldestPods(pub.Status.LedgerRevision, requests))
	if err != nil {
		return err
	}
	k.counted.policy, k.counted.count = policy, count
	return nil
}

// known is the budget as the watch has it, or as this process has written or read it if that is newer. It is nil if neither has any, and is not to be changed.
func (s *store) known(ctx context.Context, name types.NamespacedName, last *v1alpha1.PodUnavailableBudget) *v1alpha1.PodUnavailableBudget {
	watched := &v1alpha1.PodUnavailableBudget{}
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

// mayLetGo is true if a budget that may not be the latest is likely to have something to write about the requests. Nothing depends on it but how much is read.
func mayLetGo(known *v1alpha1.PodUnavailableBudget, requests []Request) bool {
	return known != nil && known.DeletionTimestamp == nil && known.Status.UnavailableAllowed > 0 &&
		slices.ContainsFunc(requests, func(r Request) bool { return !r.DryRun })
}

// read reads the budget, and at the same time counts for the known one, which most likely has the same spec.
func (s *store) read(ctx context.Context, name types.NamespacedName, known *v1alpha1.PodUnavailableBudget, requests []Request, k *knowledge) (*v1alpha1.PodUnavailableBudget, error) {
	pub := &v1alpha1.PodUnavailableBudget{}
	if known == nil || k.counted.serves(known, requests, s.clock.Now()) {
		return pub, s.live.Get(ctx, name, pub)
	}
	reading, readCtx := errgroup.WithContext(ctx)
	panics.Go(ctx, reading, func() error { return s.live.Get(readCtx, name, pub) })
	panics.Go(ctx, reading, func() error {
		if err := s.take(readCtx, known, requests, k); err != nil {
			k.counted = snapshot{} // it is counted after the budget was read, and says then what is wrong
		}
		return nil
	})
	return pub, reading.Wait()
}
