package integration

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// refusing is a policy that forbids everybody to change the deletion cost of one pod.
const refusing = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: test-refusing}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods]}]
  matchConditions:
  - {name: is-the-pod, expression: "object.metadata.namespace == '%[1]s' && object.metadata.name == '%[2]s'"}
  validations:
  - expression: "(has(object.metadata.annotations) ? object.metadata.annotations : {}) == (has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {})"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: test-refusing}
spec: {policyName: test-refusing, validationActions: [Deny]}
`

func TestAPodThatAPolicyKeepsFromBeingWrittenHoldsUpNoStatus(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "3"))
	apply(t, ns, deployment("web", 3, ""))
	expectPlaces(t, ns, "a=3 b=0")
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	refused := pods[0].Name
	apply(t, ns, fmt.Sprintf(refusing, ns, refused))
	policies := the.Client.AdmissionregistrationV1()
	t.Cleanup(func() {
		ctx := context.Background()
		if err := policies.ValidatingAdmissionPolicyBindings().Delete(ctx, "test-refusing", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := policies.ValidatingAdmissionPolicies().Delete(ctx, "test-refusing", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	waitFor(t, "the policy to be in force", func(ctx context.Context) (string, error) {
		_, err := the.Client.CoreV1().Pods(ns).Patch(ctx, refused, "application/merge-patch+json", []byte(`{"metadata":{"annotations":{"test":"x"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return map[bool]string{true: "it is not"}[err == nil], nil
	})
	// With a quota of 1 the pods get other costs. It does not matter which pod is refused. The controller must write the costs of all others.
	apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "0"))
	apply(t, ns, deployment("web", 5, ""))
	waitFor(t, "status and costs to go on", func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, "web")
		if err != nil {
			return "", err
		}
		if spread.Status.ObservedGeneration != spread.Generation || spread.Status.ObservedReplicas != 5 || spread.Status.SurplusPods != 3 {
			return fmt.Sprintf("status %+v", spread.Status), nil
		}
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		for i := range pods {
			cost := pods[i].Annotations[v1beta1.PodDeletionCostAnnotation]
			want := map[string]string{"a": "-100", "b": "100"}[pods[i].Labels[v1beta1.SubsetLabel]]
			if pods[i].Name == refused {
				want = "200"
			}
			if cost != want {
				return fmt.Sprintf("pod %s of subset %s costs %q, want %q", pods[i].Name, pods[i].Labels[v1beta1.SubsetLabel], cost, want), nil
			}
		}
		return "", nil
	})
	waitFor(t, "an event that says so", func(ctx context.Context) (string, error) {
		events, err := the.Client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=WorkloadSpread,reason=" + string(v1beta1.ReasonPodsNotWritten)})
		if err != nil || len(events.Items) > 0 && events.Items[0].Type == corev1.EventTypeWarning {
			return "", err
		}
		return "there is none", nil
	})
}
