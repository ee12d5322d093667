package sidecar

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// defaultHistory is how many old ControllerRevisions are kept if the spec says nothing.
const defaultHistory = 10

// Compile turns a SidecarSet into a Policy, or returns every error in it. Paths begin with spec. The policy shares
// nothing with the object.
//
// It does not check the fields of containers and volumes: the API server does that for a pod. See Sample.
func Compile(set *v1beta1.SidecarSet) (*Policy, field.ErrorList) {
	spec, path := set.Spec.DeepCopy(), field.NewPath("spec")
	p := &Policy{
		Name: set.Name, Namespace: spec.Namespace, InjectionPaused: spec.InjectionStrategy.Paused, Revision: spec.InjectionStrategy.Revision,
		History: ptr.Deref(spec.RevisionHistoryLimit, defaultHistory),
	}
	var errs field.ErrorList
	if spec.Selector == nil || len(spec.Selector.MatchLabels)+len(spec.Selector.MatchExpressions) == 0 {
		errs = append(errs, field.Required(path.Child("selector"), "an empty selector would pick every pod; select by a label"))
	}
	p.Selector = compileSelector(spec.Selector, path.Child("selector"), &errs)
	p.Namespaces = compileSelector(spec.NamespaceSelector, path.Child("namespaceSelector"), &errs)
	if spec.Namespace != "" && spec.NamespaceSelector != nil {
		errs = append(errs, field.Forbidden(path.Child("namespaceSelector"), "excludes namespace; keep one"))
	}
	if messages := validation.IsDNS1123Label(spec.Namespace); spec.Namespace != "" && len(messages) > 0 {
		errs = append(errs, field.Invalid(path.Child("namespace"), spec.Namespace, messages[0]))
	}
	content, contentErrs := compileContent(spec, path)
	p.Content = content
	errs = append(errs, contentErrs...)
	errs = append(errs, compileRevision(spec.InjectionStrategy.Revision, path.Child("injectionStrategy", "revision"))...)
	errs = append(errs, compileUpdate(p, &spec.UpdateStrategy, path.Child("updateStrategy"))...)
	if len(errs) > 0 {
		return nil, errs
	}
	return p, nil
}

// ValidateUpdate returns the changes that nobody may make.
func ValidateUpdate(policy, old *Policy) (errs field.ErrorList) {
	if old == nil {
		return nil
	}
	was := map[string]bool{}
	for i := range old.Containers {
		was[old.Containers[i].Name] = isHot(&old.Containers[i])
	}
	for i := range policy.Containers {
		c := &policy.Containers[i]
		if hot, existed := was[c.Name]; existed && hot != isHot(c) {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "containers").Index(i).Child("upgradeStrategy", "upgradeType"),
				"cannot be changed, because pods have one container or two; give the sidecar another name"))
		}
	}
	return errs
}

func compileSelector(of *metav1.LabelSelector, path *field.Path, errs *field.ErrorList) labels.Selector {
	if of == nil {
		return labels.Everything()
	}
	*errs = append(*errs, metav1validation.ValidateLabelSelector(of, metav1validation.LabelSelectorValidationOptions{}, path)...)
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil { // is among the errors already
		return labels.Nothing()
	}
	return selector
}

func compileContent(spec *v1beta1.SidecarSetSpec, path *field.Path) (Content, field.ErrorList) {
	content := Content{ImagePullSecrets: spec.ImagePullSecrets, Metadata: spec.PatchPodMetadata}
	var errs field.ErrorList
	if len(spec.Containers)+len(spec.InitContainers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), "a SidecarSet needs a container in containers or initContainers"))
	}
	names := map[string]bool{}
	content.InitContainers = decodeAll[v1beta1.SidecarContainer](spec.InitContainers, path.Child("initContainers"), &errs)
	content.Containers = decodeAll[v1beta1.SidecarContainer](spec.Containers, path.Child("containers"), &errs)
	content.Volumes = decodeAll[corev1.Volume](spec.Volumes, path.Child("volumes"), &errs)
	for i := range content.InitContainers {
		c, at := &content.InitContainers[i], path.Child("initContainers").Index(i)
		errs = append(errs, validateContainer(c, names, at)...)
		if isHot(c) {
			errs = append(errs, field.Forbidden(at.Child("upgradeStrategy", "upgradeType"), "only containers have hot upgrade; move it there, or use ColdUpgrade"))
		}
		if c.PodInjectPolicy != "" {
			errs = append(errs, field.Forbidden(at.Child("podInjectPolicy"), "initContainers come after those of the pod, sorted by name; remove it"))
		}
	}
	for i := range content.Containers {
		errs = append(errs, validateContainer(&content.Containers[i], names, path.Child("containers").Index(i))...)
	}
	for i := range content.Metadata {
		errs = append(errs, validateMetadata(&content.Metadata[i], path.Child("patchPodMetadata").Index(i))...)
	}
	content.sum()
	return content, errs
}

