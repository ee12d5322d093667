package united

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/podspec"
	"github.com/berth-project/berth/pkg/sites"
	"github.com/berth-project/berth/pkg/subset"
)

// Values that hold where the spec says nothing.
const (
	defaultReplicas      = 1
	defaultHistory       = 10
	defaultCritical      = 30 * time.Second
	defaultUnschedulable = 300 * time.Second
)

// Names end up in labels of pods, whose values have at most 63 characters.
const (
	// hashLength is that of "-" and the hash at the end of the name of each child, and of each ControllerRevision of a UnitedDeployment.
	hashLength = 9
	// longestName of a UnitedDeployment leaves room for the hash: pods have the name of its ControllerRevision in a label.
	longestName = 63 - hashLength
	// longestNamed leaves room for "-" and a hash of 10: pods of a StatefulSet have the name of the StatefulSet's ControllerRevision in a label.
	longestNamed = 63 - 11
)

// templateKind is a field of v1beta1.SubsetTemplate.
type templateKind struct {
	field string
	of    func(*v1beta1.SubsetTemplate) *v1beta1.WorkloadTemplate
	kind  schema.GroupKind
	// spec is the type of the spec. Nil for a kind that Berth does not know.
	spec reflect.Type
	// named is true if pods have the name of the child in a label, and in their host name.
	named bool
	// reserves is true if pods that find no node can be kept as reservations.
	reserves bool
}

var templateKinds = []templateKind{
	{"statefulSetTemplate", func(t *v1beta1.SubsetTemplate) *v1beta1.WorkloadTemplate { return t.StatefulSetTemplate },
		StatefulSetKind, reflect.TypeFor[appsv1.StatefulSetSpec](), true, false},
	{"advancedStatefulSetTemplate", func(t *v1beta1.SubsetTemplate) *v1beta1.WorkloadTemplate { return t.AdvancedStatefulSetTemplate },
		AdvancedStatefulSetKind, nil, true, false},
	{"cloneSetTemplate", func(t *v1beta1.SubsetTemplate) *v1beta1.WorkloadTemplate { return t.CloneSetTemplate }, CloneSetKind, nil, false, true},
	{"deploymentTemplate", func(t *v1beta1.SubsetTemplate) *v1beta1.WorkloadTemplate { return t.DeploymentTemplate },
		DeploymentKind, reflect.TypeFor[appsv1.DeploymentSpec](), false, true},
}

var podTemplateType = reflect.TypeFor[corev1.PodTemplateSpec]()

// templatesOf are the kinds that a template has. A valid one has at most one.
func templatesOf(t *v1beta1.SubsetTemplate) []*templateKind {
	var given []*templateKind
	for i := range templateKinds {
		if k := &templateKinds[i]; k.of(t) != nil {
			given = append(given, k)
		}
	}
	return given
}

