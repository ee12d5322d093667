package fit

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/podstate"
)

// filters of a cluster that has these objects besides nodes and pods.
func filters(t *testing.T, objects ...runtime.Object) *Filters {
	t.Helper()
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	f, err := NewFilters(t.Context(), client, factory, podstate.DefaultNotices())
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	for informer, synced := range factory.WaitForCacheSync(t.Context().Done()) {
		if !synced {
			t.Fatalf("%s has not synced", informer)
		}
	}
	return f
}

func node(name, pool string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool, corev1.LabelHostname: name, corev1.LabelTopologyZone: "zone-" + pool}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"),
			corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("10")}},
	}
}

func pod(name, cpu, on string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: on, Containers: []corev1.Container{{Name: "main",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}},
	}
}

func inPool(pool string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return n.Labels["pool"] == pool }
}

func everywhere(*corev1.Node) bool { return true }

func TestNoPodIsPlacedOnANodeThatAnnouncesItsEnd(t *testing.T) {
	f, ending := filters(t), node("a-0", "a")
	ending.Labels["berth.dev/node-ends"] = ""
	rooms, err := f.Take(nil, []*corev1.Node{ending, node("b-0", "b")})
	if err != nil {
		t.Fatal(err)
	}
	if on, verdict, _ := rooms.Place(t.Context(), pod("new", "100m", ""), nil, everywhere); verdict != Fits || on != "b-0" {
		t.Errorf("verdict %v, node %q", verdict, on)
	}
	if _, verdict, why := rooms.Place(t.Context(), pod("other", "100m", ""), nil, inPool("a")); verdict != DoesNotFit || why.Error() != "node(s) announced their end" {
		t.Errorf("verdict %v: %v", verdict, why)
	}
}

func TestPlace(t *testing.T) {
	f := filters(t)
	antiAffine := func(p *corev1.Pod, topology string) *corev1.Pod {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: topology, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}}}
		return p
	}
	tests := map[string]struct {
		there   []*corev1.Pod
		pod     *corev1.Pod
		instead *corev1.Pod
		may     func(*corev1.Node) bool
		want    Verdict
		wantOn  string
	}{
		"a pod fits on an empty node":                 {pod: pod("new", "1", ""), may: inPool("a"), wantOn: "a0"},
		"a pod does not fit where others run":         {there: []*corev1.Pod{pod("x", "600m", "a0"), pod("y", "600m", "a1")}, pod: pod("new", "500m", ""), may: inPool("a"), want: DoesNotFit},
		"a pod that is nominated holds its room":      {there: []*corev1.Pod{pod("x", "1", "a1"), nominated("y", "1", "a0")}, pod: pod("new", "1", ""), may: inPool("a"), want: DoesNotFit},
		"a pod that has ended holds none":             {there: []*corev1.Pod{pod("x", "1", "a1"), ended("y", "1", "a0")}, pod: pod("new", "1", ""), may: inPool("a"), wantOn: "a0"},
		"the node of the pod that goes does not help": {there: []*corev1.Pod{pod("x", "1", "a0"), pod("y", "1", "a1")}, instead: pod("x", "1", "a0"), pod: pod("new", "1", ""), may: inPool("a"), want: DoesNotFit},
		"a taint keeps the pod away":                  {pod: pod("new", "1", ""), may: inPool("tainted"), want: DoesNotFit},
		"a cordoned node takes no pod":                {pod: pod("new", "1", ""), may: inPool("cordoned"), want: DoesNotFit},
		"anti-affinity counts": {there: []*corev1.Pod{antiAffine(pod("x", "100m", "a0"), corev1.LabelTopologyZone)},
			pod: antiAffine(pod("new", "100m", ""), corev1.LabelTopologyZone), may: inPool("a"), want: DoesNotFit},
		"anti-affinity to the pod that goes does not": {there: []*corev1.Pod{antiAffine(pod("x", "100m", "a0"), corev1.LabelTopologyZone)}, instead: antiAffine(pod("x", "100m", "a0"), corev1.LabelTopologyZone),
			pod: antiAffine(pod("new", "100m", ""), corev1.LabelTopologyZone), may: inPool("a"), wantOn: "a1"},
		"what needs devices is not known": {pod: func() *corev1.Pod {
			p := pod("new", "1", "")
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
			return p
		}(), may: everywhere, want: Unknown},
		"a claim that is missing is no room": {pod: func() *corev1.Pod {
			p := pod("new", "1", "")
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "missing"}}}}
			return p
		}(), may: everywhere, want: DoesNotFit},
	}
	cordoned, tainted := node("c0", "cordoned"), node("t0", "tainted")
	cordoned.Spec.Unschedulable = true
	tainted.Spec.Taints = []corev1.Taint{{Key: "spot", Effect: corev1.TaintEffectNoSchedule}}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rooms, err := f.Take(tc.there, []*corev1.Node{node("a0", "a"), node("a1", "a"), cordoned, tainted})
			if err != nil {
				t.Fatal(err)
			}
			on, verdict, why := rooms.Place(t.Context(), tc.pod, tc.instead, tc.may)
			if verdict != tc.want || on != tc.wantOn {
				t.Errorf("got %d on %q (%v), want %d on %q", verdict, on, why, tc.want, tc.wantOn)
			}
		})
	}
}