// decodeAll decodes items one by one, so that a bad one is an error with a path.
func decodeAll[T any](items []runtime.RawExtension, path *field.Path, errs *field.ErrorList) []T {
	all := make([]T, len(items))
	for i := range items {
		strict, err := kjson.UnmarshalStrict(items[i].Raw, &all[i])
		if err != nil {
			*errs = append(*errs, field.Invalid(path.Index(i), field.OmitValueType{}, "cannot be decoded: "+err.Error()))
		}
		for _, e := range strict {
			*errs = append(*errs, field.Invalid(path.Index(i), field.OmitValueType{}, e.Error()))
		}
	}
	return all
}

func validateContainer(c *v1beta1.SidecarContainer, names map[string]bool, path *field.Path) (errs field.ErrorList) {
	for _, name := range podNames(c) {
		if names[name] {
			errs = append(errs, field.Duplicate(path.Child("name"), name))
		}
		names[name] = true
	}
	if !slices.Contains([]v1beta1.PodInjectPolicy{"", v1beta1.BeforeAppContainer, v1beta1.AfterAppContainer}, c.PodInjectPolicy) {
		errs = append(errs, field.NotSupported(path.Child("podInjectPolicy"), c.PodInjectPolicy, []v1beta1.PodInjectPolicy{v1beta1.BeforeAppContainer, v1beta1.AfterAppContainer}))
	}
	for name, share := range map[string]v1beta1.SharePolicy{"shareVolumePolicy": c.ShareVolumePolicy, "shareVolumeDevicePolicy": c.ShareVolumeDevicePolicy} {
		if !slices.Contains([]v1beta1.SharePolicyType{"", v1beta1.ShareEnabled, v1beta1.ShareDisabled}, share.Type) {
			errs = append(errs, field.NotSupported(path.Child(name, "type"), share.Type, []v1beta1.SharePolicyType{v1beta1.ShareEnabled, v1beta1.ShareDisabled}))
		}
	}
	at := path.Child("upgradeStrategy")
	switch empty := c.UpgradeStrategy.HotUpgradeEmptyImage; c.UpgradeStrategy.UpgradeType {
	case v1beta1.HotUpgrade:
		switch empty {
		case "":
			errs = append(errs, field.Required(at.Child("hotUpgradeEmptyImage"), "the container that does not work needs an image"))
		case c.Image:
			errs = append(errs, field.Invalid(at.Child("hotUpgradeEmptyImage"), empty, "must not be the image of the sidecar"))
		}
	case "", v1beta1.ColdUpgrade:
		if empty != "" {
			errs = append(errs, field.Forbidden(at.Child("hotUpgradeEmptyImage"), "is only used with upgradeType: HotUpgrade; set the type or remove the image"))
		}
	default:
		errs = append(errs, field.NotSupported(at.Child("upgradeType"), c.UpgradeStrategy.UpgradeType, []v1beta1.UpgradeType{v1beta1.ColdUpgrade, v1beta1.HotUpgrade}))
	}
	for i := range c.TransferEnv {
		errs = append(errs, validateTransfer(&c.TransferEnv[i], path.Child("transferEnv").Index(i))...)
	}
	return errs
}

