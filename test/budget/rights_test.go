package budget

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The controller has the right to patch and delete pods. A policy narrows it to what it does.
func TestTheControllerMayDoToPodsWhatItDoesAndNoMore(t *testing.T) {
	namespace := namespace(t)
	controller, err := kubernetes.NewForConfig(berth.config)
	if err != nil {
		t.Fatal(err)
	}
	bare := func(name, annotations, spec string) *corev1.Pod {
		t.Helper()
		apply(t, namespace, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: web, tier: front}, annotations: {%s}, finalizers: [test/keep]}, `+
			`spec: {%s, containers: [{name: main, image: web:1}]}}`, name, annotations, spec))
		pod, err := the.Client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = patch(context.Background(), pod, `{"metadata":{"finalizers":null}}`) }) // it may be gone
		return pod
	}
	const nobodys = "schedulerName: nobody"
	pending, admitted := bare("pending", "", nobodys), bare("admitted", "berth.dev/admitted-subset: '{}'", nobodys)
	bound := bare("bound", "berth.dev/admitted-subset: '{}'", "nodeName: "+nodeName(t))
	ctx := t.Context()
	dry := func(body string) func() error {
		return func() error {
			_, err := controller.CoreV1().Pods(namespace).Patch(ctx, pending.Name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{DryRun: dryRun})
			return err
		}
	}
	deletion := func(pod *corev1.Pod) func() error {
		return func() error {
			return controller.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{DryRun: dryRun})
		}
	}
	for name, tc := range map[string]struct {
		do      func() error
		allowed bool
	}{
		"protect a pod":                        {dry(`{"metadata":{"labels":{"policy.berth.dev/protected":"true"},"annotations":{"policy.berth.dev/selector-keys":"app"}}}`), true},
		"write its deletion cost":              {dry(`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"100"}}}`), true},
		"adopt it":                             {dry(`{"metadata":{"labels":{"berth.dev/subset":"a","arch":"arm"},"annotations":{"example.com/package":"p"}}}`), true},
		"replace one that was admitted":        {deletion(admitted), true},
		"delete one that was not":              {deletion(pending), false},
		"delete one that runs":                 {deletion(bound), false},
		"take it from a Service":               {dry(`{"metadata":{"labels":{"app":null}}}`), false},
		"give it to a Service":                 {dry(`{"metadata":{"labels":{"team":"shop"}}}`), false},
		"relabel it while it loses its subset": {dry(`{"metadata":{"labels":{"berth.dev/subset":null,"tier":"back"}}}`), false},
		"exempt it from budgets":               {dry(`{"metadata":{"annotations":{"pub.kruise.io/no-protect":"true"}}}`), false},
		"change its image":                     {dry(`{"spec":{"containers":[{"name":"main","image":"evil:1"}]}}`), false},
		"set a deadline":                       {dry(`{"spec":{"activeDeadlineSeconds":1}}`), false},
		"take its finalizer":                   {dry(`{"metadata":{"finalizers":null}}`), false},
		"own it":                               {dry(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x"}]}}`), false},
	} {
		t.Run(name, func(t *testing.T) {
			switch err := tc.do(); {
			case tc.allowed && err != nil:
				t.Error(err)
			case !tc.allowed && !apierrors.IsForbidden(err):
				t.Errorf("got %v, want it to be forbidden", err)
			}
		})
	}
}

func nodeName(t *testing.T) string {
	t.Helper()
	nodes, err := the.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) == 0 {
		t.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	return nodes.Items[0].Name
}
