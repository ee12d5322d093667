package sidecar

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/test/testkit/worlds"
)

// world is pods, their kubelets, and an updater that may crash between any two writes. It checks by its own arithmetic
// that updates make no more pods unavailable than allowed.
type world struct {
	t      rapid.TB
	random *worlds.History
	now    time.Time
	pods   []*corev1.Pod
	ids    int
	images [2]int
	policy *Policy
	limit  int
	// mirror stands before all images of pods, as if a webhook wrote it. It may be empty.
	mirror string
	// out are pods that were ready when they were last written, and have not been ready with what was written since.
	out map[string]bool
	log []string
}

const poolSize = 9

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// publish changes the images of the set. An image with an odd number does not start.
func (w *world) publish(log, mesh, partition int) {
	w.images = [2]int{log, mesh}
	w.policy = compile(w.t, "s", fmt.Sprintf(`{selector: {matchLabels: {app: x}}, updateStrategy: {maxUnavailable: %d, partition: %d}, initContainers: [{name: native, image: 'native:%d', restartPolicy: Always}],
containers: [{name: log, image: 'log:%d'}, {name: mesh, image: 'mesh:%d', upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: 'mesh:0'}}]}`, w.limit, partition, log, log, mesh))
	w.note("publish %v", w.images)
}

func isBad(image string) bool { return strings.ContainsAny(image[len(image)-1:], "13579") }

// statuses calls f for each container and its status.
func statuses(pod *corev1.Pod, f func(*corev1.Container, *corev1.ContainerStatus)) {
	for i := range pod.Spec.InitContainers {
		f(&pod.Spec.InitContainers[i], &pod.Status.InitContainerStatuses[i])
	}
	for i := range pod.Spec.Containers {
		f(&pod.Spec.Containers[i], &pod.Status.ContainerStatuses[i])
	}
}

func runsAll(pod *corev1.Pod) bool {
	all := true
	statuses(pod, func(c *corev1.Container, s *corev1.ContainerStatus) { all = all && c.Image == s.Image && s.Ready })
	return all
}

// kubelet observes the spec of a pod, or restarts one of its containers, which may have changed or crashed. chance
// tells whether something happens that happens once in so many times.
func (w *world) kubelet(pod *corev1.Pod, chance func(onceIn int) bool) {
	defer func() {
		if pod.Status.ObservedGeneration == pod.Generation && pod.Status.Conditions[0].Status == corev1.ConditionTrue && runsAll(pod) {
			delete(w.out, pod.Name)
		}
	}()
	if pod.Status.Phase != corev1.PodRunning {
		pod.Status.Phase, pod.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	}
	if pod.Status.ObservedGeneration < pod.Generation && chance(2) {
		pod.Status.ObservedGeneration = pod.Generation
		return
	}
	ready := true
	statuses(pod, func(c *corev1.Container, s *corev1.ContainerStatus) {
		image := s.Image
		if pod.Status.ObservedGeneration == pod.Generation {
			image = c.Image
		}
		if image != s.Image && chance(2) || s.Ready && chance(60) {
			w.ids++
			s.Image, s.ContainerID, s.ImageID, s.Ready = image, fmt.Sprint("id-", w.ids), "sha-"+image, !isBad(image)
		}
		ready = ready && s.Ready
	})
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
}

func (w *world) create(name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "x"}, Generation: 1}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app:2"}}}}
	inject(pod, w.policy)
	w.rewrite(pod)
	pod.Status.InitContainerStatuses = make([]corev1.ContainerStatus, len(pod.Spec.InitContainers))
	pod.Status.ContainerStatuses = make([]corev1.ContainerStatus, len(pod.Spec.Containers))
	statuses(pod, func(c *corev1.Container, s *corev1.ContainerStatus) { s.Name = c.Name })
	return pod
}

// rewrite plays a webhook that lets all images come from a mirror.
func (w *world) rewrite(pod *corev1.Pod) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			containers[i].Image = w.mirror + strings.TrimPrefix(containers[i].Image, w.mirror)
		}
	}
}

func (w *world) write(i int, after *corev1.Pod, what string) {
	w.t.Helper()
	pod := w.pods[i]
	wasReady := len(pod.Status.Conditions) > 0 && pod.Status.Conditions[0].Status == corev1.ConditionTrue
	after.Generation++
	w.rewrite(after)
	w.pods[i] = after
	w.note("%s %s", what, pod.Name)
	if wasReady && !runsAll(after) {
		w.out[pod.Name] = true
	}
	if len(w.out) > w.limit {
		w.t.Fatalf("%v are unavailable because of updates, at most %d may be\n%s\n%s", w.out, w.limit, w.describe(), strings.Join(w.log, "\n"))
	}
}