// Compile turns a UnitedDeployment into a Policy, or returns every error in it. Path is that of the spec. The policy shares nothing with the object.
//
// An empty template is valid here: the children stay as they are. See ValidateCreate.
func Compile(ud *v1beta1.UnitedDeployment, path *field.Path) (*Policy, field.ErrorList) {
	spec := ud.Spec.DeepCopy()
	policy := &Policy{
		Namespace: ud.Namespace, Name: ud.Name,
		Replicas:      ptr.Deref(spec.Replicas, defaultReplicas),
		LabelSelector: spec.Selector,
		Paused:        spec.UpdateStrategy.Paused,
		InOrder:       spec.UpdateStrategy.Order == v1beta1.InOrderRollout,
		History:       ptr.Deref(spec.RevisionHistoryLimit, defaultHistory),
	}
	errs := slices.Concat(subset.NotNegative(path.Child("replicas"), &policy.Replicas), subset.NotNegative(path.Child("revisionHistoryLimit"), &policy.History))
	selector, selectorErrs := compileSelector(spec.Selector, path.Child("selector"))
	template, podTemplate, templateErrs := compileTemplate(&spec.Template, path.Child("template"))
	policy.Template = template
	errs = slices.Concat(errs, selectorErrs, templateErrs)
	errs = append(errs, compileSubsets(policy, &spec.Topology, path.Child("topology", "subsets"))...)
	errs = append(errs, compileRegistry(policy, spec.Topology.ClusterRegistry, path.Child("topology"))...)
	errs = append(errs, compileStrategy(policy, spec, path.Child("topology"))...)
	errs = append(errs, compileUpdate(policy, &spec.UpdateStrategy, path.Child("updateStrategy"))...)
	if kinds := templatesOf(&spec.Template); len(kinds) == 1 {
		errs = append(errs, validateKind(ud.Name, spec.Topology.Subsets, kinds[0], path.Child("topology", "subsets"))...)
		at := path.Child("template", kinds[0].field, "spec", "template")
		errs = append(errs, validatePods(selector, podTemplate, at, spec.Topology.Subsets, path.Child("topology", "subsets"))...)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	policy.Warnings = warnings(policy, path)
	return policy, nil
}

// ValidateCreate returns what is wrong with a new UnitedDeployment besides the errors of Compile.
func ValidateCreate(ud *v1beta1.UnitedDeployment, path *field.Path) field.ErrorList {
	if len(templatesOf(&ud.Spec.Template)) > 0 {
		return nil
	}
	return field.ErrorList{field.Required(path.Child("template"), "needs one of statefulSetTemplate, advancedStatefulSetTemplate, cloneSetTemplate, deploymentTemplate")}
}

// ValidateUpdate returns the changes that nobody may make. Path is that of the spec.
func ValidateUpdate(ud, old *v1beta1.UnitedDeployment, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if _, wrong := compileSelector(old.Spec.Selector, nil); len(wrong) == 0 && !equality.Semantic.DeepEqual(ud.Spec.Selector, old.Spec.Selector) {
		errs = append(errs, field.Forbidden(path.Child("selector"),
			"cannot be changed, because the children have it, and theirs cannot be changed; create another UnitedDeployment, and delete this one when its pods run"))
	}
	was, is := templatesOf(&old.Spec.Template), templatesOf(&ud.Spec.Template)
	if len(was) == 1 && len(is) == 1 && was[0].kind != is[0].kind {
		errs = append(errs, field.Forbidden(path.Child("template"), fmt.Sprintf("cannot be changed from %s to %s in one step; "+
			"first apply an empty template (template: {}), which leaves the children alone, and then %s: its children become ready before the others go",
			was[0].field, is[0].field, is[0].field)))
	}
	before := map[string]*v1beta1.Subset{}
	for i := range old.Spec.Topology.Subsets {
		before[old.Spec.Topology.Subsets[i].Name] = &old.Spec.Topology.Subsets[i]
	}
	for i := range ud.Spec.Topology.Subsets {
		now, at := &ud.Spec.Topology.Subsets[i], path.Child("topology", "subsets").Index(i)
		then, known := before[now.Name]
		if !known {
			continue
		}
		const instead = "cannot be changed, because pods of the subset would be on nodes that it no longer means; add a subset with another name, and remove this one"
		if !equality.Semantic.DeepEqual(then.TargetCluster, now.TargetCluster) {
			errs = append(errs, field.Forbidden(at.Child("targetCluster"), instead))
		}
		if !equality.Semantic.DeepEqual(termOf(then), termOf(now)) {
			errs = append(errs, field.Forbidden(at.Child("nodeSelectorTerm"), instead))
		}
		if !equality.Semantic.DeepEqual(then.Tolerations, now.Tolerations) {
			errs = append(errs, field.Forbidden(at.Child("tolerations"), instead))
		}
	}
	return errs
}

// TemplateOf reads a template, for instance one in a ControllerRevision. It is nil for an empty one. Fields that Berth does not know are no error.
func TemplateOf(t *v1beta1.SubsetTemplate) (*Template, error) {
	template, _, errs := readTemplate(t, field.NewPath("template"))
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return template, nil
}

// compileSelector returns nil if there is an error.
func compileSelector(spec *metav1.LabelSelector, path *field.Path) (labels.Selector, field.ErrorList) {
	selector, errs := subset.CompileSelector(spec, path, "must select the pods of all children by a label of the pod template")
	if len(errs) > 0 {
		return nil, errs
	}
	requirements, _ := selector.Requirements()
	for i := range requirements {
		if key := requirements[i].Key(); key == v1beta1.RevisionLabel || key == v1beta1.ReservedPodLabel {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("Berth changes the label %s of pods; select by another label", key)))
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return selector, nil
}

// compileTemplate is readTemplate, and checks every field whose type Berth knows.
func compileTemplate(t *v1beta1.SubsetTemplate, path *field.Path) (template *Template, podTemplate map[string]any, errs field.ErrorList) {
	template, podTemplate, errs = readTemplate(t, path)
	if template == nil {
		return nil, nil, errs
	}
	k := templatesOf(t)[0]
	at := path.Child(k.field, "spec")
	if k.spec != nil {
		errs = append(errs, podspec.ValidateFields(template.Spec, k.spec, at)...)
	} else {
		errs = append(errs, podspec.ValidateFields(podTemplate, podTemplateType, at.Child("template"))...)
	}
	return template, podTemplate, errs
}

const mustBeObject = "must be an object"

// readTemplate reads a template, and the pod template in it. Both are nil for an empty one, and if there is an error.
func readTemplate(t *v1beta1.SubsetTemplate, path *field.Path) (template *Template, podTemplate map[string]any, errs field.ErrorList) {
	given := templatesOf(t)
	if len(given) == 0 {
		return nil, nil, nil
	}
	for _, k := range given[1:] {
		errs = append(errs, field.Forbidden(path.Child(k.field), fmt.Sprintf("children have one kind, and %s is given too; keep one", given[0].field)))
	}
	if len(errs) > 0 {
		return nil, nil, errs
	}
	of, at := given[0].of(t), path.Child(given[0].field)
	metadata, metadataErrs := podspec.Object(of.Metadata, at.Child("metadata"), mustBeObject)
	metadataErrs = append(metadataErrs, validateMetadata(metadata, at.Child("metadata"))...)
	spec, specErrs := podspec.Object(of.Spec, at.Child("spec"), mustBeObject)
	errs = slices.Concat(metadataErrs, specErrs)
	if len(specErrs) > 0 {
		return nil, nil, errs
	}
	podTemplate, _ = spec["template"].(map[string]any)
	podSpec, _ := podTemplate["spec"].(map[string]any)
	if containers, _ := podSpec["containers"].([]any); len(containers) == 0 {
		errs = append(errs, field.Required(at.Child("spec", "template", "spec", "containers"), "must be the containers of the pods"))
	}
	if len(errs) > 0 {
		return nil, nil, errs
	}
	return &Template{Kind: given[0].kind, Metadata: metadata, Spec: spec}, podTemplate, nil
}

// validateMetadata checks the labels and annotations of children.
func validateMetadata(metadata map[string]any, path *field.Path) field.ErrorList {
	known := map[string]any{}
	for _, name := range []string{"labels", "annotations"} {
		if value, given := metadata[name]; given {
			known[name] = value
		}
	}
	errs := podspec.ValidateFields(known, reflect.TypeFor[metav1.ObjectMeta](), path)
	if len(errs) > 0 {
		return errs
	}
	errs = podspec.ValidateLabels(stringsAt(metadata, "labels"), path.Child("labels"))
	for _, at := range []struct{ of, key string }{{"labels", v1beta1.SubsetNameLabel}, {"labels", v1beta1.RevisionLabel},
		{"labels", v1beta1.OwnerLabel}, {"labels", v1alpha1.HubLabel},
		{"annotations", v1beta1.SubsetPatchAnnotation}, {"annotations", v1beta1.TrialAnnotation}} {
		if _, given := stringsAt(metadata, at.of)[at.key]; given {
			errs = append(errs, field.Forbidden(path.Child(at.of).Key(at.key), writtenByBerth))
		}
	}
	return errs
}

const writtenByBerth = "Berth writes this key; remove it"

// stringsAt are the labels or annotations of metadata.
func stringsAt(metadata map[string]any, name string) map[string]string {
	object, _ := metadata[name].(map[string]any)
	values := make(map[string]string, len(object))
	for key, value := range object {
		values[key], _ = value.(string)
	}
	return values
}

// compileSubsets does so with errors too, so that others can be found.
func compileSubsets(policy *Policy, topology *v1beta1.Topology, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(topology.Subsets) == 0 {
		errs = append(errs, field.Required(path, "at least one subset"))
	}
	if len(topology.Subsets) > subset.MaxSubsets {
		errs = append(errs, field.TooMany(path, len(topology.Subsets), subset.MaxSubsets))
	}
	names := map[string]bool{}
	for i := range topology.Subsets {
		compiled, subsetErrs := compileSubset(&topology.Subsets[i], path.Index(i))
		errs = append(errs, subsetErrs...)
		if names[compiled.Name] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), compiled.Name))
		}
		names[compiled.Name] = true
		policy.Subsets = append(policy.Subsets, compiled)
	}
	return append(errs, validateReplicasTogether(policy.Subsets, path)...)
}

