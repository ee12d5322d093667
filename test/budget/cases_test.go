package budget

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/guard"
	"github.com/berth-project/berth/test/harness"
)

// noReplacements keeps new pods from running until the test ends.
func noReplacements(t *testing.T) {
	t.Helper()
	cordon := func(ctx context.Context, is bool) {
		nodes, err := the.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		for i := range nodes.Items {
			body := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, is)
			if _, err := the.Client.CoreV1().Nodes().Patch(ctx, nodes.Items[i].Name, "application/merge-patch+json", []byte(body), metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
	cordon(t.Context(), true)
	t.Cleanup(func() { cordon(context.Background(), false) })
}

// otherWebhook registers another webhook beside Berth's, for the namespace.
func otherWebhook(t *testing.T, namespace string, answer func(*admissionv1.AdmissionRequest) bool) {
	t.Helper()
	otherAnswer.Store(&answer)
	client := the.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := client.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "other.example.com", AdmissionReviewVersions: []string{"v1"}, ClientConfig: berth.clientConfig("/other"),
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Delete},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
			SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: ptr.To[int32](30),
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop := func() { _ = client.Delete(context.Background(), namespace, metav1.DeleteOptions{}) } // the test may have deleted it
	t.Cleanup(stop)
	// The API server sees the new webhook a moment later.
	waitFor(t, "the other webhook to be asked", func(ctx context.Context) (string, error) {
		var heard atomic.Bool
		listen := func(*admissionv1.AdmissionRequest) bool { heard.Store(true); return false }
		otherAnswer.Store(&listen)
		defer otherAnswer.Store(&answer)
		probe := pods(t, namespace)[0]
		_ = the.Client.CoreV1().Pods(namespace).Delete(ctx, probe.Name, metav1.DeleteOptions{DryRun: dryRun}) // the webhook refuses it once the API server calls it
		if !heard.Load() {
			return "it is not", nil
		}
		return "", nil
	})
}

// withController starts a controller with this expiry instead of the default.
func withController(t *testing.T, expiry time.Duration) {
	t.Helper()
	berth.stopController()
	if err := berth.startController(context.Background(), expiry); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		berth.stopController()
		if err := berth.startController(context.Background(), 0); err != nil {
			t.Error(err)
		}
	})
}

