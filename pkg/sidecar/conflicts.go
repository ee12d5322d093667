package sidecar

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// Conflicts are what a set gives to pods that another set gives differently to the same pods. Two sets whose selectors
// do not exclude each other may pick the same pods.
func Conflicts(p *Policy, others []*Policy) (errs field.ErrorList) {
	path := field.NewPath("spec")
	for _, other := range others {
		if other.Name == p.Name || !mayShare(p, other) {
			continue
		}
		add := func(path *field.Path, name, what string) {
			errs = append(errs, field.Invalid(path, name, fmt.Sprintf("SidecarSet %s gives the same pods %s of this name; rename one, or make the selectors exclude each other", other.Name, what)))
		}
		taken := map[string]bool{}
		for _, c := range slices.Concat(other.InitContainers, other.Containers) {
			for _, name := range podNames(&c) {
				taken[name] = true
			}
		}
		check := func(containers []v1beta1.SidecarContainer, child string) {
			for i := range containers {
				for _, name := range podNames(&containers[i]) {
					if taken[name] {
						add(path.Child(child).Index(i).Child("name"), name, "a container")
					}
				}
			}
		}
		check(p.InitContainers, "initContainers")
		check(p.Containers, "containers")
		for i := range p.Volumes {
			at := slices.IndexFunc(other.Volumes, func(v corev1.Volume) bool { return v.Name == p.Volumes[i].Name })
			if at >= 0 && !equality.Semantic.DeepEqual(other.Volumes[at], p.Volumes[i]) {
				add(path.Child("volumes").Index(i).Child("name"), p.Volumes[i].Name, "another volume")
			}
		}
		for i := range p.Metadata {
			for key, value := range p.Metadata[i].Annotations {
				if overwrites(other, key, value, p.Metadata[i].PatchPolicy) {
					add(path.Child("patchPodMetadata").Index(i).Child("annotations").Key(key), value, "another value for an annotation")
				}
			}
		}
	}
	return errs
}

// overwrites is true if a set has another value for an annotation, unless both merge theirs.
func overwrites(other *Policy, key, value string, policy v1beta1.PatchPolicy) bool {
	return slices.ContainsFunc(other.Metadata, func(m v1beta1.PatchPodMetadata) bool {
		theirs, has := m.Annotations[key]
		return has && theirs != value && (policy != v1beta1.MergePatchJSONPolicy || m.PatchPolicy != v1beta1.MergePatchJSONPolicy)
	})
}

// mayShare is false if no pod can be in both sets.
func mayShare(a, b *Policy) bool {
	return (a.Namespace == "" || b.Namespace == "" || a.Namespace == b.Namespace) && mayOverlap(a.Selector, b.Selector) && mayOverlap(a.Namespaces, b.Namespaces)
}

// mayOverlap is false if two selectors ask for different things of the same label.
func mayOverlap(a, b labels.Selector) bool {
	left, _ := a.Requirements()
	right, _ := b.Requirements()
	for _, l := range left {
		for _, r := range right {
			if l.Key() == r.Key() && (excludes(&l, &r) || excludes(&r, &l)) {
				return false
			}
		}
	}
	return true
}

// excludes is true if no value that the first one takes is one that the second one takes.
func excludes(a, b *labels.Requirement) bool {
	switch a.Operator() {
	case selection.In, selection.Equals, selection.DoubleEquals:
		for value := range a.Values() {
			if b.Matches(labels.Set{a.Key(): value}) {
				return false
			}
		}
		return true
	case selection.DoesNotExist:
		return !b.Matches(labels.Set{})
	default:
		return false
	}
}

// Sample is a pod with the containers and volumes of the set. The API server's own validation of it shows what is wrong
// with them.
func Sample(p *Policy) *corev1.Pod {
	namespace := p.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pod"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "berth-sample", Image: "sample"}}, Volumes: slices.Clone(p.Volumes)},
	}
	Inject(pod, []Version{{Set: p.Name, Content: &p.Content}}, metav1.Now().Time)
	return pod
}

// inList matches the path of an item of a list in the spec of a pod, and what follows it.
var inList = regexp.MustCompile(`^spec\.(containers|initContainers|volumes)\[(\d+)\]\.?(.*)$`)

// Locate is the path of a part of the Sample in the spec of the set: that of the container or volume with its name, or
// else spec.
func Locate(p *Policy, sample *corev1.Pod, inPod string) *field.Path {
	path := field.NewPath("spec")
	parts := inList.FindStringSubmatch(inPod)
	if parts == nil {
		return path
	}
	i, err := strconv.Atoi(parts[2])
	if err != nil {
		return path
	}
	at := -1
	sidecarAt := func(containers []v1beta1.SidecarContainer, name string) int {
		return slices.IndexFunc(containers, func(c v1beta1.SidecarContainer) bool { return slices.Contains(podNames(&c), name) })
	}
	switch parts[1] {
	case "containers":
		at = sidecarAt(p.Containers, sample.Spec.Containers[i].Name)
	case "initContainers":
		at = sidecarAt(p.InitContainers, sample.Spec.InitContainers[i].Name)
	case "volumes":
		at = slices.IndexFunc(p.Volumes, func(v corev1.Volume) bool { return v.Name == sample.Spec.Volumes[i].Name })
	}
	if at < 0 {
		return path
	}
	path = path.Child(parts[1]).Index(at)
	if parts[3] != "" {
		path = path.Child(parts[3])
	}
	return path
}
