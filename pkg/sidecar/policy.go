package sidecar

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// Policy is a valid SidecarSet.
type Policy struct {
	Name string
	// Selector picks pods. Namespace is the only namespace, unless it is empty. Namespaces picks namespaces by their
	// labels.
	Selector   labels.Selector
	Namespace  string
	Namespaces labels.Selector

	Content
	InjectionPaused bool
	// Revision is the version that new pods get. Nil means the latest.
	Revision *v1beta1.InjectionRevision

	// Rolling is false if running pods keep their version.
	Rolling        bool
	Paused         bool
	UpdateSelector labels.Selector
	Partition      intstr.IntOrString
	MaxUnavailable intstr.IntOrString
	Priority       func(labels.Set) (level int, order int64)
	Scatter        []v1beta1.ScatterTerm
	History        int32
}

// Content is what pods get. It is the part of a SidecarSet that is kept in ControllerRevisions.
type Content struct {
	InitContainers   []v1beta1.SidecarContainer    `json:"initContainers,omitempty"`
	Containers       []v1beta1.SidecarContainer    `json:"containers,omitempty"`
	Volumes          []corev1.Volume               `json:"volumes,omitempty"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	Metadata         []v1beta1.PatchPodMetadata    `json:"patchPodMetadata,omitempty"`

	// Hash is of all that can change in a running pod: the containers that run, and annotations. Fixed leaves out all
	// that can be changed in place. Rest is of what a running pod keeps: volumes, init containers that end, and pull
	// secrets.
	Hash  string `json:"-"`
	Fixed string `json:"-"`
	Rest  string `json:"-"`
}

// Picks is true if the set is for a pod.
func (p *Policy) Picks(namespace string, namespaceLabels, podLabels labels.Set) bool {
	return (p.Namespace == "" || p.Namespace == namespace) && p.Namespaces.Matches(namespaceLabels) && p.Selector.Matches(podLabels)
}

// GivesRevision is true if a new pod gets the version that the injection strategy names. With policy Partial, a pod
// that the selector of the update strategy picks gets the latest one. Without a selector all pods get the named one,
// and the update then brings as many to the latest as the partition allows: so their number is exact.
func (p *Policy) GivesRevision(pod labels.Set) bool {
	if p.Revision == nil {
		return false
	}
	return p.Revision.Policy != v1beta1.PartialPolicy || p.Paused || p.UpdateSelector.Empty() || !p.UpdateSelector.Matches(pod)
}

func isHot(c *v1beta1.SidecarContainer) bool {
	return c.UpgradeStrategy.UpgradeType == v1beta1.HotUpgrade
}

func isNative(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// names of the two containers of a sidecar with hot upgrade.
func hotNames(name string) [2]string { return [2]string{name + "-1", name + "-2"} }

// podNames are the names that a container of the set has in pods.
func podNames(c *v1beta1.SidecarContainer) []string {
	if isHot(c) {
		names := hotNames(c.Name)
		return names[:]
	}
	return []string{c.Name}
}

// running are the containers of the set that run beside the pod's own.
func (c *Content) running() (all []*v1beta1.SidecarContainer) {
	for i := range c.InitContainers {
		if isNative(&c.InitContainers[i].Container) {
			all = append(all, &c.InitContainers[i])
		}
	}
	for i := range c.Containers {
		all = append(all, &c.Containers[i])
	}
	return all
}
