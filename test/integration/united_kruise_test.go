package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// Two kinds of OpenKruise, without their controllers.
var (
	cloneSets    = &customKind{group: "apps.kruise.io", plural: "clonesets", kind: "CloneSet", version: "v1alpha1", scale: scaleSubresource, newer: newerCloneSets}
	advancedSets = &customKind{group: "apps.kruise.io", plural: "statefulsets", kind: "StatefulSet", version: "v1beta1", scale: scaleSubresource}
)

func (k *customKind) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.group, Version: k.version, Resource: k.plural}
}

// in are the objects in a namespace. There are none if the API server does not serve the kind.
func (k *customKind) in(ctx context.Context, ns string) ([]unstructured.Unstructured, error) {
	list, err := the.Dynamic.Resource(k.resource()).Namespace(ns).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// serve applies the definition, and waits until the API server serves the kind, or, if it is to be gone, deletes it and waits for that.
func (k *customKind) serve(t *testing.T, served bool) {
	t.Helper()
	if served {
		apply(t, "", k.definition())
	} else if _, log, failed := kubectl(t, "delete", "--ignore-not-found", "customresourcedefinition", k.plural+"."+k.group); failed {
		t.Fatal(log)
	}
	waitFor(t, fmt.Sprintf("kind %s served is %t", k.kind, served), func(ctx context.Context) (string, error) {
		_, err := the.Dynamic.Resource(k.resource()).List(ctx, metav1.ListOptions{})
		if is := err == nil; is != served {
			return fmt.Sprint(err), nil
		}
		return "", nil
	})
}

// createPod creates a pod of a workload, as its controller does. A name that ends with a dash is generated.
func createPod(ctx context.Context, owner *unstructured.Unstructured, name string, template *corev1.PodTemplateSpec) error {
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: template.Spec}
	pod.Name, pod.OwnerReferences = name, []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())}
	if strings.HasSuffix(name, "-") {
		pod.Name, pod.GenerateName = "", name
	}
	_, err := the.Client.CoreV1().Pods(owner.GetNamespace()).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func ofCloneSets(value string) string {
	return "{cloneSetTemplate: {metadata: {labels: {app: web}}, spec: {template: " + onPods(value) + "}}}"
}

func ofAdvancedSets(value string) string {
	return "{advancedStatefulSetTemplate: {metadata: {labels: {app: web}}, spec: {serviceName: web, podManagementPolicy: Parallel, template: " + onPods(value) + "}}}"
}

// TestChildrenOfTheKindsOfOpenKruise: Berth knows their fields, and has them from the API server alone. Nobody makes their pods here; test/neighbours runs OpenKruise.
func TestChildrenOfTheKindsOfOpenKruise(t *testing.T) {
	harness.Long(t)
	for kind, template := range map[*customKind]func(string) string{cloneSets: ofCloneSets, advancedSets: ofAdvancedSets} {
		ns := namespace(t)
		expect := func(what string, is func(a, b *unstructured.Unstructured) bool) {
			t.Helper()
			waitFor(t, what, func(ctx context.Context) (string, error) {
				all, err := kind.in(ctx, ns)
				bySubset := map[string]*unstructured.Unstructured{}
				for i := range all {
					bySubset[all[i].GetLabels()[unitedv1beta1.SubsetNameLabel]] = &all[i]
				}
				if a, b := bySubset["a"], bySubset["b"]; a == nil || b == nil || !is(a, b) {
					return fmt.Sprintf("%v", all), err
				}
				return "", err
			})
		}
		askedFor := func(a, b *unstructured.Unstructured) bool { return replicasIn(a) == 3 && replicasIn(b) == 2 }
		kind.serve(t, true)
		apply(t, ns, united(5, template("one"), "", inPool("a", ""), inPool("b", "")))
		expect("the children", askedFor)

		// A user's field stays, and Berth's comes back.
		patchChild(t, childIn(t, ns, "a"), `{"spec":{"revisionHistoryLimit":3,"replicas":2}}`)
		expect("the replicas", func(a, b *unstructured.Unstructured) bool {
			limit, _, _ := unstructured.NestedInt64(a.Object, "spec", "revisionHistoryLimit")
			return askedFor(a, b) && limit == 3
		})

		// The kind goes, and all of its objects with it.
		kind.serve(t, false)
		patchUnited(t, ns, `{"metadata":{"annotations":{"look":"again"}}}`)
		c := expectUnitedReason(t, ns, unitedv1beta1.ReadyCondition, unitedv1beta1.ReasonKindNotServed)
		if want := fmt.Sprintf("the API server has no kind %s in group %q", kind.kind, kind.group); !strings.Contains(c.Message, want) {
			t.Errorf("message %q", c.Message)
		}
		kind.serve(t, true)
		expect("new children", askedFor)
	}
}