func compileSubset(spec *v1beta1.Subset, path *field.Path) (Subset, field.ErrorList) {
	var errs field.ErrorList
	compiled := Subset{Name: spec.Name, Term: termOf(spec), Tolerations: spec.Tolerations}
	errs = append(errs, podspec.Invalid(path.Child("name"), spec.Name, content.IsDNS1123Label(spec.Name))...)
	if compiled.Term != nil {
		_, termErrs := podspec.CompileTerm(compiled.Term, path.Child("nodeSelectorTerm"))
		errs = append(errs, termErrs...)
	}
	errs = append(errs, podspec.ValidateTolerations(spec.Tolerations, path.Child("tolerations"))...)
	if target, at := spec.TargetCluster, path.Child("targetCluster"); target != nil {
		compiled.Cluster, compiled.ClusterNamespace = target.Name, target.Namespace
		errs = append(errs, podspec.Invalid(at.Child("name"), target.Name, content.IsDNS1123Subdomain(target.Name))...)
		errs = append(errs, validateNamespace(target.Namespace, at.Child("namespace"))...)
	}
	for _, count := range []struct {
		into  *replicaCount
		value *intstr.IntOrString
		name  string
	}{{&compiled.Replicas, spec.Replicas, "replicas"}, {&compiled.Min, spec.MinReplicas, "minReplicas"}, {&compiled.Max, spec.MaxReplicas, "maxReplicas"}} {
		if count.value == nil {
			continue
		}
		number, isPercent, countErrs := subset.ParseLimit(count.value, path.Child(count.name))
		*count.into = replicaCount{IsSet: len(countErrs) == 0, IsPercent: isPercent, Value: number}
		errs = append(errs, countErrs...)
	}
	if least, most := compiled.Min, compiled.Max; least.IsSet && most.IsSet && least.IsPercent == most.IsPercent && least.Value > most.Value {
		errs = append(errs, field.Invalid(path.Child("minReplicas"), spec.MinReplicas.String(), "must not be greater than maxReplicas"))
	}
	patch, patchErrs := podspec.Object(spec.Patch, path.Child("patch"), mustBeObject)
	if len(patch) > 0 {
		compiled.PatchText = string(bytes.TrimSpace(spec.Patch.Raw))
		patchErrs = append(patchErrs, podspec.ValidatePatch(patch, podTemplateType, path.Child("patch"))...)
	}
	return compiled, append(errs, patchErrs...)
}

