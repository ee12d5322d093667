package subset

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podspec"
)

// Patch is the strategic merge patch of a subset, checked as far as that is possible without a pod. It is immutable and
// safe for concurrent use. A nil patch changes nothing.
//
// A patch may change labels, annotations and the spec. It may not change what identifies the pod, what ties it to its
// workload or to Berth, or what others decide. It behaves like the strategic merge patches of kubectl and the API
// server, with these exceptions:
//
//   - Tolerations are added to the pod's, as those of a subset are. (In the API a pod's tolerations are one value. A
//     patch would replace those of the workload's template, of other admission plugins and of the subset.) A toleration
//     that the pod has already gets the tolerationSeconds of the patch.
//   - A request that equals its limit follows a limit that the patch changes, unless the patch sets the request. The
//     API server may have filled the request in, or the user wants both equal. Otherwise a lower limit would be below
//     the request.
//   - Fields that the API server computed from a field that the patch changes (priority from priorityClassName,
//     overhead from runtimeClassName) are cleared, so that the API server computes them again.
//   - If the pod has nothing that a directive could act on, $patch: delete does nothing, and $patch: replace sets the
//     value.
//   - Directives that clients compute, such as $setElementOrder, are refused.
//
// As in the API server, elements of a list that are new to the pod come before those that it has. So a sidecar among
// initContainers starts first.
//
// A patch of nodeSelector or affinity is valid and narrows the nodes further. nodeSelector is merged key by key. The
// terms of requiredDuringSchedulingIgnoredDuringExecution are one value, which replaces the pod's own. The subset's
// term is required in any case, if it is added after the patch is applied.
type Patch struct {
	Metadata

	path        *field.Path
	tree        map[string]any // without the tolerations
	tolerations []any
	// early are the paths of what no Binding can set.
	early []*field.Path
}

var (
	podType     = reflect.TypeFor[corev1.Pod]()
	podSpecType = reflect.TypeFor[corev1.PodSpec]()
	// podMeta knows the patch strategy of each field of a pod.
	podMeta = strategicpatch.PatchMetaFromStruct{T: podType}
)

const (
	onlyThese    = "a patch may change metadata.labels, metadata.annotations and spec"
	keepOthers   = "it would remove what others have set; to remove a key, name it and set it to null"
	ofController = "the workload's controller sets this key; remove it from the patch"
)

// reservedKeys are labels and annotations by which Kubernetes or Berth counts pods. A patch that sets them would take a
// pod out of its workload or move it into another quota.
var reservedKeys = map[string]string{
	"pod-template-hash":                        "the ReplicaSet controller sets this key; remove it from the patch",
	"controller-revision-hash":                 ofController,
	"rollouts-pod-template-hash":               ofController,
	"statefulset.kubernetes.io/pod-name":       ofController,
	"apps.kubernetes.io/pod-index":             ofController,
	"batch.kubernetes.io/controller-uid":       ofController,
	"controller-uid":                           ofController,
	"batch.kubernetes.io/job-completion-index": ofController,
	"apps.kruise.io/cloneset-instance-id":      ofController,
	v1beta1.PodDeletionCostAnnotation:          "Berth computes this annotation from the subset; remove it from the patch",
	v1beta1.MatchedAnnotation:                  "is Berth's own record; remove it from the patch",
	v1beta1.AdmittedAnnotation:                 "is Berth's own record; remove it from the patch",
	v1beta1.ConstraintsAnnotation:              "is Berth's own record; remove it from the patch",
	v1beta1.SubsetLabel:                        "is Berth's own label; remove it from the patch",
	policyv1beta1.ProtectedLabel:               "is how Berth marks pods for budgets; remove it from the patch",
	policyv1beta1.SelectorKeysAnnotation:       "is how Berth marks pods for budgets; remove it from the patch",
}

// reservedFields are fields of a pod's spec that a patch must not change, each with the reason.
var reservedFields = map[string]string{
	"nodeName":            "the scheduler picks the node; use requiredNodeSelector of the subset",
	"schedulerName":       "another scheduler does not keep the subset's quota; leave schedulerName out",
	"schedulingGates":     "the component that removes a gate sets it; set it in the workload's template",
	"ephemeralContainers": "they can only be added to a running pod; use kubectl debug",
	"priority":            "is computed from priorityClassName; patch that one",
	"overhead":            "is computed from runtimeClassName; patch that one",
	"serviceAccount":      "is the old name of serviceAccountName, which takes precedence; patch that one",
}

