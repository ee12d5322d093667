package versions

import (
	"encoding/json"
	"maps"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	oldapps "github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	oldpolicy "github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	oldsidecar "github.com/berth-project/berth/pkg/crd/sidecar/v1alpha1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	oldunited "github.com/berth-project/berth/pkg/crd/united/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// pairs are the kinds: the hub, and the same kind in another version.
var pairs = []struct{ hub, spoke schema.GroupVersionKind }{
	{v1beta1.Kind, oldapps.GroupVersion.WithKind(v1beta1.Kind.Kind)},
	{policyv1beta1.Kind, oldpolicy.GroupVersion.WithKind(policyv1beta1.Kind.Kind)},
	{unitedv1beta1.Kind, oldunited.GroupVersion.WithKind(unitedv1beta1.Kind.Kind)},
	{sidecarv1beta1.Kind, oldsidecar.GroupVersion.WithKind(sidecarv1beta1.Kind.Kind)},
}

// annotations that the fuzzer gives to budgets: those that become fields, those that do not, and those that Berth keeps under other names.
var annotationValues = map[string][]string{
	policyv1beta1.ProtectOperationsAnnotation:         {"DELETE", "DELETE,EVICT", "EVICT,DELETE", "DELETE, EVICT", "delete", "DELETE,DELETE", "FLY", ""},
	policyv1beta1.ProtectTotalReplicasAnnotation:      {"0", "7", "07", "-1", "many", "99999999999"},
	policyv1beta1.IgnoredPodSelectorAnnotation:        {`{"matchLabels":{"app":"a"}}`, `{"matchLabels": {"app": "a"}}`, `{}`, `null`, `{"app":"a"}`, `[]`, ""},
	"v1beta1.policy.berth.dev/pub-protect-operations": {"DELETE", "none"},
	"v1beta1.policy.berth.dev/protect-total-replicas": {"3", "none"},
	"v1beta1.policy.berth.dev/ignored-pod-selector":   {`{"matchLabels":{"app":"a"}}`, "none"},
	"example.com/other":                               {"value"},
}

// filler fills every field of an object.
func filler(seed int64, version string, everything bool) *randfill.Filler {
	own := func(serializer.CodecFactory) []any {
		return []any{
			func(i *intstr.IntOrString, c randfill.Continue) {
				if *i = intstr.FromInt32(c.Int31()); c.Bool() {
					*i = intstr.FromString("30%")
				}
			},
			func(r *runtime.RawExtension, c randfill.Continue) {
				r.Raw = []byte(`{"metadata":{"labels":{"size":"` + []string{"s", "m"}[c.Intn(2)] + `"}}}`)
			},
			func(o *policyv1beta1.Operation, c randfill.Continue) {
				*o = policyv1beta1.ProtectableOperations[c.Intn(len(policyv1beta1.ProtectableOperations))]
			},
			func(s *policyv1beta1.PodUnavailableBudgetSpec, c randfill.Continue) {
				c.FillNoCustom(s)
				slices.Sort(s.ProtectOperations)
				s.ProtectOperations = slices.Compact(s.ProtectOperations)
				if s.ProtectTotalReplicas != nil && *s.ProtectTotalReplicas < 0 {
					*s.ProtectTotalReplicas = 0
				}
			},
			func(m *metav1.ObjectMeta, c randfill.Continue) {
				c.FillNoCustom(m)
				m.ManagedFields, m.Annotations = nil, nil
				m.CreationTimestamp, m.DeletionTimestamp = m.CreationTimestamp.Rfc3339Copy(), nil
				for _, key := range slices.Sorted(maps.Keys(annotationValues)) {
					values := annotationValues[key]
					if own := strings.HasPrefix(key, "v1beta1."); c.Intn(3) == 0 && (!own || version != "v1beta1") {
						metav1.SetMetaDataAnnotation(m, key, values[c.Intn(len(values))])
					}
				}
			},
		}
	}
	f := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, own), rand.NewSource(seed), serializer.NewCodecFactory(runtime.NewScheme()))
	if everything {
		return f.NilChance(0).NumElements(1, 3)
	}
	return f.NilChance(0.3).NumElements(0, 3)
}

