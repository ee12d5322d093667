package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/cli"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// TestAnotherControllerIsNoticed: a program that writes the status of a spread or a budget beside Berth is named in an event and by the doctor. A write of
// the spec by the same program is not.
func TestAnotherControllerIsNoticed(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, oldPair)
	apply(t, ns, plain("web", 3))
	t.Cleanup(func() {
		if err := the.Dynamic.Resource(policyv1beta1.Resource).Namespace(ns).Delete(context.Background(), "web", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	expectPlaces(t, ns, "a=1 b=2")
	expectEnforced(t, ns, "web", 3)
	oneController := func() cli.Check {
		t.Helper()
		out, log, _ := kubectl(t, "berth", "doctor", "-o", "json") // what other tests do is its business too
		var list struct{ Items []cli.Check }
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatalf("%v: %s%s", err, out, log)
		}
		all := list.Items
		return all[slices.IndexFunc(all, func(c cli.Check) bool { return c.Name == "one controller" })]
	}
	told := func(ctx context.Context) ([]string, error) {
		events, err := the.Client.EventsV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=TwoControllers"})
		if err != nil {
			return nil, err
		}
		var all []string
		for i := range events.Items {
			all = append(all, fmt.Sprintf("%s %s", events.Items[i].Regarding.Kind, strings.Fields(events.Items[i].Note)[0]))
		}
		slices.Sort(all)
		return all, nil
	}
	write := func(resource schema.GroupVersionResource, body string, subresources ...string) *unstructured.Unstructured {
		t.Helper()
		object, err := the.Dynamic.Resource(resource).Namespace(ns).Patch(t.Context(), "web", types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: "kruise-manager"}, subresources...)
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
	for _, resource := range []schema.GroupVersionResource{v1beta1.Resource, policyv1beta1.Resource} {
		write(resource, `{"metadata":{"labels":{"seen":"yes"}}}`)
	}
	if all, err := told(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("after a write of the metadata: %q, %v", all, err)
	}
	if check := oneController(); strings.Contains(check.Says, ns) {
		t.Errorf("after a write of the metadata: %+v", check)
	}
	// The API server forgets who writes an object if that is written while its conversion fails.
	for _, resource := range []schema.GroupVersionResource{v1beta1.Resource, policyv1beta1.Resource} {
		if object := write(resource, `{"metadata":{"managedFields":[{}]}}`); len(object.GetManagedFields()) > 0 {
			t.Fatalf("the API server still knows who wrote: %v", object.GetManagedFields())
		}
	}
	replicas := 6
	waitFor(t, "events about the other controller", func(ctx context.Context) (string, error) {
		replicas++ // the other controller writes again and again
		write(v1beta1.Resource, fmt.Sprintf(`{"status":{"subsetStatuses":[{"name":"a","replicas":%d,"missingReplicas":0}]}}`, replicas), "status")
		write(policyv1beta1.Resource, fmt.Sprintf(`{"status":{"unavailableAllowed":%d}}`, replicas), "status")
		all, err := told(ctx)
		if slices.Equal(all, []string{"PodUnavailableBudget kruise-manager", "WorkloadSpread kruise-manager"}) {
			return "", err
		}
		return fmt.Sprintf("there are %q", all), err
	})
	if check := oneController(); check.Result != "problem" || !strings.Contains(check.Says, ns+"/web") {
		t.Errorf("the doctor: %+v", check)
	}
	// Berth's numbers stand again.
	expectEnforced(t, ns, "web", 3)
	waitFor(t, "the status of Berth", func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, "web")
		if err != nil || len(spread.Status.SubsetStatuses) == 2 && spread.Status.SubsetStatuses[0].Replicas == 1 {
			return "", err
		}
		return fmt.Sprint(spread.Status.SubsetStatuses), nil
	})
}
