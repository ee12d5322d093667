package subset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	strictjson "sigs.k8s.io/json"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

// podPatch is a subset's patch, taken apart by who can apply it.
type podPatch struct {
	Metadata
	// touchesMore is true for anything that cannot travel in a Binding: spec, and the removal of labels or annotations.
	touchesMore bool
}

// reservedKeys are labels and annotations by which Kubernetes or Berth counts pods. A patch that set them would move a pod out of its
// workload or into another quota.
var reservedKeys = map[string]string{
	"pod-template-hash":                "belongs to the ReplicaSet controller",
	"controller-revision-hash":         "belongs to the workload's controller",
	v1alpha1.PodDeletionCostAnnotation: "is computed from the subset",
	v1alpha1.MatchedAnnotation:         "is Berth's own record",
	v1alpha1.SubsetLabel:               "is Berth's own label",
}

// compilePatch checks that the extension is a strategic merge patch of a pod and splits it. Labels and annotations in a Binding are not
// validated by the API server, and an invalid one would make every later update of the pod fail, so they are validated here. Nil, empty
// and null change nothing.
func compilePatch(extension *runtime.RawExtension, path *field.Path) (podPatch, field.ErrorList) {
	if extension == nil {
		return podPatch{}, nil
	}
	raw := bytes.TrimSpace(extension.Raw)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return podPatch{}, nil
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return podPatch{}, field.ErrorList{field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("must be a strategic merge patch of a pod: %v", err))}
	}
	var patch podPatch
	errs := unknownFields(tree, path)
	for _, key := range sortedKeys(tree) {
		switch key {
		case "metadata":
			metadata, ok := tree[key].(map[string]any)
			if !ok {
				errs = append(errs, field.Invalid(path.Child(key), field.OmitValueType{}, "must be an object"))
				continue
			}
			errs = append(errs, patch.compileMetadata(metadata, path.Child(key))...)
		case "spec":
			patch.touchesMore = true
		default:
			errs = append(errs, field.Forbidden(path.Child(key), "a patch may change metadata.labels, metadata.annotations and spec"))
		}
	}
	return patch, errs
}

func (p *podPatch) compileMetadata(metadata map[string]any, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range sortedKeys(metadata) {
		keyPath := path.Child(key)
		switch key {
		case "labels":
			values, removes, valueErrs := stringMap(metadata[key], keyPath)
			p.Labels, p.touchesMore = values, p.touchesMore || removes
			errs = append(errs, valueErrs...)
			errs = append(errs, metav1validation.ValidateLabels(values, keyPath)...)
		case "annotations":
			values, removes, valueErrs := stringMap(metadata[key], keyPath)
			p.Annotations, p.touchesMore = values, p.touchesMore || removes
			errs = append(errs, valueErrs...)
			errs = append(errs, apimachineryvalidation.ValidateAnnotations(values, keyPath)...)
		default:
			errs = append(errs, field.Forbidden(keyPath, "a patch may change metadata.labels, metadata.annotations and spec"))
		}
	}
	return errs
}

// stringMap reads labels or annotations from a patch. A null value removes the key.
func stringMap(value any, path *field.Path) (values map[string]string, removes bool, errs field.ErrorList) {
	object, ok := value.(map[string]any)
	if !ok {
		return nil, false, field.ErrorList{field.Invalid(path, field.OmitValueType{}, "must be an object")}
	}
	values = make(map[string]string, len(object))
	for _, key := range sortedKeys(object) {
		if why, reserved := reservedKeys[key]; reserved {
			errs = append(errs, field.Forbidden(path.Key(key), why))
			continue
		}
		switch v := object[key].(type) {
		case string:
			values[key] = v
		case nil:
			removes = true
		default:
			errs = append(errs, field.Invalid(path.Key(key), v, "must be a string; put it in quotes"))
		}
	}
	return values, removes, errs
}

// unknownFields lists the fields of a patch that no pod has, such as resources.limit for resources.limits. The API server would drop
// them without a word. Directives of the patch itself ($patch and the like) are left aside.
func unknownFields(tree map[string]any, path *field.Path) field.ErrorList {
	plain, err := json.Marshal(withoutDirectives(tree))
	if err != nil {
		return field.ErrorList{field.InternalError(path, err)}
	}
	strict, err := strictjson.UnmarshalStrict(plain, &corev1.Pod{}, strictjson.DisallowUnknownFields)
	if err != nil {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("must be a strategic merge patch of a pod: %v", err))}
	}
	var errs field.ErrorList
	for _, e := range strict {
		name := strings.TrimSuffix(strings.TrimPrefix(e.Error(), `unknown field "`), `"`)
		errs = append(errs, field.Invalid(path.Child(name), field.OmitValueType{}, "unknown field; check its spelling"))
	}
	return errs
}

func withoutDirectives(value any) any {
	switch v := value.(type) {
	case map[string]any:
		plain := make(map[string]any, len(v))
		for key, child := range v {
			if !strings.HasPrefix(key, "$") {
				plain[key] = withoutDirectives(child)
			}
		}
		return plain
	case []any:
		plain := make([]any, len(v))
		for i := range v {
			plain[i] = withoutDirectives(v[i])
		}
		return plain
	default:
		return value
	}
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