func validateNamespace(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return nil
	}
	return podspec.Invalid(path, name, content.IsDNS1123Label(name))
}

// Clusters of a federation are objects of this kind.
const (
	clusterGroup = "multicluster.x-k8s.io"
	clusterKind  = "ClusterProfile"
)

// compileRegistry follows compileSubsets. Path is that of the topology.
func compileRegistry(policy *Policy, registry *v1beta1.ClusterRegistryQuery, path *field.Path) (errs field.ErrorList) {
	if registry == nil {
		return nil
	}
	path, subsets := path.Child("clusterRegistry"), path.Child("subsets")
	policy.ClusterNamespaces, policy.ClusterSelector = registry.Namespaces, registry.Selector
	for i, name := range registry.Namespaces {
		errs = append(errs, validateNamespace(name, path.Child("namespaces").Index(i))...)
	}
	errs = append(errs, podspec.ValidateLabels(registry.Selector, path.Child("selector"))...)
	at, kind := path.Child("clusterType"), registry.ClusterType
	if kind.Kind != "" && kind.Kind != clusterKind {
		errs = append(errs, field.NotSupported(at.Child("kind"), kind.Kind, []string{clusterKind}))
	}
	if group, _, _ := strings.Cut(kind.APIVersion, "/"); kind.APIVersion != "" && group != clusterGroup {
		errs = append(errs, field.Invalid(at.Child("apiVersion"), kind.APIVersion, "clusters are ClusterProfiles of the group multicluster.x-k8s.io; leave clusterType out"))
	}
	for i := range policy.Subsets {
		if name := policy.Subsets[i].ClusterNamespace; name != "" && len(registry.Namespaces) > 0 && !slices.Contains(registry.Namespaces, name) {
			errs = append(errs, field.Invalid(subsets.Index(i).Child("targetCluster", "namespace"), name,
				"clusterRegistry.namespaces does not have it; add it there, or leave it out here"))
		}
	}
	return errs
}

