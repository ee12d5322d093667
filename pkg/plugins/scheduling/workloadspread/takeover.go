package workloadspread

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

const (
	// syncPoll is how often the informers are asked whether they have synced. They have no event for it.
	syncPoll = 20 * time.Millisecond
	// syncTimeout bounds how long the first cycle is held up. After it pods fail and are retried, so that users see the reason.
	syncTimeout = 10 * time.Second
	// manyNamespaces is from how many namespaces on one list of the whole cluster is cheaper than one list for each.
	manyNamespaces = 10
)

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// takeover says when a process may trust its ledger. A scheduler runs its first cycle when it starts to lead. At that moment a bind of its
// predecessor may still be on its way, and the informers may not show the last binds yet. So before the process gives out the first slot, it waits
// for the informers' first lists, then until no such bind can succeed any more, and then reads the bound pods from the API server's storage. The very
// first process reads them at once, and does not wait if Berth has bound none of them.
type takeover struct {
	clock     clock.Clock
	lease     *lease
	client    kubernetes.Interface
	lists     metadata.Interface
	book      *book
	listeners *listeners

	mu    sync.Mutex
	since time.Time
	// syncTimedOut is true if a cycle was held up for syncTimeout. No other cycle is then.
	syncTimedOut bool
	done         bool
}

func newTakeover(c clock.Clock, lease *lease, client kubernetes.Interface, lists metadata.Interface, b *book, from *listeners) *takeover {
	return &takeover{clock: c, lease: lease, client: client, lists: lists, book: b, listeners: from}
}

// complete returns nil once the ledger can be trusted, and blocks the first cycles until then. After an error the pod must be tried again later.
func (t *takeover) complete(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return nil
	}
	if t.since.IsZero() {
		t.since = t.clock.Now()
	}
	if err := t.awaitSync(ctx); err != nil {
		return err
	}
	namespaces := sets.List(query(t.book, (*ledger.Ledger).Namespaces))
	if len(namespaces) == 0 {
		t.since = time.Time{}
		return nil // nothing to count; the uncertain period passes meanwhile
	}
	first := t.lease.isFirst()
	if first {
		recorded, err := t.readBound(ctx, namespaces)
		if err != nil {
			return err
		}
		first = recorded == 0
		t.lease.confirmFirst(first)
	}
	if !first {
		select {
		case <-t.clock.After(t.lease.uncertainFor()):
		case <-ctx.Done():
			return ctx.Err()
		}
		if _, err := t.readBound(ctx, namespaces); err != nil {
			return err
		}
	}
	t.done = true
	takeOverSeconds.Set(t.clock.Since(t.since).Seconds())
	klog.FromContext(ctx).V(2).Info("The ledger is complete", "namespaces", len(namespaces), "after", t.clock.Since(t.since))
	return nil
}

// concerns is false for a pod that no spread divides, as far as is known, so that it need not wait. As long as spreads cannot be listed, every pod
// with an owner may belong to one.
func (t *takeover) concerns(pod *corev1.Pod) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return true // and need not wait
	}
	t.lease.lead("", false) // without leader election the first cycle is the first sign that this process leads
	return workload.ControllerOf(pod) != nil && !t.listeners.noSpreads.Load() && (!t.listeners.spreadsSynced() || t.book.hasSpreads(pod.Namespace))
}

// awaitSync blocks the first cycle until the informers have synced. The scheduler runs one cycle at a time. So if that takes long, the next cycles
// fail at once, and pods that need no spread are scheduled.
func (t *takeover) awaitSync(ctx context.Context) error {
	ready := func(context.Context) (bool, error) {
		return t.listeners.hasSynced() || t.listeners.noSpreads.Load(), nil
	}
	if is, _ := ready(ctx); is {
		return nil
	}
	if !t.syncTimedOut && wait.PollUntilContextTimeout(ctx, syncPoll, syncTimeout, true, ready) == nil {
		return nil
	}
	t.syncTimedOut = true
	err := t.listeners.spreadsError.Load()
	switch {
	case t.listeners.spreadsSynced() || err == nil:
		return fmt.Errorf("the informers for workloads, pods and nodes have not synced after %s; see the scheduler's log", syncTimeout)
	case apierrors.IsForbidden(*err):
		return fmt.Errorf("the scheduler schedules no pod with an owner until it may list WorkloadSpreads; "+
			"give it the ClusterRole berth-scheduler of manifests/scheduler/rbac.yaml: %w", *err)
	default:
		return fmt.Errorf("the scheduler schedules no pod with an owner until it can list WorkloadSpreads: %w", *err)
	}
}

// The pods that a take-over reads: those with a node, and those without one. Pods that have ended hold no slot.
const (
	boundPods   = "spec.nodeName!=," + unendedPods
	pendingPods = "spec.nodeName=," + unendedPods
	unendedPods = "status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)
)

// readBound lists the pods of the namespaces that have a node, with a quorum read. It adds those whose node the ledger does not know. It lists only
// metadata, because the ledger knows almost all pods from its watch. It also adds pods without a node whose gate the predecessor has opened, because they
// can use one subset only. Recorded is how many pods Berth has bound.
func (t *takeover) readBound(ctx context.Context, namespaces []string) (recorded int, err error) {
	t.book.apply(ledger.ListBegins{})
	defer t.book.apply(ledger.ListEnds{})
	wanted, lists := sets.New(namespaces...), namespaces
	if len(namespaces) > manyNamespaces {
		lists = []string{metav1.NamespaceAll}
	}
	for _, namespace := range lists {
		if err := t.list(ctx, namespace, boundPods, func(pod *metav1.PartialObjectMetadata) error {
			if !wanted.Has(pod.Namespace) {
				return nil
			}
			if record := subset.RecordIn(pod); record != nil && !record.Adopted {
				recorded++
			}
			return t.read(ctx, pod)
		}); err != nil {
			return 0, fmt.Errorf("counting the bound pods of namespace %q: %w", namespace, err)
		}
		if err := t.list(ctx, namespace, pendingPods, func(pod *metav1.PartialObjectMetadata) error {
			if _, picked := pod.Annotations[v1beta1.AdmittedAnnotation]; !picked || !wanted.Has(pod.Namespace) {
				return nil
			}
			return t.read(ctx, pod)
		}); err != nil {
			return 0, fmt.Errorf("reading the pending pods of namespace %q: %w", namespace, err)
		}
	}
	return recorded, nil
}

func (t *takeover) list(ctx context.Context, namespace, selector string, each func(*metav1.PartialObjectMetadata) error) error {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return t.lists.Resource(podResource).Namespace(namespace).List(ctx, options)
	})
	return pages.EachListItem(ctx, metav1.ListOptions{FieldSelector: selector}, func(obj runtime.Object) error {
		return each(obj.(*metav1.PartialObjectMetadata))
	})
}

// read adds a listed pod, unless no spread can divide it, the ledger knows its node, or it is gone by now.
func (t *takeover) read(ctx context.Context, listed *metav1.PartialObjectMetadata) error {
	if owner := workload.ControllerOf(listed); owner == nil || workload.EndsChain(owner.Kind) ||
		query(t.book, func(l *ledger.Ledger) bool { return l.IsBound(listed.UID) }) {
		return nil
	}
	pod, err := t.client.CoreV1().Pods(listed.Namespace).Get(ctx, listed.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && pod.UID != listed.UID {
		return nil
	}
	if err != nil {
		return err
	}
	t.book.apply(ledger.PodListed{Pod: pod})
	return nil
}
