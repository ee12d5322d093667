package v1alpha1

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// annotated is a field of the spec in v1beta1 that is an annotation in v1alpha1. An annotation becomes the field only if the field becomes the same
// annotation again. Any other annotation stays what it is, and pkg/budget reads it.
type annotated struct {
	field      string
	annotation string
	// text is the annotation for the value of the field, as decoded from JSON.
	text func(value any) (string, bool)
	// value is the value of the field for the annotation.
	value func(text string) (any, bool)
}

// kept is the annotation that holds, in v1alpha1, an annotation of the v1beta1 object. Without it, the annotation would become the field on the way back.
func (a annotated) kept() string {
	return keptPrefix + a.annotation[strings.LastIndexByte(a.annotation, '/')+1:]
}

const keptPrefix = "v1beta1.policy.berth.dev/"

// becomes is true if the annotation becomes the field.
func (a annotated) becomes(text string) (any, bool) {
	value, ok := a.value(text)
	if !ok {
		return nil, false
	}
	again, ok := a.text(value)
	return value, ok && again == text
}

var all = []annotated{
	{"protectOperations", v1beta1.ProtectOperationsAnnotation, operationsText, operationsValue},
	{"protectTotalReplicas", v1beta1.ProtectTotalReplicasAnnotation, replicasText, replicasValue},
	{"ignoredPodSelector", v1beta1.IgnoredPodSelectorAnnotation, selectorText, selectorValue},
}

// ToHub changes the content of a PodUnavailableBudget, as decoded from JSON, from v1alpha1 to v1beta1. It never fails, and fields and annotations that it
// does not know stay as they are. The caller sets apiVersion.
func ToHub(content map[string]any) {
	spec, isMap := content["spec"].(map[string]any)
	object := unstructured.Unstructured{Object: content}
	annotations := object.GetAnnotations()
	if !isMap || len(annotations) == 0 {
		return
	}
	for _, a := range all {
		_, given := spec[a.field]
		if text, ok := annotations[a.annotation]; ok && !given {
			if value, ok := a.becomes(text); ok {
				spec[a.field], given = value, true
				delete(annotations, a.annotation)
			}
		}
		_, taken := annotations[a.annotation]
		if text, ok := annotations[a.kept()]; ok && !taken {
			if _, readable := a.becomes(text); given || readable {
				annotations[a.annotation] = text
				delete(annotations, a.kept())
			}
		}
	}
	set(&object, annotations)
}

// FromHub is the opposite of ToHub.
func FromHub(content map[string]any) {
	spec, isMap := content["spec"].(map[string]any)
	if !isMap {
		return
	}
	object := unstructured.Unstructured{Object: content}
	annotations := map[string]string{}
	maps.Copy(annotations, object.GetAnnotations())
	for _, a := range all {
		written, isText := "", false
		if value, given := spec[a.field]; given {
			if written, isText = a.text(value); !isText {
				continue // empty, or the definition of v1beta1 allows no such value
			}
		}
		if text, ok := annotations[a.annotation]; ok {
			_, readable := a.becomes(text)
			if _, taken := annotations[a.kept()]; !taken && (isText || readable) {
				annotations[a.kept()] = text
				delete(annotations, a.annotation)
			}
		}
		if isText {
			annotations[a.annotation] = written
			delete(spec, a.field)
		}
	}
	set(&object, annotations)
}

// set writes the annotations, and removes the field if there are none.
func set(object *unstructured.Unstructured, annotations map[string]string) {
	if len(annotations) == 0 {
		annotations = nil
	}
	object.SetAnnotations(annotations)
}

func operationsText(value any) (string, bool) {
	list, isList := value.([]any)
	if !isList || len(list) == 0 { // an empty list means what no list means
		return "", false
	}
	names := make([]string, 0, len(list))
	for i := range list {
		name, isText := list[i].(string)
		if !isText {
			return "", false
		}
		names = append(names, name)
	}
	return strings.Join(names, ","), true
}

func operationsValue(text string) (any, bool) {
	list, seen := []any{}, []string{}
	for name := range strings.SplitSeq(text, ",") {
		if slices.Contains(seen, name) || !slices.Contains(v1beta1.ProtectableOperations, v1beta1.Operation(name)) {
			return nil, false
		}
		list, seen = append(list, name), append(seen, name)
	}
	return list, true
}

func replicasText(value any) (string, bool) {
	replicas, isNumber := value.(int64)
	return strconv.FormatInt(replicas, 10), isNumber
}

func replicasValue(text string) (any, bool) {
	replicas, err := strconv.ParseUint(text, 10, 31)
	return int64(replicas), err == nil
}

func selectorText(value any) (string, bool) {
	text, err := json.Marshal(value) // sorts keys
	return string(text), err == nil
}

func selectorValue(text string) (any, bool) {
	var value map[string]any
	if json.Unmarshal([]byte(text), &value) != nil || value == nil {
		return nil, false
	}
	var selector metav1.LabelSelector
	strict := json.NewDecoder(strings.NewReader(text))
	strict.DisallowUnknownFields()
	return value, strict.Decode(&selector) == nil
}

var specField = regexp.MustCompile(`\bspec\.(protectOperations|protectTotalReplicas|ignoredPodSelector)\b(\[\d+\])?`)

// InWords returns a message about a PodUnavailableBudget of v1beta1 with annotations for the fields that v1alpha1 does not have.
func InWords(message string) string {
	return specField.ReplaceAllStringFunc(message, func(path string) string {
		name := specField.FindStringSubmatch(path)[1]
		at := slices.IndexFunc(all, func(a annotated) bool { return a.field == name })
		return "metadata.annotations[" + all[at].annotation + "]"
	})
}
