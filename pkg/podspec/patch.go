package podspec

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The directive of strategic merge patches that a patch may have. Keys that begin with $ are never fields of an object.
const (
	PatchDirective = "$patch"

	// DeleteIt and ReplaceIt are its values.
	DeleteIt  = "delete"
	ReplaceIt = "replace"
)

// IsDirective is true for a key that is no field of an object.
func IsDirective(key string) bool { return key == PatchDirective || isMadeByClients(key) }

// isMadeByClients is true for a directive that clients compute for a patch, and nobody writes by hand. A patch must not
// have it.
func isMadeByClients(key string) bool {
	return key == "$retainKeys" || strings.HasPrefix(key, "$setElementOrder/") || strings.HasPrefix(key, "$deleteFromPrimitiveList/")
}

var decodesJSON = reflect.TypeFor[json.Unmarshaler]()

// Field is the field with this JSON name in a struct or in a struct embedded in it. Like the API server, and unlike
// JSON decoders, it is case-sensitive.
func Field(t reflect.Type, name string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "" && f.Anonymous {
			if inner, found := Field(f.Type, name); found {
				return inner, true
			}
		}
		if tag == name && name != "" {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// MergeKey is the key by which elements of the field, a list, are merged. It is empty for a list that a patch replaces
// as a whole. A pod has no list of plain values that is merged.
func MergeKey(f reflect.StructField) string { return f.Tag.Get("patchMergeKey") }

// Element is the type that a pointer, or a pointer to one, points to, and any other type itself.
func Element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// ValidatePatch returns an error, with its path, for everything in a strategic merge patch that does not fit a type,
// which is a struct. It finds unknown fields, values of another type, and directives that nobody can follow.
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

// shapeCheck compares a patch with the types of a pod and collects what does not fit. If it finds nothing, only the pod
// itself can keep the patch from being applied.
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
	c.errs = append(c.errs, field.Invalid(path, Scalar(value), message))
}

// object checks the fields of a struct.
func (c *shapeCheck) object(object map[string]any, t reflect.Type, path *field.Path, how mergeMode) {
	within := how
	if object[PatchDirective] == ReplaceIt {
		within = replaced
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if strings.HasPrefix(key, "$") {
			c.directive(object, key, path, how)
			continue
		}
		f, found := Field(t, key)
		if !found {
			c.invalid(path.Child(key), nil, "unknown field; check its spelling")
			continue
		}
		if object[key] != nil { // null removes the field
			c.value(object[key], f.Type, MergeKey(f), path.Child(key), within)
		}
	}
}

func (c *shapeCheck) value(value any, t reflect.Type, mergeKey string, path *field.Path, how mergeMode) {
	t = Element(t)
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
			c.mergedList(list, Element(t.Elem()), mergeKey, path)
		default:
			c.replacedList(list, t.Elem(), path)
		}
	default:
		c.leaf(value, t, path)
	}
}

// mapping checks a map, whose keys may be anything.
func (c *shapeCheck) mapping(object map[string]any, t reflect.Type, path *field.Path, how mergeMode) {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		switch {
		case IsDirective(key):
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
		if object, ok := item.(map[string]any); ok && object[PatchDirective] == ReplaceIt {
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
		directive, directed := object[PatchDirective]
		if directed && directive == ReplaceIt {
			if len(object) > 1 {
				c.invalid(at.Child(PatchDirective), directive, "must stand alone: {$patch: replace} is an element by itself, and replaces the whole list by the other elements")
			}
			continue
		}
		if directed && directive != DeleteIt {
			c.errs = append(c.errs, field.NotSupported(at.Child(PatchDirective), fmt.Sprint(directive), []string{DeleteIt, ReplaceIt}))
			continue
		}
		rest := maps.Clone(object)
		delete(rest, PatchDirective)
		c.object(rest, t, at, how)
		key := object[mergeKey]
		switch {
		case key == nil:
			c.errs = append(c.errs, field.Required(at.Child(mergeKey), "tells which element of the pod's list to patch"))
		case directed:
		case seen[fmt.Sprint(key)]:
			c.errs = append(c.errs, field.Duplicate(at.Child(mergeKey), Scalar(key)))
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
	case key == PatchDirective:
		if object[key] != DeleteIt && object[key] != ReplaceIt {
			c.errs = append(c.errs, field.NotSupported(at, fmt.Sprint(object[key]), []string{DeleteIt, ReplaceIt}))
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
		content, err := json.Marshal(value)
		if err == nil {
			err = json.Unmarshal(content, reflect.New(t).Interface())
		}
		if err != nil {
			c.invalid(path, value, err.Error())
		}
		return
	}
	switch t.Kind() {
	case reflect.String:
		if _, ok := value.(string); !ok {
			c.invalid(path, value, MustBeString(value))
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

// MustBeString is the message for a value that is no string.
func MustBeString(value any) string {
	switch value.(type) {
	case int64, float64, bool:
		return "must be a string; put it in quotes"
	default:
		return "must be a string"
	}
}

// Scalar is a value as error messages show it: objects, lists and null are left out.
func Scalar(value any) any {
	switch value.(type) {
	case string, int64, float64, bool:
		return value
	default:
		return field.OmitValueType{}
	}
}
