package webhook

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// TestObjectsAreStoredInTheVersionOfTheirDefinition has three spreads and definitions that say what is stored. The API server's storage is tried in test/integration.
func TestObjectsAreStoredInTheVersionOfTheirDefinition(t *testing.T) {
	const both = "v1alpha1+v1beta1"
	change := func(change func(*apiextensionsv1.CustomResourceDefinition)) func(context.Context, client.Client) error {
		return func(ctx context.Context, c client.Client) error {
			definition := &apiextensionsv1.CustomResourceDefinition{}
			if err := c.Get(ctx, client.ObjectKey{Name: "workloadspreads.apps.kruise.io"}, definition); err != nil {
				return err
			}
			change(definition)
			return c.Update(ctx, definition)
		}
	}
	back := change(func(d *apiextensionsv1.CustomResourceDefinition) { // as docs/versioning.md says
		d.Generation++
		d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = true, false
	})
	for name, tc := range map[string]struct {
		stored    string
		before    func(context.Context, client.Client) error // what happens before the second look
		meanwhile func(context.Context, client.Client) error // and at its first write
		fails     map[string]error                           // writes, by the name of the object
		looks     int
		want      string
		wrote     int // writes of objects: the fake client does not convert, and has none of v1alpha1
		says      string
	}{
		"in two versions":                       {stored: both, looks: 2, want: "v1beta1", wrote: 3},
		"one look":                              {stored: both, looks: 1, want: both},
		"in one":                                {stored: "v1beta1", looks: 3, want: "v1beta1"},
		"the definition is younger than a look": {stored: both, before: back, looks: 2, want: both},
		"the way back":                          {stored: both, before: back, looks: 3, want: "v1alpha1", wrote: 0},
		"the definition changes meanwhile":      {stored: both, meanwhile: back, looks: 2, want: both, wrote: 3},
		"and the next looks begin again":        {stored: both, meanwhile: back, looks: 4, want: "v1alpha1", wrote: 3},
		"an object is deleted meanwhile":        {stored: both, meanwhile: func(ctx context.Context, c client.Client) error { return c.Delete(ctx, spreadNamed(2)) }, looks: 2, want: "v1beta1", wrote: 3},
		"another controller's": {stored: both, before: change(func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Spec.Conversion.Webhook.ClientConfig.Service.Name = "kruise"
		}), looks: 2, want: both},
		"nobody converts":                           {stored: both, before: change(func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Conversion = nil }), looks: 2, want: both},
		"an object that cannot be written":          {stored: both, fails: map[string]error{"web-1": errors.New("it is invalid")}, looks: 2, want: both, wrote: 3, says: "1 of 3 objects of workloadspreads.apps.kruise.io cannot be stored again as v1beta1, first WorkloadSpread default/web-1: it is invalid"},
		"the definition's status cannot be written": {stored: both, fails: map[string]error{"workloadspreads.apps.kruise.io": errors.New("forbidden")}, looks: 2, want: both, wrote: 3, says: "writing status.storedVersions of CustomResourceDefinition workloadspreads.apps.kruise.io: forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := schemeOf(t)
			if err := apiextensionsv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			objects := definitionsOf(t, "")[:2]
			for _, object := range objects {
				definition := object.(*apiextensionsv1.CustomResourceDefinition)
				definition.Generation, definition.Status.StoredVersions = 1, []string{"v1beta1"}
				if definition.Spec.Names.Kind == "WorkloadSpread" {
					definition.Status.StoredVersions = strings.Split(tc.stored, "+")
				}
			}
			for i := range 3 {
				objects = append(objects, spreadNamed(i))
			}
			wrote := 0
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(objects...).WithInterceptorFuncs(interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, _ string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
					if meanwhile := tc.meanwhile; meanwhile != nil {
						tc.meanwhile = nil
						if err := meanwhile(ctx, c); err != nil {
							return err
						}
					}
					if _, isDefinition := object.(*apiextensionsv1.CustomResourceDefinition); !isDefinition {
						wrote++
					}
					if err := tc.fails[object.GetName()]; err != nil {
						return err
					}
					return c.Status().Patch(ctx, object, patch, opts...)
				}}).Build()
			m := &migration{c, c, map[string]int64{}}
			var said error
			for look := range tc.looks {
				if look == 1 && tc.before != nil {
					if err := tc.before(t.Context(), c); err != nil {
						t.Fatal(err)
					}
				}
				said = m.look(t.Context())
			}
			if got := fmt.Sprint(said); tc.says == "" && said != nil || !strings.Contains(got, tc.says) {
				t.Errorf("got %v, want %q", said, tc.says)
			}
			definition := &apiextensionsv1.CustomResourceDefinition{}
			if err := c.Get(t.Context(), client.ObjectKey{Name: "workloadspreads.apps.kruise.io"}, definition); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, strings.Join(definition.Status.StoredVersions, "+")); diff != "" || wrote != tc.wrote {
				t.Errorf("%d writes of objects, want %d; stored (-want +got)\n%s", wrote, tc.wrote, diff)
			}
		})
	}
}

func spreadNamed(i int) *v1beta1.WorkloadSpread {
	return &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("web-%d", i)}}
}
