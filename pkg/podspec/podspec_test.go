package podspec

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestWhatDoesNotFitAPodIsRefused: a patch may have directives, and fields themselves may not.
func TestWhatDoesNotFitAPodIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		object, asPatch, asFields string
	}{
		"what fits":                  {object: `{"containers": [{"name": "a", "image": "b"}]}`},
		"an unknown field":           {`{"nodename": "n"}`, "spec.nodename: Invalid value: unknown field; check its spelling", "spec.nodename: Invalid value: unknown field; check its spelling"},
		"another type":               {`{"hostNetwork": "yes"}`, `spec.hostNetwork: Invalid value: "yes": must be true or false`, `spec.hostNetwork: Invalid value: "yes": must be true or false`},
		"a number too large":         {`{"priority": 3000000000}`, "spec.priority: Invalid value: 3000000000: must be an integer of 32 bits", "spec.priority: Invalid value: 3000000000: must be an integer of 32 bits"},
		"an element to delete":       {object: `{"containers": [{"name": "a", "$patch": "delete"}]}`, asFields: "spec.containers[0].$patch: Forbidden: has no effect inside a value that the patch replaces as a whole; remove it"},
		"an element without its key": {object: `{"containers": [{"image": "b"}]}`, asPatch: "spec.containers[0].name: Required value: tells which element of the pod's list to patch"},
	} {
		t.Run(name, func(t *testing.T) {
			var object map[string]any
			if err := json.Unmarshal([]byte(tc.object), &object); err != nil {
				t.Fatal(err)
			}
			of, path := reflect.TypeFor[corev1.PodSpec](), field.NewPath("spec")
			expectErrors(t, "as a patch", tc.asPatch, ValidatePatch(object, of, path))
			expectErrors(t, "as fields", tc.asFields, ValidateFields(object, of, path))
		})
	}
}

func TestTermsAndTolerationsAreThoseOfAPod(t *testing.T) {
	path := field.NewPath("at")
	_, errs := CompileTerm(&corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpExists, Values: []string{"b"}}}}, path)
	expectErrors(t, "a term", `at.matchExpressions[0].values: Invalid value: ["b"]: values set must be empty for exists and does not exist`, errs)
	errs = ValidateTolerations([]corev1.Toleration{{}}, path)
	expectErrors(t, "a toleration", `at[0].operator: Invalid value: "": must be Exists when key is empty, which means every taint`, errs)
}

func expectErrors(t *testing.T, what, want string, got field.ErrorList) {
	t.Helper()
	text := ""
	if err := got.ToAggregate(); err != nil {
		text = err.Error()
	}
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
