package budget

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

// onBusiest returns the node with the most pods, and these pods.
func onBusiest(t *testing.T, namespace string) (node string, there []corev1.Pod) {
	t.Helper()
	by := map[string][]corev1.Pod{}
	for _, pod := range pods(t, namespace) {
		by[pod.Spec.NodeName] = append(by[pod.Spec.NodeName], pod)
	}
	for name, some := range by {
		if len(some) > len(there) {
			node, there = name, some
		}
	}
	return node, there
}

// taint replaces the node's taint of this key until the test ends. Kubernetes adds its own taint for a cordon, and writes all taints of the node. So
// taint first waits until that is done.
func taint(t *testing.T, node string, taint corev1.Taint) {
	t.Helper()
	waitFor(t, "the taints of the node to follow its cordon", func(ctx context.Context) (string, error) {
		n, err := the.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		cordoned := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnschedulable })
		return map[bool]string{false: "they do not"}[cordoned == n.Spec.Unschedulable], nil
	})
	replace := func(ctx context.Context, with ...corev1.Taint) {
		if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			n, err := the.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			n.Spec.Taints = append(slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taint.Key }), with...)
			_, err = the.Client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	replace(t.Context(), taint)
	t.Cleanup(func() { replace(context.Background()) })
}

// reviews counts the decisions about pods of the namespace from now on.
func reviews(t *testing.T, namespace string, match func(*admissionv1.AdmissionRequest, *admissionv1.AdmissionResponse) bool) *atomic.Int64 {
	t.Helper()
	var n atomic.Int64
	berth.set(func(i *installation) {
		i.after = func(r *admissionv1.AdmissionRequest, answer *admissionv1.AdmissionResponse) {
			if r.Namespace == namespace && match(r, answer) {
				n.Add(1)
			}
		}
	})
	t.Cleanup(func() { berth.set(func(i *installation) { i.after = nil }) })
	return &n
}

func anyone(*admissionv1.AdmissionRequest, *admissionv1.AdmissionResponse) bool { return true }

// refusedToKubernetes is true for a refused deletion by a controller of Kubernetes or its scheduler.
func refusedToKubernetes(r *admissionv1.AdmissionRequest, answer *admissionv1.AdmissionResponse) bool {
	return r.Operation == admissionv1.Delete && !answer.Allowed && (r.DryRun == nil || !*r.DryRun) &&
		(strings.HasPrefix(r.UserInfo.Username, "system:serviceaccount:kube-system:") || r.UserInfo.Username == "system:kube-scheduler")
}