// update plays one round of the updater, which may crash.
func (w *world) update(crash bool) (writes int) {
	var pods []Pod
	index := map[string]int{}
	for i, pod := range w.pods {
		index[pod.Name] = i
		if p, has := w.policy.Observe(pod, w.now); has {
			pods = append(pods, p)
		}
	}
	for _, pod := range w.policy.Resets(pods) {
		w.write(index[pod.Name], w.policy.Reset(pod.Pod, w.now), "reset")
		if writes++; crash && w.random.Yes("crash", 3) {
			return writes
		}
	}
	for _, pod := range w.policy.Next(pods) {
		after, _ := w.policy.Update(w.pods[index[pod.Name]], "", w.now)
		w.write(index[pod.Name], after, "update")
		if writes++; crash && w.random.Yes("crash", 3) {
			return writes
		}
	}
	return writes
}

func (w *world) describe() string {
	var text strings.Builder
	for _, pod := range w.pods {
		p, _ := w.policy.Observe(pod, w.now)
		fmt.Fprintf(&text, "%s updated %v touched %v settled %v migrated %v ready %v observed %v:", pod.Name, p.Updated, p.Touched, p.Settled, p.Migrated, p.Ready, pod.Status.ObservedGeneration == pod.Generation)
		statuses(pod, func(c *corev1.Container, s *corev1.ContainerStatus) {
			fmt.Fprintf(&text, " %s %s %v,", c.Image, s.Image, s.Ready)
		})
		text.WriteString("\n")
	}
	return text.String()
}

// history publishes, restarts and replaces at random. Then a good version is published, and everything comes to rest
// with it.
func history(t rapid.TB, h *worlds.History) {
	w := &world{t: t, random: h, now: now, out: map[string]bool{}, limit: 1 + h.Number("more than", 3), mirror: map[string]string{"plain images": "", "mirrored images": "mirror/"}[h.Pick("plain images", "mirrored images")]}
	w.publish(2, 2, 0)
	for i := range poolSize {
		w.pods = append(w.pods, w.create(fmt.Sprint("p", i)))
	}
	steps := slices.Concat(slices.Repeat([]string{"kubelet"}, 112), slices.Repeat([]string{"update"}, 32), []string{"publish", "publish", "replace"})
	for range h.Steps(300) {
		w.now = w.now.Add(time.Second)
		switch h.Pick(steps...) {
		case "kubelet":
			w.kubelet(w.pods[h.IntN(poolSize)], func(onceIn int) bool { return h.IntN(onceIn) == onceIn-1 })
		case "update":
			w.update(true)
		case "publish":
			w.publish(h.IntN(5)+1, h.IntN(5)+1, h.IntN(3))
		default:
			i := h.IntN(poolSize)
			delete(w.out, w.pods[i].Name)
			w.pods[i] = w.create(w.pods[i].Name)
			w.note("new pod %s", w.pods[i].Name)
		}
	}
	w.publish(8, 8, 0) // pods of a bad version that the partition keeps would hold up all others
	for range 200 {
		w.now = w.now.Add(time.Second)
		for _, pod := range w.pods {
			w.kubelet(pod, func(onceIn int) bool { return onceIn == 2 }) // nothing crashes
		}
		w.update(false)
	}
	for _, pod := range w.pods {
		p, _ := w.policy.Observe(pod, w.now)
		at := working(pod, "mesh")
		if !p.Updated || !p.Available() || containerOf(pod, "log").Image != w.mirror+"log:8" || containerOf(pod, hotNames("mesh")[at]).Image != w.mirror+"mesh:8" ||
			containerOf(pod, hotNames("mesh")[1-at]).Image != w.mirror+"mesh:0" || versions(pod, "mesh")[1-at] != 0 {
			t.Fatalf("%s, at most %d out\n%s\n%s", pod.Name, w.limit, w.describe(), strings.Join(w.log, "\n"))
		}
	}
	if w.update(false) > 0 {
		t.Fatalf("writes at rest\n%s", strings.Join(w.log, "\n"))
	}
}

func TestWorld(t *testing.T) { worlds.Check(t, "pods", 30, history) }

// TestHistories plays the histories that found a fault.
func TestHistories(t *testing.T) { worlds.Replay(t, map[string]worlds.Play{"pods": history}) }
