package budget

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// bound is when the pods got their node, by the API server's clock.
var bound = time.Unix(1_000_000, 0)

// written has the API server record that somebody wrote these fields, so long after the pod got its node.
func written(after time.Duration, subresource, fields string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if len(p.ManagedFields) == 0 {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(bound)})
		}
		p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{Manager: fmt.Sprint(len(p.ManagedFields)), Operation: metav1.ManagedFieldsOperationUpdate, Subresource: subresource,
			Time: ptr.To(metav1.NewTime(bound.Add(after))), FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}})
	}
}

// runsMemory is what the kubelet reports of the memory of the first container.
func runsMemory(amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(amount)}}
	}
}

const (
	fieldsOfAll       = `{"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{"f:image":{},"f:resources":{}}}}}`
	fieldsOfImage     = `{"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{"f:image":{}}}}}`
	fieldsOfResources = `{"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{"f:resources":{}}}}}`
)

// created is a pod of a controller, which wrote all fields before the pod got its node.
func created(p *corev1.Pod) { written(-time.Second, "", fieldsOfAll)(p) }

// Two tags: the pod is to run web:2, and its node reports web:1.
func TestOnlyAChangeThatMayRestartAContainerMakesItsPodDoubtful(t *testing.T) {
	tests := map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"two tags of one image":                                                     {pod: pod(image("web:2"), created)},
		"two tags, and a container to debug":                                        {pod: pod(image("web:2"), created, written(time.Minute, "ephemeralcontainers", `{"f:spec":{"f:ephemeralContainers":{"k:{\"name\":\"debug\"}":{"f:image":{}}}}}`))},
		"two tags, and a gate of somebody's was removed":                            {pod: pod(image("web:2"), created, written(0, "", `{"f:spec":{"f:schedulingGates":{}}}`))},
		"two tags, and a toleration was added":                                      {pod: pod(image("web:2"), created, written(time.Minute, "", `{"f:spec":{"f:tolerations":{}}}`))},
		"two tags, and a resize":                                                    {pod: pod(image("web:2"), created, written(time.Minute, "resize", fieldsOfResources))},
		"two tags, and its kubelet reports it":                                      {pod: pod(image("web:2"), created, written(time.Minute, "status", `{"f:status":{"f:containerStatuses":{"k:{\"name\":\"main\"}":{"f:image":{}}}}}`))},
		"another image before it has its node":                                      {pod: pod(image("web:2"), created, written(-time.Second, "", fieldsOfImage))},
		"another image in the second in which it has got its node":                  {pod: pod(image("web:2"), created, written(0, "", fieldsOfImage)), want: "container main may restart for its new image"},
		"another image":                                                             {pod: pod(image("web:2"), created, written(time.Second, "", fieldsOfImage)), want: "container main may restart for its new image"},
		"a resize of a pod that was created and got its node in one second":         {pod: pod(image("web:2"), madeAt(0), written(0, "", fieldsOfAll), written(time.Minute, "resize", fieldsOfResources))},
		"a resize and maybe another image in the second of the creation":            {pod: pod(image("web:2"), madeAt(0), written(0, "", fieldsOfAll), written(time.Minute, "resize", fieldsOfResources), generation(3)), want: "container main may restart for its new image"},
		"another image in the second of the creation, and a resize that is none":    {pod: pod(image("web:2"), madeAt(0), written(0, "", fieldsOfAll), written(time.Minute, "resize", fieldsOfResources), applied), want: "container main may restart for its new image"},
		"another image, and nobody knows who wrote it":                              {pod: pod(image("web:2")), want: "container main may restart for its new image"},
		"another image, and the container has started long since":                   {pod: pod(image("web:2"), created, written(time.Second, "", fieldsOfImage), started(restartTime+2*time.Second))},
		"another image in the second in which the container has started":            {pod: pod(image("web:2"), created, written(time.Second, "", fieldsOfImage), started(time.Second)), want: "container main may restart for its new image"},
		"the same, and it had ended before":                                         {pod: pod(image("web:2"), created, written(time.Second, "", fieldsOfImage), ended(0), started(time.Second)), want: "container main may restart for its new image"},
		"the same, and it has ended and started in that second":                     {pod: pod(image("web:2"), created, written(time.Second, "", fieldsOfImage), ended(time.Second), started(time.Second)), want: "container main has just started, and its node reports another image"},
		"another image, and the container has started by a clock that may be wrong": {pod: pod(image("web:2"), created, written(time.Second, "", fieldsOfImage), started(restartTime)), want: "container main has just started, and its node reports another image"},
		"another image of a sidecar":                                                {pod: pod(sidecar("side:2", "side:1"), created, written(time.Second, "", fieldsOfImage)), want: "container side may restart for its new image"},
		"memory that the kubelet says nothing about":                                {pod: pod(memory("2Mi"), runsMemory("1Mi"), created, written(time.Second, "resize", fieldsOfAll)), want: "container main may restart for its new resources"},
		"memory that its node has no room for now":                                  {pod: pod(memory("2Mi"), runsMemory("1Mi"), deferred), want: "container main restarts once its node has room for its resize"},
		"memory that its node never has room for":                                   {pod: pod(memory("2Mi"), runsMemory("1Mi"), infeasible(2))},
		"memory that the kubelet is about to give it":                               {pod: pod(memory("2Mi"), runsMemory("1Mi"), beingResized), want: "container main restarts for a resize"},
		"memory as it was created":                                                  {pod: pod(memory("2Mi"), runsMemory("1Mi"), neverChanged)},
		"a deadline from its template":                                              {pod: pod(deadline(corev1.RestartPolicyNever), written(-time.Second, "", `{"f:spec":{"f:activeDeadlineSeconds":{}}}`), madeAt(-time.Second))},
		"a deadline before it has its node":                                         {pod: pod(deadline(corev1.RestartPolicyNever), written(-time.Second, "", `{"f:spec":{"f:activeDeadlineSeconds":{}}}`), madeAt(-time.Minute)), want: "activeDeadlineSeconds will end it"},
		"an earlier deadline":                                                       {pod: pod(deadline(corev1.RestartPolicyNever), written(time.Second, "", `{"f:spec":{"f:activeDeadlineSeconds":{}}}`)), want: "activeDeadlineSeconds will end it"},
		"a spec that the kubelet has not seen":                                      {pod: pod(func(p *corev1.Pod) { p.Generation = 3 }), want: "its kubelet has not seen its latest spec"},
		"no label by which the API server asks the webhook":                         {pod: pod(unlabelled), want: "has no protection label yet"},
		"a readiness gate":                                                          {pod: pod(gatedOff), want: "a readiness gate is off"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			want := Available
			if tc.want != "" {
				want = Doubtful
			}
			if got := Observe(tc.pod, nil, false); got.State != want || got.Why != tc.want {
				t.Errorf("got %s: %q, want %s: %q", got.State, got.Why, want, tc.want)
			}
		})
	}
}

