package sidecar

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

var (
	faults = flag.Duration("faults", 20*time.Second, "for how long TestLimitsHoldWhileLeadersAreKilled goes on")
	seed   = flag.Uint64("seed", 1, "seed of TestLimitsHoldWhileLeadersAreKilled")
)

var leads = regexp.MustCompile(`(?m)^leader_election_master_status\{.*\} 1$`)

// leader is the replica of the controller that leads now. It is -1 if none does.
func leader(ctx context.Context) int {
	for _, status := range the.Sandbox.Status() {
		if status.Name != product.Controller {
			continue
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+status.Address+"/metrics", nil)
		if err != nil {
			continue
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			continue // it is restarting
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil && leads.Match(text) {
			return status.Replica
		}
	}
	return -1
}

// kill ends the replica that leads with SIGKILL. Its lease holds for that many more seconds.
func (w *world) kill(seconds int) (replica int) {
	w.Helper()
	w.await("a leader", func(ctx context.Context) (string, error) {
		if replica = leader(ctx); replica < 0 {
			return "nobody leads", nil
		}
		return "", nil
	})
	if err := the.Sandbox.Signal(product.Controller, replica, syscall.SIGKILL); err != nil {
		w.Fatal(err)
	}
	w.lease(seconds)
	return replica
}

// lease lets the lease of a leader that is gone hold for that many more seconds. Without it that is up to 15.
func (w *world) lease(seconds int) {
	w.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"leaseDurationSeconds":%d}}`, seconds)
	if _, err := the.Client.CoordinationV1().Leases("berth-system").Patch(w.Context(), "berth-controller", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

// ledger counts by a watch of its own which pods are out of service because of a write, and which set has taken each of them out. A pod is in service if it is ready, and
// each of its sidecars runs the image of the spec.
type ledger struct {
	mu sync.Mutex
	// sets is whose each container is. limits is how many pods each set may have out.
	sets   map[string]string
	limits map[string]int
	// floor is how many pods must be left when a write takes one out. unbounded is true while a scale-down is under way, which needs no room.
	floor     int
	unbounded bool
	// changed is when a pod came or went.
	changed time.Time

	pods map[types.UID]*corev1.Pod
	// out is which set has taken a pod out of service.
	out map[types.UID]string

	// For the report.
	revisions, writes, fewest int
	most                      map[string]int
	violations                []string
}

func inService(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || notReady(pod) != "" {
		return false
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name && s.Image == c.Image && s.Ready }) {
			return false
		}
	}
	return true
}

func (l *ledger) see(kind watch.EventType, pod *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revisions++
	was := l.pods[pod.UID]
	if was == nil || kind == watch.Deleted {
		l.changed = time.Now()
	}
	if kind == watch.Deleted {
		delete(l.pods, pod.UID)
		delete(l.out, pod.UID)
		return
	}
	l.pods[pod.UID] = pod
	if inService(pod) {
		delete(l.out, pod.UID)
		return
	}
	if pod.DeletionTimestamp != nil {
		delete(l.out, pod.UID)
		return
	}
	if was == nil {
		return
	}
	by := ""
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Image != container(was, c.Name).Image {
			by = l.sets[c.Name]
			l.writes++
		}
	}
	if !inService(was) {
		return
	}
	if by == "" {
		l.violations = append(l.violations, fmt.Sprintf("at revision %s pod %s goes out of service, and no set has written it: %+v", pod.ResourceVersion, pod.Name, pod.Status))
		return
	}
	l.out[pod.UID] = by
	out, left := 0, 0
	for _, set := range l.out {
		if set == by {
			out++
		}
	}
	for _, p := range l.pods {
		if inService(p) {
			left++
		}
	}
	l.most[by] = max(l.most[by], out)
	if out > l.limits[by] {
		l.violations = append(l.violations, fmt.Sprintf("at revision %s set %s has %d pods out of service, at most %d may be", pod.ResourceVersion, by, out, l.limits[by]))
	}
	if !l.unbounded {
		l.fewest = min(l.fewest, left)
		if left < l.floor {
			l.violations = append(l.violations, fmt.Sprintf("at revision %s set %s leaves %d pods, the budget asks for %d", pod.ResourceVersion, by, left, l.floor))
		}
	}
}

// untouched fails unless the pods of another set are as they were made, at every revision.
func (w *world) untouched(app string) {
	w.follow(func(kind watch.EventType, pod *corev1.Pod) {
		if pod.Labels["app"] != app {
			return
		}
		if kind == watch.Deleted && w.Context().Err() == nil || pod.Generation != 1 {
			w.Errorf("at revision %s pod %s of another set is %s, of generation %d", pod.ResourceVersion, pod.Name, kind, pod.Generation)
		}
		for _, entry := range pod.ManagedFields {
			if strings.HasPrefix(entry.Manager, "berth-") && entry.Manager != "berth-scheduler" {
				w.Errorf("at revision %s %s has written pod %s of another set", pod.ResourceVersion, entry.Manager, pod.Name)
			}
		}
	})
}

// TestLimitsHoldWhileLeadersAreKilled: two sets share the pods of a Deployment with a budget. Their images change, good ones and bad ones, the Deployment is scaled,
// strangers delete pods, and each leader is killed. At every revision no set has more pods out of service than its maxUnavailable, no write leaves fewer than the budget
// asks for, and pods of another set are not touched. In the end everything is as it should be.
func TestLimitsHoldWhileLeadersAreKilled(t *testing.T) {
	w := newWorld(t)
	random := rand.New(rand.NewPCG(*seed, 0))
	t.Logf("seed %d", *seed)
	version, killing := 1, false
	publish := func(name string, good bool) {
		tag := fmt.Sprint(version)
		if !good {
			tag = fmt.Sprint(version, ":fail")
		}
		version++
		spec := ""
		switch name {
		case "log":
			spec = fmt.Sprintf("updateStrategy: {maxUnavailable: 3}, containers: [{name: log, image: 'log-%s'}]", tag)
		case "mesh":
			spec = fmt.Sprintf("updateStrategy: {maxUnavailable: 2}, containers: [{name: mesh, image: 'mesh-%s', upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: 'mesh:empty'}}]", tag)
		}
		if err := w.tryPublish("web", name, "v1beta1", spec); err != nil && (!killing || !apierrors.IsInternalError(err)) { // no webhook answers
			t.Fatal(err)
		}
	}
	publish("log", true)
	publish("mesh", true)
	w.setFor("other", "other", "v1beta1", "containers: [{name: other, image: 'other:1'}]")
	w.expectReason("log", v1beta1.ReasonReady)
	w.expectReason("mesh", v1beta1.ReasonReady)
	const fewest, most, floor = 9, 12, 7
	w.apply(fmt.Sprintf("{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, minAvailable: %d}}", floor))
	w.deployAs("other", 3)
	w.deploy(most)
	w.protected("web")
	l := &ledger{
		sets: map[string]string{"log": "log", "mesh-1": "mesh", "mesh-2": "mesh"}, limits: map[string]int{"log": 3, "mesh": 2}, floor: floor,
		pods: map[types.UID]*corev1.Pod{}, out: map[types.UID]string{}, fewest: most, most: map[string]int{},
	}
	w.follow(func(kind watch.EventType, pod *corev1.Pod) {
		if pod.Labels["app"] == "web" {
			l.see(kind, pod)
		}
	})
	w.untouched("other")
	t.Cleanup(func() {
		for _, v := range l.violations {
			t.Error(v)
		}
	})

	replicas, kills, deletions, ended := most, 0, 0, time.Now().Add(*faults)
	scale := func(to int) {
		if to < replicas {
			l.mu.Lock()
			l.unbounded = true
			l.mu.Unlock()
		}
		replicas = to
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, to)
		if _, err := the.Client.AppsV1().Deployments(w.ns).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// bound begins to ask for the budget again, when a scale-down is over, and what was allowed before it has happened.
	bound := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.pods) == replicas && time.Since(l.changed) > 2*time.Second {
			l.unbounded = false
		}
	}
	killing = true
	for time.Now().Before(ended) {
		switch n := random.IntN(20); {
		case n < 4:
			publish("log", n > 0)
		case n < 7:
			publish("mesh", n > 4)
		case n == 7:
			scale(fewest + random.IntN(most-fewest+1))
		case n < 10:
			pods, err := the.Pods(t.Context(), w.ns)
			if err != nil {
				t.Fatal(err)
			}
			pods = slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return pod.Labels["app"] != "web" })
			if len(pods) > 0 && the.Client.CoreV1().Pods(w.ns).Delete(t.Context(), pods[random.IntN(len(pods))].Name, metav1.DeleteOptions{}) == nil { // the budget may refuse
				deletions++
			}
		case n < 12:
			if leader(t.Context()) >= 0 {
				w.kill(1)
				kills++
			}
		}
		bound()
		time.Sleep(time.Duration(random.IntN(600)) * time.Millisecond) // the faults come at random times
	}

	killing = false
	if err := the.Sandbox.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	scale(most)
	publish("log", true)
	log := version - 1
	publish("mesh", true)
	mesh := version - 1
	w.await("pods with the last images", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, w.ns)
		if err != nil {
			return "", err
		}
		count := 0
		for i := range pods {
			pod := &pods[i]
			if pod.Labels["app"] != "web" {
				continue
			}
			count++
			if container(pod, "log").Name == "" { // it was created while no webhook answered
				if err := the.Client.CoreV1().Pods(w.ns).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
					return fmt.Sprintf("pod %s has no sidecars, and cannot be deleted yet: %v", pod.Name, err), nil
				}
				return "a pod has no sidecars", nil
			}
			if m := runs(pod, "log", fmt.Sprint("log-", log)); m != "" {
				return pod.Name + ": " + m, nil
			}
			images := []string{container(pod, "mesh-1").Image, container(pod, "mesh-2").Image}
			slices.Sort(images)
			if want := []string{fmt.Sprint("mesh-", mesh), "mesh:empty"}; !slices.Equal(images, want) || !inService(pod) {
				return fmt.Sprintf("%s: got %v, want %v, in service %t", pod.Name, images, want, inService(pod)), nil
			}
		}
		if count != most {
			return fmt.Sprint("there are ", count), nil
		}
		return "", nil
	})
	w.expectReason("log", v1beta1.ReasonReady)
	w.expectReason("mesh", v1beta1.ReasonReady)
	w.expectReason("other", v1beta1.ReasonReady)
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("seed %d: %d leaders killed, %d versions, %d pods deleted; %d revisions of pods, %d images changed; most pods out of service: %v, fewest in service after a write: %d of at least %d",
		*seed, kills, version-1, deletions, l.revisions, l.writes, l.most, l.fewest, floor)
	if kills == 0 || l.most["log"] == 0 || l.most["mesh"] == 0 {
		t.Error("too little has happened")
	}
}

// protected waits until the budget protects the pods of a Deployment.
func (w *world) protected(app string) {
	w.Helper()
	w.await("the budget", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, w.ns)
		if err != nil {
			return "", err
		}
		for i := range pods {
			if _, protected := pods[i].Labels[policyv1beta1.ProtectedLabel]; pods[i].Labels["app"] == app && !protected {
				return "a pod is not protected yet", nil
			}
		}
		return "", nil
	})
}

// TestAHotUpgradeIsResumedAtEachStep: the leader is killed after each write of a hot upgrade, while no kubelet answers. The next one goes on from there, and at every revision
// one container of each pod works.
func TestAHotUpgradeIsResumedAtEachStep(t *testing.T) {
	w := newWorld(t)
	spec := func(version int) string {
		return fmt.Sprintf("containers: [{name: mesh, image: 'mesh:%d', upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: 'mesh:empty'}}]", version)
	}
	w.set("mesh", "v1beta1", spec(1))
	w.deploy(2)
	w.pods(func(pod *corev1.Pod) string { return runs(pod, "mesh-1", "mesh:1") + runs(pod, "mesh-2", "mesh:empty") }, 2)
	w.follow(func(kind watch.EventType, pod *corev1.Pod) {
		if kind == watch.Deleted || pod.DeletionTimestamp != nil {
			return
		}
		if !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return strings.HasPrefix(s.Name, "mesh-") && s.Ready && s.Image != "mesh:empty" && container(pod, s.Name).Image == s.Image
		}) {
			t.Errorf("at revision %s no container of pod %s works: %+v", pod.ResourceVersion, pod.Name, pod.Status.ContainerStatuses)
		}
	})
	seen := w.changes(nil)
	kubelet := func(signal syscall.Signal) {
		t.Helper()
		if err := the.Sandbox.Signal(sandbox.KWOK, 0, signal); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { kubelet(syscall.SIGCONT) })
	// a waits for a pod that is in a state, and returns its name.
	a := func(what string, is func(one, two corev1.ContainerStatus, pod *corev1.Pod) bool) (name string) {
		t.Helper()
		w.await("a pod "+what, func(ctx context.Context) (string, error) {
			pods, err := the.Pods(ctx, w.ns)
			if err != nil {
				return "", err
			}
			for i := range pods {
				var of [2]corev1.ContainerStatus
				for _, s := range pods[i].Status.ContainerStatuses {
					if at := slices.Index([]string{"mesh-1", "mesh-2"}, s.Name); at >= 0 {
						of[at] = s
					}
				}
				if is(of[0], of[1], &pods[i]) {
					name = pods[i].Name
					return "", nil
				}
			}
			return "there is none", nil
		})
		return name
	}
	var killed []int

	kubelet(syscall.SIGSTOP)
	w.publish("web", "mesh", "v1beta1", spec(2))
	upgraded := a("with the new image, which its kubelet has not seen", func(one, two corev1.ContainerStatus, pod *corev1.Pod) bool {
		return container(pod, "mesh-2").Image == "mesh:2" && two.Image == "mesh:empty" && one.Image == "mesh:1"
	})
	killed = append(killed, w.kill(3600))
	kubelet(syscall.SIGCONT)
	migrating := a("in which both run", func(one, two corev1.ContainerStatus, pod *corev1.Pod) bool {
		return one.Image == "mesh:1" && one.Ready && two.Image == "mesh:2" && two.Ready && container(pod, "mesh-1").Image == "mesh:1"
	})
	kubelet(syscall.SIGSTOP)
	w.lease(1)
	reset := a("whose old container gets the empty image, which its kubelet has not seen", func(one, two corev1.ContainerStatus, pod *corev1.Pod) bool {
		return container(pod, "mesh-1").Image == "mesh:empty" && one.Image == "mesh:1" && two.Image == "mesh:2"
	})
	killed = append(killed, w.kill(3600))
	kubelet(syscall.SIGCONT)
	a("with an empty image in its old container", func(one, two corev1.ContainerStatus, _ *corev1.Pod) bool {
		return one.Image == "mesh:empty" && two.Image == "mesh:2" && two.Ready
	})
	w.lease(1)
	if upgraded != migrating || migrating != reset {
		t.Errorf("pods %s, %s, %s", upgraded, migrating, reset)
	}
	for _, pod := range w.pods(func(pod *corev1.Pod) string { return runs(pod, "mesh-2", "mesh:2") + runs(pod, "mesh-1", "mesh:empty") }, 2) {
		if got := seen.writesOf(pod.Name); got != 2 {
			t.Errorf("pod %s was written %d times", pod.Name, got)
		}
	}
	w.expectReason("mesh", v1beta1.ReasonReady)
	t.Logf("killed the leaders %v", killed)
}