// TestACollectionIsDeletedAsFarAsTheBudgetGoes: case 2.
func TestACollectionIsDeletedAsFarAsTheBudgetGoes(t *testing.T) {
	harness.Long(t)
	namespace := web(t, 100, "maxUnavailable: 7")
	watch(t, namespace, 93)
	noReplacements(t)
	before := map[string]bool{}
	for _, pod := range pods(t, namespace) {
		before[pod.Name] = true
	}
	for range 3 {
		err := the.Client.CoreV1().Pods(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=web", FieldSelector: "status.phase=Running"})
		expectRefused(t, "deleting the collection", err)
	}
	left := 0
	for _, pod := range pods(t, namespace) {
		if before[pod.Name] {
			left++
		}
	}
	if left != 93 {
		t.Errorf("%d of 100 pods are left, want 93", left)
	}
}

// TestAnOperationThatIsReviewedTwiceIsRecordedOnce: case 3.
func TestAnOperationThatIsReviewedTwiceIsRecordedOnce(t *testing.T) {
	namespace := web(t, 5, "maxUnavailable: 1")
	watch(t, namespace, 4)
	noReplacements(t)
	pod := pods(t, namespace)[0]
	var reviews atomic.Int32
	berth.set(func(i *installation) {
		i.after = func(r *admissionv1.AdmissionRequest, _ *admissionv1.AdmissionResponse) { // the pod changes between the answer and the deletion
			if r.Namespace == namespace && reviews.Add(1) <= 3 {
				body := fmt.Sprintf(`{"status":{"message":"%d"}}`, reviews.Load())
				if err := patch(context.Background(), &pod, body, "status"); err != nil {
					t.Error(err)
				}
			}
		}
	})
	defer berth.set(func(i *installation) { i.after = nil })
	berth.stopController() // so that no entry of the status is removed
	defer withController(t, 0)
	expectAllowed(t, "the deletion", remove(t.Context(), &pod))
	if entries := ledger(t, namespace); len(entries) != 1 || entries[0].UID != pod.UID || reviews.Load() < 2 {
		t.Errorf("%d reviews, ledger %+v; want several reviews and one entry", reviews.Load(), entries)
	}
}

// TestWithoutAWebhookOnlyVoluntaryDisruptionOfProtectedPodsIsRefused: cases 4 and 5.
func TestWithoutAWebhookOnlyVoluntaryDisruptionOfProtectedPodsIsRefused(t *testing.T) {
	harness.Long(t)
	guarded, other := web(t, 4, "maxUnavailable: 2"), namespace(t)
	apply(t, other, fmt.Sprintf(deployment, 2))
	apply(t, guarded, "{apiVersion: v1, kind: Pod, metadata: {name: beside, labels: {app: beside}}, spec: {containers: [{name: main, image: web:1}]}}")
	waitFor(t, "the unprotected pods", func(ctx context.Context) (string, error) {
		if n := len(pods(t, other)); n < 2 {
			return fmt.Sprint(n), nil
		}
		beside, err := the.Client.CoreV1().Pods(guarded).Get(ctx, "beside", metav1.GetOptions{})
		return map[bool]string{false: "the pod beside them does not run"}[err == nil && beside.Status.Phase == corev1.PodRunning], err
	})
	var all []corev1.Pod
	for _, pod := range pods(t, guarded) {
		if pod.Name != "beside" {
			all = append(all, pod)
		}
	}
	apply(t, guarded, `{apiVersion: v1, kind: Pod, metadata: {name: ended, labels: {app: web}}, spec: {restartPolicy: Never, containers: [{name: main, image: web:1}]}}`)
	ended := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: guarded, Name: "ended"}}
	waitFor(t, "a protected pod to run and end", func(ctx context.Context) (_ string, err error) {
		ended, err = the.Client.CoreV1().Pods(guarded).Get(ctx, ended.Name, metav1.GetOptions{})
		if err != nil || ended.Labels[v1beta1.ProtectedLabel] == "" || ended.Status.Phase == corev1.PodPending {
			return "it is not protected, or does not run", err
		}
		if ended.Status.Phase != corev1.PodFailed {
			_, err := kubelet(ended.Spec.NodeName).CoreV1().Pods(guarded).Patch(ctx, ended.Name, types.StrategicMergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status")
			return "it has not ended", err
		}
		return "", nil
	})
	terminating := all[0]
	expectAllowed(t, "a finalizer", patch(t.Context(), &terminating, `{"metadata":{"finalizers":["test/keep"]}}`))
	expectAllowed(t, "deleting a pod", remove(t.Context(), &terminating))

	berth.set(func(i *installation) { i.down = true })
	defer berth.set(func(i *installation) { i.down = false })
	if err := remove(t.Context(), &all[1]); err == nil || isRefused(err) {
		t.Errorf("deleting a protected pod: got %v, want a failure", err)
	}
	if err := evict(t.Context(), &all[1]); !apierrors.IsForbidden(err) {
		t.Errorf("evicting a protected pod: got %v, want it to be forbidden", err)
	}
	marked := the.Client.CoreV1().Pods(guarded).EvictV1(t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: all[1].Name, Namespace: guarded, Labels: map[string]string{v1beta1.ProtectedLabel: v1beta1.ProtectedValue}},
	})
	if marked == nil || isRefused(marked) {
		t.Errorf("evicting a protected pod with the mark that only the webhook sets: got %v, want a failure", marked)
	}
	unprotected := pods(t, other)
	expectAllowed(t, "evicting a pod of a namespace without budgets", evict(t.Context(), &unprotected[0]))
	expectAllowed(t, "evicting a pod of no budget", evict(t.Context(), podNamed(t, guarded, "beside")))
	expectAllowed(t, "evicting a pod that terminates", evict(t.Context(), &terminating))
	expectAllowed(t, "evicting a pod that has ended", the.Client.CoreV1().Pods(guarded).EvictV1(t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: ended.Name, Namespace: guarded}, DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun},
	}))
	expectAllowed(t, "deleting a pod that has ended", remove(t.Context(), ended))
	expectAllowed(t, "deleting an unprotected pod", remove(t.Context(), &unprotected[1]))
	expectAllowed(t, "forcing a pod that terminates", the.Client.CoreV1().Pods(guarded).Delete(t.Context(), terminating.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	expectAllowed(t, "its finalizer", patch(t.Context(), &terminating, `{"metadata":{"finalizers":null}}`))
	setReady(t.Context(), &all[1], false)
	setReady(t.Context(), &all[1], true)

	expectAllowed(t, "a kubelet", kubelet(all[2].Spec.NodeName).CoreV1().Pods(guarded).Delete(t.Context(), all[2].Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))

	doomed, err := the.CreateNamespace(t.Context(), "budget-doomed")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, doomed, `{apiVersion: v1, kind: Pod, metadata: {name: bare, labels: {app: web, policy.berth.dev/protected: "true"}}, spec: {containers: [{name: main, image: web:1}]}}`)
	expectAllowed(t, "deleting a namespace", the.Client.CoreV1().Namespaces().Delete(t.Context(), doomed, metav1.DeleteOptions{}))
	waitFor(t, "the namespace to be gone", func(ctx context.Context) (string, error) {
		if _, err := the.Client.CoreV1().Namespaces().Get(ctx, doomed, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return "it still exists", err
		}
		return "", nil
	})

	// This is the break-glass label.
	label := func(value string) {
		if _, err := the.Client.CoreV1().Namespaces().Patch(t.Context(), guarded, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"berth.dev/budgets":`+value+`}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label(`"disabled"`)
	dryRunOf := func(ctx context.Context, pod *corev1.Pod) error {
		return the.Client.CoreV1().Pods(guarded).Delete(ctx, pod.Name, metav1.DeleteOptions{DryRun: dryRun})
	}
	waitFor(t, "the API server to stop calling the webhook", func(ctx context.Context) (string, error) {
		if err := dryRunOf(ctx, &all[1]); err != nil {
			return err.Error(), nil
		}
		return "", nil
	})
	expectAllowed(t, "deleting a protected pod in an emergency", remove(t.Context(), &all[1]))
	expectAllowed(t, "evicting one in an emergency", evict(t.Context(), &all[3]))
	label("null")
	waitFor(t, "the API server to ask again", func(ctx context.Context) (string, error) {
		for _, pod := range pods(t, guarded) {
			if pod.Labels[v1beta1.ProtectedLabel] != "" {
				return map[bool]string{true: "it does not"}[dryRunOf(ctx, &pod) == nil], nil
			}
		}
		return "no pod is protected", nil
	})
}

// TestDeletionsWithoutGrace: case 4, with the webhook. The API server reviews such a deletion twice.
func TestDeletionsWithoutGrace(t *testing.T) {
	namespace := web(t, 3, "maxUnavailable: 1")
	watch(t, namespace, 2)
	noReplacements(t)
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	all := pods(t, namespace)
	berth.stopController() // so that no entry of the status is removed
	defer withController(t, 0)
	expectAllowed(t, "the first", the.Client.CoreV1().Pods(namespace).Delete(t.Context(), all[0].Name, now))
	expectRefused(t, "the second", the.Client.CoreV1().Pods(namespace).Delete(t.Context(), all[1].Name, now))
	if entries := ledger(t, namespace); len(entries) != 1 || entries[0].UID != all[0].UID {
		t.Errorf("ledger %+v, want the first pod once", entries)
	}
	var pending *corev1.Pod
	waitFor(t, "a pod without a node", func(context.Context) (string, error) {
		for _, pod := range pods(t, namespace) {
			if pod.Spec.NodeName == "" {
				pending = &pod
				return "", nil
			}
		}
		return "none", nil
	})
	// The controller is stopped and has put no label on the pod. So the test adds the label.
	expectAllowed(t, "the protection label", asController(t, pending, `{"metadata":{"labels":{"policy.berth.dev/protected":"true"}}}`))
	expectAllowed(t, "a protected pod without a node, while the budget has no room", remove(t.Context(), pending))
}

// asController patches a pod as Berth's controller. Only the controller may change the protection label.
func asController(t *testing.T, pod *corev1.Pod, body string) error {
	t.Helper()
	client, err := kubernetes.NewForConfig(berth.config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, "application/merge-patch+json", []byte(body), metav1.PatchOptions{})
	return err
}

// TestAWebhookWhoseCacheIsFrozenCountsRight: case 7, the webhook.
func TestAWebhookWhoseCacheIsFrozenCountsRight(t *testing.T) {
	namespace := web(t, 20, "maxUnavailable: 3")
	watch(t, namespace, 17)
	noReplacements(t)
	old, err := read(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	writer := berth.client()
	var allowed atomic.Int32
	var servers sync.WaitGroup
	all := pods(t, namespace)
	frozenAt := func(objects ...client.Object) client.Reader {
		return fake.NewClientBuilder().WithScheme(berth.scheme).WithObjects(objects...).Build()
	}
	for _, cached := range []client.Reader{frozenAt(), frozenAt(old), frozenAt(old)} {
		g := guard.New(writer, writer, cached, guard.Options{})
		for i := range all {
			servers.Go(func() {
				verdict, err := g.Decide(t.Context(), guard.Request{Pod: &all[i], Operation: v1beta1.OperationDelete})
				if err != nil {
					t.Error(err)
				} else if verdict.Allowed && verdict.Reason == v1beta1.ReasonWithinBudget {
					allowed.Add(1)
				}
			})
		}
	}
	servers.Wait()
	if allowed.Load() != 3 {
		t.Errorf("%d operations were allowed, want 3", allowed.Load())
	}
	for i := range all { // exactly the allowed operations succeed
		if err := remove(t.Context(), &all[i]); err != nil && !isRefused(err) {
			t.Error(err)
		}
	}
}

// TestAnApprovalThatIsNotUsedExpires: case 14.
func TestAnApprovalThatIsNotUsedExpires(t *testing.T) {
	harness.Long(t)
	const expiry = 4 * time.Second
	withController(t, expiry)
	for name, attempt := range map[string]func(t *testing.T, namespace string, pod *corev1.Pod) error{
		"another webhook refuses": func(t *testing.T, namespace string, pod *corev1.Pod) error {
			t.Helper()
			otherWebhook(t, namespace, func(*admissionv1.AdmissionRequest) bool { return false })
			return remove(t.Context(), pod)
		},
		"the client goes away": func(t *testing.T, namespace string, pod *corev1.Pod) error {
			t.Helper()
			ctx, goAway := context.WithCancel(t.Context())
			otherWebhook(t, namespace, func(r *admissionv1.AdmissionRequest) bool {
				if r.DryRun != nil && *r.DryRun {
					return true
				}
				for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && len(ledger(t, namespace)) == 0; {
					time.Sleep(10 * time.Millisecond) // until the approval is written; the client is gone a moment later
				}
				goAway()
				return false
			})
			return remove(ctx, pod)
		},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := web(t, 5, "maxUnavailable: 1")
			watch(t, namespace, 5)
			all := pods(t, namespace)
			start := time.Now()
			if err := attempt(t, namespace, &all[0]); err == nil || isRefused(err) {
				t.Fatalf("got %v, want the operation to come to nothing after the budget let it through", err)
			}
			waitFor(t, "the entry to expire", func(context.Context) (string, error) {
				if n := len(ledger(t, namespace)); n > 0 {
					return fmt.Sprintf("%d entries", n), nil
				}
				return "", nil
			})
			if took := time.Since(start); took < expiry-time.Second || took > expiry+10*time.Second {
				t.Errorf("the entry was gone after %v, want %v", took, expiry)
			}
			inForce(t, namespace, 5)
		})
	}
}