// TestATaintTakesNoMoreThanTheBudget: case 17, a node that is ready. The taint controller tries five times in quick succession. Then it ignores the
// pod until the taint changes; see docs/operations/budgets.md. So the test changes the taint until no pod is left.
func TestATaintTakesNoMoreThanTheBudget(t *testing.T) {
	namespace := web(t, 10, "maxUnavailable: 1")
	watch(t, namespace, 9)
	refused := reviews(t, namespace, refusedToKubernetes)
	node, there := onBusiest(t, namespace)
	if len(there) < 2 {
		t.Fatalf("%d pods on the busiest node", len(there))
	}
	left := func() (n int) {
		for _, pod := range pods(t, namespace) {
			if pod.Spec.NodeName == node {
				n++
			}
		}
		return n
	}
	// Without new pods there is no more room. A cordon would interfere with the taint.
	apply(t, namespace, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: none}, spec: {hard: {pods: "0"}}}`)
	waitFor(t, "the quota", func(ctx context.Context) (string, error) {
		quota, err := the.Client.CoreV1().ResourceQuotas(namespace).Get(ctx, "none", metav1.GetOptions{})
		return map[bool]string{false: "it is not known yet"}[err == nil && len(quota.Status.Hard) > 0], err
	})
	taint(t, node, corev1.Taint{Key: "test/go", Effect: corev1.TaintEffectNoExecute})
	waitFor(t, "a pod to go and the others to be refused", func(context.Context) (string, error) {
		n := left()
		return map[bool]string{false: fmt.Sprintf("%d of %d are left, %d were refused", n, len(there), refused.Load())}[n == len(there)-1 && refused.Load() > 0], nil
	})
	expectAllowed(t, "lifting the quota", the.Client.CoreV1().ResourceQuotas(namespace).Delete(t.Context(), "none", metav1.DeleteOptions{}))
	for round := 1; left() > 0; round++ {
		if round > 2*len(there) {
			t.Fatalf("%d pods are left after %d rounds", left(), round-1)
		}
		inForce(t, namespace, 10)
		before := left()
		if before == 0 {
			break // the five attempts were enough
		}
		taint(t, node, corev1.Taint{Key: "test/go", Value: fmt.Sprint(round), Effect: corev1.TaintEffectNoExecute})
		waitFor(t, "another pod to go", func(context.Context) (string, error) {
			return map[bool]string{false: "none has"}[left() < before], nil
		})
	}
}

// TestATaintTakesPodsThatDoNotServe: case 17, an unreachable node. Its pods are not available anyway.
func TestATaintTakesPodsThatDoNotServe(t *testing.T) {
	harness.Long(t)
	namespace := newNamespace(t)
	template := strings.Replace(fmt.Sprintf(deployment, 10), "      containers:", "      tolerations: [{key: node.kubernetes.io/unreachable, effect: NoExecute, tolerationSeconds: 0}]\n      containers:", 1)
	apply(t, namespace, template+"---"+fmt.Sprintf(pub, "maxUnavailable: 1"))
	inForce(t, namespace, 10)
	node, there := onBusiest(t, namespace)
	if len(there) < 2 {
		t.Fatalf("%d pods on the busiest node", len(there))
	}
	for i := range there {
		setReady(t.Context(), &there[i], false)
	}
	inForce(t, namespace, 10-len(there))
	watch(t, namespace, 10-len(there))
	taint(t, node, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute})
	waitFor(t, "the pods of the node to go", func(context.Context) (string, error) {
		for i := range there {
			for _, pod := range pods(t, namespace) {
				if pod.UID == there[i].UID {
					return pod.Name, nil
				}
			}
		}
		return "", nil
	})
	inForce(t, namespace, 10)
}

// TestThePodsOfANodeThatIsGoneAreCollected: case 18. The pod garbage collector runs only after about a minute. Without -long the test deletes the
// pods itself, as the user of that controller.
func TestThePodsOfANodeThatIsGoneAreCollected(t *testing.T) {
	namespace := web(t, 10, "maxUnavailable: 0")
	node, lost := onBusiest(t, namespace)
	expectAllowed(t, "deleting the node", the.Client.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}))
	t.Cleanup(func() { // under another name, because KWOK is slow to notice a node whose name it knows
		replacement := sandbox.NewNode("instead-of-"+namespace, "zone-a", nil, nil, nil)
		if err := the.Sandbox.CreateNodes(context.Background(), []*corev1.Node{replacement}); err != nil {
			t.Error(err)
		}
	})
	for _, pod := range pods(t, namespace) {
		if pod.Spec.NodeName != node {
			expectRefused(t, "a pod of another node", remove(t.Context(), &pod))
			break
		}
	}
	if !*long {
		config := rest.CopyConfig(the.Sandbox.RESTConfig())
		config.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:kube-system:pod-garbage-collector", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
		}
		collector, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		asked := reviews(t, namespace, anyone)
		for _, pod := range lost {
			expectAllowed(t, "a pod of the lost node", collector.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
		}
		if n := asked.Load(); n > 0 {
			t.Errorf("the webhook was asked %d times about the collector", n)
		}
	}
	poll(t, 3*time.Minute, "the pods of the node to be gone", func(context.Context) (string, error) {
		for _, pod := range pods(t, namespace) {
			if pod.Spec.NodeName == node {
				return pod.Name, nil
			}
		}
		return "", nil
	})
	inForce(t, namespace, 10)
}
