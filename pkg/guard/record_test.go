package guard

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// recorded returns the entries of the budget's ledger, each as UID=name.
func recorded(t *testing.T, c client.Reader) []string {
	t.Helper()
	pub := &v1beta1.PodUnavailableBudget{}
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, pub); err != nil {
		t.Fatal(err)
	}
	var entries []string
	for i := range pub.Status.Ledger {
		entries = append(entries, fmt.Sprintf("%s=%s", pub.Status.Ledger[i].UID, pub.Status.Ledger[i].Name))
	}
	return entries
}

func TestOnlyPodsThatExistAreRecorded(t *testing.T) {
	tests := map[string]struct {
		name  string
		uid   types.UID
		reads func(*v1beta1.PodUnavailableBudgetSpec)
		want  []string
	}{
		"a pod of the budget":                        {name: "web-0", uid: "web-0", want: []string{"web-0=web-0"}},
		"a pod of the budget by another name":        {name: "a/b", uid: "web-0", want: []string{"web-0=web-0"}},
		"a pod that does not exist":                  {name: "none", uid: "none"},
		"a pod that does not exist and never can":    {name: "a/b", uid: "none"},
		"another pod of the name of one that exists": {name: "web-0", uid: "none"},
		"no UID": {name: "web-0"},
		"a pod that does not exist, for the budget of a workload": {name: "a/b", uid: "none", reads: func(s *v1beta1.PodUnavailableBudgetSpec) {
			s.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 3, interceptor.Funcs{})
			pub := &v1beta1.PodUnavailableBudget{}
			if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, pub); err != nil {
				t.Fatal(err)
			}
			if tc.reads != nil {
				tc.reads(&pub.Spec)
				if err := c.Update(t.Context(), pub); err != nil {
					t.Fatal(err)
				}
			}
			claimed := pod(0)
			claimed.Name, claimed.UID = tc.name, tc.uid
			v, err := New(c, c, c, Options{}).Decide(t.Context(), Request{Pod: claimed, Operation: v1beta1.OperationDelete})
			if err != nil || !v.Allowed {
				t.Fatalf("%+v, %v", v, err)
			}
			if diff := cmp.Diff(tc.want, recorded(t, c)); diff != "" {
				t.Errorf("the ledger (-want +got)\n%s", diff)
			}
		})
	}
}

// TestAPodThatAWorkloadMayStillAdoptIsRecorded has a pod that the selector picks and that the workload does not own yet.
func TestAPodThatAWorkloadMayStillAdoptIsRecorded(t *testing.T) {
	c := cluster(t, 3, interceptor.Funcs{})
	pub := &v1beta1.PodUnavailableBudget{}
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, pub); err != nil {
		t.Fatal(err)
	}
	pub.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}
	orphan := pod(9)
	orphan.OwnerReferences = nil
	if err := c.Update(t.Context(), pub); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	v, err := New(c, c, c, Options{}).Decide(t.Context(), Request{Pod: orphan, Operation: v1beta1.OperationEvict})
	if err != nil || !v.Allowed {
		t.Fatalf("%+v, %v", v, err)
	}
	if diff := cmp.Diff([]string{"web-9=web-9"}, recorded(t, c)); diff != "" {
		t.Errorf("the ledger (-want +got)\n%s", diff)
	}
}

// TestAPodOfARevisionThatIsYetToComeHoldsNobodyUp: the API server waits for such a revision for a while, and then gives up.
func TestAPodOfARevisionThatIsYetToComeHoldsNobodyUp(t *testing.T) {
	c := cluster(t, 3, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		var options client.ListOptions
		options.ApplyOptions(opts)
		if options.Raw != nil && options.Raw.ResourceVersion == "999999999" {
			tooLarge := apierrors.NewTimeoutError("Too large resource version: 999999999, current: 5", 1)
			tooLarge.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
			return tooLarge
		}
		return c.List(ctx, list, opts...)
	}})
	claimed := pod(0)
	claimed.ResourceVersion = "999999999"
	v, err := New(c, c, c, Options{}).Decide(t.Context(), Request{Pod: claimed, Operation: v1beta1.OperationDelete})
	if err != nil || !v.Allowed || v.Reason != v1beta1.ReasonWithinBudget {
		t.Errorf("%+v, %v", v, err)
	}
}