func contentOf(t *testing.T, object runtime.Object, gvk schema.GroupVersionKind) map[string]any {
	t.Helper()
	object.GetObjectKind().SetGroupVersionKind(gvk)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestConversionLosesNothing converts objects with every field set, and with some fields set, there and back, from both versions. In between, the type of
// the other version has a field for everything.
func TestConversionLosesNothing(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := addAll(scheme); err != nil {
		t.Fatal(err)
	}
	for _, pair := range pairs {
		for _, way := range []struct{ from, to schema.GroupVersionKind }{{pair.hub, pair.spoke}, {pair.spoke, pair.hub}} {
			t.Run(way.from.Kind+" "+way.from.Version, func(t *testing.T) {
				for seed := range int64(300) {
					object, err := scheme.New(way.from)
					if err != nil {
						t.Fatal(err)
					}
					filler(seed, way.from.Version, seed%2 == 0).Fill(object)
					before, content := contentOf(t, object, way.from), contentOf(t, object, way.from)
					if err := Convert(content, way.to.GroupVersion().String()); err != nil {
						t.Fatal(err)
					}
					text, err := json.Marshal(content)
					if err != nil {
						t.Fatal(err)
					}
					if _, _, err := strict.Decode(text, nil, nil); err != nil {
						t.Fatalf("seed %d: the type of %s lacks fields: %v", seed, way.to, err)
					}
					if err := Convert(content, way.from.GroupVersion().String()); err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(before, content); diff != "" {
						t.Fatalf("seed %d: (-before +after)\n%s", seed, diff)
					}
				}
			})
		}
	}
}

// TestConversionKeepsWhatItDoesNotKnow: a definition may be newer than a replica that converts, and objects may be parts of objects.
func TestConversionKeepsWhatItDoesNotKnow(t *testing.T) {
	for name, text := range map[string]string{
		"new fields":       `{"apiVersion":"apps.kruise.io/v1beta1","kind":"WorkloadSpread","spec":{"next":{"a":1.5},"subsets":[{"name":"a","next":true,"requiredNodeSelector":{}}]}}`,
		"no spec":          `{"apiVersion":"apps.kruise.io/v1beta1","kind":"WorkloadSpread","metadata":{"name":"a"}}`,
		"no subsets":       `{"apiVersion":"apps.kruise.io/v1beta1","kind":"WorkloadSpread","spec":{"subsets":null}}`,
		"strange subsets":  `{"apiVersion":"apps.kruise.io/v1beta1","kind":"WorkloadSpread","spec":{"subsets":[1,null,{"requiredNodeSelector":null}]}}`,
		"a new budget":     `{"apiVersion":"policy.kruise.io/v1beta1","kind":"PodUnavailableBudget","metadata":{"name":"a"},"spec":{"next":[1],"protectOperations":["DELETE"]}}`,
		"a strange budget": `{"apiVersion":"policy.kruise.io/v1beta1","kind":"PodUnavailableBudget","spec":{"protectOperations":[{}],"protectTotalReplicas":"x"}}`,
		"an empty list":    `{"apiVersion":"policy.kruise.io/v1beta1","kind":"PodUnavailableBudget","spec":{"protectOperations":[]}}`,
		"no budget spec":   `{"apiVersion":"policy.kruise.io/v1beta1","kind":"PodUnavailableBudget","metadata":{"annotations":{"pub.kruise.io/protect-total-replicas":"x"}}}`,
		"both": `{"apiVersion":"policy.kruise.io/v1beta1","kind":"PodUnavailableBudget","metadata":{"annotations":{"pub.kruise.io/protect-total-replicas":"3"}},
			"spec":{"protectTotalReplicas":4}}`,
	} {
		t.Run(name, func(t *testing.T) {
			var before, after map[string]any
			decode(t, text, &before)
			decode(t, text, &after)
			group, _, _ := strings.Cut(before["apiVersion"].(string), "/")
			for _, version := range []string{group + "/v1alpha1", group + "/v1beta1"} {
				if err := Convert(after, version); err != nil {
					t.Fatal(err)
				}
				if got := after["apiVersion"]; got != version {
					t.Errorf("got %s, want %s", got, version)
				}
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("(-before +after)\n%s", diff)
			}
		})
	}
}

func decode(t *testing.T, text string, into *map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatal(err)
	}
	convertNumbers(*into)
}

