package workload_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/workload"
)

func TestKeepLeavesReplicasSelectorAndOwner(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid", Labels: map[string]string{"app": "web"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: ptr.To(true)}}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, tc := range []struct{ whole, want runtime.Object }{
		{&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Selector: selector, Template: template}, Status: appsv1.DeploymentStatus{Replicas: 3}},
			&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Selector: selector}}},
		{&appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3), Selector: selector, Template: template}, Status: appsv1.ReplicaSetStatus{Replicas: 3}},
			&appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3), Selector: selector}}},
		{&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), Selector: selector, Template: template, ServiceName: "web",
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{}}}, Status: appsv1.StatefulSetStatus{Replicas: 3}},
			&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), Selector: selector, ServiceName: "web"}}},
		{&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](3), Completions: ptr.To[int32](9), Selector: selector, Template: template}, Status: batchv1.JobStatus{Active: 3}},
			&batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](3), Completions: ptr.To[int32](9), Selector: selector}}},
		{&metav1.PartialObjectMetadata{ObjectMeta: meta}, &metav1.PartialObjectMetadata{ObjectMeta: meta}},
	} {
		whole := tc.whole.(metav1.Object)
		whole.SetAnnotations(map[string]string{corev1.LastAppliedConfigAnnotation: "long"})
		whole.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl"}})
		got, err := workload.Keep(tc.whole)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
	}
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "long", workload.RevisionAnnotation: "7"}}}
	if _, err := workload.Keep(rs); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{workload.RevisionAnnotation: "7"}, rs.Annotations); diff != "" {
		t.Errorf("annotations of a ReplicaSet (-want +got):\n%s", diff)
	}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "b"}}}
	if got, err := workload.Keep(other.DeepCopy()); err != nil || !cmp.Equal(got, any(other)) {
		t.Errorf("a pod became %v, %v", got, err)
	}
}

func TestKeepLeavesTheNumbersAndAnnotationsOfAChildOfAUnitedDeployment(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "web-a", Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "long", "team": "shop"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps.kruise.io/v1alpha1", Kind: "UnitedDeployment", Name: "web", UID: "u", Controller: ptr.To(true)}}}
	kept := *meta.DeepCopy()
	kept.Annotations = map[string]string{"team": "shop"}
	for _, tc := range []struct{ whole, want runtime.Object }{
		{&appsv1.Deployment{ObjectMeta: meta, Status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 4, UpdatedReplicas: 3, ReadyReplicas: 1, AvailableReplicas: 1,
			Conditions: []appsv1.DeploymentCondition{{}, {Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "quota"}}}},
			&appsv1.Deployment{ObjectMeta: kept, Status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 4, UpdatedReplicas: 3, AvailableReplicas: 1,
				Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue}}}}},
		{&appsv1.StatefulSet{ObjectMeta: *meta.DeepCopy(), Status: appsv1.StatefulSetStatus{ObservedGeneration: 2, Replicas: 4, UpdatedReplicas: 3, ReadyReplicas: 1, AvailableReplicas: 1, CurrentRevision: "x"}},
			&appsv1.StatefulSet{ObjectMeta: kept, Status: appsv1.StatefulSetStatus{ObservedGeneration: 2, Replicas: 4, UpdatedReplicas: 3, AvailableReplicas: 1}}},
	} {
		got, err := workload.Keep(tc.whole)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
	}
}
