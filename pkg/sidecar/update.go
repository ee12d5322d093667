package sidecar

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// Resized is the pod with other resources for the containers of the set. It is written to the subresource resize,
// before the pod that Update returns. Nil if the resources stay.
func (p *Policy) Resized(pod *corev1.Pod) *corev1.Pod {
	noted := read[given](pod, v1beta1.GivenAnnotation)[p.Name]
	after, changed := pod.DeepCopy(), false
	for _, c := range p.running() {
		was := noted.Containers[c.Name].Resources
		if equality.Semantic.DeepEqual(was, c.Resources) {
			continue
		}
		for _, name := range podNames(c) {
			has := &containerOf(after, name).Resources
			before := has.DeepCopy()
			has.Limits = amounts(has.Limits, was.Limits, c.Resources.Limits)
			has.Requests = amounts(has.Requests, requestsOf(&was), requestsOf(&c.Resources))
			changed = changed || !equality.Semantic.DeepEqual(before, has)
		}
	}
	if !changed {
		return nil
	}
	return after
}

// requestsOf are the requests with the default of the API server: the limit.
func requestsOf(r *corev1.ResourceRequirements) corev1.ResourceList {
	all := corev1.ResourceList{}
	maps.Copy(all, r.Limits)
	maps.Copy(all, r.Requests)
	return all
}

// amounts are those that the pod has, with those that the set gives differently now. What others have written stays.
func amounts(has, was, is corev1.ResourceList) corev1.ResourceList {
	after := has.DeepCopy()
	for name := range was {
		if _, still := is[name]; !still {
			delete(after, name)
		}
	}
	for name, amount := range is {
		if before, had := was[name]; had && before.Cmp(amount) == 0 {
			continue
		}
		if after == nil {
			after = corev1.ResourceList{}
		}
		after[name] = amount
	}
	if len(after) == 0 {
		return nil
	}
	return after
}

// Update is the pod with the latest version, which can be written in place. It must be one that can be updated in
// place. Images that the set has not changed stay as they are, whoever has written them. restarts is false if no
// container restarts.
func (p *Policy) Update(pod *corev1.Pod, revision string, now time.Time) (after *corev1.Pod, restarts bool) {
	noted := read[given](pod, v1beta1.GivenAnnotation)[p.Name]
	after = pod.DeepCopy()
	var changed []string
	for _, c := range p.running() {
		switch {
		case noted.Containers[c.Name].Image == c.Image:
		case isHot(c):
			changed = append(changed, upgrade(after, c))
		default:
			containerOf(after, c.Name).Image = c.Image
			changed = append(changed, c.Name)
		}
	}
	p.annotate(after, false)
	p.remember(after, changed, now)
	note(after, now, Version{Set: p.Name, Content: &p.Content, Revision: revision})
	return after, len(changed) > 0
}

// Reset is the pod with the last step of its hot upgrades. It must be one of Resets.
func (p *Policy) Reset(pod *corev1.Pod, now time.Time) *corev1.Pod {
	after := pod.DeepCopy()
	var changed []string
	for _, c := range p.migrating(pod) {
		changed = append(changed, reset(after, c))
	}
	p.remember(after, changed, now)
	return after
}

// migrating are the sidecars whose old and new container both have a real image.
func (p *Policy) migrating(pod *corev1.Pod) (all []*v1beta1.SidecarContainer) {
	for i := range p.Containers {
		if c := &p.Containers[i]; isHot(c) && migrates(pod, c) {
			all = append(all, c)
		}
	}
	return all
}

// remember writes down what containers are before they change. Others keep what was remembered of them.
func (p *Policy) remember(pod *corev1.Pod, changed []string, now time.Time) {
	if len(changed) == 0 {
		return
	}
	state := read[inPlaceState](pod, v1beta1.InPlaceStateAnnotation)[p.Name]
	state.Revision, state.UpdateTimestamp = p.Hash, metav1.NewTime(now)
	if state.LastContainerStatuses == nil {
		state.LastContainerStatuses = map[string]containerStatus{}
	}
	for _, name := range changed {
		last := containerStatus{}
		if status := statusOf(pod, name); status != nil {
			last = containerStatus{ImageID: status.ImageID, ContainerID: status.ContainerID}
		}
		state.LastContainerStatuses[name] = last
	}
	set(pod, v1beta1.InPlaceStateAnnotation, p.Name, state)
}
