package census

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestAPodThatIsReplacedFirstStaysInItsBudget has a pod that its ReplicaSet has handed to their Deployment, and which may be the only pod. It counts as before,
// and its ReplicaSet may take it back. Nobody else may.
func TestAPodThatIsReplacedFirstStaysInItsBudget(t *testing.T) {
	target := v1beta1.PodUnavailableBudgetSpec{TargetReference: &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
	for subject, spec := range map[string]v1beta1.PodUnavailableBudgetSpec{"selector": bySelector(), "Deployment": target} {
		for name, annotation := range map[string]string{
			"handed over":                  `{"budget":"web","replicaSet":"rs","uid":"rs"}`,
			"by one that is another's":     `{"budget":"web","replicaSet":"other","uid":"other"}`,
			"by one that is gone":          `{"budget":"web","replicaSet":"none","uid":"none"}`,
			"by one whose name was reused": `{"budget":"web","replicaSet":"rs","uid":"earlier"}`,
		} {
			t.Run(subject+": "+name, func(t *testing.T) {
				pod := &corev1.Pod{ObjectMeta: of("a", ownedBy("apps/v1", "Deployment", "web", "web"))}
				pod.Annotations = map[string]string{v1beta1.ReplacedFirstAnnotation: annotation}
				all := []client.Object{
					&appsv1.Deployment{ObjectMeta: of("web", nil), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(1))}},
					&appsv1.ReplicaSet{ObjectMeta: of("rs", ownedBy("apps/v1", "Deployment", "web", "web")), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(1))}},
					&appsv1.ReplicaSet{ObjectMeta: of("other", ownedBy("apps/v1", "Deployment", "another", "another")), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(1))}},
					pod,
				}
				policy := compiled(t, spec)
				count, err := censusOf(t, interceptor.Funcs{}, all...).Take(t.Context(), remembering(nil), policy, "")
				if err != nil {
					t.Fatal(err)
				}
				if tally := policy.Tally(count.Facts); tally.Total != 1 || tally.Unmanaged != 0 || !count.Covers("a") {
					t.Errorf("%+v of %+v", tally, count.Facts)
				}
				after := pod.DeepCopy()
				for set, loses := range map[string]bool{"rs": name != "handed over", "other": true, "none": true} {
					if after.OwnerReferences = ownedBy("apps/v1", "ReplicaSet", set, types.UID(set)); count.Loses(pod, after) != loses {
						t.Errorf("to %s: got %t", set, !loses)
					}
				}
			})
		}
	}
}

func TestAPodMayBeHandedToTheOwnerOfItsReplicaSet(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: of("a", ownedBy("apps/v1", "ReplicaSet", "rs", "rs"))}
	count, err := censusOf(t, interceptor.Funcs{},
		&appsv1.Deployment{ObjectMeta: of("web", nil), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(1))}},
		&appsv1.ReplicaSet{ObjectMeta: of("rs", ownedBy("apps/v1", "Deployment", "web", "web")), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(1))}}, pod,
	).Take(t.Context(), remembering(nil), compiled(t, bySelector()), "")
	if err != nil {
		t.Fatal(err)
	}
	for to, loses := range map[string]bool{"web": false, "another": true} {
		after := pod.DeepCopy()
		if after.OwnerReferences = ownedBy("apps/v1", "Deployment", to, types.UID(to)); count.Loses(pod, after) != loses {
			t.Errorf("to %s: got %t", to, !loses)
		}
	}
}

// TestAPodThatIsHandedOverFillsNoPlaceOfItsWorkload: the pod in its place is missing until it exists, and may come to any subset.
func TestAPodThatIsHandedOverFillsNoPlaceOfItsWorkload(t *testing.T) {
	for annotation, unplaced := range map[string]int32{"": 0, `{"budget":"web","replicaSet":"rs","uid":"rs"}`: 1} {
		pod := &corev1.Pod{ObjectMeta: of("a", ownedBy("apps/v1", "Deployment", "web", "web"))}
		if annotation != "" {
			pod.Annotations = map[string]string{v1beta1.ReplacedFirstAnnotation: annotation}
		}
		policy := perZone(t, bySelector())
		count, err := censusOf(t, interceptor.Funcs{}, &appsv1.Deployment{ObjectMeta: of("web", nil), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(1))}}, pod).Take(t.Context(), remembering(nil), policy, "")
		if err != nil || count.Unplaced != unplaced {
			t.Errorf("%q: %d may be of any subset, want %d; error %v", annotation, count.Unplaced, unplaced, err)
		}
	}
}
