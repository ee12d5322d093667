package sidecar

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// read decodes an annotation of a pod. One that cannot be decoded counts as absent: a user has written it.
func read[T any](pod *corev1.Pod, annotation string) map[string]T {
	values := map[string]T{}
	if err := json.Unmarshal([]byte(pod.Annotations[annotation]), &values); err != nil {
		return map[string]T{}
	}
	return values
}

func write[T any](pod *corev1.Pod, annotation string, values map[string]T) {
	text, err := json.Marshal(values)
	if err != nil { // plain structs
		panic(fmt.Sprintf("encoding annotation %s: %v", annotation, err))
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotation, string(text))
}

func set[T any](pod *corev1.Pod, annotation, key string, value T) {
	values := read[T](pod, annotation)
	values[key] = value
	write(pod, annotation, values)
}

// note writes down that a pod has these versions. It decodes and encodes each annotation once, because there may be
// many.
func note(pod *corev1.Pod, now time.Time, all ...Version) {
	if len(all) == 0 {
		return
	}
	sets, gave := read[podVersion](pod, v1beta1.HashAnnotation), read[given](pod, v1beta1.GivenAnnotation)
	for _, v := range all {
		list := []string{}
		gives := given{Fixed: v.Fixed, Rest: v.Rest, Containers: map[string]givenContainer{}}
		for _, container := range v.running() {
			list = append(list, container.Name)
			gives.Containers[container.Name] = givenContainer{Image: container.Image, Resources: container.Resources}
		}
		slices.Sort(list)
		sets[v.Set] = podVersion{UpdateTimestamp: metav1.NewTime(now), Hash: v.Hash, SidecarSetName: v.Set, SidecarList: list, ControllerRevision: v.Revision}
		gave[v.Set] = gives
	}
	write(pod, v1beta1.HashAnnotation, sets)
	write(pod, v1beta1.GivenAnnotation, gave)
	pod.Annotations[v1beta1.InjectedListAnnotation] = strings.Join(slices.Sorted(maps.Keys(sets)), ",")
}

// VersionOf is the version of a set that a pod has. It is false for a pod without the set.
func VersionOf(pod *corev1.Pod, setName string) (podVersion, bool) {
	version, has := read[podVersion](pod, v1beta1.HashAnnotation)[setName]
	return version, has
}

// podVersion is which version of a SidecarSet a pod has. It is in v1beta1.HashAnnotation.
type podVersion struct {
	UpdateTimestamp    metav1.Time `json:"updateTimestamp"`
	Hash               string      `json:"hash"`
	SidecarSetName     string      `json:"sidecarSetName"`
	SidecarList        []string    `json:"sidecarList"`
	ControllerRevision string      `json:"controllerRevision,omitempty"`
}

// inPlaceState is what sidecars were before an update. It is in v1beta1.InPlaceStateAnnotation.
type inPlaceState struct {
	Revision              string                     `json:"revision"`
	UpdateTimestamp       metav1.Time                `json:"updateTimestamp"`
	LastContainerStatuses map[string]containerStatus `json:"lastContainerStatuses,omitempty"`
}

// containerStatus is what a container was. ContainerID is an addition of Berth.
type containerStatus struct {
	ImageID     string `json:"imageID,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
}

// given is what a SidecarSet has given to a pod. It is in v1beta1.GivenAnnotation.
type given struct {
	// Fixed is a hash of everything that cannot be changed in place.
	Fixed string `json:"fixed"`
	// Rest is a hash of what a running pod keeps. Empty if an earlier version of Berth wrote the annotation; the pod
	// then counts as one that has all of it.
	Rest string `json:"rest,omitempty"`
	// Containers are the images and resources, by the name of the sidecar.
	Containers map[string]givenContainer `json:"containers"`
}

// givenContainer is what of a container can be changed in place.
type givenContainer struct {
	Image     string                      `json:"image"`
	Resources corev1.ResourceRequirements `json:"resources,omitempty,omitzero"`
}
