package guard

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

func TestAnEvictionThatADisruptionBudgetRefusesTakesNoRoom(t *testing.T) {
	pdb := func(name string, allowed int32, change ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
		p := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Generation: 1},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
			Status:     policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: allowed},
		}
		for _, c := range change {
			c(p)
		}
		return p
	}
	tests := map[string]struct {
		pdbs      []*policyv1.PodDisruptionBudget
		live      *policyv1.PodDisruptionBudget // if the cache is behind
		operation v1beta1.Operation             // EVICT if empty
		pod       func(*corev1.Pod)
		fails     bool // the live read fails
		held      bool
	}{
		"one that allows none":                                  {pdbs: []*policyv1.PodDisruptionBudget{pdb("a", 0)}, held: true},
		"one whose generation is not observed yet":              {pdbs: []*policyv1.PodDisruptionBudget{pdb("a", 1, func(p *policyv1.PodDisruptionBudget) { p.Generation = 2 })}, held: true},
		"one that allows one":                                   {pdbs: []*policyv1.PodDisruptionBudget{pdb("a", 1)}},
		"one that allows one by now, although not in the cache": {pdbs: []*policyv1.PodDisruptionBudget{pdb("a", 0)}, live: pdb("a", 1)},
		"one of other pods":                                     {pdbs: []*policyv1.PodDisruptionBudget{pdb("a", 0, func(p *policyv1.PodDisruptionBudget) { p.Spec.Selector.MatchLabels["app"] = "db" })}},
		"one of no pods":                                        {pdbs: []*policyv1.PodDisruptionBudget{pdb("a", 0, func(p *policyv1.PodDisruptionBudget) { p.Spec.Selector = nil })}},
		"several, about which the API server has another error": {pdbs: []*policyv1.PodDisruptionBudget{pdb("a", 0), pdb("b", 0)}},
		"a deletion, which it does not limit":                   {pdbs: []*policyv1.PodDisruptionBudget{pdb("a", 0)}, operation: v1beta1.OperationDelete},
		"a pod that is not ready": {pdbs: []*policyv1.PodDisruptionBudget{pdb("a", 0)},
			pod: func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }},
		"the live read fails": {pdbs: []*policyv1.PodDisruptionBudget{pdb("a", 0)}, fails: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 3, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if read, is := o.(*policyv1.PodDisruptionBudget); is {
					if tc.fails {
						return errors.New("down")
					}
					if tc.live != nil {
						tc.live.DeepCopyInto(read)
						return nil
					}
				}
				return c.Get(ctx, key, o, opts...)
			}})
			for _, p := range tc.pdbs {
				if err := c.Create(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			}
			asked := pod(0)
			if tc.pod != nil {
				tc.pod(asked)
			}
			if tc.operation == "" {
				tc.operation = v1beta1.OperationEvict
			}
			v, err := New(c, c, c, Options{}).Decide(t.Context(), Request{Pod: asked, Operation: tc.operation})
			if err != nil || v.Allowed == tc.held || tc.held && v.Reason != v1beta1.ReasonPodDisruptionBudget {
				t.Errorf("got %+v, %v; want it held: %t", v, err, tc.held)
			}
			if entries := recorded(t, c); len(entries) > 0 == tc.held {
				t.Errorf("the ledger is %v", entries)
			}
		})
	}
}