// started has the kubelet report that the first container has started, so long after the pod got its node.
func started(after time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(bound.Add(after))}
	}
}

// ended has the kubelet report that the container before the first one ended, so long after the pod got its node.
func ended(after time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(bound.Add(after))}
	}
}

// madeAt is when the pod was created, so long after it got its node.
func madeAt(after time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(bound.Add(after)) }
}

func generation(g int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Generation, p.Status.ObservedGeneration = g, g }
}

// applied has the last write be one by server-side apply, which is recorded even if it changes nothing.
func applied(p *corev1.Pod) {
	p.ManagedFields[len(p.ManagedFields)-1].Operation = metav1.ManagedFieldsOperationApply
}

func another(p *corev1.Pod) {
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "another", Image: "other:1"})
	p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "another", Image: "other:1", Ready: true})
}

func gatedOff(p *corev1.Pod) { p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x"}} }

func TestADoubtEndsByTimeIfNothingElseEndsIt(t *testing.T) {
	const second = time.Second
	grace := func(seconds int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
	}
	tests := map[string]struct {
		pod *corev1.Pod
		// after is how long the doubt lasts, 0 for as long as the pod stays like this.
		after time.Duration
	}{
		"an image that may still be pulled":         {pod(image("web:2"), created, written(second, "", fieldsOfImage), started(0)), time.Hour + 30*second},
		"an image that is reported by another tag":  {pod(image("web:2"), created, written(second, "", fieldsOfImage), started(2*second)), 2*time.Minute + 30*second},
		"a container that may end slowly":           {pod(image("web:2"), created, written(second, "", fieldsOfImage), started(2*second), grace(600)), 12 * time.Minute},
		"one that may take more than all time":      {pod(image("web:2"), created, written(second, "", fieldsOfImage), started(2*second), grace(1<<62)), 24*time.Hour + 2*time.Minute},
		"two containers, one after the other":       {pod(image("web:2"), created, written(second, "", fieldsOfImage), started(2*second), another), 2*time.Minute + 60*second},
		"resources that no condition tells about":   {pod(memory("2Mi"), runsMemory("1Mi"), created, written(second, "resize", fieldsOfAll)), 2*time.Minute + 30*second},
		"an infeasible resize before another image": {pod(memory("2Mi"), runsMemory("1Mi"), infeasible(1)), 2*time.Minute + 30*second},
		"a resize that waits for room":              {pod(memory("2Mi"), runsMemory("1Mi"), deferred), 0},
		"a spec that the kubelet has not seen":      {pod(image("web:2"), func(p *corev1.Pod) { p.Generation = 3 }), 0},
		"a deadline":                                {pod(deadline(corev1.RestartPolicyAlways)), 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d, begin := NewDoubts(), time.Now()
			for _, at := range []time.Duration{0, tc.after / 2, tc.after - 1, tc.after, tc.after + time.Hour, 1000 * time.Hour} {
				want := Pod{Name: "p0", UID: "p0", State: Available}
				if tc.after == 0 || at < tc.after {
					want = Observe(tc.pod, nil, false)
					if want.State != Doubtful {
						t.Fatalf("nobody doubts %+v", want)
					}
					if tc.after > 0 {
						want.Until = begin.Add(tc.after)
					}
				}
				if diff := cmp.Diff(want, d.Observe(tc.pod, nil, false, begin.Add(max(at, 0)))); diff != "" {
					t.Errorf("after %s (-want +got)\n%s", at, diff)
				}
			}
		})
	}
}

