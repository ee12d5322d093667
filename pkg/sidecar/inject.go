package sidecar

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
)

// Version is a version of a SidecarSet that a new pod gets.
type Version struct {
	Set string
	*Content
	// Revision is the name of its ControllerRevision. Empty if that is not known.
	Revision string
}

// Inject adds the containers of all versions to a new pod, in the order of the names of the sets, and returns warnings.
// It adds nothing twice: what is injected already stays as it is, because others may have changed it since.
//
// A set is not injected at all if the pod has a container of its own with the name of one of the sidecars.
func Inject(pod *corev1.Pod, versions []Version, now time.Time) (warnings []string) {
	versions = slices.Clone(versions)
	slices.SortFunc(versions, func(a, b Version) int { return strings.Compare(a.Set, b.Set) })
	own, noted := ownOf(pod), read[podVersion](pod, v1beta1.HashAnnotation)
	var added []Version
	for _, v := range versions {
		if taken := v.taken(pod, own); taken != "" {
			warnings = append(warnings, fmt.Sprintf("the pod gets no containers of SidecarSet %s: it has a container of its own with the name %s; rename one of the two", v.Set, taken))
			continue
		}
		changed, more := v.inject(pod, own, noted)
		if changed {
			added = append(added, v)
		}
		warnings = append(warnings, more...)
	}
	note(pod, now, added...)
	return warnings
}

// ownOf are copies of the containers that no set has injected.
func ownOf(pod *corev1.Pod) (own []corev1.Container) {
	for i := range pod.Spec.Containers {
		if !isInjected(&pod.Spec.Containers[i]) {
			own = append(own, *pod.Spec.Containers[i].DeepCopy())
		}
	}
	return own
}

func isInjected(c *corev1.Container) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == v1beta1.InjectedEnv && e.Value == "true" })
}

// containerOf is the container or init container of a pod with a name. Nil if there is none.
func containerOf(pod *corev1.Pod, name string) *corev1.Container {
	return cmp.Or(podstate.Container(pod.Spec.Containers, name), podstate.Container(pod.Spec.InitContainers, name))
}

// taken is the name of a container that is not injected, and has the name of a sidecar.
func (v *Version) taken(pod *corev1.Pod, own []corev1.Container) string {
	for _, sidecar := range slices.Concat(v.InitContainers, v.Containers) {
		for _, name := range podNames(&sidecar) {
			if c := containerOf(pod, name); c != nil && (podstate.Container(own, name) != nil || !isInjected(c)) {
				return name
			}
		}
	}
	return ""
}

// inject returns false if the pod has all of the version already. noted are the versions that the pod has by its
// annotation.
func (v *Version) inject(pod *corev1.Pod, own []corev1.Container, noted map[string]podVersion) (changed bool, warnings []string) {
	has, had := noted[v.Set]
	if had && has.Hash != v.Hash {
		v.eject(pod, &has)
	}
	var before, after, initial []corev1.Container
	mounted := map[string]bool{}
	add := func(c *v1beta1.SidecarContainer, to *[]corev1.Container) {
		for i, name := range podNames(c) {
			if containerOf(pod, name) != nil {
				continue
			}
			container := made(c, pod, own)
			container.Name = name
			if isHot(c) {
				heat(pod, c, &container, i)
			}
			for _, mount := range container.VolumeMounts {
				mounted[mount.Name] = true
			}
			for _, device := range container.VolumeDevices {
				mounted[device.Name] = true
			}
			*to = append(*to, container)
		}
	}
	byName := slices.SortedFunc(slices.Values(v.InitContainers), func(a, b v1beta1.SidecarContainer) int { return strings.Compare(a.Name, b.Name) })
	for i := range byName {
		add(&byName[i], &initial)
	}
	for i := range v.Containers {
		if c := &v.Containers[i]; c.PodInjectPolicy == v1beta1.AfterAppContainer {
			add(c, &after)
		} else {
			add(c, &before)
		}
	}
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, initial...)
	// After those of earlier sets, and before the pod's own.
	at := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return !isInjected(&c) })
	pod.Spec.Containers = append(slices.Insert(pod.Spec.Containers, max(at, 0), before...), after...)
	for _, volume := range v.Volumes {
		if mounted[volume.Name] && !slices.ContainsFunc(pod.Spec.Volumes, func(has corev1.Volume) bool { return has.Name == volume.Name }) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
		}
	}
	for _, secret := range v.ImagePullSecrets {
		if !slices.Contains(pod.Spec.ImagePullSecrets, secret) {
			pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, secret)
		}
	}
	if len(before)+len(after)+len(initial) == 0 && had {
		return false, nil
	}
	if policy := pod.Spec.RestartPolicy; len(before)+len(after) > 0 && policy != "" && policy != corev1.RestartPolicyAlways {
		warnings = append(warnings, fmt.Sprintf("the containers of SidecarSet %s keep the pod from ending, if they do not end themselves; move them to initContainers, with restartPolicy: Always", v.Set))
	}
	return true, append(warnings, v.annotate(pod, true)...)
}

