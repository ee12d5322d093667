package united

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// ChildName is the name of a new child. It is the same whenever it is computed, so that a creation whose answer was lost is not made twice. UnitedDeployments of
// the same name, one after the other, have children of different names.
func ChildName(ud, subset string, uid types.UID, kind schema.GroupKind) string {
	return ud + "-" + subset + "-" + hashOf(string(uid), subset, kind.String())
}

func hashOf(parts ...string) string {
	hash := fnv.New32a()
	for _, part := range parts {
		hash.Write([]byte(part))
		hash.Write([]byte{0})
	}
	return rand.SafeEncodeString(fmt.Sprintf("%08x", hash.Sum32()))
}

// revision is the content of a ControllerRevision.
type revision struct {
	Spec struct {
		Template v1beta1.SubsetTemplate `json:"template"`
	} `json:"spec"`
}

// RevisionOf is the data of the ControllerRevision of a template, and the end of its name, after that of the UnitedDeployment and a dash. The same template
// gives the same data, in whatever order its fields are written.
func RevisionOf(t *v1beta1.SubsetTemplate, collisions int32) (data []byte, hash string, _ error) {
	var r revision
	r.Spec.Template = *t
	written, err := json.Marshal(r)
	if err != nil {
		return nil, "", fmt.Errorf("writing the template: %w", err)
	}
	var content map[string]any
	if err := kjson.Unmarshal(written, &content); err != nil {
		return nil, "", fmt.Errorf("reading the template: %w", err)
	}
	if data, err = json.Marshal(content); err != nil {
		return nil, "", err
	}
	if collisions == 0 {
		return data, hashOf(string(data)), nil
	}
	return data, hashOf(string(data), fmt.Sprint(collisions)), nil
}

// SameTemplate is true if the data of two ControllerRevisions have the same template. Empty fields do not count, and neither does the directive that OpenKruise writes into its own.
func SameTemplate(a, b []byte) bool {
	one, err := templateFields(a)
	other, err2 := templateFields(b)
	return err == nil && err2 == nil && equality.Semantic.DeepEqual(one, other)
}

func templateFields(data []byte) (any, error) {
	var content map[string]any
	if err := kjson.Unmarshal(data, &content); err != nil {
		return nil, err
	}
	template, _, err := unstructured.NestedMap(content, "spec", "template")
	delete(template, "$patch")
	return withoutNulls(template), err
}

// withoutNulls drops the fields of objects that are null, as the creation time of a template that a Go program has written.
func withoutNulls(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, field := range v {
			if field == nil {
				delete(v, key)
				continue
			}
			withoutNulls(field)
		}
	case []any:
		for i := range v {
			withoutNulls(v[i])
		}
	}
	return value
}

// TemplateIn is the template in the data of a ControllerRevision.
func TemplateIn(data []byte) (*Template, error) {
	var r revision
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("reading a ControllerRevision: %w", err)
	}
	return TemplateOf(&r.Spec.Template)
}

// hasPartition is true for a kind whose objects can keep some replicas on the previous template.
func hasPartition(kind schema.GroupKind) bool { return kind != DeploymentKind }

// flatCloneSets is the version of CloneSets that have the partition in the update strategy itself. All versions of OpenKruise serve it.
const flatCloneSets = "apps.kruise.io/v1alpha1"

// versionOf is the version that a child is written in. That of a CloneSet is the one whose update strategy its template has.
func (t *Template) versionOf(preferred string) string {
	strategy := at(t.Spec, "updateStrategy")
	_, rolling := strategy["rollingUpdate"]
	if t.Kind != CloneSetKind || rolling || strategy["type"] == "RollingUpdate" || strategy["type"] == "OnDelete" {
		return preferred
	}
	return flatCloneSets
}