// CompilePatch checks that the extension is a strategic merge patch of a pod, or returns every error in it, with paths
// below path. Nil, empty and null are no patch, and neither is an object that changes nothing. The API server does not
// validate the labels and annotations of a Binding, and an invalid one would make every later update of the pod fail.
// So CompilePatch validates them.
func CompilePatch(extension *runtime.RawExtension, path *field.Path) (*Patch, field.ErrorList) {
	tree, errs := podspec.Object(extension, path, "must be a strategic merge patch of a pod, which is an object")
	if tree == nil {
		return nil, errs
	}
	p := &Patch{path: path, tree: tree}
	for _, key := range slices.Sorted(maps.Keys(tree)) {
		part, isObject := tree[key].(map[string]any)
		switch {
		case podspec.IsDirective(key):
			errs = append(errs, field.Forbidden(path.Child(key), keepOthers))
		case key != "metadata" && key != "spec":
			errs = append(errs, field.Forbidden(path.Child(key), onlyThese))
		case !isObject:
			errs = append(errs, field.Invalid(path.Child(key), field.OmitValueType{}, "must be an object"))
		case key == "metadata":
			errs = append(errs, p.compileMetadata(part, path.Child(key))...)
		default:
			errs = append(errs, p.compileSpec(part, path.Child(key))...)
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	if len(p.early) == 0 && len(p.Labels) == 0 && len(p.Annotations) == 0 {
		return nil, nil
	}
	return p, nil
}

func (p *Patch) compileMetadata(metadata map[string]any, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		keyPath := path.Child(key)
		switch {
		case podspec.IsDirective(key):
			errs = append(errs, field.Forbidden(keyPath, keepOthers))
		case key == "labels":
			values, valueErrs := p.stringMap(metadata[key], keyPath)
			p.Labels = values
			errs = append(errs, valueErrs...)
			errs = append(errs, podspec.ValidateLabels(values, keyPath)...)
		case key == "annotations":
			values, valueErrs := p.stringMap(metadata[key], keyPath)
			p.Annotations = values
			errs = append(errs, valueErrs...)
			errs = append(errs, validateAnnotations(values, keyPath)...)
		default:
			errs = append(errs, field.Forbidden(keyPath, onlyThese))
		}
	}
	return errs
}

// stringMap reads labels or annotations. Null removes a key.
func (p *Patch) stringMap(value any, path *field.Path) (map[string]string, field.ErrorList) {
	object, ok := value.(map[string]any)
	if !ok {
		return nil, field.ErrorList{field.Invalid(path, field.OmitValueType{}, "must be an object")}
	}
	var errs field.ErrorList
	values := make(map[string]string, len(object))
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if podspec.IsDirective(key) {
			errs = append(errs, field.Forbidden(path.Child(key), keepOthers))
			continue
		}
		if why, reserved := reservedKeys[key]; reserved {
			errs = append(errs, field.Forbidden(path.Key(key), why))
			continue
		}
		switch v := object[key].(type) {
		case string:
			values[key] = v
		case nil:
			p.early = append(p.early, path.Key(key))
		default:
			errs = append(errs, field.Invalid(path.Key(key), podspec.Scalar(v), podspec.MustBeString(v)))
		}
	}
	return values, errs
}

func validateAnnotations(values map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(values)) {
		errs = append(errs, podspec.Invalid(path, key, content.IsLabelKey(strings.ToLower(key)))...)
	}
	if err := apimachineryvalidation.ValidateAnnotationsSize(values); err != nil {
		errs = append(errs, field.TooLong(path, field.OmitValueType{}, apimachineryvalidation.TotalAnnotationSizeLimitB))
	}
	return errs
}

func (p *Patch) compileSpec(spec map[string]any, path *field.Path) field.ErrorList {
	if len(spec) == 0 {
		return nil
	}
	p.early = append(p.early, path)
	var errs field.ErrorList
	patched := make(map[string]any, len(spec))
	for _, key := range slices.Sorted(maps.Keys(spec)) {
		why, reserved := reservedFields[key]
		switch {
		case reserved:
			errs = append(errs, field.Forbidden(path.Child(key), why))
		case key == podspec.PatchDirective:
			errs = append(errs, field.Forbidden(path.Child(key), "it would remove every field of the spec that the patch does not name; to remove a field, set it to null"))
		case key == "containers" && spec[key] == nil:
			errs = append(errs, field.Forbidden(path.Child(key), "a pod needs a container; to remove one, name it and add $patch: delete to it"))
		case key == "tolerations" && spec[key] == nil:
			errs = append(errs, field.Forbidden(path.Child(key), "a patch can add tolerations and remove none; leave this out"))
		default:
			patched[key] = spec[key]
		}
	}
	errs = append(errs, podspec.ValidatePatch(patched, podSpecType, path)...)
	if list, ok := patched["tolerations"].([]any); ok && len(errs) == 0 {
		errs = append(errs, p.compileTolerations(list, path.Child("tolerations"))...)
		delete(spec, "tolerations")
	}
	return errs
}

