package workloadspread

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
)

// opener opens Berth's scheduling gate on pods of spreads with binding: Gated. A pod keeps the gate while the scheduler tries it, in all of its subsets,
// and while it waits for a slot. The gate is opened by one patch, which also makes the pod require the nodes of its subset: right before the Binding; or,
// if no node has room for the pod, in the subset that it has claimed. Only then may condition PodScheduled have the reason Unschedulable, on which
// node autoscalers make nodes.
//
// The API server takes new terms from pods with a gate only. So of two patches, for instance of two processes, the first wins, and the other is refused.
type opener struct {
	client  kubernetes.Interface
	book    *book
	latest  func(*corev1.Pod) *corev1.Pod
	lease   *lease
	timeout time.Duration
	queue   workqueue.TypedRateLimitingInterface[podKey]
}

func newOpener(ctx context.Context, client kubernetes.Interface, bk *book, latest func(*corev1.Pod) *corev1.Pod, lease *lease, timeout time.Duration) *opener {
	o := &opener{client: client, book: bk, latest: latest, lease: lease, timeout: timeout,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[podKey](100*time.Millisecond, 30*time.Second))}
	for range openers {
		go work(ctx, o.queue, o.openWaiting)
	}
	return o
}

// openers is how many pods that wait for a node are patched at a time.
const openers = 8

// openLater opens the gate of a pod, if it still waits for a node when its turn comes. It does nothing for a pod without the gate.
func (o *opener) openLater(pod *corev1.Pod) {
	if o != nil && subset.IsGated(pod) {
		o.queue.Add(podKey{pod.Namespace, pod.Name, pod.UID})
	}
}

// openWaiting opens the gate of a pod that waits for a node.
func (o *opener) openWaiting(ctx context.Context, key podKey) error {
	pod := o.latest(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.namespace, Name: key.name, UID: key.uid}})
	d, divided := o.book.waitsForNode(key.uid)
	if !subset.IsGated(pod) || !subset.IsActive(pod) || divided && d == nil {
		return nil
	}
	if !o.lease.startBind() {
		return errNoLease
	}
	defer o.lease.endBind(true)
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	return o.open(ctx, pod, d)
}

// open opens the gate of a pod in the subset of a decision, or without one if no spread divides the pod. It does nothing for a pod without the gate.
func (o *opener) open(ctx context.Context, pod *corev1.Pod, d *ledger.Decision) error {
	if o == nil || !subset.IsGated(pod) {
		return nil
	}
	open, err := openIn(pod, d, o.book.clock.Now())
	if err != nil {
		return err
	}
	patch, err := gatePatch(pod, open)
	if err != nil {
		return err
	}
	_, err = o.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return fmt.Errorf("the pod was deleted while its scheduling gate was being opened: %w", err)
	}
	if err != nil && !o.wasOpened(ctx, open) {
		return fmt.Errorf("opening the scheduling gate %s: %w", v1beta1.SubsetGate, err)
	}
	klog.FromContext(ctx).V(3).Info("Opened the gate of a pod", "pod", klog.KObj(pod))
	return nil
}

// wasOpened is true if the gate of the pod was opened before, in the same subset. The pod of a cycle may be older than a patch of this process.
func (o *opener) wasOpened(ctx context.Context, open *corev1.Pod) bool {
	current, err := o.client.CoreV1().Pods(open.Namespace).Get(ctx, open.Name, metav1.GetOptions{})
	if err != nil || current.UID != open.UID || subset.IsGated(current) {
		return false
	}
	is, want := subset.AdmittedOf(current), subset.AdmittedOf(open)
	return is == nil && want == nil || is != nil && want != nil && is.Opened && is.Spread == want.Spread && is.Subset == want.Subset
}

func openIn(pod *corev1.Pod, d *ledger.Decision, now time.Time) (*corev1.Pod, error) {
	if d == nil {
		return (*subset.Policy)(nil).Open(pod, "", subset.None, now)
	}
	return d.Policy.Open(pod, d.Spread.Name, d.Subset, now)
}

// gatePatch is the strategic merge patch from one pod to the other: without Berth's gate, and with what else differs. It names the UID, so that it
// patches no other pod of the same name. It sets single annotations, because others may have set more of them meanwhile.
func gatePatch(before, after *corev1.Pod) ([]byte, error) {
	annotations := map[string]string{}
	for _, key := range []string{v1beta1.AdmittedAnnotation, v1beta1.ConstraintsAnnotation} {
		if value, found := after.Annotations[key]; found && value != before.Annotations[key] {
			annotations[key] = value
		}
	}
	spec := map[string]any{"schedulingGates": []any{map[string]string{"$patch": "delete", "name": v1beta1.SubsetGate}}}
	if len(after.Spec.Tolerations) != len(before.Spec.Tolerations) {
		spec["tolerations"] = after.Spec.Tolerations
	}
	if !equality.Semantic.DeepEqual(before.Spec.Affinity, after.Spec.Affinity) {
		required := after.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		spec["affinity"] = map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": required}}
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": before.UID, "annotations": annotations}, "spec": spec})
}
