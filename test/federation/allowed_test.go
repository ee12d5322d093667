package federation

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// TestAMemberSaysInWhichNamespacesTheHubWorks: in a namespace that a member has not labelled, the hub makes nothing, and its status says what the administrator of the member can do.
func TestAMemberSaysInWhichNamespacesTheHubWorks(t *testing.T) {
	w := startWorld(t)
	const (
		ns    = "allowed"
		wants = "namespaces with label federation.berth.dev/allowed=true"
	)
	w.pools(t, ns)
	allow := func(value string) {
		t.Helper()
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+v1alpha1.AllowedLabel+`":`+value+`}}}`))
		if err := w.members[0].Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, patch); err != nil {
			t.Fatal(err)
		}
	}
	allow("null")
	w.apply(t, ns, 6, evenly)
	frs := &v1alpha1.FederatedReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}}
	w.applyUnited(t, united(ns, 2, "Fixed", in("first", "member-1", "", ""), in("second", "member-2", "", "")))

	await := func(what string, look func(context.Context) (bool, string, error)) {
		t.Helper()
		var last string
		if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(ctx context.Context) (done bool, err error) {
			done, last, err = look(ctx)
			return done, err
		}); err != nil {
			t.Errorf("%s: %v: %s", what, err, last)
		}
	}
	await("the status of the FederatedReplicaSet", func(ctx context.Context) (bool, string, error) {
		err := w.hub.Get(ctx, client.ObjectKeyFromObject(frs), frs)
		for _, c := range frs.Status.Clusters {
			if c.Name == "member-1" {
				return strings.Contains(c.Message, wants), c.Message, err
			}
		}
		return false, "member-1 is not in it", err
	})
	await("the condition of the UnitedDeployment", func(ctx context.Context) (bool, string, error) {
		ud, err := w.readUnited(ctx, ns)
		for _, c := range ud.Status.Conditions {
			if c.Type == unitedv1beta1.ReadyCondition {
				return c.Reason == unitedv1beta1.ReasonChildRefused && strings.Contains(c.Message, wants), c.Message, err
			}
		}
		return false, "it is not Ready or otherwise", err
	})
	var sets appsv1.ReplicaSetList
	var deployments appsv1.DeploymentList
	for _, list := range []client.ObjectList{&sets, &deployments} {
		if err := w.members[0].List(t.Context(), list, client.InNamespace(ns)); err != nil {
			t.Fatal(err)
		}
	}
	if len(sets.Items)+len(deployments.Items) != 0 {
		t.Errorf("the hub has made %d ReplicaSets and %d Deployments where it may not", len(sets.Items), len(deployments.Items))
	}
	allow(`"true"`)
	await("the children once the namespace is allowed", func(ctx context.Context) (bool, string, error) {
		got, err := w.childrenOf(ctx, ns)
		return strings.Contains(got, "first") && strings.Contains(got, "second"), got, err
	})
}