func (p *Patch) compileTolerations(list []any, path *field.Path) field.ErrorList {
	p.tolerations = list
	var pod corev1.PodSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"tolerations": list}, &pod); err != nil {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, err.Error())}
	}
	return podspec.ValidateTolerations(pod.Tolerations, path)
}

// Breaks are the labels that the patch sets or removes so that the selector no longer matches the pod, whatever other
// labels the pod has. The controller of a workload with this selector would release such a pod and create another one,
// without end.
//
// A nil patch and a nil selector break nothing.
func (p *Patch) Breaks(selector labels.Selector) []string {
	if p == nil || selector == nil {
		return nil
	}
	patched := p.labelsOfTree()
	requirements, _ := selector.Requirements()
	broken := map[string]bool{}
	for i := range requirements {
		key := requirements[i].Key()
		value, named := patched[key]
		if !named {
			continue
		}
		after := labels.Set{}
		if text, ok := value.(string); ok {
			after[key] = text
		}
		if !requirements[i].Matches(after) {
			broken[key] = true
		}
	}
	return slices.Sorted(maps.Keys(broken))
}

func (p *Patch) labelsOfTree() map[string]any {
	metadata, _ := p.tree["metadata"].(map[string]any)
	return child(metadata, "labels")
}

// Apply returns a copy of the pod with the patch applied, which shares nothing with the original. An error says why
// this pod cannot be patched. The API server may find more errors in the result.
//
// Applying the patch again changes nothing, if no two elements of the pod have the same key in a list that is merged by
// that key.
func (p *Patch) Apply(pod *corev1.Pod) (*corev1.Pod, error) {
	if p == nil {
		return pod.DeepCopy(), nil
	}
	return throughJSON(pod, p.ApplyToObject)
}

// throughJSON is a copy of a pod that a function has changed in the form of a JSON decoder.
func throughJSON(pod *corev1.Pod, change func(map[string]any) (map[string]any, error)) (*corev1.Pod, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return nil, fmt.Errorf("reading the fields of the pod: %w", err)
	}
	if object, err = change(object); err != nil {
		return nil, err
	}
	changed := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, changed); err != nil {
		return nil, fmt.Errorf("reading the patched pod: %w", err)
	}
	return changed, nil
}

// ApplyToObject is Apply for a pod as package k8s.io/apimachinery/pkg/util/json decodes it. It keeps fields that this
// version of Kubernetes does not know. Integers must be int64, as they are in patches: the merge compares elements of a
// list by their keys, and port 80 as float64 differs from port 80 as int64.
func (p *Patch) ApplyToObject(pod map[string]any) (map[string]any, error) {
	before := runtime.DeepCopyJSON(pod)
	if p == nil {
		return before, nil
	}
	after, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(runtime.DeepCopyJSON(pod), settle(p.tree, before, podType), podMeta)
	if err != nil {
		return nil, fmt.Errorf("merging the patch into the pod: %w", err)
	}
	was, patch, is := child(before, "spec"), child(p.tree, "spec"), child(after, "spec")
	if patch == nil && len(p.tolerations) == 0 {
		return after, nil
	}
	if is == nil {
		is = map[string]any{}
		after["spec"] = is
	}
	if isEmptyList(is["containers"]) && !isEmptyList(was["containers"]) {
		return nil, errors.New("merging the patch into the pod: no container would be left; keep one")
	}
	addTolerations(is, p.tolerations)
	followLimits(was, patch, is)
	clearComputed(was, patch, is)
	return after, nil
}

// addTolerations adds the tolerations that the pod lacks, and updates the tolerationSeconds of those that it has.
func addTolerations(spec map[string]any, added []any) {
	list, _ := spec["tolerations"].([]any)
	for _, item := range added {
		toleration, known := runtime.DeepCopyJSONValue(item), false
		for i := range list {
			if toleratesSame(list[i], toleration) {
				list[i], known = toleration, true
			}
		}
		if !known {
			list = append(list, toleration)
		}
	}
	if len(list) > 0 {
		spec["tolerations"] = list
	}
}