// TestAnApprovalOutlivesADelayAndTheControllerThatSawIt: case 8. The API server ends a deletion after 34s, whatever webhooks do. Here two reviews
// take most of that time: the pod changes during the first review, so the API server reviews the deletion again.
func TestAnApprovalOutlivesADelayAndTheControllerThatSawIt(t *testing.T) {
	harness.Long(t)
	delay, expiry := 1500*time.Millisecond, 6*time.Second
	if *long {
		delay, expiry = 15*time.Second, guard.ShortestExpiry(time.Minute)
	}
	namespace := web(t, 5, "maxUnavailable: 1")
	withController(t, expiry)
	w := watch(t, namespace, 4)
	all := pods(t, namespace)
	var reviews atomic.Int32
	otherWebhook(t, namespace, func(r *admissionv1.AdmissionRequest) bool {
		if r.DryRun != nil && *r.DryRun {
			return true
		}
		review := reviews.Add(1)
		time.Sleep(delay)
		if review == 1 {
			if err := patch(context.Background(), &all[0], `{"status":{"message":"changed"}}`, "status"); err != nil {
				t.Error(err)
			}
		}
		return true
	})
	var deletion sync.WaitGroup
	done := make(chan struct{})
	deletion.Go(func() {
		defer close(done)
		expectAllowed(t, "the slow deletion", remove(context.Background(), &all[0]))
	})
	waitFor(t, "the approval", func(context.Context) (string, error) {
		if len(ledger(t, namespace)) == 0 {
			return "none", nil
		}
		return "", nil
	})
	berth.stopController() // the controller ends between approval and deletion
	if err := berth.startController(context.Background(), expiry); err != nil {
		t.Fatal(err)
	}
	for over := false; !over; {
		expectRefused(t, "an eviction meanwhile", evict(t.Context(), &all[1]))
		select {
		case <-done:
			over = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	deletion.Wait()
	if n := reviews.Load(); n < 2 {
		t.Errorf("%d reviews, want two", n)
	}
	waitFor(t, "the deletion to be seen", func(context.Context) (string, error) {
		return map[bool]string{false: "it is not"}[w.seen() == 4], nil
	})
}

// TestANewPodOfAnOldNameNeedsRoomOfItsOwn: case 10.
func TestANewPodOfAnOldNameNeedsRoomOfItsOwn(t *testing.T) {
	namespace := newNamespace(t)
	set := strings.Replace(fmt.Sprintf(deployment, 3), "kind: Deployment", "kind: StatefulSet", 1)
	apply(t, namespace, set+"---"+fmt.Sprintf(pub, "maxUnavailable: 1"))
	inForce(t, namespace, 3)
	watch(t, namespace, 2)
	old, err := the.Client.CoreV1().Pods(namespace).Get(t.Context(), "web-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expectAllowed(t, "deleting web-0", remove(t.Context(), old))
	expectRefused(t, "deleting web-1 meanwhile", remove(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-1", UID: podNamed(t, namespace, "web-1").UID}}))
	waitFor(t, "the new web-0", isReplaced(old))
	expectAllowed(t, "deleting web-1", remove(t.Context(), podNamed(t, namespace, "web-1")))
	expectRefused(t, "deleting the new web-0", remove(t.Context(), podNamed(t, namespace, "web-0")))
}

// isReplaced waits for a new pod with the same name that is available and protected.
func isReplaced(old *corev1.Pod) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		pod, err := the.Client.CoreV1().Pods(old.Namespace).Get(ctx, old.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && (pod.UID == old.UID || !isAvailable(pod) || pod.Labels[v1beta1.ProtectedLabel] == "") {
			return "it is not there", nil
		}
		return "", err
	}
}

// TestAnEvictionTakesThePodThatWasJudged: case 10, for an eviction that happens so late that a new pod has the name. The API server finds the pod by
// its name. Clients such as kubectl drain do not send the UID of the pod.
func TestAnEvictionTakesThePodThatWasJudged(t *testing.T) {
	namespace := newNamespace(t)
	set := strings.Replace(fmt.Sprintf(deployment, 3), "kind: Deployment", "kind: StatefulSet", 1)
	apply(t, namespace, set+"---"+fmt.Sprintf(pub, "maxUnavailable: 1"))
	inForce(t, namespace, 3)
	watch(t, namespace, 2)
	old := podNamed(t, namespace, "web-0")
	var late atomic.Bool
	berth.set(func(i *installation) {
		i.after = func(r *admissionv1.AdmissionRequest, answer *admissionv1.AdmissionResponse) {
			if r.Namespace != namespace || r.SubResource != "eviction" || !answer.Allowed || late.Swap(true) {
				return
			}
			expectAllowed(t, "deleting the pod that may go", the.Client.CoreV1().Pods(namespace).Delete(t.Context(), old.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
			if err := the.WaitFor(t.Context(), "the new web-0", isReplaced(old)); err != nil {
				t.Error(err)
			}
		}
	})
	defer berth.set(func(i *installation) { i.after = nil })
	err := the.Client.CoreV1().Pods(namespace).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: old.Name}})
	if !late.Load() || !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	if pod := podNamed(t, namespace, old.Name); pod.UID == old.UID || pod.DeletionTimestamp != nil {
		t.Error("the eviction took the pod that came later")
	}
	gone := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-9"}}
	if err := the.Client.CoreV1().Pods(namespace).EvictV1(t.Context(), gone); !apierrors.IsNotFound(err) {
		t.Errorf("evicting a pod that does not exist: got %v", err)
	}
}

func podNamed(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	pod, err := the.Client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// TestAPodThatBecomesReadyAfterItWasGivenAwayDoesNotCount: case 11.
func TestAPodThatBecomesReadyAfterItWasGivenAwayDoesNotCount(t *testing.T) {
	namespace := web(t, 3, "maxUnavailable: 1")
	all := pods(t, namespace)
	setReady(t.Context(), &all[0], false)
	inForce(t, namespace, 2)
	watch(t, namespace, 2)
	release := make(chan struct{})
	otherWebhook(t, namespace, func(r *admissionv1.AdmissionRequest) bool {
		if r.DryRun == nil || !*r.DryRun {
			select {
			case <-release:
			case <-time.After(20 * time.Second): // the test has failed
			}
		}
		return true
	})
	var deletion sync.WaitGroup
	deletion.Go(func() { expectAllowed(t, "deleting the pod that is not ready", remove(context.Background(), &all[0])) })
	waitFor(t, "the approval", func(context.Context) (string, error) {
		if len(ledger(t, namespace)) == 0 {
			return "none", nil
		}
		return "", nil
	})
	setReady(t.Context(), &all[0], true)
	expectRefused(t, "evicting another", evict(t.Context(), &all[1]))
	close(release)
	deletion.Wait()
}

// TestScalingAndDeletingTheWorkloadIsNotHeldUp: case 12.
func TestScalingAndDeletingTheWorkloadIsNotHeldUp(t *testing.T) {
	harness.Long(t)
	namespace := web(t, 10, "maxUnavailable: 1")
	scale := func(replicas int) {
		body := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
		if _, err := the.Client.AppsV1().Deployments(namespace).Patch(t.Context(), "web", "application/merge-patch+json", []byte(body), metav1.PatchOptions{}, "scale"); err != nil {
			t.Fatal(err)
		}
	}
	scale(3)
	inForce(t, namespace, 3)
	scale(10)
	inForce(t, namespace, 10)
	expectAllowed(t, "deleting the workload", the.Client.AppsV1().Deployments(namespace).Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}))
	waitFor(t, "its pods to be gone", func(context.Context) (string, error) {
		if n := len(pods(t, namespace)); n > 0 {
			return fmt.Sprintf("%d pods are left", n), nil
		}
		return "", nil
	})
}

// TestOrphansAndPodsThatChangeHandsStayCounted: case 12, owners and labels.
func TestOrphansAndPodsThatChangeHandsStayCounted(t *testing.T) {
	namespace := web(t, 4, "maxUnavailable: 1")
	orphan := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}
	expectAllowed(t, "deleting the Deployment alone", the.Client.AppsV1().Deployments(namespace).Delete(t.Context(), "web", orphan))
	sets, err := the.Client.AppsV1().ReplicaSets(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(sets.Items) != 1 {
		t.Fatalf("%d ReplicaSets, %v", len(sets.Items), err)
	}
	set := sets.Items[0]
	waitFor(t, "the Deployment to be gone", func(ctx context.Context) (string, error) {
		live, err := the.Client.AppsV1().ReplicaSets(namespace).Get(ctx, set.Name, metav1.GetOptions{})
		return map[bool]string{false: "it is there"}[err == nil && metav1.GetControllerOf(live) == nil], err
	})
	w := watch(t, namespace, 3)
	noReplacements(t)
	all := pods(t, namespace)
	expectAllowed(t, "a pod whose ReplicaSet has no owner", remove(t.Context(), &all[0]))
	expectRefused(t, "another", remove(t.Context(), &all[1]))
	expectRefused(t, "another that changes its labels", patch(t.Context(), &all[1], `{"metadata":{"labels":{"app":"other"}}}`))

	// Nobody says how many pods without an owner there should be. So none may go, until another owner says it.
	expectAllowed(t, "deleting the ReplicaSet alone", the.Client.AppsV1().ReplicaSets(namespace).Delete(t.Context(), set.Name, orphan))
	waitFor(t, "pods without an owner", func(context.Context) (string, error) {
		for _, pod := range pods(t, namespace) {
			if metav1.GetControllerOf(&pod) != nil {
				return pod.Name, nil
			}
		}
		return "", nil
	})
	for _, pod := range pods(t, namespace) { // the pod that did not fit on a node
		if pod.Spec.NodeName == "" {
			expectAllowed(t, "a pod that never ran", remove(t.Context(), &pod))
		}
	}
	inForce(t, namespace, 3)
	expectRefused(t, "a pod without an owner", remove(t.Context(), &all[1]))
	expectRefused(t, "a pod without an owner that changes its labels", patch(t.Context(), &all[1], `{"metadata":{"labels":{"app":"other"}}}`))

	// The owner that adopts the pods sets their desired number.
	set.ObjectMeta = metav1.ObjectMeta{Name: "adopter", Labels: set.Labels}
	set.Spec.Replicas = ptr.To[int32](3)
	if _, err := the.Client.AppsV1().ReplicaSets(namespace).Create(t.Context(), &set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.setFloor(2)
	waitFor(t, "the pods to be adopted", func(ctx context.Context) (string, error) {
		b, err := read(ctx, namespace)
		return map[bool]string{false: fmt.Sprintf("%+v", b.Status)}[err == nil && b.Status.TotalReplicas == 3 && b.Status.CurrentAvailable == 3 &&
			meta.IsStatusConditionTrue(b.Status.Conditions, v1beta1.ConditionReplicasKnown)], err
	})
	expectAllowed(t, "an adopted pod", remove(t.Context(), &all[2]))
	expectRefused(t, "the other", remove(t.Context(), &all[3]))
}

// TestAControllerThatLagsGivesNothingBack: case 7, the controller. As long as it sees no changes, operations use up the room and none returns.
func TestAControllerThatLagsGivesNothingBack(t *testing.T) {
	lag := *duration
	if *long {
		lag = time.Minute
	}
	namespace := web(t, 20, "maxUnavailable: 3")
	watch(t, namespace, 17)
	berth.stopController()
	allowed, refused := stormFor(t, lag, namespace, patient(t.Context(), remove), patient(t.Context(), evict))
	if refused == 0 {
		t.Errorf("%d allowed, none refused", allowed)
	}
	if entries := ledger(t, namespace); len(entries) < 3 {
		t.Errorf("%d entries are left of at least 3", len(entries))
	}
	if err := berth.startController(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	inForce(t, namespace, 20)
}

func TestARolloutCompletesUnderABudget(t *testing.T) {
	namespace := web(t, 8, "maxUnavailable: 25%")
	watch(t, namespace, 6)
	body := `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"` + nextImage + `"}]}}}}`
	if _, err := the.Client.AppsV1().Deployments(namespace).Patch(t.Context(), "web", "application/strategic-merge-patch+json", []byte(body), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the rollout", func(context.Context) (string, error) {
		all := pods(t, namespace)
		for _, pod := range all {
			if pod.Spec.Containers[0].Image != nextImage || !isAvailable(&pod) {
				return pod.Name, nil
			}
		}
		return map[bool]string{false: "not 8 pods"}[len(all) == 8], nil
	})
}

// TestADryRunTakesNothing: case 13.
func TestADryRunTakesNothing(t *testing.T) {
	namespace := web(t, 3, "maxUnavailable: 1")
	there := pods(t, namespace)
	pod := there[0]
	before, err := read(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	client := the.Client.CoreV1().Pods(namespace)
	expectAllowed(t, "dry-run of a deletion", client.Delete(t.Context(), pod.Name, metav1.DeleteOptions{DryRun: dryRun}))
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: namespace}, DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun}}
	expectAllowed(t, "dry-run in the eviction", client.EvictV1(t.Context(), eviction))
	eviction.DeleteOptions = nil
	expectAllowed(t, "dry-run in the URL", the.Client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		Param("dryRun", metav1.DryRunAll).Body(eviction).Do(t.Context()).Error())
	after, err := read(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	if after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the budget was written: %+v", after.Status)
	}
	podNamed(t, namespace, pod.Name)
	expectAllowed(t, "the deletion itself", remove(t.Context(), &pod))
	expectRefused(t, "dry-run of another", client.Delete(t.Context(), there[1].Name, metav1.DeleteOptions{DryRun: dryRun}))
}

// TestADrainCompletesByItself: case 15, with a PodDisruptionBudget and a second budget over the same pods.
func TestADrainCompletesByItself(t *testing.T) {
	namespace := web(t, 10, "maxUnavailable: 1")
	apply(t, namespace, "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: web}, spec: {maxUnavailable: 2, selector: {matchLabels: {app: web}}}}\n---\n"+
		"{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {name: target}, spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxUnavailable: 2}}")
	watch(t, namespace, 9)
	node := pods(t, namespace)[0].Spec.NodeName
	defer func() { expectAllowed(t, "uncordon", kubectl(t.Context(), "uncordon", node)) }()
	expectAllowed(t, "drain", kubectl(t.Context(), "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app=web", "--timeout=80s"))
	for _, pod := range pods(t, namespace) {
		if pod.Spec.NodeName == node {
			t.Errorf("pod %s is still on the node", pod.Name)
		}
	}
}

func kubectl(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), "kubectl"), append([]string{"--kubeconfig", the.Sandbox.Kubeconfig()}, args...)...)
	output, err := command.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	return nil
}

