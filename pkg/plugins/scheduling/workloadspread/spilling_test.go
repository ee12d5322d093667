package workloadspread

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/ledger"
)

func TestAnExhaustedPodSaysWhy(t *testing.T) {
	w := newWorld(t, 3)
	w.spread(1, adaptive)
	const want = `WorkloadSpread "web": a: 0/1 nodes fit: 1 Insufficient cpu; b: 0/2 nodes fit: 2 untolerated taint`
	for _, pod := range w.podsNamed("p", 2) {
		for _, why := range []string{"0/1 nodes fit: 1 Insufficient cpu", "0/2 nodes fit: 2 untolerated taint"} {
			if got := w.refuse(pod, memoEntry{generation: unproven, why: why}); got != ledger.GoOn {
				t.Fatalf("got step %d, want to go on", got)
			}
		}
		w.expectAnswer("NoNodeFits: "+want, pod)
	}
	if want := []string{"NoNodeFits: a: 0/1 nodes fit: 1 Insufficient cpu; b: 0/2 nodes fit: 2 untolerated taint"}; !slices.Equal(w.announced, want) {
		t.Errorf("announced %q, want %q: once for all pods", w.announced, want)
	}
}

func TestASubsetWithoutNodesCostsNoCycle(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, adaptive)
	pod := w.pod("p")
	w.expectAnswer("b", pod, nodeInfo("b", "1"), nodeInfo("c", "1"))
	w.expectAnswer(`NoNodeFits: WorkloadSpread "web": a: no node belongs to it; b: no node belongs to it`, pod, nodeInfo("c", "1"))
	w.expectAnswer("a", pod, nodeInfo("a", "1"), nodeInfo("b", "1")) // the pod has a node now
}

func TestASubsetWithoutRoomCostsNoCycle(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, adaptive)
	full, other := nodeInfo("a", "1", requesting(podOf("rs-uid", "big"), "900m")), nodeInfo("b", "8")
	next := func(name, cpu string) *corev1.Pod {
		pod := requesting(podOf("rs-uid", name), cpu)
		w.see(pod)
		return pod
	}
	w.expectAnswer("b", next("first", "500m"), full, other)
	w.expectAnswer("b", next("same", "500m"), full, other)
	// A bind elsewhere changes a node of another subset. This proves nothing about this subset.
	w.expectAnswer("b", next("elsewhere", "500m"), full, nodeInfo("b", "8", requesting(podOf("rs-uid", "new"), "1")))
	// A change of the full node that makes no room does not open the subset.
	stillFull := nodeInfo("a", "1", requesting(podOf("rs-uid", "other"), "800m"))
	w.expectAnswer("b", next("still-full", "500m"), stillFull, other)
	// A smaller pod has its own entry.
	w.expectAnswer("a", next("small", "50m"), stillFull, other)
	// Room on one node opens the subset again.
	roomy := nodeInfo("a", "1", requesting(podOf("rs-uid", "little"), "100m"))
	w.expectAnswer("a", next("room", "500m"), roomy, other)
	w.expectAnswer(`NoNodeFits: WorkloadSpread "web": a: 0/1 nodes fit: 1 Insufficient cpu; b: 0/1 nodes fit: 1 Insufficient cpu`, next("huge", "9"), roomy, other)
	w.expectAwake() // no pod had to be tried twice
}

func TestAPodWhosePredicatesChangeIsJudgedAgain(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, adaptive)
	pod := requesting(podOf("rs-uid", "p"), "500m")
	w.see(pod)
	nodes := []fwk.NodeInfo{nodeInfo("a", "400m"), nodeInfo("b", "8")}
	w.expectAnswer("b", pod, nodes...)
	resized := requesting(pod.DeepCopy(), "300m") // while the pod was pending
	w.see(resized)
	w.expectAnswer("a", resized, nodes...)
}

