package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// boundPods waits for so many bound pods of an app and returns them.
func boundPods(t *testing.T, ns, app string, n int) (bound []corev1.Pod) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d bound pods of %s", n, app), func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		bound = nil
		for i := range pods {
			if pods[i].Labels["app"] == app && pods[i].Spec.NodeName != "" && pods[i].DeletionTimestamp == nil {
				bound = append(bound, pods[i])
			}
		}
		if err != nil || len(bound) == n {
			return "", err
		}
		return fmt.Sprintf("%d", len(bound)), nil
	})
	return bound
}

func poolOf(pod *corev1.Pod) string {
	return pod.Spec.NodeName[strings.LastIndex(pod.Spec.NodeName, "-")+1:]
}

// TestASpreadAsOpenKruises adopts the pods of a Deployment and goes through the first half of a rollout.
func TestASpreadAsOpenKruises(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, strings.Replace(deployment("web", 3, ""), "  replicas:", "  strategy: {rollingUpdate: {maxSurge: 2, maxUnavailable: 0}}\n  replicas:", 1))
	old := boundPods(t, ns, "web", 3)
	for i := range old {
		if subset.RecordOf(&old[i]) != nil {
			t.Fatalf("pod %s has a record before there is a spread", old[i].Name)
		}
	}
	spread := strings.Replace(spreadHeader, "metadata: {", "metadata: {annotations: {"+v1beta1.CompatibilityAnnotation+": kruise}, ", 1)
	apply(t, ns, spread+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "2"))
	// The new pods never get ready, so the rollout stops with both revisions.
	patchDeployment(t, ns, `{"spec":{"template":{"metadata":{"labels":{"version":"2"}},"spec":{"readinessGates":[{"conditionType":"example.com/never"}]}}}}`)
	waitFor(t, "records and costs as OpenKruise's", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		var wrong []string
		newOnes, oldInA := 0, 0
		for i := range pods {
			pod := &pods[i]
			cost, is := pod.Annotations[v1beta1.PodDeletionCostAnnotation], poolOf(pod)
			want := map[string]string{"a": "100", "b": "200"}[is]
			switch {
			case pod.Labels["version"] == "2":
				newOnes++
				want = map[string]string{"a": "200", "b": "100"}[is]
			case is == "a":
				oldInA++
			}
			adopted := ""
			if pod.Labels["version"] != "2" { // it was bound before the spread existed
				adopted = `,"adopted":true`
			}
			wantRecord := fmt.Sprintf(`{"name":"web","subset":%q,"uid":%q%s}`, is, pod.UID, adopted)
			if got := pod.Annotations[v1beta1.MatchedAnnotation]; got != wantRecord || cost != want || pod.Labels[v1beta1.SubsetLabel] != is {
				wrong = append(wrong, fmt.Sprintf("%s (version %q, in %s): record %s, cost %s, label %s", pod.Name, pod.Labels["version"], is, got, cost, pod.Labels[v1beta1.SubsetLabel]))
			}
		}
		if newOnes != 2 {
			wrong = append(wrong, fmt.Sprintf("%d new pods", newOnes))
		}
		if oldInA > 2 {
			t.Fatalf("%d old pods on the node of a", oldInA) // the scheduler divides them, so that no pod is above the quota
		}
		return strings.Join(wrong, "; "), nil
	})
	waitFor(t, "a status of both revisions", func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, "web")
		if err != nil {
			return "", err
		}
		if pods := spread.Status.Pods(); pods != 5 || len(spread.Status.VersionedSubsetStatuses) != 2 {
			return fmt.Sprintf("%d pods, statuses of %d revisions", pods, len(spread.Status.VersionedSubsetStatuses)), nil
		}
		return "", nil
	})
}

// TestABoundPodGetsARecordOnceAndFromTheControllerAlone is about pods that no spread divides, so that Berth writes none of their records.
func TestABoundPodGetsARecordOnceAndFromTheControllerAlone(t *testing.T) {
	pools(t, "a")
	ns := namespace(t)
	apply(t, ns, deployment("web", 1, ""))
	pod := boundPods(t, ns, "web", 1)[0]
	controller := as(t, "system:serviceaccount:berth-system:berth-controller")
	write := func(client kubernetes.Interface, record string) error {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1beta1.MatchedAnnotation, record)
		_, err := client.CoreV1().Pods(ns).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	inA := fmt.Sprintf(`{"name":"web","subset":"a","uid":%q,"adopted":true}`, pod.UID)
	for _, tc := range []struct {
		what, record string
		client       kubernetes.Interface
		allowed      bool
	}{
		{"by somebody else", inA, the.Client, false},
		{"by hand, without a UID", `{"name":"web","subset":"a"}`, the.Client, true},
		{"by hand, with its UID elsewhere", fmt.Sprintf(`{"uid":%q,"name":"web","subset":"a"}`, pod.UID), the.Client, false},
		{"by hand, with its UID in other letters", fmt.Sprintf(`{"name":"web","subset":"a","uid":"\u00%x%s"}`, pod.UID[0], pod.UID[1:]), the.Client, false},
		{"of another pod", `{"name":"web","subset":"a","uid":"other"}`, controller, false},
		{"of no subset", fmt.Sprintf(`{"name":"web","subset":"","uid":%q}`, pod.UID), controller, false},
		{"with more around it", "{}" + inA, controller, false},
		{"of its own", inA, controller, true},
		{"of its own, again", inA, controller, true},
		{"by hand, in place of its own", `{"name":"web","subset":"a"}`, the.Client, false},
		{"of another subset", fmt.Sprintf(`{"name":"web","subset":"b","uid":%q}`, pod.UID), controller, false},
		{"that is empty", "", controller, false},
	} {
		err := write(tc.client, tc.record)
		if tc.allowed && err != nil {
			t.Errorf("a record %s: %v", tc.what, err)
		}
		if !tc.allowed && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot be changed")) {
			t.Errorf("a record %s is not refused: %v", tc.what, err)
		}
	}
}