// TestOnlyUpdatesThatDisruptNeedRoom: case 19.
func TestOnlyUpdatesThatDisruptNeedRoom(t *testing.T) {
	namespace := web(t, 4, "maxUnavailable: 0")
	watch(t, namespace, 4)
	pod := &pods(t, namespace)[0]
	owner := pod.OwnerReferences[0]
	for what, err := range map[string]error{
		"an image": patchImage(t.Context(), pod),
		"another name of its controller": patch(t.Context(), pod,
			fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":"other","uid":%q,"controller":true}]}}`, owner.APIVersion, owner.Kind, owner.UID)),
		"a resize that restarts":       resize("memory", "32Mi")(t.Context(), pod),
		"a deadline":                   patch(t.Context(), pod, `{"spec":{"activeDeadlineSeconds":5}}`),
		"a label that the budget uses": patch(t.Context(), pod, `{"metadata":{"labels":{"app":"other"}}}`),
		"a deletion":                   remove(t.Context(), pod),
		"an eviction":                  evict(t.Context(), pod),
	} {
		expectRefused(t, what, err)
	}
	for what, err := range map[string]error{
		"a resize in place":      resize("cpu", "20m")(t.Context(), pod),
		"another label":          patch(t.Context(), pod, `{"metadata":{"labels":{"other":"x"}}}`),
		"another annotation":     patch(t.Context(), pod, `{"metadata":{"annotations":{"other":"x"}}}`),
		"an ephemeral container": patch(t.Context(), pod, `{"spec":{"ephemeralContainers":[{"name":"debug","image":"debug:1"}]}}`, "ephemeralcontainers"),
	} {
		expectAllowed(t, what, err)
	}
	for what, err := range map[string]error{
		"stripping the protection label":     patch(t.Context(), pod, `{"metadata":{"labels":{"policy.berth.dev/protected":null}}}`),
		"changing the protection label":      patch(t.Context(), pod, `{"metadata":{"labels":{"policy.berth.dev/protected":"no"}}}`),
		"changing the keys that matter":      patch(t.Context(), pod, `{"metadata":{"annotations":{"policy.berth.dev/selector-keys":""}}}`),
		"stripping it through the status":    patch(t.Context(), pod, `{"metadata":{"labels":{"policy.berth.dev/protected":null}}}`, "status"),
		"a label of the selector the status": patch(t.Context(), pod, `{"metadata":{"labels":{"app":"other"}}}`, "status"),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want it to be forbidden", what, err)
		}
	}
	if entries := ledger(t, namespace); len(entries) > 0 {
		t.Errorf("ledger %+v", entries)
	}
}

