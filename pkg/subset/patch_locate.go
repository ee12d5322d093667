package subset

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Locate finds the part of the patch that a field of the patched pod comes from. It also names the field for people: list elements are shown by their
// key and not by their index in the pod.
//
//	spec.containers[1].image  →  spec.subsets[0].patch.spec.containers[0].image, spec.containers[sidecar].image
//
// The first result is the innermost part of the patch around the field. The second is the same before and after the patch is applied.
func (p *Patch) Locate(pod *corev1.Pod, podField string) (inPatch *field.Path, inPod string) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return p.path, podField
	}
	at := location{inPatch: p.path, pod: fields, patch: p.tree, t: podType}
	for _, step := range steps(podField) {
		at = at.enter(step)
	}
	return at.inPatch, at.inPod
}

// location is a place in the pod, with the nearest place in the patch.
type location struct {
	inPatch *field.Path
	inPod   string
	// pod and patch are the values at this place. patch is nil if the patch has nothing there.
	pod, patch any
	// t is the type of the field, nil if it is not known. mergeKey is the merge key of a list.
	t        reflect.Type
	mergeKey string
}

// step is one name of a path, or one index or key in brackets.
type step struct {
	name      string
	subscript bool
}

func steps(path string) []step {
	var all []step
	for path != "" {
		path = strings.TrimPrefix(path, ".")
		if rest, found := strings.CutPrefix(path, "["); found {
			key, after, _ := strings.Cut(rest, "]")
			all = append(all, step{key, true})
			path = after
			continue
		}
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			end = len(path)
		}
		if end > 0 {
			all = append(all, step{path[:end], false})
		}
		path = path[end:]
	}
	return all
}

func (at location) enter(s step) location {
	list, isList := at.pod.([]any)
	switch {
	case !s.subscript:
		return at.enterField(s.name)
	case isList:
		return at.enterElement(list, s.name)
	default:
		next := at.enterField(s.name)
		next.inPod = at.inPod + "[" + s.name + "]"
		if next.patch != nil {
			next.inPatch = at.inPatch.Key(s.name)
		}
		return next
	}
}

func (at location) enterField(name string) location {
	next := location{inPatch: at.inPatch, inPod: strings.TrimPrefix(at.inPod+"."+name, ".")}
	if at.t != nil && at.t.Kind() == reflect.Struct {
		if f, found := jsonField(at.t, name); found {
			next.t, next.mergeKey = element(f.Type), mergeKeyOf(f)
		}
	}
	if object, ok := at.pod.(map[string]any); ok {
		next.pod = object[name]
	}
	if object, ok := at.patch.(map[string]any); ok && object[name] != nil {
		next.patch, next.inPatch = object[name], at.inPatch.Child(name)
	}
	return next
}

func (at location) enterElement(list []any, subscript string) location {
	next := location{inPatch: at.inPatch, inPod: at.inPod + "[" + subscript + "]"}
	if at.t != nil && at.t.Kind() == reflect.Slice {
		next.t = element(at.t.Elem())
	}
	index, err := strconv.Atoi(subscript)
	if err != nil || index < 0 || index >= len(list) {
		return next
	}
	next.pod = list[index]
	patched, _ := at.patch.([]any)
	if at.mergeKey == "" {
		if index < len(patched) {
			next.patch, next.inPatch = patched[index], at.inPatch.Index(index)
		}
		return next
	}
	object, _ := next.pod.(map[string]any)
	key := object[at.mergeKey]
	if key == nil {
		return next
	}
	next.inPod = fmt.Sprintf("%s[%v]", at.inPod, key)
	for i := range patched {
		if item, ok := patched[i].(map[string]any); ok && item[at.mergeKey] == key {
			next.patch, next.inPatch = item, at.inPatch.Index(i)
		}
	}
	return next
}