// termOf is nil for a term without requirements. Clients that know the field as a struct write such a term for every subset that has none.
func termOf(spec *v1beta1.Subset) *corev1.NodeSelectorTerm {
	if t := spec.NodeSelectorTerm; t != nil && len(t.MatchExpressions)+len(t.MatchFields) > 0 {
		return t
	}
	return nil
}

// validateReplicasTogether refuses two ways of dividing in one topology, and percentages that are too many.
func validateReplicasTogether(subsets []Subset, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	sum := int32(0)
	bounded := slices.IndexFunc(subsets, func(s Subset) bool { return s.Min.IsSet || s.Max.IsSet })
	for i := range subsets {
		specified := subsets[i].Replicas
		if specified.IsSet && bounded >= 0 {
			errs = append(errs, field.Forbidden(path.Index(i).Child("replicas"),
				fmt.Sprintf("excludes minReplicas and maxReplicas in all subsets, and subset %s has one; use either replicas or the others", subsets[bounded].Name)))
		}
		if specified.IsPercent {
			sum += specified.Value
		}
	}
	if sum > 100 {
		errs = append(errs, field.Invalid(path, fmt.Sprintf("%d%%", sum), "percentages of the subsets must not add up to more than 100%"))
	}
	return errs
}

func compileStrategy(policy *Policy, spec *v1beta1.UnitedDeploymentSpec, path *field.Path) field.ErrorList {
	strategy := &spec.Topology.ScheduleStrategy
	errs := subset.OneOf(path.Child("scheduleStrategy", "type"), cmp.Or(strategy.Type, v1beta1.FixedScheduleStrategy), v1beta1.FixedScheduleStrategy, v1beta1.AdaptiveScheduleStrategy)
	isAdaptive, at := strategy.Type == v1beta1.AdaptiveScheduleStrategy, path.Child("scheduleStrategy", "adaptive")
	if isAdaptive {
		policy.Adaptive = &adaptive{Critical: defaultCritical, Unschedulable: defaultUnschedulable, Lost: sites.LostAfter}
		for i := range policy.Subsets {
			if policy.Subsets[i].Replicas.IsSet {
				errs = append(errs, field.Forbidden(path.Child("subsets").Index(i).Child("replicas"),
					"with type: Adaptive subsets take over from each other; use minReplicas and maxReplicas"))
			}
		}
	}
	adaptive := strategy.Adaptive
	if adaptive == nil {
		return errs
	}
	if !isAdaptive {
		return append(errs, field.Forbidden(at, "adaptive is only used with type: Adaptive; set the type or remove adaptive"))
	}
	errs = append(errs, compileSeconds(&policy.Adaptive.Critical, adaptive.RescheduleCriticalSeconds, at.Child("rescheduleCriticalSeconds"))...)
	errs = append(errs, compileSeconds(&policy.Adaptive.Unschedulable, adaptive.UnschedulableDuration, at.Child("unschedulableDuration"))...)
	errs = append(errs, compileSeconds(&policy.Adaptive.Unschedulable, adaptive.UnschedulableLastSeconds, at.Child("unschedulableLastSeconds"))...)
	errs = append(errs, compileSeconds(&policy.Adaptive.Lost, adaptive.LostSeconds, at.Child("lostSeconds"))...)
	if adaptive.UnschedulableDuration != nil && adaptive.UnschedulableLastSeconds != nil {
		errs = append(errs, field.Forbidden(at.Child("unschedulableLastSeconds"), "is another name of unschedulableDuration, which is given too; keep one"))
	}
	policy.Adaptive.Reserve = adaptive.ReserveUnschedulablePods
	if adaptive.ReserveUnschedulablePods && len(policy.Clusters()) > 0 {
		errs = append(errs, field.Forbidden(at.Child("reserveUnschedulablePods"), "excludes targetCluster in all subsets: reservations are labels of pods, and the hub writes no pods in other clusters"))
	}
	if kinds := templatesOf(&spec.Template); adaptive.ReserveUnschedulablePods && len(kinds) == 1 && !kinds[0].reserves {
		errs = append(errs, field.Forbidden(at.Child("reserveUnschedulablePods"), fmt.Sprintf("needs deploymentTemplate or cloneSetTemplate, and the template is %s: "+
			"a StatefulSet cannot have a pod in the place of one that waits", kinds[0].field)))
	}
	return errs
}

