package guard

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	"github.com/berth-project/berth/pkg/panics"
)

// snapshot is what was counted for a budget, and when.
//
// It serves for a ledger that was read before it, or after it, if its pods are not older than the revision by which that ledger was last
// cleaned: a pod that counts as available at the snapshot's revision can only be lost, until the ledger is written, by an operation that is in
// the ledger, by one that makes the write fail, or by itself. So pods of any such revision are exact. Asking for the very latest ones would
// have the API server wait for its store, a tenth of a second on end, and lose every race for the ledger meanwhile.
type snapshot struct {
	count  *census.Count
	policy *budget.Policy
	uid    types.UID
	// generation and annotations are what the policy was compiled from.
	generation  int64
	annotations [3]string
	// ledgerRevision of the budget at that time.
	ledgerRevision string
	at             time.Time
}

func newSnapshot(pub *v1alpha1.PodUnavailableBudget, policy *budget.Policy, count *census.Count, at time.Time) snapshot {
	return snapshot{
		count: count, policy: policy, uid: pub.UID, generation: pub.Generation, annotations: annotationsOf(pub),
		ledgerRevision: pub.Status.LedgerRevision, at: at,
	}
}

func annotationsOf(pub *v1alpha1.PodUnavailableBudget) [3]string {
	return [3]string{
		pub.Annotations[v1alpha1.ProtectOperationsAnnotation], pub.Annotations[v1alpha1.ProtectTotalReplicasAnnotation], pub.Annotations[v1alpha1.NoProtectNeedsRoomAnnotation],
	}
}

// oldestSnapshot is how old a snapshot may be. Its age does not matter for operations, and does for pods that fail by themselves and workloads
// that are scaled.
const oldestSnapshot = 500 * time.Millisecond

// serves is true if the budget can be judged by the snapshot.
func (s *snapshot) serves(pub *v1alpha1.PodUnavailableBudget, oldest string, now time.Time) bool {
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

// read reads the budget, and at the same time counts for the policy that it had in the last round, which most likely it still has.
func (s *store) read(ctx context.Context, name types.NamespacedName, requests []Request, counted *snapshot) (*v1alpha1.PodUnavailableBudget, error) {
	pub := &v1alpha1.PodUnavailableBudget{}
	value, known := s.last.Load(name)
	last, _ := value.(snapshot)
	if !known || counted.count != nil {
		return pub, s.live.Get(ctx, name, pub)
	}
	reading, readCtx := errgroup.WithContext(ctx)
	panics.Go(ctx, reading, func() error { return s.live.Get(readCtx, name, pub) })
	panics.Go(ctx, reading, func() error {
		last.at = s.clock.Now()
		var err error
		if last.count, err = s.census.Take(readCtx, name.Namespace, last.policy, oldestPods(last.ledgerRevision, requests)); err != nil {
			last.count = nil // it is counted after the budget was read, and says then what is wrong
		}
		return nil
	})
	err := reading.Wait()
	*counted = last
	return pub, err
}

// remember keeps how to count for the next round, and not the pods. Of a budget that the cache does not have nothing is kept: the event that it was
// deleted may have been there before.
func (s *store) remember(ctx context.Context, name types.NamespacedName, last snapshot) {
	last.count = nil
	s.last.Store(name, last)
	if err := s.cached.Get(ctx, name, &v1alpha1.PodUnavailableBudget{}, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		s.forget(name)
	}
}

// forget is told that a budget does not exist any more.
func (s *store) forget(name types.NamespacedName) {
	s.last.Delete(name)
}
