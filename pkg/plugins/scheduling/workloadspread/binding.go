package workloadspread

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
)

// Reserve makes the slot final, if the decision of this cycle still holds.
func (s *Spread) Reserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	d := decisionIn(state)
	if d == nil {
		return s.undivided(pod)
	}
	if isTrial(state) {
		if s.book.apply(ledger.SlotTried{UID: pod.UID, Decision: d.Decision}).OK {
			s.countTried(state, 1)
			return nil
		}
	} else if s.book.apply(ledger.NodeFound{UID: pod.UID, Decision: d.Decision}).OK {
		subsetAttempts.WithLabelValues("reserved").Inc()
		return nil
	}
	// An error makes the queue retry the pod soon. After a refusal the pod would wait for an event that may have passed already.
	return fwk.AsStatus(fmt.Errorf("WorkloadSpread %q changed while the pod was being scheduled; it is tried again", d.Spread.Name))
}

// undivided is an error if a spread divides the pod by now, although none did when its cycle began. The pod may have waited for other plugins meanwhile.
func (s *Spread) undivided(pod *corev1.Pod) *fwk.Status {
	if !s.book.hasSpreads(pod.Namespace) {
		return nil
	}
	if _, divided := s.book.waitsForNode(pod.UID); !divided {
		return nil
	}
	return fwk.AsStatus(errors.New("a WorkloadSpread divides the pod since its cycle began; it is tried again"))
}

// Unreserve takes the reservation back, unless the bind was sent.
func (s *Spread) Unreserve(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ string) {
	if isTrial(state) {
		s.book.apply(ledger.SlotReturned{UID: pod.UID})
		s.countTried(state, -1)
		return
	}
	s.book.apply(ledger.NodeLost{UID: pod.UID})
}

// Bind writes the node, the record of the subset and its metadata in one request. It leaves pods without a spread to the next plugin.
func (s *Spread) Bind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodeName string) *fwk.Status {
	d := decisionIn(state)
	if d == nil {
		if status := s.undivided(pod); status != nil {
			return status
		}
		if err := s.opener.open(ctx, pod, nil); err != nil {
			return fwk.AsStatus(err)
		}
		return fwk.NewStatus(fwk.Skip)
	}
	binding, err := bindingOf(pod, nodeName, d)
	if err != nil {
		return fwk.AsStatus(err)
	}
	// The bind outlives the context of the cycle, so that a process that is told to stop learns the outcome of its last binds. The timeout begins
	// before the lease is checked: if the process is suspended in between, it sends no bind when it continues.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.binds.timeout)
	defer cancel()
	if !s.lease.startBind() {
		return fwk.AsStatus(errNoLease)
	}
	certain := true
	defer func() { s.lease.endBind(certain) }()
	if !s.book.apply(ledger.BindSent{UID: pod.UID, Decision: d.Decision}).OK {
		return fwk.AsStatus(errors.New("the pod was deleted, or its WorkloadSpread changed, while it was being scheduled"))
	}
	if err := s.opener.open(ctx, pod, d.Decision); err != nil {
		s.book.apply(ledger.BindRefused{UID: pod.UID}) // no bind was sent
		return fwk.AsStatus(err)
	}
	switch err := s.binds.send(ctx, binding); {
	case err == nil:
		klog.FromContext(ctx).V(3).Info("Bound pod", "pod", klog.KObj(pod), "node", nodeName, "subset", d.Name())
		return nil
	case certainlyNotBound(err):
		s.book.apply(ledger.BindRefused{UID: pod.UID})
		return fwk.AsStatus(err)
	default:
		certain = false
		s.binds.settleLater(pod)
		return fwk.AsStatus(fmt.Errorf("the outcome of the bind is not known, its slot stays taken until it is: %w", err))
	}
}

