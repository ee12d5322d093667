package federation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/podspec"
	"github.com/berth-project/berth/pkg/sites"
	"github.com/berth-project/berth/pkg/subset"
)

// Values that hold where the spec says nothing.
const (
	defaultReplicas      = 1
	defaultUnschedulable = 60 * time.Second
	defaultRetry         = 300 * time.Second
)

// Compile turns a FederatedReplicaSet into a Policy, or returns every error in it. Paths begin with spec or metadata. The policy shares nothing with the object.
func Compile(frs *v1alpha1.FederatedReplicaSet) (*Policy, field.ErrorList) {
	spec, path := frs.Spec.DeepCopy(), field.NewPath("spec")
	p := &Policy{
		Namespace: frs.Namespace, Name: frs.Name, LabelSelector: spec.Selector,
		Replicas: ptr.Deref(spec.Replicas, defaultReplicas), MinReadySeconds: spec.MinReadySeconds,
		TakeOver:      frs.Annotations[v1alpha1.TakeOverAnnotation] == "true",
		Unschedulable: defaultUnschedulable, Retry: defaultRetry, Lost: sites.LostAfter,
	}
	errs := slices.Concat(subset.NotNegative(path.Child("replicas"), &p.Replicas), subset.NotNegative(path.Child("minReadySeconds"), &p.MinReadySeconds))
	selector, selectorErrs := subset.CompileSelector(spec.Selector, path.Child("selector"), "must select the pods by a label of the template")
	template, templateErrs := compileTemplate(spec.Template, path.Child("template"))
	preferences, at, preferenceErrs := preferencesOf(frs)
	errs = slices.Concat(errs, selectorErrs, templateErrs, preferenceErrs)
	if set, _, _ := unstructured.NestedStringMap(template, "metadata", "labels"); selector != nil && template != nil && !selector.Matches(labels.Set(set)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), field.OmitValueType{},
			fmt.Sprintf("must match spec.selector (%s); add the labels that it asks for", selector)))
	}
	p.Template, p.Rebalance = template, preferences.Rebalance
	clusters, clusterErrs := compileClusters(preferences.Clusters, at.Child("clusters"))
	p.Clusters = clusters
	errs = slices.Concat(errs, clusterErrs, compilePace(p, &spec.Pace, path.Child("pace")))
	if len(errs) > 0 {
		return nil, errs
	}
	return p, nil
}

// ValidateUpdate returns the changes that nobody may make.
func ValidateUpdate(frs, old *v1alpha1.FederatedReplicaSet) field.ErrorList {
	if old.Spec.Selector == nil || equality.Semantic.DeepEqual(frs.Spec.Selector, old.Spec.Selector) {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec", "selector"),
		"cannot be changed, because that of a ReplicaSet cannot; create another FederatedReplicaSet, and delete this one when its pods run")}
}

// compileTemplate returns nil if there is an error.
func compileTemplate(extension *runtime.RawExtension, path *field.Path) (map[string]any, field.ErrorList) {
	if extension == nil || len(bytes.TrimSpace(extension.Raw)) == 0 {
		return nil, field.ErrorList{field.Required(path, "must be the template of the pods")}
	}
	var template map[string]any
	if err := kjson.Unmarshal(extension.Raw, &template); err != nil {
		return nil, field.ErrorList{field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("must be an object: %v", err))}
	}
	errs := podspec.ValidateFields(template, reflect.TypeFor[corev1.PodTemplateSpec](), path)
	podSpec, _ := template["spec"].(map[string]any)
	if containers, _ := podSpec["containers"].([]any); len(containers) == 0 {
		errs = append(errs, field.Required(path.Child("spec", "containers"), "must be the containers of the pods"))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return template, nil
}

// preferencesOf are those of the spec or of the annotation, with their path.
func preferencesOf(frs *v1alpha1.FederatedReplicaSet) (v1alpha1.Preferences, *field.Path, field.ErrorList) {
	inSpec := field.NewPath("spec", "preferences")
	text, annotated := frs.Annotations[v1alpha1.PreferencesAnnotation]
	if !annotated {
		return ptr.Deref(frs.Spec.Preferences, v1alpha1.Preferences{}), inSpec, nil
	}
	path := field.NewPath("metadata", "annotations").Key(v1alpha1.PreferencesAnnotation)
	if frs.Spec.Preferences != nil {
		return *frs.Spec.Preferences, inSpec, field.ErrorList{field.Forbidden(path, "spec.preferences is given too; keep one of them")}
	}
	var preferences v1alpha1.Preferences
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&preferences)
	if err == nil && !json.Valid([]byte(text)) {
		err = errors.New("text after the object")
	}
	if err != nil {
		return v1alpha1.Preferences{}, path, field.ErrorList{field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("must be preferences as JSON: %v", err))}
	}
	return preferences, path, nil
}

// compileClusters returns all clusters with equal weights if there are none in the spec.
func compileClusters(spec map[string]v1alpha1.ClusterPreferences, path *field.Path) (map[string]bounds, field.ErrorList) {
	if spec == nil {
		return map[string]bounds{v1alpha1.AnyCluster: {Max: allocation.Unlimited, Weight: 1}}, nil
	}
	var errs field.ErrorList
	clusters := map[string]bounds{}
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		of, at := spec[name], path.Key(name)
		if name != v1alpha1.AnyCluster {
			for _, message := range validation.IsDNS1123Subdomain(name) {
				errs = append(errs, field.Invalid(at, name, message+`; it must be the name of a cluster, or "*" for all others`))
			}
		}
		bounds := bounds{Min: of.MinReplicas, Max: ptr.Deref(of.MaxReplicas, allocation.Unlimited), Weight: of.Weight}
		errs = slices.Concat(errs, subset.NotNegative(at.Child("minReplicas"), &bounds.Min), subset.NotNegative(at.Child("maxReplicas"), &bounds.Max), subset.NotNegative(at.Child("weight"), &bounds.Weight))
		if bounds.Max >= 0 && bounds.Min > bounds.Max {
			errs = append(errs, field.Invalid(at.Child("minReplicas"), bounds.Min, "must not be greater than maxReplicas"))
		}
		clusters[name] = bounds
	}
	return clusters, errs
}

func compilePace(p *Policy, pace *v1alpha1.Pace, path *field.Path) field.ErrorList {
	moving, errs := subset.CompileSurge(pace.MaxMoving, p.Replicas, "the new cluster", path.Child("maxMoving"))
	p.MaxMoving = moving
	for _, seconds := range []struct {
		into  *time.Duration
		value *int32
		least int32
		name  string
	}{{&p.Unschedulable, pace.UnschedulableSeconds, 0, "unschedulableSeconds"}, {&p.Retry, pace.RetrySeconds, 1, "retrySeconds"}, {&p.Lost, pace.LostSeconds, 0, "lostSeconds"}} {
		if seconds.value == nil {
			continue
		}
		*seconds.into = time.Duration(*seconds.value) * time.Second
		if *seconds.value < seconds.least {
			errs = append(errs, field.Invalid(path.Child(seconds.name), *seconds.value, fmt.Sprintf("must be at least %d", seconds.least)))
		}
	}
	return errs
}