// eject removes another version of the set. A new pod has one if its manifest is that of another pod.
func (v *Version) eject(pod *corev1.Pod, has *podVersion) {
	gone := func(c corev1.Container) bool {
		return isInjected(&c) && slices.ContainsFunc(has.SidecarList, func(name string) bool {
			hot := hotNames(name)
			return c.Name == name || c.Name == hot[0] || c.Name == hot[1]
		})
	}
	pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, gone)
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, gone)
	states := read[inPlaceState](pod, v1beta1.InPlaceStateAnnotation)
	delete(states, v.Set)
	if len(states) == 0 {
		delete(pod.Annotations, v1beta1.InPlaceStateAnnotation)
		return
	}
	write(pod, v1beta1.InPlaceStateAnnotation, states)
}

// made is a container as it is injected.
func made(c *v1beta1.SidecarContainer, pod *corev1.Pod, own []corev1.Container) corev1.Container {
	made := *c.Container.DeepCopy()
	made.Env = addEnv(made.Env, corev1.EnvVar{Name: v1beta1.InjectedEnv, Value: "true"})
	for i := range c.TransferEnv {
		made.Env = addEnv(made.Env, transferred(&c.TransferEnv[i], pod, own)...)
	}
	for i := range own {
		if c.ShareVolumePolicy.Type == v1beta1.ShareEnabled {
			shareMounts(&made, &own[i])
		}
		if c.ShareVolumeDevicePolicy.Type == v1beta1.ShareEnabled {
			for _, device := range own[i].VolumeDevices {
				if !slices.ContainsFunc(made.VolumeDevices, func(has corev1.VolumeDevice) bool { return has.DevicePath == device.DevicePath }) {
					made.VolumeDevices = append(made.VolumeDevices, device)
				}
			}
		}
	}
	return made
}

// variable matches a variable in a subPathExpr.
var variable = regexp.MustCompile(`\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)`)

// shareMounts adds the mounts of another container, and the variables that they need.
func shareMounts(made, from *corev1.Container) {
	for _, mount := range from.VolumeMounts {
		if slices.ContainsFunc(made.VolumeMounts, func(has corev1.VolumeMount) bool { return has.MountPath == mount.MountPath }) {
			continue
		}
		made.VolumeMounts = append(made.VolumeMounts, mount)
		for _, match := range variable.FindAllStringSubmatch(mount.SubPathExpr, -1) {
			made.Env = addEnv(made.Env, envOf(from, match[1])...)
		}
	}
}

// addEnv adds variables that are not there yet.
func addEnv(env []corev1.EnvVar, more ...corev1.EnvVar) []corev1.EnvVar {
	for _, e := range more {
		if !slices.ContainsFunc(env, func(has corev1.EnvVar) bool { return has.Name == e.Name }) {
			env = append(env, e)
		}
	}
	return env
}

func envOf(c *corev1.Container, name string) []corev1.EnvVar {
	if at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }); at >= 0 {
		return c.Env[at : at+1]
	}
	return nil
}

func transferred(t *v1beta1.TransferEnv, pod *corev1.Pod, own []corev1.Container) (env []corev1.EnvVar) {
	source := t.SourceContainerName
	if from := t.SourceContainerNameFrom; from != nil {
		switch of, key, _ := fieldOf(from.FieldRef.FieldPath); of {
		case "labels":
			source = pod.Labels[key]
		case "annotations":
			source = pod.Annotations[key]
		}
	}
	c := podstate.Container(own, source)
	if c == nil {
		return nil
	}
	names := t.EnvNames
	if t.EnvName != "" {
		names = append([]string{t.EnvName}, names...)
	}
	for _, name := range names {
		env = append(env, envOf(c, name)...)
	}
	return env
}

// annotate sets the annotations of a version. Retain is only for new pods.
func (c *Content) annotate(pod *corev1.Pod, isNew bool) (warnings []string) {
	if pod.Annotations == nil && len(c.Metadata) > 0 {
		pod.Annotations = map[string]string{}
	}
	for i := range c.Metadata {
		m := &c.Metadata[i]
		for key, value := range m.Annotations {
			was, has := pod.Annotations[key]
			switch {
			case m.PatchPolicy == v1beta1.OverwritePolicy, isNew && !has:
				pod.Annotations[key] = value
			case m.PatchPolicy == v1beta1.MergePatchJSONPolicy:
				if !has {
					was = "{}"
				}
				merged, err := mergeJSON(was, value)
				if err != nil {
					warnings = append(warnings, fmt.Sprintf("annotation %s of the pod is no JSON object, and stays as it is: %v", key, err))
					continue
				}
				pod.Annotations[key] = merged
			}
		}
	}
	slices.Sort(warnings)
	return warnings
}

func mergeJSON(was, patch string) (string, error) {
	if object := (map[string]any{}); json.Unmarshal([]byte(was), &object) != nil {
		return "", fmt.Errorf("%.50q", was)
	}
	merged, err := jsonpatch.MergePatch([]byte(was), []byte(patch))
	return string(merged), err
}
