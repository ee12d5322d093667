package workloadspread

import (
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
)

func TestAPodThatWasDeletedInTheQueueTakesNothing(t *testing.T) {
	w := newWorld(t, 4)
	w.spread(1, twoThenAny)
	w.expectAnswer("WorkloadNotObserved: the pod is gone", podOf("rs-uid", "gone"))
	w.expectStages(map[string]int{})
}

func TestPreFilterTellsPostFilterWhichPodsHaveAsked(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, `{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`)
	pods := w.podsNamed("p", 2)
	for i, chosen := range []bool{true, false} {
		state := framework.NewCycleState()
		if wasRuled(state) {
			t.Errorf("%s: ruled on before it has asked", pods[i].Name)
		}
		w.PreFilter(t.Context(), state, pods[i], nil)
		if d := decisionIn(state); !wasRuled(state) || (d != nil) != chosen {
			t.Errorf("%s: ruled on is %t, with decision %v; want a decision: %t", pods[i].Name, wasRuled(state), d, chosen)
		}
	}
}

func TestABindSetsNoLabelByWhichTheWorkloadWouldLoseItsPod(t *testing.T) {
	w := newWorld(t, 1)
	w.book.apply(ledger.OwnerSeen{Kind: deploymentKind, Object: &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web-uid"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}})
	w.spread(1, `subsets: [{name: a, patch: {metadata: {labels: {app: other, tier: elastic}, annotations: {app: other}}}}]`)
	pod := w.pod("p")
	d, _ := w.ask(ledger.PodAsks{Pod: pod}, nil)
	binding, err := bindingOf(pod, "node-a", d)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"tier": "elastic", v1beta1.SubsetLabel: "a"}; !maps.Equal(binding.Labels, want) || binding.Annotations["app"] != "other" {
		t.Errorf("labels %v and annotations %v, want labels %v", binding.Labels, binding.Annotations, want)
	}
}