// TestTheWebhookIsAskedOnlyAboutLabelsThatABudgetGoesBy: other labels can be changed while the webhook is down; see TestWhatGoesOnDuringAnOutage.
func TestTheWebhookIsAskedOnlyAboutLabelsThatABudgetGoesBy(t *testing.T) {
	for subject, want := range map[string]map[string]bool{
		"selector: {matchLabels: {app: web}}":                           {"role": false, "app": true},
		"targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}": {"role": false, "pod-template-hash": true, "app": true},
	} {
		t.Run(subject, func(t *testing.T) {
			namespace := newNamespace(t)
			apply(t, namespace, fmt.Sprintf(deployment, 2)+"---\n{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {name: web}, spec: {"+subject+", maxUnavailable: 0}}")
			inForce(t, namespace, 2)
			pod := &pods(t, namespace)[0]
			asked := reviews(t, namespace, anyone)
			for key, asks := range want {
				before := asked.Load()
				err := patch(t.Context(), pod, fmt.Sprintf(`{"metadata":{"labels":{%q:"another"}}}`, key))
				// The API server asks again if somebody else has written the pod meanwhile.
				if refused := isRefused(err); refused != asks || err != nil && !refused || asked.Load() > before != asks {
					t.Errorf("label %s: got %v after %d questions, want some: %t", key, err, asked.Load()-before, asks)
				}
			}
		})
	}
}

