package manifests

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"sigs.k8s.io/yaml"
)

// TestDescriptionsAreNotCut holds that kubectl explain shows what the types say, and all of it.
func TestDescriptionsAreNotCut(t *testing.T) {
	documented := docsOf(t, "apps/v1beta1", "policy/v1beta1", "united/v1beta1", "federation/v1alpha1")
	if len(documented) < 50 {
		t.Fatalf("found %d comments only", len(documented))
	}
	for _, crd := range append(definitions(t), federation(t)) {
		described := 0
		for _, version := range crd.Spec.Versions {
			walk(version.Schema.OpenAPIV3Schema, version.Name, func(path string, schema *apiextensionsv1.JSONSchemaProps) {
				text := oneLine(schema.Description)
				if text == "" {
					return
				}
				described++
				if strings.HasSuffix(text, "...") {
					t.Errorf("%s: %s: the description ends in the middle: %s", crd.Name, path, text)
				}
				if slices.Contains(documented, text) {
					return
				}
				for _, whole := range documented {
					if strings.HasPrefix(whole, text) {
						t.Errorf("%s: %s: the description ends before the comment does:\n%s", crd.Name, path, whole)
					}
				}
			})
		}
		if described < 20 {
			t.Errorf("%s: found %d descriptions only", crd.Name, described)
		}
	}
}

// TestDefinitionsCanBeApplied holds that kubectl apply, which notes the whole object in an annotation, can do so with
// much to spare.
func TestDefinitionsCanBeApplied(t *testing.T) {
	for _, crd := range append(definitions(t), federation(t)) {
		noted, err := json.Marshal(crd)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes of %d", crd.Name, len(noted), validation.TotalAnnotationSizeLimitB)
		if len(noted) > validation.TotalAnnotationSizeLimitB/2 {
			t.Errorf("%s has %d bytes, and annotations at most %d", crd.Name, len(noted), validation.TotalAnnotationSizeLimitB)
		}
	}
}

func definitions(t *testing.T) []apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var all []apiextensionsv1.CustomResourceDefinition
	for _, content := range CRDs() {
		all = append(all, definition(t, content))
	}
	if len(all) != 3 {
		t.Fatalf("%d definitions", len(all))
	}
	return all
}

// federation is the definition that only the hub of a federation has.
func federation(t *testing.T) apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	return definition(t, FederationCRD)
}

func definition(t *testing.T, content []byte) (crd apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	if err := yaml.UnmarshalStrict(content, &crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// walk visits a schema and all below it.
func walk(schema *apiextensionsv1.JSONSchemaProps, path string, visit func(path string, schema *apiextensionsv1.JSONSchemaProps)) {
	if schema == nil {
		return
	}
	visit(path, schema)
	for name := range schema.Properties {
		property := schema.Properties[name]
		walk(&property, path+"."+name, visit)
	}
	if schema.Items != nil {
		walk(schema.Items.Schema, path+"[]", visit)
	}
	if schema.AdditionalProperties != nil {
		walk(schema.AdditionalProperties.Schema, path+"{}", visit)
	}
}

// docsOf are the comments of all types and fields of versions of API groups.
func docsOf(t *testing.T, versions ...string) []string {
	t.Helper()
	var docs []string
	for _, version := range versions {
		files, err := filepath.Glob(filepath.Join("..", "pkg", "crd", version, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(node ast.Node) bool {
				switch n := node.(type) {
				case *ast.Field:
					docs = append(docs, withoutMarkers(n.Doc))
				case *ast.GenDecl:
					if n.Tok == token.TYPE {
						docs = append(docs, withoutMarkers(n.Doc))
					}
				}
				return true
			})
		}
	}
	return docs
}

// withoutMarkers is a comment on one line without what begins with a plus, which is for generators.
func withoutMarkers(comment *ast.CommentGroup) string {
	var lines []string
	for line := range strings.Lines(comment.Text()) {
		if !strings.HasPrefix(line, "+") {
			lines = append(lines, line)
		}
	}
	return oneLine(strings.Join(lines, " "))
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestVersionsDifferInNamesOnly compares the rules, columns and descriptions of the two versions of each definition.
// They come from Go types of two packages.
func TestVersionsDifferInNamesOnly(t *testing.T) {
	renamed := map[string]string{"requiredNodeSelectorTerm": "requiredNodeSelector", "preferredNodeSelectorTerms": "preferredNodeSelector"}
	added := []string{"protectOperations", "protectTotalReplicas", "ignoredPodSelector"} // v1alpha1 has annotations for them
	for _, crd := range definitions(t) {
		if len(crd.Spec.Versions) != 2 || crd.Spec.Versions[0].Name != "v1alpha1" || crd.Spec.Versions[1].Name != "v1beta1" {
			t.Fatalf("%s: want v1alpha1 and v1beta1", crd.Name)
		}
		old, now := crd.Spec.Versions[0].DeepCopy(), crd.Spec.Versions[1].DeepCopy()
		if !old.Served || !now.Served || old.Storage || !now.Storage {
			t.Errorf("%s: want both versions served and v1beta1 stored", crd.Name)
		}
		spec := now.Schema.OpenAPIV3Schema.Properties["spec"]
		for _, name := range added {
			delete(spec.Properties, name)
		}
		walk(old.Schema.OpenAPIV3Schema, "", func(_ string, schema *apiextensionsv1.JSONSchemaProps) {
			for from, to := range renamed {
				if property, found := schema.Properties[from]; found {
					if first, rest, _ := strings.Cut(property.Description, " "); strings.EqualFold(first, from) {
						property.Description = strings.ToUpper(to[:1]) + to[1:] + " " + rest
					}
					schema.Properties[to] = property
					delete(schema.Properties, from)
				}
			}
		})
		old.Name, old.Storage = now.Name, now.Storage
		if diff := cmp.Diff(old, now); diff != "" {
			t.Errorf("%s (-v1alpha1 +v1beta1):\n%s", crd.Name, diff)
		}
	}
}
