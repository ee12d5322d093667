package guard

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

func TestEvictionsOfPodsThatABudgetMayCoverAreMarked(t *testing.T) {
	unprotected := func(p *corev1.Pod) { delete(p.Labels, v1alpha1.ProtectedLabel) }
	tests := map[string]struct {
		change func(*corev1.Pod)
		pod    string
		labels map[string]string
		user   authenticationv1.UserInfo
		down   bool
		marked bool
	}{
		"a protected pod":                                            {pod: "web-0", marked: true},
		"labels of the eviction are kept":                            {pod: "web-0", labels: map[string]string{"a": "b"}, marked: true},
		"a pod of a budget that is not protected yet":                {pod: "web-0", change: unprotected, marked: true},
		"a pod of no budget":                                         {pod: "web-0", change: func(p *corev1.Pod) { unprotected(p); p.Labels["app"] = "other" }},
		"a pod that has ended, of which the policy may not know yet": {pod: "web-0", change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, marked: true},
		"no pod, of which the policy may not know yet":               {pod: "none", marked: true},
		"a kubelet": {pod: "web-0", user: authenticationv1.UserInfo{Groups: []string{"system:nodes"}}},
		"what cannot be read is marked, to be asked for": {pod: "web-0", change: unprotected, down: true, marked: true},
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
			raw, err := json.Marshal(&policyv1.Eviction{TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"}, ObjectMeta: metav1.ObjectMeta{Name: tc.pod, Namespace: "ns", Labels: tc.labels}})
			if err != nil {
				t.Fatal(err)
			}
			m := &evictionMarker{guard: New(c, c, c, Options{}), live: c}
			response := m.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Namespace: "ns", Name: tc.pod, UserInfo: tc.user, Operation: admissionv1.Create, SubResource: "eviction", Object: runtime.RawExtension{Raw: raw},
			}})
			if !response.Allowed || tc.marked != (len(response.Patches) == 1) {
				t.Fatalf("got %+v", response)
			}
			if !tc.marked {
				return
			}
			patch := response.Patches[0]
			want := "/metadata/labels/policy.berth.dev~1protected"
			if tc.labels == nil {
				want = "/metadata/labels"
			}
			if patch.Operation != "add" || patch.Path != want {
				t.Errorf("got %+v, want %s to be added", patch, want)
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
	var paths []string
	for _, w := range validating.Webhooks {
		paths = append(paths, *w.ClientConfig.Service.Path)
		if *w.FailurePolicy != admissionregistrationv1.Fail {
			t.Errorf("webhook %s lets everything through when it does not answer", w.Name)
		}
	}
	for _, w := range mutating.Webhooks {
		paths = append(paths, *w.ClientConfig.Service.Path)
		if *w.FailurePolicy != admissionregistrationv1.Ignore {
			t.Errorf("webhook %s holds evictions of any pod up when it does not answer", w.Name)
		}
	}
	if want := []string{PodsPath, PodsPath, BudgetsPath, EvictionsPath}; !slices.Equal(paths, want) {
		t.Errorf("got %v, want %v", paths, want)
	}
}