// TestAChangeInV1alpha1Counts: there an annotation says from which operations the budget protects, and the API server gives the budget no new generation.
func TestAChangeInV1alpha1Counts(t *testing.T) {
	namespace := newNamespace(t)
	const budget = "{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {name: web, annotations: {%s: %q}}, spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 0}}"
	apply(t, namespace, fmt.Sprintf(deployment, 2)+"---\n"+fmt.Sprintf(budget, v1beta1.ProtectOperationsAnnotation, "EVICT,UPDATE"))
	inForce(t, namespace, 2)
	pod := &pods(t, namespace)[0]
	for range 2 * len(skews) { // the webhook servers answer in turn, and each remembers the budget
		if err := evict(t.Context(), pod); !isRefused(err) {
			t.Fatalf("got %v", err)
		}
	}
	change := fmt.Sprintf(`{"metadata":{"annotations":{%q:"UPDATE"}}}`, v1beta1.ProtectOperationsAnnotation)
	alpha := v1beta1.GroupVersion.WithResource("podunavailablebudgets").GroupResource().WithVersion("v1alpha1")
	if _, err := the.Dynamic.Resource(alpha).Namespace(namespace).Patch(t.Context(), "web", types.MergePatchType, []byte(change), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the budget to let the pod go", func(ctx context.Context) (string, error) {
		err := evict(ctx, pod)
		if isRefused(err) {
			return err.Error(), nil
		}
		return "", err
	})
}