func TestPlaceByPreemption(t *testing.T) {
	f := filters(t)
	withPriority := func(p *corev1.Pod, priority int32) *corev1.Pod {
		p.Spec.Priority = &priority
		return p
	}
	never := withPriority(pod("new", "900m", ""), 5)
	never.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever)
	for name, tc := range map[string]struct {
		there []*corev1.Pod
		pod   *corev1.Pod
		mayGo bool
		want  []Verdict // of several such pods, one after the other
	}{
		"placeholders give way":               {[]*corev1.Pod{withPriority(pod("x", "900m", "a0"), -10), withPriority(pod("y", "900m", "a1"), -10)}, pod("new", "900m", ""), true, []Verdict{Fits, Fits, DoesNotFit}},
		"as many as it takes":                 {[]*corev1.Pod{withPriority(pod("x", "400m", "a0"), -10), withPriority(pod("z", "400m", "a0"), -9), pod("y", "900m", "a1")}, pod("new", "500m", ""), true, []Verdict{Fits, Fits, DoesNotFit}},
		"those that may not go stay":          {[]*corev1.Pod{withPriority(pod("x", "900m", "a0"), -10), withPriority(pod("y", "900m", "a1"), -10)}, pod("new", "900m", ""), false, []Verdict{DoesNotFit}},
		"pods of the same priority stay":      {[]*corev1.Pod{pod("x", "900m", "a0"), pod("y", "900m", "a1")}, pod("new", "900m", ""), true, []Verdict{DoesNotFit}},
		"free room is used first":             {[]*corev1.Pod{withPriority(pod("x", "900m", "a0"), -10)}, pod("new", "900m", ""), true, []Verdict{Fits, Fits, DoesNotFit}},
		"a pod may not preempt":               {[]*corev1.Pod{pod("x", "900m", "a0"), pod("y", "900m", "a1")}, never, true, []Verdict{DoesNotFit}},
		"too small a victim stays and counts": {[]*corev1.Pod{withPriority(pod("x", "100m", "a0"), -10), pod("z", "800m", "a0"), pod("y", "900m", "a1")}, pod("new", "300m", ""), true, []Verdict{DoesNotFit, DoesNotFit}},
	} {
		t.Run(name, func(t *testing.T) {
			rooms, err := f.Take(tc.there, []*corev1.Node{node("a0", "a"), node("a1", "a")})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range tc.want {
				next := tc.pod.DeepCopy()
				next.Name, next.UID = fmt.Sprint("new-", i), types.UID(fmt.Sprint("new-", i))
				_, verdict, why := rooms.PlaceByPreemption(t.Context(), next, nil, inPool("a"), func(*corev1.Pod) bool { return tc.mayGo })
				if verdict != want {
					t.Errorf("pod %d: got %d (%v), want %d", i, verdict, why, want)
				}
			}
			if tc.want[0] == DoesNotFit {
				if _, verdict, _ := rooms.Place(t.Context(), pod("small", "150m", ""), nil, inPool("a")); verdict != DoesNotFit {
					t.Error("a pod that stays has lost its room")
				}
			}
		})
	}
}

func nominated(name, cpu, to string) *corev1.Pod {
	p := pod(name, cpu, "")
	p.Status.NominatedNodeName = to
	return p
}

