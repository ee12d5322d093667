package ui

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

// TestAPersonSeesClustersAsGroups has a FederatedReplicaSet with a status, as in a hub. test/federation and the demo have clusters.
func TestAPersonSeesClustersAsGroups(t *testing.T) {
	ns, err := the.CreateNamespace(t.Context(), "hub")
	if err != nil {
		t.Fatal(err)
	}
	tab := open(t, serve(t, ns, "0").url)
	if err := the.ApplyYAML(t.Context(), ns, `
apiVersion: federation.berth.dev/v1alpha1
kind: FederatedReplicaSet
metadata: {name: portal}
spec:
  replicas: 5
  selector: {matchLabels: {app: portal}}
  template: {metadata: {labels: {app: portal}}, spec: {containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}}
`); err != nil {
		t.Fatal(err)
	}
	expectText(t, tab, "#cards", "portal (FederatedReplicaSet)", "Unknown", "5 pods asked for")
	status := v1alpha1.FederatedReplicaSetStatus{
		ObservedGeneration: 1,
		Conditions:         []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonUnreachable, Message: "no answer from west", LastTransitionTime: metav1.Now()}},
		Clusters: []v1alpha1.ClusterStatus{
			{Name: "east", Wanted: 5, AvailableReplicas: 4, State: v1alpha1.ClusterReady, Since: metav1.Now()},
			{Name: "west", Wanted: 2, AvailableReplicas: 2, State: v1alpha1.ClusterLost, Message: "does not answer", Since: metav1.Now()},
		},
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := the.Dynamic.Resource(v1alpha1.Resource).Namespace(ns).Patch(t.Context(), "portal", types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	expectText(t, tab, "#cards", "Unreachable", "east", "4 of 5", "Lost: does not answer", "no answer from west")
	expectText(t, tab, "#clusters [data-cluster=east]", "4 of 5 available", "portal")
	expectText(t, tab, "#clusters [data-cluster=west]", "2 of 2 available", "Lost")
	if full := evaluate[int](t, tab, `document.querySelectorAll('#clusters [data-cluster=east] .pod[data-phase=ready]').length`); full != 4 {
		t.Errorf("%d squares are full", full)
	}
	if err := the.DeleteNamespace(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	expectText(t, tab, "#more-cards", "There is no WorkloadSpread")
}
