package whatif

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/test/testkit"
)

// Whoever may not list nodes still learns the quotas, where the pod is, and what happens next.
func TestExplainWithoutNodes(t *testing.T) {
	spread := testkit.Spread(t, byPool, `{observedReplicas: 2, pendingPods: 1, subsetStatuses: [{name: a, replicas: 1}, {name: b}]}`)
	placed, waiting := pod("x", "1", "node-a", "a"), pod("p", "1", "", "")
	e := engineOf(t, append([]client.Object{spread, placed, waiting}, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d"}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)}},
		&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "rs", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: ptr.To(true)}}}})...)
	e = &Engine{Snapshot: e.Snapshot, clock: clock.RealClock{}}
	for is, want := range map[*corev1.Pod]string{placed: "a comes first", waiting: "only the filters can tell"} {
		r, err := explainPod(t.Context(), e, is)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(r.Why, want) || len(r.Tiers) != 2 || r.Tiers[0].Kept != 1 || *r.Tiers[0].Quota != 1 || r.Tiers[1].Verdict != verdictUnknown {
			t.Errorf("%s: %+v", is.Name, r)
		}
		if is == waiting && !strings.HasPrefix(r.Next, "1 pod is on the way to a node") {
			t.Errorf("next: %q", r.Next)
		}
	}
}