func TestPodsWithoutABudgetNeverReachTheWebhook(t *testing.T) {
	namespace := newNamespace(t)
	apply(t, namespace, fmt.Sprintf(deployment, 3))
	waitFor(t, "pods", func(context.Context) (string, error) {
		return map[bool]string{false: "too few"}[len(pods(t, namespace)) == 3], nil
	})
	asked := reviews(t, namespace, anyone)
	for i, pod := range pods(t, namespace) {
		expectAllowed(t, "an update", patchImage(t.Context(), &pod))
		if i == 0 {
			expectAllowed(t, "an eviction", evict(t.Context(), &pod)) // the webhook sees the eviction in order to mark it; the API server does not ask it again
			continue
		}
		expectAllowed(t, "a deletion", remove(t.Context(), &pod))
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the webhook was asked %d times", n)
	}
}

func TestBudgetsThatOverlapAreRefused(t *testing.T) {
	namespace := web(t, 1, "maxUnavailable: 1")
	budget := func(name, rule string) error {
		return the.ApplyYAML(t.Context(), namespace, "{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {name: "+name+"}, spec: {"+rule+"}}")
	}
	for what, rule := range map[string]string{
		"the same selector":       "selector: {matchLabels: {app: web}}, maxUnavailable: 1",
		"a wider one":             "selector: {}, maxUnavailable: 1",
		"no subject":              "maxUnavailable: 1",
		"no amount":               "selector: {matchLabels: {app: x}}",
		"a negative amount":       "selector: {matchLabels: {app: x}}, maxUnavailable: -1",
		"more than all":           "selector: {matchLabels: {app: x}}, minAvailable: 101%",
		"an unknown policy":       "selector: {matchLabels: {app: x}}, maxUnavailable: 1, unhealthyPodPolicy: Never",
		"a broken selector":       "selector: {matchExpressions: [{key: app, operator: Near}]}, maxUnavailable: 1",
		"a target without a kind": "targetRef: {apiVersion: apps/v1, name: web}, maxUnavailable: 1",
		"two subjects":            "selector: {matchLabels: {app: x}}, targetRef: {apiVersion: apps/v1, kind: Deployment, name: x}, maxUnavailable: 1",
		"an empty selector":       "selector: {matchLabels: {}}, maxUnavailable: 1",
	} {
		if err := budget("other", rule); !apierrors.IsInvalid(err) {
			t.Errorf("%s: got %v, want it to be invalid", what, err)
		}
	}
	if err := budget("web", "selector: {matchLabels: {app: x}}, maxUnavailable: 1"); !apierrors.IsInvalid(err) {
		t.Errorf("another selector for an existing budget: got %v, want it to be invalid", err)
	}
	expectAllowed(t, "another value of the label", budget("db", "selector: {matchLabels: {app: db}}, maxUnavailable: 1"))
	expectAllowed(t, "another label", budget("backend", "selector: {matchLabels: {backend: 'true'}}, maxUnavailable: 1"))
	expectAllowed(t, "a target", budget("target", "targetRef: {apiVersion: apps/v1, kind: Deployment, name: x}, maxUnavailable: 1, minAvailable: 1"))
}

