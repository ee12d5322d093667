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
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/ledger"
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
	clock clock.Clock
	// doubt is how long after it was sent a bind may still happen.
	doubt     time.Duration
	client    kubernetes.Interface
	book      *book
	listeners *listeners

	mu    sync.Mutex
	since time.Time
	done  bool
}

func newTakeover(c clock.Clock, bindTimeout time.Duration, client kubernetes.Interface, b *book, from *listeners) *takeover {
	return &takeover{clock: c, doubt: doubtAfter(bindTimeout), client: client, book: b, listeners: from}
}

// complete returns nil once the ledger can be trusted, and blocks the first cycles until then. An error means that the pod must be tried
// again later.
func (t *takeover) complete(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return nil
	}
	if t.since.IsZero() {
		t.since = t.clock.Now()
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
		return nil // nothing to count; the wait counts from the first cycle all the same
	}
	select {
	case <-t.clock.After(t.doubt - t.clock.Since(t.since)):
	case <-ctx.Done():
		return ctx.Err()
	}
	t.book.apply(ledger.ListBegins{})
	defer t.book.apply(ledger.ListEnds{})
	found := 0
	for _, namespace := range namespaces {
		n, err := t.readBound(ctx, namespace)
		if err != nil {
			return fmt.Errorf("counting the bound pods of namespace %q: %w", namespace, err)
		}
		found += n
	}
	t.done = true
	takeOverSeconds.Set(t.clock.Since(t.since).Seconds())
	klog.FromContext(ctx).V(2).Info("The ledger is complete", "namespaces", len(namespaces), "boundPods", found, "after", t.clock.Since(t.since))
	return nil
}

func (t *takeover) notSynced() error {
	if message := t.listeners.spreadsError.Load(); message != nil {
		return fmt.Errorf("WorkloadSpreads cannot be listed (%s): install manifests/crd and the scheduler's roles", *message)
	}
	return fmt.Errorf("the informers for workloads, pods and nodes have not synced after %s; see the scheduler's log", syncPatience)
}

// readBound reads the pods of a namespace with a quorum read and takes in those with a node.
func (t *takeover) readBound(ctx context.Context, namespace string) (found int, err error) {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (pages runtime.Object, err error) {
		return t.client.CoreV1().Pods(namespace).List(ctx, options)
	})
	options := metav1.ListOptions{FieldSelector: "spec.nodeName!=,status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)}
	err = pages.EachListItem(ctx, options, func(obj runtime.Object) error {
		found++
		t.book.apply(ledger.PodListed{Pod: obj.(*corev1.Pod)})
		return nil
	})
	return found, err
}