func ended(name, cpu, on string) *corev1.Pod {
	p := pod(name, cpu, on)
	p.Status.Phase = corev1.PodSucceeded
	return p
}

func TestAnswersAddUp(t *testing.T) {
	f := filters(t)
	var there []*corev1.Pod
	for i := range 20 {
		there = append(there, pod(fmt.Sprintf("old-%d", i), "400m", fmt.Sprintf("b%d", i/2)))
	}
	nodes := []*corev1.Node{node("a0", "a")}
	for i := range 10 {
		nodes = append(nodes, node(fmt.Sprintf("b%d", i), "b"))
	}
	rooms, err := f.Take(there, nodes)
	if err != nil {
		t.Fatal(err)
	}
	placed := 0
	for i, old := range there {
		if _, verdict, _ := rooms.Place(t.Context(), pod(fmt.Sprintf("new-%d", i), "400m", ""), old, inPool("a")); verdict == Fits {
			placed++
		}
	}
	if placed != 2 {
		t.Errorf("%d pods of 400m were placed on one node of 1 CPU, want 2", placed)
	}
	// The evictions of those that go may be refused, so their rooms are nobody else's.
	if on, verdict, _ := rooms.Place(t.Context(), pod("third", "900m", ""), nil, inPool("b")); verdict != DoesNotFit {
		t.Errorf("the room of pods that may not go was given to another on %s", on)
	}
	if on, verdict, _ := rooms.Place(t.Context(), pod("fourth", "200m", ""), nil, inPool("b")); verdict != Fits || on != "b0" {
		t.Errorf("what was free: got %d on %q, want b0", verdict, on)
	}
	if _, verdict, _ := rooms.Place(t.Context(), pod("fifth", "400m", ""), nil, inPool("b")); verdict != DoesNotFit {
		t.Errorf("a refused pod has left its node: got %d", verdict)
	}
}

// What was promised to a pod holds if all evictions of the pods before it succeed, and if none does.
func TestAPlaceHoldsWhicheverEvictionsSucceed(t *testing.T) {
	f := filters(t)
	labelled := func(p *corev1.Pod, app string, change func(*corev1.PodSpec)) *corev1.Pod {
		p.Labels = map[string]string{"app": app}
		if change != nil {
			change(&p.Spec)
		}
		return p
	}
	apart := func(s *corev1.PodSpec) {
		s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	}
	term := []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	near := func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term}}
	}
	away := func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term}}
	}
	for name, tc := range map[string]struct {
		// of is what the pods that go look at; other is the next pod, that none replaces, for pool b.
		of, other func(*corev1.PodSpec)
		app, cpu  string
		// moving is how many of four pods in pool b may go to pool a.
		moving int
		want   Verdict
	}{
		"pods spread evenly go while they are spread evenly afterwards": {of: apart, app: "other", cpu: "1m", moving: 2},
		"a pod has no use for room that may not become free":            {app: "other", cpu: "500m", moving: 4, want: DoesNotFit},
		"a pod stays away from pods that may stay":                      {app: "other", cpu: "1m", other: away, moving: 4, want: DoesNotFit},
		"a pod does not follow pods that may go":                        {app: "other", cpu: "1m", other: near, moving: 4, want: DoesNotFit},
	} {
		t.Run(name, func(t *testing.T) {
			var running []*corev1.Pod
			for i := range 4 {
				running = append(running, labelled(pod(fmt.Sprintf("old-%d", i), "200m", "b0"), "web", tc.of))
			}
			rooms, err := f.Take(running, []*corev1.Node{node("a0", "a"), node("b0", "b")})
			if err != nil {
				t.Fatal(err)
			}
			moving := 0
			for i, old := range running {
				if _, verdict, _ := rooms.Place(t.Context(), labelled(pod(fmt.Sprintf("new-%d", i), "200m", ""), "web", tc.of), old, inPool("a")); verdict == Fits {
					moving++
				}
			}
			if moving != tc.moving {
				t.Errorf("%d pods may go, want %d", moving, tc.moving)
			}
			if on, verdict, why := rooms.Place(t.Context(), labelled(pod("next", tc.cpu, ""), tc.app, tc.other), nil, inPool("b")); verdict != tc.want {
				t.Errorf("got %d on %q (%v), want %d", verdict, on, why, tc.want)
			}
		})
	}
}