// convertNumbers makes whole numbers int64, as the decoders of Kubernetes do.
func convertNumbers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = convertNumbers(v[key])
		}
	case []any:
		for i := range v {
			v[i] = convertNumbers(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return value
}

func TestDecodeReadsEveryVersion(t *testing.T) {
	const spec = "metadata: {name: web}\nspec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, subsets: [{name: a, %s: {matchExpressions: [{key: zone, operator: Exists}]}}]}\n"
	read := func(version, name string) (*v1beta1.WorkloadSpread, error) {
		object, gvk, err := Decode([]byte("apiVersion: apps.kruise.io/" + version + "\nkind: WorkloadSpread\n" + strings.ReplaceAll(spec, "%s", name)))
		if gvk.Version != version {
			t.Errorf("got version %s, want %s", gvk.Version, version)
		}
		return object.(*v1beta1.WorkloadSpread), err
	}
	old, err := read("v1alpha1", "requiredNodeSelectorTerm")
	if err != nil {
		t.Fatal(err)
	}
	now, err := read("v1beta1", "requiredNodeSelector")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(old, now) || now.Spec.Subsets[0].RequiredNodeSelector == nil || now.APIVersion != v1beta1.GroupVersion.String() {
		t.Errorf("got %v and %v, want the same", old, now)
	}
	for version, name := range map[string]string{"v1alpha1": "requiredNodeSelector", "v1beta1": "requiredNodeSelectorTerm"} {
		if _, err := read(version, name); !runtime.IsStrictDecodingError(err) || !strings.Contains(err.Error(), `unknown field "spec.subsets[0].`+name+`"`) {
			t.Errorf("got %v, want an unknown field %s", err, name)
		}
	}
	if _, _, err := Decode([]byte("apiVersion: apps.kruise.io/v1\nkind: WorkloadSpread")); !runtime.IsNotRegisteredError(err) {
		t.Errorf("got %v, want an unknown version", err)
	}
}

func TestConvertRefusesWhatIsNotBerths(t *testing.T) {
	for _, tc := range []struct{ apiVersion, kind, to string }{
		{"v1", "Pod", "v1"},
		{"apps.kruise.io/v1alpha1", "CloneSet", "apps.kruise.io/v1beta1"},
		{"apps.kruise.io/v1alpha1", "WorkloadSpread", "apps.kruise.io/v1"},
		{"apps.kruise.io/v1alpha1", "WorkloadSpread", "policy.kruise.io/v1beta1"},
	} {
		if err := Convert(map[string]any{"apiVersion": tc.apiVersion, "kind": tc.kind}, tc.to); err == nil {
			t.Errorf("%v: no error", tc)
		}
	}
}

func TestMessagesNameTheFieldsOfTheVersion(t *testing.T) {
	for message, want := range map[string]string{
		"spec.subsets[0].requiredNodeSelector.matchExpressions: as requiredNodeSelector says": "spec.subsets[0].requiredNodeSelectorTerm.matchExpressions: as requiredNodeSelectorTerm says",
		"spec.subsets[0].preferredNodeSelector[1]: x":                                         "spec.subsets[0].preferredNodeSelectorTerms[1]: x",
		"spec.subsets[0].requiredNodeSelectorTerm":                                            "spec.subsets[0].requiredNodeSelectorTerm",
	} {
		if got := InWords(pairs[0].spoke, message); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got := InWords(pairs[0].hub, message); got != message {
			t.Errorf("got %s, want it unchanged", got)
		}
	}
	if got := InWords(pairs[1].spoke, "spec.protectOperations[1]: x"); got != "metadata.annotations[kruise.io/pub-protect-operations]: x" {
		t.Errorf("got %s", got)
	}
}