func TestRoomThatComesFreeInTheMiddleOfARoundIsNotMissed(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, adaptive)
	pod := requesting(podOf("rs-uid", "p"), "500m")
	w.see(pod)
	before, other := nodeInfo("a", "1"), nodeInfo("b", "1")
	newest := func(infos ...fwk.NodeInfo) memoEntry {
		entry := memoEntry{}
		for _, info := range infos {
			entry.generation = max(entry.generation, info.GetGeneration())
		}
		return entry
	}
	w.refuse(pod, newest(before, other), before, other) // in a, where the pod would displace a nominated pod
	after := nodeInfo("a", "1")
	w.refuse(pod, newest(after, other), before, other) // in b; meanwhile a has changed
	w.expectAnswer("a", pod, after, other)
}

func TestAVerdictThatProvesNothingIsNotRemembered(t *testing.T) {
	w := newWorld(t, 9)
	w.spread(1, adaptive)
	nodes := []fwk.NodeInfo{nodeInfo("a", "8"), nodeInfo("b", "8")}
	pods := w.podsNamed("p", 2)
	w.refuse(pods[0], memoEntry{generation: unproven, why: "anti-affinity"}, nodes...)
	w.expectAnswer("a", pods[1], nodes...)
}

func TestAnExhaustedPodIsWokenByTheVolumesAndDevicesThatConcernIt(t *testing.T) {
	w := newWorld(t, 1)
	w.spread(1, adaptive)
	pod := podOf("rs-uid", "p")
	pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimName: ptr.To("gpu")}}
	w.see(pod)
	for range 2 {
		w.refuse(pod, memoEntry{generation: unproven, why: "1 cannot allocate all claims"})
	}
	if got := w.asks(pod); !strings.HasPrefix(got, "NoNodeFits") {
		t.Fatalf("got %q", got)
	}
	volumeClaim := func(name string) any {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}}
	}
	claim := func(name string, allocated bool) any {
		c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}}
		if allocated {
			c.Status.Allocation = &resourcev1.AllocationResult{}
		}
		return c
	}
	tests := map[string]struct {
		hint          fwk.QueueingHintFn
		before, after any
		want          fwk.QueueingHint
	}{
		"a volume":                     {w.isSchedulableAfterVolumeChange, nil, &corev1.PersistentVolume{}, fwk.Queue},
		"an attachment that is gone":   {w.isSchedulableAfterVolumeChange, &storagev1.VolumeAttachment{}, nil, fwk.Queue},
		"its volume claim":             {w.isSchedulableAfterVolumeChange, nil, volumeClaim("data"), fwk.Queue},
		"another's volume claim":       {w.isSchedulableAfterVolumeChange, nil, volumeClaim("other"), fwk.QueueSkip},
		"devices":                      {w.isSchedulableAfterDeviceChange, nil, &resourcev1.ResourceSlice{}, fwk.Queue},
		"its claim":                    {w.isSchedulableAfterDeviceChange, claim("gpu", false), claim("gpu", false), fwk.Queue},
		"another's claim, given back":  {w.isSchedulableAfterDeviceChange, claim("other", true), claim("other", false), fwk.Queue},
		"another's claim, still taken": {w.isSchedulableAfterDeviceChange, claim("other", true), claim("other", true), fwk.QueueSkip},
		"another's claim, new":         {w.isSchedulableAfterDeviceChange, nil, claim("other", false), fwk.QueueSkip},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := tc.hint(klog.Background(), pod, tc.before, tc.after); err != nil || got != tc.want {
				t.Errorf("got %v and error %v, want %v", got, err, tc.want)
			}
		})
	}
	plain := pod.DeepCopy()
	plain.Spec.Volumes, plain.Spec.ResourceClaims = nil, nil
	for _, hint := range []fwk.QueueingHintFn{w.isSchedulableAfterVolumeChange, w.isSchedulableAfterDeviceChange} {
		if got, err := hint(klog.Background(), plain, nil, &resourcev1.ResourceSlice{}); err != nil || got != fwk.QueueSkip {
			t.Errorf("a pod without volumes and devices: got %v and error %v, want skip", got, err)
		}
	}
	plain.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}}}}
	if got, err := w.isSchedulableAfterDeviceChange(klog.Background(), plain, nil, &resourcev1.DeviceClass{}); err != nil || got != fwk.Queue {
		t.Errorf("a pod with a resource that a class may serve: got %v and error %v, want that it is queued", got, err)
	}
}