func toleratesSame(a, b any) bool {
	x, _ := a.(map[string]any)
	y, _ := b.(map[string]any)
	operator := func(t map[string]any) string { return cmp.Or(text(t, "operator"), string(corev1.TolerationOpEqual)) }
	return operator(x) == operator(y) && text(x, "key") == text(y, "key") && text(x, "value") == text(y, "value") && text(x, "effect") == text(y, "effect")
}

// followLimits keeps requests equal to limits, in the pod as a whole and in each container that the pod had before.
func followLimits(was, patch, is map[string]any) {
	followLimit(child(was, "resources"), child(patch, "resources"), child(is, "resources"))
	for _, name := range []string{"containers", "initContainers"} {
		list, _ := is[name].([]any)
		for _, item := range list {
			container, _ := item.(map[string]any)
			before, patched := elementOf(was[name], "name", container["name"]), elementOf(patch[name], "name", container["name"])
			followLimit(child(before, "resources"), child(patched, "resources"), child(container, "resources"))
		}
	}
}

func followLimit(was, patch, is map[string]any) {
	limits, requests := child(is, "limits"), child(is, "requests")
	for key, limit := range limits {
		_, said := child(patch, "requests")[key]
		request, found := requests[key]
		if found && !said && sameQuantity(request, child(was, "limits")[key]) && sameQuantity(request, child(was, "requests")[key]) {
			requests[key] = limit
		}
	}
}

func sameQuantity(a, b any) bool {
	if a == nil || b == nil {
		return false
	}
	x, errX := resource.ParseQuantity(fmt.Sprint(a))
	y, errY := resource.ParseQuantity(fmt.Sprint(b))
	return errX == nil && errY == nil && x.Cmp(y) == 0
}

// clearComputed relies on the API server, which runs its own admission plugins again after a webhook changed a pod.
// These plugins refuse a pod with a computed field that differs from what they compute.
func clearComputed(was, patch, is map[string]any) {
	if text(was, "priorityClassName") != text(is, "priorityClassName") {
		delete(is, "priority")
		if _, said := patch["preemptionPolicy"]; !said {
			delete(is, "preemptionPolicy")
		}
	}
	if text(was, "runtimeClassName") != text(is, "runtimeClassName") {
		delete(is, "overhead")
	}
}

func isEmptyList(value any) bool {
	list, _ := value.([]any)
	return len(list) == 0
}

// child is an object inside an object, or nil.
func child(object map[string]any, name string) map[string]any {
	value, _ := object[name].(map[string]any)
	return value
}

// text is a string inside an object, or empty.
func text(object map[string]any, name string) string {
	value, _ := object[name].(string)
	return value
}

// elementOf is the object in a list that has the key, or nil.
func elementOf(list any, mergeKey string, key any) map[string]any {
	items, _ := list.([]any)
	for _, item := range items {
		if object, ok := item.(map[string]any); ok && key != nil && object[mergeKey] == key {
			return object
		}
	}
	return nil
}

// settle is a copy of a part of a patch, of type t, that the merge handles well. The merge copies parts that are new to
// the pod as they are, so settle follows or drops the directives in them. For an object to delete, the merge would
// leave an empty one.
func settle(patch, pod map[string]any, t reflect.Type) map[string]any {
	settled := make(map[string]any, len(patch))
	for key, value := range patch {
		if key == podspec.PatchDirective {
			if pod != nil {
				settled[key] = value
			}
			continue
		}
		var mergeKey string
		var of reflect.Type
		if t.Kind() == reflect.Struct {
			if f, found := podspec.Field(t, key); found {
				mergeKey, of = podspec.MergeKey(f), podspec.Element(f.Type)
			}
		}
		object, isObject := value.(map[string]any)
		list, isList := value.([]any)
		switch {
		case value == nil || isObject && object[podspec.PatchDirective] == podspec.DeleteIt:
			if pod != nil {
				settled[key] = nil
			}
		case isObject && of != nil:
			settled[key] = settle(object, child(pod, key), of)
		case isList && mergeKey != "":
			settled[key] = settleList(list, pod[key], podspec.Element(of.Elem()), mergeKey)
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
		switch object[podspec.PatchDirective] {
		case podspec.DeleteIt:
			deleted[object[mergeKey]] = true
		case podspec.ReplaceIt:
			replaces = true
		}
	}
	settled := []any{}
	for _, item := range patch {
		object, _ := item.(map[string]any)
		_, directed := object[podspec.PatchDirective]
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