// TestAForecastCountsOnNoDoubt that time may have ended where the status was written.
func TestAForecastCountsOnNoDoubt(t *testing.T) {
	for want, p := range map[State]*corev1.Pod{
		Available: pod(image("web:2"), created, written(time.Second, "", fieldsOfImage)),
		Doubtful:  pod(memory("2Mi"), runsMemory("1Mi"), deferred),
	} {
		if got := compile(t, budgetOf("max 1")).Forecast(budgetOf("max 1")).expect(p); got.State != want || (got.Why == "") != (want == Available) {
			t.Errorf("got %+v, want %s", got, want)
		}
	}
}

func TestEachChangeOfAPodIsDoubtedAnew(t *testing.T) {
	changed := func(after time.Duration, more ...func(*corev1.Pod)) *corev1.Pod {
		p := pod(image("web:2"), created, written(after, "", fieldsOfImage), started(after+time.Second))
		for _, change := range more {
			change(p)
		}
		return p
	}
	d, now := NewDoubts(), time.Now()
	state := func(p *corev1.Pod) State { return d.Observe(p, nil, false, now).State }
	state(changed(time.Second))
	now = now.Add(time.Hour)
	if got := state(changed(time.Second)); got != Available {
		t.Errorf("%s an hour later", got)
	}
	again := changed(time.Second, written(time.Minute, "ephemeralcontainers", fieldsOfImage), func(p *corev1.Pod) { p.Generation, p.Status.ObservedGeneration = 3, 3 })
	if got := state(again); got != Available {
		t.Errorf("%s after a change that restarts nothing", got)
	}
	if got := state(changed(time.Second, memory("2Mi"), runsMemory("1Mi"), written(time.Hour, "resize", fieldsOfAll))); got != Doubtful {
		t.Errorf("%s after other resources", got)
	}
	if got := state(changed(time.Hour)); got != Doubtful {
		t.Errorf("%s after another image", got)
	}
	if got := state(changed(time.Second, func(p *corev1.Pod) { p.UID = "another" })); got != Doubtful {
		t.Errorf("%s of another pod of the name", got)
	}
	if got := NewDoubts().Observe(changed(time.Second), nil, false, now); got.State != Doubtful || !got.Until.After(now) {
		t.Errorf("%+v in a process that has just started", got)
	}
}

// TestDoubtsGoByTheMonotonicClock: a pod must not count before its kubelet has acted because the wall clock jumps ahead.
func TestDoubtsGoByTheMonotonicClock(t *testing.T) {
	d, changed := NewDoubts(), pod(image("web:2"))
	if until := d.Observe(changed, nil, false, time.Now()).Until; !strings.Contains(until.String(), " m=") {
		t.Errorf("the doubt ends at %s, by the wall clock", until)
	}
	if until := d.Observe(changed, nil, false, time.Now()).Until; !strings.Contains(until.String(), " m=") {
		t.Errorf("seen again, the doubt ends at %s, by the wall clock", until)
	}
}
