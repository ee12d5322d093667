package guard

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
)

func TestEvictionsOfPodsThatABudgetMayCoverAreMarked(t *testing.T) {
	unprotected := func(p *corev1.Pod) { delete(p.Labels, v1beta1.ProtectedLabel) }
	const mark = `"labels":{"policy.berth.dev/protected":"true"}`
	tied := func(uid string) string { return `"deleteOptions":{"preconditions":{"uid":"` + uid + `"}}` }
	tests := map[string]struct {
		change func(*corev1.Pod)
		pod    string
		more   string // of the eviction's JSON
		user   authenticationv1.UserInfo
		down   bool
		budget *v1beta1.PodUnavailableBudget // instead of the one that selects the pods by their labels
		none   bool                          // there is no budget
		want   []string                      // parts of the eviction's JSON afterwards; nil if it is unchanged
	}{
		"a protected pod":                                         {pod: "web-0", want: []string{mark, tied("web-0")}},
		"labels of the eviction are kept":                         {pod: "web-0", more: `,"metadata":{"labels":{"a":"b"}}`, want: []string{`"a":"b","policy.berth.dev/protected":"true"`, tied("web-0")}},
		"options of the eviction are kept":                        {pod: "web-0", more: `,"deleteOptions":{"gracePeriodSeconds":1}`, want: []string{mark, `"gracePeriodSeconds":1`, `"preconditions":{"uid":"web-0"}`}},
		"a UID that the client gives stays":                       {pod: "web-0", more: `,"deleteOptions":{"preconditions":{"uid":"old"}}`, want: []string{mark, tied("old")}},
		"a mark that the client gives":                            {pod: "web-0", more: `,"metadata":{"labels":{"policy.berth.dev/protected":"true"}}`, want: []string{mark, tied("web-0")}},
		"a pod of a budget that is not protected yet":             {pod: "web-0", change: unprotected, want: []string{mark, tied("web-0")}},
		"a pod of no budget, beside protected ones":               {pod: "web-0", change: func(p *corev1.Pod) { unprotected(p); p.Labels["app"] = "other" }, want: []string{mark, tied("web-0")}},
		"a pod of a namespace without a budget":                   {pod: "web-0", change: unprotected, none: true},
		"a pod of the workload that a budget names":               {pod: "web-0", change: unprotected, budget: targeting("ReplicaSet", "web", 1), want: []string{mark, tied("web-0")}},
		"a pod that has ended, which the policy may not know yet": {pod: "web-0", change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, want: []string{mark, tied("web-0")}},
		"a pod that is gone, which the policy may not know yet":   {pod: "none", want: []string{mark}},
		"a kubelet":                 {pod: "web-0", user: authenticationv1.UserInfo{Groups: []string{"system:nodes"}}},
		"a pod that cannot be read": {pod: "web-0", change: unprotected, down: true, want: []string{mark}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 1, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if _, isPod := o.(*corev1.Pod); isPod && tc.down {
					return errors.New("down")
				}
				err := c.Get(ctx, key, o, opts...)
				if read, isPod := o.(*corev1.Pod); isPod && err == nil && tc.change != nil {
					tc.change(read)
				}
				return err
			}})
			if tc.budget != nil || tc.none {
				if err := c.Delete(t.Context(), &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}); err != nil {
					t.Fatal(err)
				}
			}
			if tc.budget != nil {
				if err := c.Create(t.Context(), tc.budget.DeepCopy()); err != nil {
					t.Fatal(err)
				}
			}
			raw := []byte(`{"apiVersion":"policy/v1","kind":"Eviction"` + tc.more + `}`)
			m := &evictionMarker{guard: New(c, c, c, Options{})}
			response := m.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Namespace: "ns", Name: tc.pod, UserInfo: tc.user, Operation: admissionv1.Create, SubResource: "eviction", Object: runtime.RawExtension{Raw: raw},
			}})
			if !response.Allowed {
				t.Fatalf("got %+v", response)
			}
			if tc.want == nil {
				if len(response.Patches) > 0 {
					t.Errorf("got %+v, want it to stay as it is", response.Patches)
				}
				return
			}
			operations, err := json.Marshal(response.Patches)
			if err != nil {
				t.Fatal(err)
			}
			patch, err := jsonpatch.DecodePatch(operations)
			if err != nil {
				t.Fatal(err)
			}
			got, err := patch.Apply(raw)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(string(got), want) {
					t.Errorf("got %s, want %s in it", got, want)
				}
			}
		})
	}
}

func TestTheManifestsNameWhatIsServed(t *testing.T) {
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	for content, into := range map[string]any{string(manifests.BudgetWebhook): &validating, string(manifests.EvictionWebhook): &mutating} {
		if err := yaml.UnmarshalStrict([]byte(content), into); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range validating.Webhooks {
		want := admissionregistrationv1.Fail
		if w.Name == "labels.budget.berth.dev" { // the controller must be able to label pods
			want = admissionregistrationv1.Ignore
		}
		if *w.FailurePolicy != want {
			t.Errorf("webhook %s has failurePolicy %s, want %s", w.Name, *w.FailurePolicy, want)
		}
	}
	for _, w := range mutating.Webhooks {
		if *w.FailurePolicy != admissionregistrationv1.Ignore {
			t.Errorf("webhook %s holds up the evictions of all pods while it does not answer", w.Name)
		}
	}
	// There is no path in the files: applying them again would remove the secret path.
	want := []string{endpoint.BudgetPods, endpoint.BudgetPods, endpoint.BudgetPods, endpoint.BudgetPods, endpoint.Budgets, endpoint.Evictions}
	var handlers []string
	for _, configuration := range []runtime.Object{&validating, &mutating} {
		for _, w := range endpoint.WebhooksOf(configuration) {
			handlers = append(handlers, w.Handler)
			if w.Client.Service.Path != nil {
				t.Errorf("webhook %s has the path %s", w.Name, *w.Client.Service.Path)
			}
		}
	}
	if !slices.Equal(handlers, want) {
		t.Errorf("got %v, want %v", handlers, want)
	}
}