func compileSeconds(into *time.Duration, seconds *int32, path *field.Path) field.ErrorList {
	if seconds == nil {
		return nil
	}
	*into = time.Duration(*seconds) * time.Second
	return subset.NotNegative(path, seconds)
}

func compileUpdate(policy *Policy, strategy *v1beta1.UpdateStrategy, path *field.Path) field.ErrorList {
	errs := subset.OneOf(path.Child("type"), cmp.Or(strategy.Type, v1beta1.ManualUpdateStrategyType), v1beta1.ManualUpdateStrategyType)
	errs = append(errs, subset.OneOf(path.Child("order"), cmp.Or(strategy.Order, v1beta1.ParallelRollout), v1beta1.ParallelRollout, v1beta1.InOrderRollout)...)
	surge, surgeErrs := subset.CompileSurge(strategy.MaxSurge, policy.Replicas, "their new place", path.Child("maxSurge"))
	policy.Surge = surge
	errs = append(errs, surgeErrs...)
	if strategy.ManualUpdate == nil {
		return errs
	}
	for _, name := range slices.Sorted(maps.Keys(strategy.ManualUpdate.Partitions)) {
		at, partition := path.Child("manualUpdate", "partitions").Key(name), strategy.ManualUpdate.Partitions[name]
		errs = append(errs, subset.NotNegative(at, &partition)...)
		i := slices.IndexFunc(policy.Subsets, func(s Subset) bool { return s.Name == name })
		if i < 0 {
			errs = append(errs, field.Invalid(at, name, "is not the name of a subset; correct or remove it"))
			continue
		}
		policy.Subsets[i].Partition = partition
	}
	return errs
}

// validateKind holds that the names of the UnitedDeployment, the children, and what is named after them are valid for the kind of the children, and that the hub may write that in other clusters.
func validateKind(ud string, subsets []v1beta1.Subset, k *templateKind, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	name := field.NewPath("metadata", "name")
	if len(ud) > longestName {
		errs = append(errs, field.Invalid(name, ud, fmt.Sprintf("has %d characters and may have at most %d: pods have it in the label %s, with a hash", len(ud), longestName, v1beta1.RevisionLabel)))
	}
	if k.named && strings.Contains(ud, ".") {
		errs = append(errs, field.Invalid(name, ud, "must have no dot: host names of the pods of a StatefulSet begin with it"))
	}
	for i := range subsets {
		if subsets[i].TargetCluster != nil && k.spec == nil {
			errs = append(errs, field.Forbidden(path.Index(i).Child("targetCluster"),
				fmt.Sprintf("needs deploymentTemplate or statefulSetTemplate, and the template is %s: the hub has no rights for the kinds of OpenKruise in other clusters", k.field)))
		}
		child := ud + "-" + subsets[i].Name
		if length := len(child) + hashLength; k.named && length > longestNamed {
			errs = append(errs, field.Invalid(path.Index(i).Child("name"), subsets[i].Name, fmt.Sprintf("the name of the child, %s-xxxxxxxx, has %d characters and may have at most %d: "+
				"pods of a StatefulSet have it in a label, with a hash; use a shorter name here or for the UnitedDeployment", child, length, longestNamed)))
		}
	}
	return errs
}