func validateTransfer(t *v1beta1.TransferEnv, path *field.Path) (errs field.ErrorList) {
	if t.EnvName == "" && len(t.EnvNames) == 0 {
		errs = append(errs, field.Required(path.Child("envName"), "name a variable here or in envNames"))
	}
	switch from := t.SourceContainerNameFrom; {
	case from == nil && t.SourceContainerName == "":
		errs = append(errs, field.Required(path.Child("sourceContainerName"), "name a container here or by sourceContainerNameFrom"))
	case from != nil && from.FieldRef == nil:
		errs = append(errs, field.Required(path.Child("sourceContainerNameFrom", "fieldRef"), "name a label or annotation of the pod"))
	case from != nil:
		if _, _, ok := fieldOf(from.FieldRef.FieldPath); !ok {
			errs = append(errs, field.Invalid(path.Child("sourceContainerNameFrom", "fieldRef", "fieldPath"), from.FieldRef.FieldPath,
				"must be metadata.labels['KEY'] or metadata.annotations['KEY']"))
		}
	}
	return errs
}

// fieldOf splits metadata.labels['KEY'] into labels and KEY.
func fieldOf(path string) (of, key string, ok bool) {
	for _, of := range []string{"labels", "annotations"} {
		if rest, found := strings.CutPrefix(path, "metadata."+of+"['"); found {
			key, ok := strings.CutSuffix(rest, "']")
			return of, key, ok && key != ""
		}
	}
	return "", "", false
}

func validateMetadata(m *v1beta1.PatchPodMetadata, path *field.Path) (errs field.ErrorList) {
	if len(m.Annotations) == 0 {
		errs = append(errs, field.Required(path.Child("annotations"), "give an annotation, or remove the entry"))
	}
	for key, value := range m.Annotations {
		at := path.Child("annotations").Key(key)
		for _, message := range validation.IsQualifiedName(strings.ToLower(key)) {
			errs = append(errs, field.Invalid(at, key, message))
		}
		if slices.Contains(reserved, key) || strings.HasPrefix(key, v1beta1.VersionAnnotationPrefix) || strings.HasPrefix(key, v1beta1.VersionAltAnnotationPrefix) {
			errs = append(errs, field.Forbidden(at, "Berth writes this annotation itself"))
		}
		if object := (map[string]any{}); m.PatchPolicy == v1beta1.MergePatchJSONPolicy && json.Unmarshal([]byte(value), &object) != nil {
			errs = append(errs, field.Invalid(at, value, "must be a JSON object with policy MergePatchJson"))
		}
	}
	return errs
}

// reserved are the annotations that only Berth writes.
var reserved = []string{
	v1beta1.HashAnnotation, v1beta1.InjectedListAnnotation, v1beta1.InPlaceStateAnnotation, v1beta1.GivenAnnotation,
	v1beta1.WorkingContainerAnnotation,
}

func compileRevision(r *v1beta1.InjectionRevision, path *field.Path) field.ErrorList {
	switch {
	case r == nil:
		return nil
	case ptr.Deref(r.RevisionName, "") == "" && ptr.Deref(r.CustomVersion, "") == "":
		return field.ErrorList{field.Required(path.Child("revisionName"), "name a ControllerRevision here, or a version by customVersion")}
	case r.RevisionName != nil && r.CustomVersion != nil:
		return field.ErrorList{field.Forbidden(path.Child("customVersion"), "excludes revisionName; keep one")}
	}
	return nil
}

