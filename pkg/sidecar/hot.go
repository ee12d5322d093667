package sidecar

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// A sidecar with hot upgrade has two containers. One works, and the other has an empty image. An upgrade has three
// steps:
//
//  1. the idle container gets the new image and a higher version, and is the working one from then on;
//  2. both run. The postStart hook of the new one takes over from the old one: each knows both versions from its
//     environment;
//  3. when the new one is ready, the old one gets the empty image and version 0.
//
// The pod says by itself which step it is at: both have a version above 0 after the first. Their images do not tell,
// because a webhook may have rewritten the empty one.

// heat makes the first or second of the two containers of a new pod. The first one works.
func heat(pod *corev1.Pod, c *v1beta1.SidecarContainer, made *corev1.Container, i int) {
	if i == 1 {
		made.Image = c.UpgradeStrategy.HotUpgradeEmptyImage
	}
	for _, version := range [][2]string{{v1beta1.VersionEnv, v1beta1.VersionAnnotationPrefix}, {v1beta1.VersionAltEnv, v1beta1.VersionAltAnnotationPrefix}} {
		made.Env = addEnv(made.Env, corev1.EnvVar{Name: version[0], ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: fmt.Sprintf("metadata.annotations['%s%s']", version[1], made.Name)},
		}})
	}
	setVersions(pod, c.Name, [2]int{1, 0})
	set(pod, v1beta1.WorkingContainerAnnotation, c.Name, hotNames(c.Name)[0])
}

func setVersions(pod *corev1.Pod, name string, versions [2]int) {
	for i, name := range hotNames(name) {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1beta1.VersionAnnotationPrefix+name, strconv.Itoa(versions[i]))
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1beta1.VersionAltAnnotationPrefix+name, strconv.Itoa(versions[1-i]))
	}
}

func versions(pod *corev1.Pod, name string) (versions [2]int) {
	for i, name := range hotNames(name) {
		versions[i], _ = strconv.Atoi(pod.Annotations[v1beta1.VersionAnnotationPrefix+name]) // 0 if somebody has spoilt it
	}
	return versions
}

// working is the index of the container that works, or will when it is ready.
func working(pod *corev1.Pod, name string) int {
	if read[string](pod, v1beta1.WorkingContainerAnnotation)[name] == hotNames(name)[1] {
		return 1
	}
	return 0
}

// migrates is true while both containers of a sidecar have a real image. If somebody has removed the version, the image
// tells.
func migrates(pod *corev1.Pod, c *v1beta1.SidecarContainer) bool {
	other := containerOf(pod, hotNames(c.Name)[1-working(pod, c.Name)])
	return other != nil && other.Image != c.UpgradeStrategy.HotUpgradeEmptyImage && pod.Annotations[v1beta1.VersionAnnotationPrefix+other.Name] != "0"
}

// upgrade is the first step. If the previous upgrade has not succeeded, its container gets the new image. It returns
// the name of the container that changes.
func upgrade(pod *corev1.Pod, c *v1beta1.SidecarContainer) string {
	names, at, v := hotNames(c.Name), working(pod, c.Name), versions(pod, c.Name)
	if !migrates(pod, c) {
		at = 1 - at
	}
	containerOf(pod, names[at]).Image = c.Image
	v[at] = max(v[0], v[1]) + 1
	setVersions(pod, c.Name, v)
	set(pod, v1beta1.WorkingContainerAnnotation, c.Name, names[at])
	return names[at]
}

// reset is the third step. It returns the name of the container that changes.
func reset(pod *corev1.Pod, c *v1beta1.SidecarContainer) string {
	names, other, v := hotNames(c.Name), 1-working(pod, c.Name), versions(pod, c.Name)
	containerOf(pod, names[other]).Image = c.UpgradeStrategy.HotUpgradeEmptyImage
	v[other] = 0
	setVersions(pod, c.Name, v)
	return names[other]
}
