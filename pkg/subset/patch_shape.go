package subset

import (
	stdjson "encoding/json"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The directive of strategic merge patches that a patch may have. Keys that begin with $ are never fields of an object.
const (
	patchDirective = "$patch"

	deleteIt  = "delete"
	replaceIt = "replace"
)

func isDirective(key string) bool { return key == patchDirective || isMadeByClients(key) }

// isMadeByClients is true for a directive that clients compute for a patch, and nobody writes by hand. A patch must not have it.
func isMadeByClients(key string) bool {
	return key == "$retainKeys" || strings.HasPrefix(key, "$setElementOrder/") || strings.HasPrefix(key, "$deleteFromPrimitiveList/")
}

var (
	podType     = reflect.TypeFor[corev1.Pod]()
	podSpecType = reflect.TypeFor[corev1.PodSpec]()
	decodesJSON = reflect.TypeFor[stdjson.Unmarshaler]()
)

// jsonField is the field with this JSON name in a struct or in a struct embedded in it. Like the API server, and unlike JSON decoders, it is
// case-sensitive.
func jsonField(t reflect.Type, name string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "" && f.Anonymous {
			if inner, found := jsonField(f.Type, name); found {
				return inner, true
			}
		}
		if tag == name && name != "" {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// mergeKeyOf is the key by which elements of the field, a list, are merged. It is empty for a list that a patch replaces as a whole. A pod has no
// list of plain values that is merged.
func mergeKeyOf(f reflect.StructField) string { return f.Tag.Get("patchMergeKey") }

func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// ValidatePatch returns an error, with its path, for everything in a strategic merge patch that does not fit a type, which is a struct. It finds unknown
// fields, values of another type, and directives that nobody can follow.
func ValidatePatch(patch map[string]any, of reflect.Type, path *field.Path) field.ErrorList {
	check := shapeCheck{}
	check.object(patch, of, path, merged)
	return check.errs
}

// ValidateFields does the same for an object that is no patch.
func ValidateFields(object map[string]any, of reflect.Type, path *field.Path) field.ErrorList {
	check := shapeCheck{}
	check.object(object, of, path, replaced)
	return check.errs
}

// shapeCheck compares a patch with the types of a pod and collects what does not fit. If it finds nothing, only the pod itself can keep the patch
// from being applied.
type shapeCheck struct{ errs field.ErrorList }

// mergeMode says how a part of a patch gets into the pod.
type mergeMode bool

const (
	// merged: field by field, with directives.
	merged mergeMode = true
	// replaced: as a whole.
	replaced mergeMode = false
)

func (c *shapeCheck) invalid(path *field.Path, value any, message string) {
	c.errs = append(c.errs, field.Invalid(path, scalar(value), message))
}

// object checks the fields of a struct.
func (c *shapeCheck) object(object map[string]any, t reflect.Type, path *field.Path, how mergeMode) {
	within := how
	if object[patchDirective] == replaceIt {
		within = replaced
	}
	for _, key := range sortedKeys(object) {
		if strings.HasPrefix(key, "$") {
			c.directive(object, key, path, how)
			continue
		}
		f, found := jsonField(t, key)
		if !found {
			c.invalid(path.Child(key), nil, "unknown field; check its spelling")
			continue
		}
		if object[key] != nil { // null removes the field
			c.value(object[key], f.Type, mergeKeyOf(f), path.Child(key), within)
		}
	}
}

func (c *shapeCheck) value(value any, t reflect.Type, mergeKey string, path *field.Path, how mergeMode) {
	t = element(t)
	if reflect.PointerTo(t).Implements(decodesJSON) {
		c.leaf(value, t, path)
		return
	}
	switch {
	case t.Kind() == reflect.Struct || t.Kind() == reflect.Map:
		object, ok := value.(map[string]any)
		switch {
		case !ok:
			c.invalid(path, value, "must be an object")
		case t.Kind() == reflect.Struct:
			c.object(object, t, path, how)
		default:
			c.mapping(object, t, path, how)
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		list, ok := value.([]any)
		switch {
		case !ok:
			c.invalid(path, value, "must be a list")
		case mergeKey != "" && how == merged:
			c.mergedList(list, element(t.Elem()), mergeKey, path)
		default:
			c.replacedList(list, t.Elem(), path)
		}
	default:
		c.leaf(value, t, path)
	}
}

// mapping checks a map, whose keys may be anything.
func (c *shapeCheck) mapping(object map[string]any, t reflect.Type, path *field.Path, how mergeMode) {
	for _, key := range sortedKeys(object) {
		switch {
		case isDirective(key):
			c.directive(object, key, path, how)
		case object[key] != nil:
			c.value(object[key], t.Elem(), "", path.Key(key), replaced)
		}
	}
}

func (c *shapeCheck) replacedList(list []any, t reflect.Type, path *field.Path) {
	for i := range list {
		if list[i] == nil {
			c.invalid(path.Index(i), nil, "must not be null; this list is replaced as a whole, so leave the element out")
			continue
		}
		c.value(list[i], t, "", path.Index(i), replaced)
	}
}

// mergedList checks a list of objects that is merged element by element.
func (c *shapeCheck) mergedList(list []any, t reflect.Type, mergeKey string, path *field.Path) {
	how := merged
	for _, item := range list {
		if object, ok := item.(map[string]any); ok && object[patchDirective] == replaceIt {
			how = replaced
		}
	}
	seen := map[string]bool{}
	for i, item := range list {
		at := path.Index(i)
		object, ok := item.(map[string]any)
		if !ok {
			c.invalid(at, item, "must be an object")
			continue
		}
		directive, directed := object[patchDirective]
		if directed && directive == replaceIt {
			if len(object) > 1 {
				c.invalid(at.Child(patchDirective), directive, "must stand alone: {$patch: replace} is an element by itself, and replaces the whole list by the other elements")
			}
			continue
		}
		if directed && directive != deleteIt {
			c.errs = append(c.errs, field.NotSupported(at.Child(patchDirective), fmt.Sprint(directive), []string{deleteIt, replaceIt}))
			continue
		}
		rest := object
		if directed {
			rest = withoutKey(object, patchDirective)
		}
		c.object(rest, t, at, how)
		key := object[mergeKey]
		switch {
		case key == nil:
			c.errs = append(c.errs, field.Required(at.Child(mergeKey), "tells which element of the pod's list to patch"))
		case directed:
		case seen[fmt.Sprint(key)]:
			c.errs = append(c.errs, field.Duplicate(at.Child(mergeKey), scalar(key)))
		default:
			seen[fmt.Sprint(key)] = true
		}
	}
}

// directive checks a directive in an object.
func (c *shapeCheck) directive(object map[string]any, key string, path *field.Path, how mergeMode) {
	at := path.Child(key)
	switch {
	case how == replaced:
		c.errs = append(c.errs, field.Forbidden(at, "has no effect inside a value that the patch replaces as a whole; remove it"))
	case key == patchDirective:
		if object[key] != deleteIt && object[key] != replaceIt {
			c.errs = append(c.errs, field.NotSupported(at, fmt.Sprint(object[key]), []string{deleteIt, replaceIt}))
		}
	case isMadeByClients(key):
		c.errs = append(c.errs, field.Forbidden(at, "a patch may have no other directive than $patch; set fields that the pod is not to have to null"))
	default:
		c.invalid(at, nil, "unknown directive; check its spelling")
	}
}

// leaf checks a value without fields.
func (c *shapeCheck) leaf(value any, t reflect.Type, path *field.Path) {
	if reflect.PointerTo(t).Implements(decodesJSON) || t.Kind() == reflect.Slice || t.Kind() == reflect.Float64 {
		content, err := stdjson.Marshal(value)
		if err == nil {
			err = stdjson.Unmarshal(content, reflect.New(t).Interface())
		}
		if err != nil {
			c.invalid(path, value, err.Error())
		}
		return
	}
	switch t.Kind() {
	case reflect.String:
		if _, ok := value.(string); !ok {
			c.invalid(path, value, mustBeString(value))
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			c.invalid(path, value, "must be true or false")
		}
	default: // a pod has no other types of numbers
		n, ok := value.(int64)
		if !ok || reflect.Zero(t).OverflowInt(n) {
			c.invalid(path, value, fmt.Sprintf("must be an integer of %d bits", t.Bits()))
		}
	}
}

func mustBeString(value any) string {
	switch value.(type) {
	case int64, float64, bool:
		return "must be a string; put it in quotes"
	default:
		return "must be a string"
	}
}

// scalar is a value as error messages show it: objects, lists and null are left out.
func scalar(value any) any {
	switch value.(type) {
	case string, int64, float64, bool:
		return value
	default:
		return field.OmitValueType{}
	}
}

func withoutKey(object map[string]any, key string) map[string]any {
	rest := make(map[string]any, len(object))
	for k, v := range object {
		if k != key {
			rest[k] = v
		}
	}
	return rest
}

// settle is a copy of a part of a patch, of type t, that the merge handles well. The merge copies parts that are new to the pod as they are, so
// settle follows or drops the directives in them. For an object to delete, the merge would leave an empty one.
func settle(patch, pod map[string]any, t reflect.Type) map[string]any {
	settled := make(map[string]any, len(patch))
	for key, value := range patch {
		if key == patchDirective {
			if pod != nil {
				settled[key] = value
			}
			continue
		}
		var mergeKey string
		var of reflect.Type
		if t.Kind() == reflect.Struct {
			if f, found := jsonField(t, key); found {
				mergeKey, of = mergeKeyOf(f), element(f.Type)
			}
		}
		object, isObject := value.(map[string]any)
		list, isList := value.([]any)
		switch {
		case value == nil || isObject && object[patchDirective] == deleteIt:
			if pod != nil {
				settled[key] = nil
			}
		case isObject && of != nil:
			settled[key] = settle(object, child(pod, key), of)
		case isList && mergeKey != "":
			settled[key] = settleList(list, pod[key], element(of.Elem()), mergeKey)
		default:
			settled[key] = runtime.DeepCopyJSONValue(value)
		}
	}
	return settled
}

func settleList(patch []any, pod any, t reflect.Type, mergeKey string) []any {
	deleted, replaces := map[any]bool{}, false
	for _, item := range patch {
		object, _ := item.(map[string]any)
		switch object[patchDirective] {
		case deleteIt:
			deleted[object[mergeKey]] = true
		case replaceIt:
			replaces = true
		}
	}
	settled := []any{}
	for _, item := range patch {
		object, _ := item.(map[string]any)
		_, directed := object[patchDirective]
		switch {
		case directed && pod == nil:
		case directed:
			settled = append(settled, runtime.DeepCopyJSON(object))
		case replaces || deleted[object[mergeKey]]:
			settled = append(settled, settle(object, nil, t))
		default:
			settled = append(settled, settle(object, elementOf(pod, mergeKey, object[mergeKey]), t))
		}
	}
	return settled
}