func compileUpdate(p *Policy, u *v1beta1.UpdateStrategy, path *field.Path) (errs field.ErrorList) {
	p.Rolling, p.Paused, p.Scatter = u.Type != v1beta1.NotUpdateType, u.Paused, u.ScatterStrategy
	p.UpdateSelector = compileSelector(u.Selector, path.Child("selector"), &errs)
	p.Partition = ptr.Deref(u.Partition, intstr.FromInt32(0))
	p.MaxUnavailable = ptr.Deref(u.MaxUnavailable, intstr.FromInt32(1))
	for name, value := range map[string]intstr.IntOrString{"partition": p.Partition, "maxUnavailable": p.MaxUnavailable} {
		if n, err := intstr.GetScaledValueFromIntOrPercent(&value, 100, true); err != nil || n < 0 || value.Type == intstr.String && n > 100 {
			errs = append(errs, field.Invalid(path.Child(name), value.String(), "must be a count, or a percentage from 0% to 100%"))
		} else if n == 0 && name == "maxUnavailable" {
			errs = append(errs, field.Invalid(path.Child(name), value.String(), "must be above 0, because an update makes a pod unavailable"))
		}
	}
	if u.Partition != nil && u.Selector != nil {
		errs = append(errs, field.Forbidden(path.Child("partition"), "excludes selector; keep one"))
	}
	for i, term := range u.ScatterStrategy {
		if term.Key == "" {
			errs = append(errs, field.Required(path.Child("scatterStrategy").Index(i).Child("key"), "name a label"))
		}
	}
	p.Priority = compilePriority(u.PriorityStrategy, path.Child("priorityStrategy"), &errs)
	return errs
}

// compilePriority returns the place of a pod: a lower level comes first, and within a level a higher order.
func compilePriority(s *v1beta1.PriorityStrategy, path *field.Path, errs *field.ErrorList) func(labels.Set) (int, int64) {
	if s == nil {
		return func(labels.Set) (int, int64) { return 0, 0 }
	}
	if len(s.OrderPriority) > 0 && len(s.WeightPriority) > 0 {
		*errs = append(*errs, field.Forbidden(path.Child("orderPriority"), "excludes weightPriority; keep one"))
	}
	selectors := make([]labels.Selector, len(s.WeightPriority))
	for i := range s.WeightPriority {
		selectors[i] = compileSelector(&s.WeightPriority[i].MatchSelector, path.Child("weightPriority").Index(i).Child("matchSelector"), errs)
	}
	return func(pod labels.Set) (int, int64) {
		var weight int64
		for i, selector := range selectors {
			if selector.Matches(pod) {
				weight += int64(s.WeightPriority[i].Weight)
			}
		}
		for i := range s.OrderPriority {
			if value, has := pod[s.OrderPriority[i].OrderedKey]; has {
				return i, numberAtEnd(value)
			}
		}
		return len(s.OrderPriority), weight
	}
}

// numberAtEnd is 10 of "sts-10", and 0 without a number.
func numberAtEnd(of string) int64 {
	digits := of[strings.LastIndexFunc(of, func(r rune) bool { return r < '0' || r > '9' })+1:]
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}

// sum computes the hashes.
func (c *Content) sum() {
	type part struct {
		Containers []v1beta1.SidecarContainer
		Metadata   []v1beta1.PatchPodMetadata `json:",omitempty"`
	}
	hash := func(of part, forget func(*corev1.Container)) string {
		for _, container := range c.running() {
			kept := container.DeepCopy()
			forget(&kept.Container)
			of.Containers = append(of.Containers, *kept)
		}
		return hashOf(of)[:32]
	}
	c.Hash = hash(part{Metadata: c.Metadata}, func(*corev1.Container) {})
	c.Fixed = hash(part{}, func(container *corev1.Container) {
		container.Image, container.Resources = "", corev1.ResourceRequirements{}
	})
	rest := Content{Volumes: c.Volumes, ImagePullSecrets: c.ImagePullSecrets}
	for i := range c.InitContainers {
		if !isNative(&c.InitContainers[i].Container) {
			rest.InitContainers = append(rest.InitContainers, c.InitContainers[i])
		}
	}
	c.Rest = hashOf(rest)[:32]
}

// Whole is a hash of the whole content, in hexadecimal digits.
func (c *Content) Whole() string { return hashOf(c) }

func hashOf(part any) string {
	text, err := json.Marshal(part)
	if err != nil { // it was decoded from JSON
		panic(fmt.Sprintf("encoding the content: %v", err))
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// ContentIn decodes the data of a ControllerRevision.
func ContentIn(data []byte) (*Content, error) {
	content := &Content{}
	if err := json.Unmarshal(data, content); err != nil {
		return nil, fmt.Errorf("decoding a version of a SidecarSet: %w", err)
	}
	content.sum()
	return content, nil
}
