package workloadspread

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
)

const (
	// syncPoll is how often the informers are asked whether they have synced; they have no event for it.
	syncPoll = 20 * time.Millisecond
	// syncPatience bounds how long one cycle is held up. Afterwards pods fail and are retried, so that the reason becomes visible.
	syncPatience = 10 * time.Second
)

// takeover says when a process may trust its ledger. A scheduler runs its first cycle when it starts to lead. At that moment a bind that
// its predecessor sent may still be on its way, and the informers may not show the last binds yet. So before the first slot is given out
// the process waits for the informers' first lists, then until no such bind can succeed any more, and then reads the bound pods from
// the API server's storage.
type takeover struct {
	lease     *lease
	client    kubernetes.Interface
	book      *book
	listeners *listeners

	mu    sync.Mutex
	since time.Time
	done  bool
}

func newTakeover(lease *lease, client kubernetes.Interface, b *book, from *listeners) *takeover {
	return &takeover{lease: lease, client: client, book: b, listeners: from}
}

// complete returns nil once the ledger can be trusted, and blocks the first cycles until then. An error means that the pod must be tried
// again later.
func (t *takeover) complete(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return nil
	}
	t.lease.lead("", false) // without leader election the first cycle is the first sign of it
	if t.since.IsZero() {
		t.since = time.Now()
	}
	if t.listeners.hasSynced() {
		// The usual case, of every cycle as long as there is no spread in the cluster.
	} else if err := wait.PollUntilContextTimeout(ctx, syncPoll, syncPatience, true, func(context.Context) (bool, error) {
		return t.listeners.hasSynced(), nil
	}); err != nil {
		return t.notSynced()
	}
	namespaces := t.book.namespaces()
	if len(namespaces) == 0 {
		t.since = time.Time{}
		return nil // nothing to count; the doubt passes all the same
	}
	if t.lease.isFirst() {
		_, recorded, err := t.readBound(ctx, namespaces)
		if err != nil {
			return err
		}
		t.lease.confirmFirst(recorded == 0)
	}
	select {
	case <-time.After(t.lease.doubtful()):
	case <-ctx.Done():
		return ctx.Err()
	}
	found, _, err := t.readBound(ctx, namespaces)
	if err != nil {
		return err
	}
	t.done = true
	takeOverSeconds.Set(time.Since(t.since).Seconds())
	klog.FromContext(ctx).V(2).Info("The ledger is complete", "namespaces", len(namespaces), "boundPods", found, "after", time.Since(t.since))
	return nil
}

func (t *takeover) notSynced() error {
	if message := t.listeners.spreadsError.Load(); message != nil {
		return fmt.Errorf("WorkloadSpreads cannot be listed (%s): install manifests/crd and the scheduler's roles", *message)
	}
	return fmt.Errorf("the informers for workloads, pods and nodes have not synced after %s; see the scheduler's log", syncPatience)
}

// readBound reads the pods of the namespaces with a quorum read and takes in those with a node. Recorded are those that Berth has bound.
func (t *takeover) readBound(ctx context.Context, namespaces []string) (found, recorded int, err error) {
	t.book.apply(ledger.ListBegins{})
	defer t.book.apply(ledger.ListEnds{})
	options := metav1.ListOptions{FieldSelector: "spec.nodeName!=,status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)}
	for _, namespace := range namespaces {
		pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (pages runtime.Object, err error) {
			return t.client.CoreV1().Pods(namespace).List(ctx, options)
		})
		if err := pages.EachListItem(ctx, options, func(obj runtime.Object) error {
			pod := obj.(*corev1.Pod)
			found++
			if subset.RecordOf(pod) != nil {
				recorded++
			}
			t.book.apply(ledger.PodListed{Pod: pod})
			return nil
		}); err != nil {
			return 0, 0, fmt.Errorf("counting the bound pods of namespace %q: %w", namespace, err)
		}
	}
	return found, recorded, nil
}
