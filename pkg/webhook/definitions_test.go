package webhook

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
)

// definitionsOf are the shipped definitions, each with the CA bundle.
func definitionsOf(t *testing.T, bundle string) (all []client.Object) {
	t.Helper()
	for _, content := range manifests.CRDs() {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(content, definition); err != nil {
			t.Fatal(err)
		}
		definition.Spec.Conversion.Webhook.ClientConfig.CABundle = []byte(bundle)
		all = append(all, definition)
	}
	return all
}

func TestTheAuthorityIsWrittenIntoTheDefinitionsAlone(t *testing.T) {
	withoutWebhook := func() []client.Object {
		all := definitionsOf(t, "")
		all[0].(*apiextensionsv1.CustomResourceDefinition).Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
		return all
	}
	othersWebhook := func() []client.Object {
		all := definitionsOf(t, "old")
		all[0].(*apiextensionsv1.CustomResourceDefinition).Spec.Conversion.Webhook.ClientConfig.Service.Name = "kruise-webhook-service"
		return all
	}
	for name, tc := range map[string]struct {
		there []client.Object
		want  []string // bundles, or "none" without a webhook
		wrote int
	}{
		"none has it":                 {definitionsOf(t, ""), []string{"new", "new", "new"}, 3},
		"all have another":            {definitionsOf(t, "old"), []string{"new", "new", "new"}, 3},
		"all have it":                 {definitionsOf(t, "new"), []string{"new", "new", "new"}, 0},
		"one does not exist":          {definitionsOf(t, "")[1:], []string{"new", "new"}, 2},
		"one has no webhook to call":  {withoutWebhook(), []string{"none", "new", "new"}, 2},
		"one is another controller's": {othersWebhook(), []string{"old", "new", "new"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := apiextensionsv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			wrote := 0
			live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(tc.there...).WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
					wrote++
					return c.Patch(ctx, object, patch, opts...)
				}}).Build()
			if err := (&definitions{live, live}).trust(t.Context(), []byte("new")); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, object := range tc.there {
				is, was := &apiextensionsv1.CustomResourceDefinition{}, object.(*apiextensionsv1.CustomResourceDefinition)
				if err := live.Get(t.Context(), client.ObjectKeyFromObject(object), is); err != nil {
					t.Fatal(err)
				}
				bundle := "none"
				if hook := is.Spec.Conversion.Webhook; hook != nil {
					bundle = string(hook.ClientConfig.CABundle)
					hook.ClientConfig.CABundle, was.Spec.Conversion.Webhook.ClientConfig.CABundle = nil, nil
				}
				got = append(got, bundle)
				if diff := cmp.Diff(was.Spec, is.Spec); diff != "" {
					t.Errorf("it changed more (-before +after)\n%s", diff)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || wrote != tc.wrote {
				t.Errorf("wrote %d times, want %d; bundles (-want +got)\n%s", wrote, tc.wrote, diff)
			}
		})
	}
}

func TestAnErrorOfOneDefinitionDoesNotStopTheOther(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	failed := ptr.To("")
	broken := errors.New("broken")
	live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(definitionsOf(t, "old")...).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if *failed == "" {
				*failed = object.GetName()
				return broken
			}
			return c.Patch(ctx, object, patch, opts...)
		}}).Build()
	if err := (&definitions{live, live}).trust(t.Context(), []byte("new")); !errors.Is(err, broken) {
		t.Errorf("got %v, want the error", err)
	}
	var all apiextensionsv1.CustomResourceDefinitionList
	if err := live.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for i := range all.Items {
		want := "new"
		if all.Items[i].Name == *failed {
			want = "old"
		}
		if got := string(all.Items[i].Spec.Conversion.Webhook.ClientConfig.CABundle); got != want {
			t.Errorf("%s: got %s, want %s", all.Items[i].Name, got, want)
		}
	}
}
