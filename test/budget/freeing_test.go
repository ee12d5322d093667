package budget

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// expectNone waits until the namespace has no pods.
func expectNone(t *testing.T, namespace string) {
	t.Helper()
	waitFor(t, "the pods to be gone", func(context.Context) (string, error) {
		if n := len(pods(t, namespace)); n > 0 {
			return fmt.Sprintf("%d pods are left", n), nil
		}
		return "", nil
	})
}

func TestDeletingABudgetFreesItsPodsAlsoWhileNoWebhookAnswers(t *testing.T) {
	namespace := web(t, 3, "maxUnavailable: 0")
	berth.set(func(i *installation) { i.down = true })
	defer berth.set(func(i *installation) { i.down = false })
	all := pods(t, namespace)
	if err := remove(t.Context(), &all[0]); err == nil || isRefused(err) {
		t.Fatalf("deleting a protected pod: got %v, want a failure", err)
	}
	b, err := read(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	// Foreground deletion adds a finalizer to the budget, which must be removed as well.
	expectAllowed(t, "deleting the budget", berth.client().Delete(t.Context(), b, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	waitFor(t, "the label to be taken off", func(context.Context) (string, error) {
		for _, pod := range pods(t, namespace) {
			if pod.Labels[v1beta1.ProtectedLabel] != "" {
				return pod.Name + " has it", nil
			}
		}
		return "", nil
	})
	expectAllowed(t, "deleting a pod", remove(t.Context(), &all[0]))
	expectAllowed(t, "evicting a pod", evict(t.Context(), &all[1]))
}

func TestAWorkloadThatIsDeletedTakesItsPodsAlong(t *testing.T) {
	harness.Long(t)
	specs := map[string]string{
		"a selector and a total of replicas": `
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web, annotations: {pub.kruise.io/protect-total-replicas: "3"}}
spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 0}`,
		"a target and a total of replicas": `
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: web, annotations: {pub.kruise.io/protect-total-replicas: "3"}}
spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, maxUnavailable: 0}`,
	}
	for name, text := range specs {
		for _, propagation := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
			t.Run(name+", "+string(propagation), func(t *testing.T) {
				namespace := namespace(t)
				apply(t, namespace, fmt.Sprintf(deployment, 3)+"---"+text)
				inForce(t, namespace, 3)
				expectRefused(t, "deleting a pod", remove(t.Context(), &pods(t, namespace)[0]))
				expectAllowed(t, "deleting the workload", the.Client.AppsV1().Deployments(namespace).Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &propagation}))
				expectNone(t, namespace)
			})
		}
	}
}

// While the webhook does not answer, the controller may remove the protection label and do nothing else.
func TestTheControllerTakesNoPodOutOfABudgetUnasked(t *testing.T) {
	harness.Long(t)
	namespace := web(t, 3, "maxUnavailable: 0")
	all := pods(t, namespace)
	for how, set := range map[string]func(i *installation, is bool){
		"down": func(i *installation, is bool) { i.down = is },
		"slow": func(i *installation, is bool) { i.slow = is },
	} {
		berth.set(func(i *installation) { set(i, true) })
		if err := asController(t, &all[0], `{"metadata":{"labels":{"berth.dev/subset":"a","app":"other"}}}`); err == nil {
			t.Errorf("while the webhook is %s the controller gave a pod another label by which its budget goes", how)
		}
		berth.set(func(i *installation) { set(i, false) })
	}
}

func TestAPodThatIsExemptIsRelabelledWhileNoWebhookAnswers(t *testing.T) {
	namespace := web(t, 3, "maxUnavailable: 0")
	pod := &pods(t, namespace)[0]
	expectAllowed(t, "exempting it", patch(t.Context(), pod, `{"metadata":{"annotations":{"pub.kruise.io/no-protect":"true"}}}`))
	berth.set(func(i *installation) { i.down = true })
	defer berth.set(func(i *installation) { i.down = false })
	expectAllowed(t, "another label", patch(t.Context(), pod, `{"metadata":{"labels":{"role":"leader"}}}`))
	expectAllowed(t, "an annotation", patch(t.Context(), pod, `{"metadata":{"annotations":{"note":"x"}}}`))
}