// validatePods checks the pod template of each subset. Selector and template are nil if they have errors of their own.
func validatePods(selector labels.Selector, template map[string]any, templatePath *field.Path, subsets []v1beta1.Subset, path *field.Path) field.ErrorList {
	if template == nil {
		return nil
	}
	errs := validatePodLabels(labelsOf(template), "", templatePath.Child("metadata", "labels"))
	// What is wrong without a patch is said of the template, and is not the patch's fault.
	isValid := len(errs) == 0 && len(podspec.ValidateFields(template, podTemplateType, nil)) == 0
	selects := func(template map[string]any, name string) bool {
		return selector == nil || selector.Matches(withSubset(labelsOf(template), name))
	}
	mismatched := false
	for i := range subsets {
		spec, at := &subsets[i], path.Index(i).Child("patch")
		patch, _ := podspec.Object(spec.Patch, at, mustBeObject)
		if len(patch) == 0 {
			mismatched = mismatched || !selects(template, spec.Name)
			continue
		}
		if !isValid || len(podspec.ValidatePatch(patch, podTemplateType, at)) > 0 {
			continue // compileTemplate or compileSubset says so
		}
		patched, err := patchTemplate(template, patch)
		if err != nil {
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, fmt.Sprintf("on the pod template: %v", err)))
			continue
		}
		errs = append(errs, validatePatched(patched, spec.Name, at)...)
		switch {
		case selects(patched, spec.Name):
		case selects(template, spec.Name):
			errs = append(errs, field.Forbidden(at.Child("metadata", "labels"), "spec.selector would no longer select the pods of the subset; leave the labels that it names alone"))
		default:
			mismatched = true
		}
	}
	if mismatched {
		errs = append(errs, field.Invalid(templatePath.Child("metadata", "labels"), field.OmitValueType{},
			fmt.Sprintf("must match spec.selector (%s); add the labels that it asks for", selector)))
	}
	return errs
}

// patchTemplate returns a copy of a pod template, as decoded from JSON, with a strategic merge patch.
func patchTemplate(template, patch map[string]any) (map[string]any, error) {
	return strategicpatch.StrategicMergeMapPatch(runtime.DeepCopyJSON(template), runtime.DeepCopyJSON(patch), corev1.PodTemplateSpec{})
}

// validatePatched checks a pod template with a patch. Without the patch nothing is wrong with it.
func validatePatched(patched map[string]any, name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, err := range podspec.ValidateFields(patched, podTemplateType, nil) {
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("on the pod template: %v", err)))
	}
	podSpec, _ := patched["spec"].(map[string]any)
	if containers, _ := podSpec["containers"].([]any); len(containers) == 0 {
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, "on the pod template: no container would be left; keep one"))
	}
	return append(errs, validatePodLabels(labelsOf(patched), name, path.Child("metadata", "labels"))...)
}

// validatePodLabels checks the labels of a pod template of a subset, or of all subsets if the name is empty.
func validatePodLabels(set map[string]string, name string, path *field.Path) field.ErrorList {
	errs := podspec.ValidateLabels(set, path)
	for _, key := range []string{v1beta1.SubsetNameLabel, v1beta1.RevisionLabel, v1beta1.ReservedPodLabel, v1beta1.OwnerLabel, v1alpha1.HubLabel} {
		if value, given := set[key]; given && (key != v1beta1.SubsetNameLabel || value != name) {
			errs = append(errs, field.Forbidden(path.Key(key), writtenByBerth))
		}
	}
	return errs
}

func labelsOf(template map[string]any) map[string]string {
	metadata, _ := template["metadata"].(map[string]any)
	return stringsAt(metadata, "labels")
}

// withSubset are labels with the one that Berth adds.
func withSubset(set map[string]string, name string) labels.Set {
	all := labels.Set{}
	maps.Copy(all, set)
	all[v1beta1.SubsetNameLabel] = name
	return all
}