// Render is a child as it is applied. The template is that of the revision. The child gets the patch of its subset or, if it is held, the patch that it has. Fields
// that are not in the result belong to whoever set them. In another cluster, labels say whose it is. preferred is the version of the kind that the cluster prefers.
func (p *Policy) Render(w Wanted, t *Template, revision, preferred string, owner *v1beta1.UnitedDeployment) (map[string]any, error) {
	s, apiVersion := &p.Subsets[w.Subset], t.versionOf(preferred)
	name, patch := ChildName(p.Name, s.Name, owner.UID, t.Kind), s.PatchText
	if w.Child != nil {
		name = w.Child.Name
		if w.Held {
			patch = w.Child.PatchText
		}
	}
	spec := runtime.DeepCopyJSON(t.Spec)
	podLabels := map[string]string{v1beta1.SubsetNameLabel: s.Name, v1beta1.RevisionLabel: revision}
	labels := stringsAt(t.Metadata, "labels")
	maps.Copy(labels, p.LabelSelector.MatchLabels)
	maps.Copy(labels, podLabels)
	if s.Cluster != "" {
		labels[v1beta1.OwnerLabel], labels[v1alpha1.HubLabel] = string(owner.UID), "true"
		podLabels[v1beta1.OwnerLabel], podLabels[v1alpha1.HubLabel] = string(owner.UID), "true"
		if w.Child != nil && w.Child.PodOwner != "" {
			podLabels[v1beta1.OwnerLabel] = w.Child.PodOwner
		}
	}
	if p.Adaptive != nil && p.Adaptive.Reserve {
		podLabels[v1beta1.ReservedPodLabel] = "false"
	}
	template, err := podTemplate(at(spec, "template"), s, patch, podLabels)
	if err != nil {
		return nil, err
	}
	spec["template"] = template
	spec["replicas"] = int64(w.Replicas)
	selector := metav1.AddLabelToSelector(p.LabelSelector.DeepCopy(), v1beta1.SubsetNameLabel, s.Name)
	if spec["selector"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(selector); err != nil {
		return nil, err
	}
	setPartition(spec, t.Kind, apiVersion, w.Partition)

	annotations := stringsAt(t.Metadata, "annotations")
	if patch != "" {
		annotations[v1beta1.SubsetPatchAnnotation] = patch
	}
	if w.Trial > 0 {
		annotations[v1beta1.TrialAnnotation] = fmt.Sprint(w.Trial)
	}
	child := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": t.Kind.Kind, "spec": spec}}
	child.SetNamespace(p.Namespace)
	child.SetName(name)
	child.SetLabels(labels)
	if s.Cluster == "" {
		child.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, v1beta1.Kind)})
	}
	if len(annotations) > 0 {
		child.SetAnnotations(annotations)
	}
	return child.Object, nil
}

// podTemplate changes and returns the pod template. The patch wins over everything but the labels by which Berth knows the pods.
func podTemplate(template map[string]any, s *Subset, patch string, labels map[string]string) (map[string]any, error) {
	spec := at(template, "spec")
	if err := subset.Require(spec, s.Term); err != nil {
		return nil, err
	}
	if err := subset.Tolerate(spec, s.Tolerations); err != nil {
		return nil, err
	}
	template["spec"] = spec
	if patch != "" {
		var changes map[string]any
		if err := kjson.Unmarshal([]byte(patch), &changes); err != nil {
			return nil, fmt.Errorf("reading the patch: %w", err)
		}
		patched, err := patchTemplate(template, changes)
		if err != nil {
			return nil, fmt.Errorf("applying the patch: %w", err)
		}
		template = patched
	}
	metadata := at(template, "metadata")
	all := at(metadata, "labels")
	for key, value := range labels {
		all[key] = value
	}
	metadata["labels"], template["metadata"] = all, metadata
	return template, nil
}

// setPartition sets how many replicas keep the previous template.
func setPartition(spec map[string]any, kind schema.GroupKind, apiVersion string, partition int32) {
	if !hasPartition(kind) {
		return
	}
	strategy := at(spec, "updateStrategy")
	if strategy["type"] == "OnDelete" {
		return
	}
	spec["updateStrategy"] = strategy
	if kind == CloneSetKind && apiVersion == flatCloneSets {
		strategy["partition"] = int64(partition)
		return
	}
	rolling := at(strategy, "rollingUpdate")
	rolling["partition"] = int64(partition)
	strategy["type"], strategy["rollingUpdate"] = "RollingUpdate", rolling
}

// at is the object at a key, or a new one that is not part of the content yet.
func at(content map[string]any, key string) map[string]any {
	if object, is := content[key].(map[string]any); is {
		return object
	}
	return map[string]any{}
}