func TestABudgetWithATargetCoversThePodsOfThatWorkload(t *testing.T) {
	namespace := newNamespace(t)
	apply(t, namespace, fmt.Sprintf(deployment, 4)+"---\n"+
		"{apiVersion: policy.kruise.io/v1alpha1, kind: PodUnavailableBudget, metadata: {name: web}, spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxUnavailable: 1}}\n---\n"+
		"{apiVersion: v1, kind: Pod, metadata: {name: stranger, labels: {app: stranger}}, spec: {containers: [{name: main, image: web:1}]}}")
	inForce(t, namespace, 4)
	watch(t, namespace, 3)
	noReplacements(t)
	var mine []corev1.Pod
	for _, pod := range pods(t, namespace) {
		if pod.Name != "stranger" {
			mine = append(mine, pod)
		}
	}
	expectAllowed(t, "a pod that no budget protects", remove(t.Context(), podNamed(t, namespace, "stranger")))
	expectAllowed(t, "the first", evict(t.Context(), &mine[0]))
	expectRefused(t, "the second", remove(t.Context(), &mine[1]))
	expectAllowed(t, "deleting the budget", berth.client().DeleteAllOf(t.Context(), &v1beta1.PodUnavailableBudget{}, inNamespace(namespace)))
	waitFor(t, "the label to be taken off", func(ctx context.Context) (string, error) {
		pod, err := the.Client.CoreV1().Pods(namespace).Get(ctx, mine[1].Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return map[bool]string{true: "it still has the label"}[pod.Labels[v1beta1.ProtectedLabel] != ""], nil
	})
}