// bindingOf is the one write that gives a pod its node and its subset. The API server merges the labels and annotations of a Binding into the pod
// together with the node name.
func bindingOf(pod *corev1.Pod, nodeName string, d *decision) (*corev1.Binding, error) {
	record, err := json.Marshal(v1beta1.MatchedSubset{Name: d.Spread.Name, Subset: d.Name(), UID: string(pod.UID)})
	if err != nil {
		return nil, fmt.Errorf("encoding the record of the subset: %w", err)
	}
	binding := &corev1.Binding{
		// With the UID the bind cannot hit another pod of the same name, as StatefulSets make them.
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Labels: map[string]string{}, Annotations: map[string]string{}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName},
	}
	if d.Subset != subset.None {
		maps.Copy(binding.Labels, d.Metadata.Labels)
		maps.Copy(binding.Annotations, d.Metadata.Annotations)
		binding.Labels[v1beta1.SubsetLabel] = d.Name()
	}
	binding.Annotations[v1beta1.MatchedAnnotation] = string(record)
	binding.Annotations[v1beta1.PodDeletionCostAnnotation] = strconv.Itoa(int(d.Policy.DeletionCost(d.Subset, d.Ordinal)))
	return binding, nil
}

// certainlyNotBound is true for errors after which no request of this process can have bound the pod. A conflict is not one of them: a pod that an
// earlier request has bound answers with a conflict too.
func certainlyNotBound(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsTooManyRequests(err)
}

// binds sends binds with a deadline that the API server enforces too. It finds out what became of binds without an answer.
type binds struct {
	client  kubernetes.Interface
	book    *book
	timeout time.Duration
	queue   workqueue.TypedRateLimitingInterface[podKey]
}

type podKey struct {
	namespace, name string
	uid             types.UID
}

func newBinds(ctx context.Context, client kubernetes.Interface, bk *book, timeout time.Duration) *binds {
	b := &binds{client: client, book: bk, timeout: timeout,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[podKey](time.Second, 30*time.Second))}
	go work(ctx, b.queue, b.settle)
	return b
}

// send sends the bind and waits for the answer until the deadline of the context. After an error that is not certainlyNotBound the bind may have happened,
// or may still happen within the API server's deadline. It repeats a request only if the API server says that it did not process it. Unlike the client
// library it never repeats a request without an answer: the conflict of the second request would hide that the first one succeeded.
func (b *binds) send(ctx context.Context, binding *corev1.Binding) error {
	for {
		err := b.client.CoreV1().RESTClient().Post().Namespace(binding.Namespace).Resource("pods").Name(binding.Name).SubResource("binding").
			Timeout(b.timeout).MaxRetries(0).Body(binding).Do(ctx).Error()
		seconds, later := apierrors.SuggestsClientDelay(err)
		if !apierrors.IsTooManyRequests(err) || !later {
			return err
		}
		select {
		case <-time.After(time.Duration(seconds) * time.Second):
		case <-ctx.Done():
			return err
		}
	}
}

// uncertainPeriod is how long after it was sent a bind may still happen: the API server's deadline for it, and as long again for its way there and
// its last write to storage.
func uncertainPeriod(bindTimeout time.Duration) time.Duration { return 2 * bindTimeout }

// settleLater keeps the slots of an uncertain bind, and reads the pod once the bind can no longer happen.
func (b *binds) settleLater(pod *corev1.Pod) {
	doubt := uncertainPeriod(b.timeout)
	uncertainBinds.Inc()
	b.book.apply(ledger.BindUnknown{UID: pod.UID, Until: b.book.clock.Now().Add(doubt)})
	b.queue.AddAfter(podKey{pod.Namespace, pod.Name, pod.UID}, doubt)
}

func (b *binds) settle(ctx context.Context, key podKey) error {
	if rest := query(b.book, func(l *ledger.Ledger) time.Time { return l.UncertainUntil(key.uid) }).Sub(b.book.clock.Now()); rest > 0 {
		b.queue.AddAfter(key, rest)
		return nil
	}
	readAt := b.book.clock.Now()
	pod, err := b.client.CoreV1().Pods(key.namespace).Get(ctx, key.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && pod.UID != key.uid:
		b.book.apply(ledger.PodGone{UID: key.uid})
	case err != nil:
		return fmt.Errorf("reading pod %s/%s after an uncertain bind: %w", key.namespace, key.name, err)
	default:
		b.book.apply(ledger.PodRead{Pod: pod})
		if pod.Spec.NodeName == "" {
			b.book.apply(ledger.BindDisproved{UID: pod.UID, ReadAt: readAt})
		}
	}
	return nil
}
