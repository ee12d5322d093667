package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	jsonpatchapply "github.com/evanphx/json-patch/v5"
	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/subset"
)

func compileEarly(tb testing.TB, text string) *subset.Policy {
	tb.Helper()
	return compileAs(tb, v1beta1.NoCompatibility, text)
}

func compileAs(tb testing.TB, as v1beta1.Compatibility, text string) *subset.Policy {
	tb.Helper()
	var spec v1beta1.WorkloadSpreadSpec
	if err := yaml.UnmarshalStrict([]byte("targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n"+text), &spec); err != nil {
		tb.Fatal(err)
	}
	policy, errs := subset.Compile(subset.In(as, &v1beta1.WorkloadSpread{Spec: spec}), field.NewPath("spec"))
	if len(errs) > 0 {
		tb.Fatal(errs)
	}
	return policy
}

const twoArchitectures = `subsets:
- name: x86
  maxReplicas: 2
  requiredNodeSelector: {matchExpressions: [{key: arch, operator: In, values: [amd64]}]}
- name: arm
  requiredNodeSelector: {matchExpressions: [{key: arch, operator: In, values: [arm64]}]}
  tolerations: [{key: arm, operator: Exists}]
  patch: {metadata: {labels: {arch: arm}}, spec: {containers: [{name: main, resources: {limits: {cpu: 800m}}}]}}
`

func TestTheFirstPodsGoToTheFirstSubsetUntilItsQuotaIsBooked(t *testing.T) {
	policy, clock := compileEarly(t, twoArchitectures), clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	b, spread := newBookings(clock), types.NamespacedName{Namespace: "ns", Name: "web"}
	bookIn := func(revision, mark string, trial bool) string {
		verdict, err := b.book(&candidate{spread: spread, policy: policy, owners: onlyOf("web-1"), revision: revision, mark: mark, trial: trial, replicas: 10,
			node: func(string) (*corev1.Node, error) {
				return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"arch": "amd64"}}}, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		return policy.Subsets[verdict.Subset].Name
	}
	book := func(mark string, trial bool) string { return bookIn("r1", mark, trial) }
	expect := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	pod := func(name, in, mark string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Namespace, p.Name, p.UID = "ns", name, types.UID(name)
		p.Labels = map[string]string{"pod-template-hash": "r1"}
		p.Annotations = map[string]string{v1beta1.AdmittedAnnotation: fmt.Sprintf(`{"name":"web","subset":%q,"pick":%q}`, in, mark)}
		p.OwnerReferences = controlledBy("web-1")
		return p
	}
	expect(book("trial", true), "x86") // takes nothing
	expect(book("one", false), "x86")
	expect(book("two", false), "x86")
	expect(book("three", false), "arm")
	// The pods arrive, once and twice, and count once.
	for range 2 {
		b.seen(pod("p1", "x86", "one"))
		b.seen(pod("p2", "x86", "two"))
	}
	expect(book("four", false), "arm")
	b.gone(pod("p1", "x86", "one"))
	expect(book("five", false), "x86")
	// That one never comes, and after a while its place is free again.
	expect(book("six", false), "arm")
	clock.SetTime(clock.Now().Add(pickTTL + time.Second))
	expect(book("seven", false), "x86")
	// Pods that others bound count as well.
	for _, name := range []string{"bound-1", "bound-2"} {
		other := pod(name, "", name)
		other.Annotations, other.Spec.NodeName, other.Labels["pod-template-hash"] = nil, "node", "r3"
		b.seen(other)
	}
	expect(bookIn("r3", "eight", true), "arm")
	// Another revision has quotas of its own.
	expect(bookIn("r2", "nine", true), "x86")
}

func TestAnEarlyBoundPodIsMadeAsItsSubsetWantsIt(t *testing.T) {
	policy := compileEarly(t, twoArchitectures)
	raw := []byte(`{"metadata":{"generateName":"web-","labels":{"app":"web"}},"spec":{"futureField":{"kept":true},"containers":[{"name":"main","image":"i","resources":{"limits":{"cpu":"1"}}}]}}`)
	var object podObject
	if err := json.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	operations, err := object.patchFor(policy, 1, v1beta1.AdmittedSubset{Name: "web", Subset: "arm", Pick: "m"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	patched := applied(t, raw, operations)
	pod := podIn(t, patched)
	if pod.Labels["arch"] != "arm" || pod.Labels["app"] != "web" || pod.Spec.SchedulerName != v1beta1.SchedulerName ||
		pod.Spec.Containers[0].Resources.Limits.Cpu().String() != "800m" || len(pod.Spec.Tolerations) != 1 ||
		pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "arm64" {
		t.Errorf("%s", patched)
	}
	if a := subset.AdmittedOf(pod); a == nil || a.Subset != "arm" || a.Pick != "m" {
		t.Errorf("noted %+v", a)
	}
	if own := subset.OwnTolerations(pod); len(own) != 0 {
		t.Errorf("own tolerations %v", own)
	}
	var tree struct {
		Spec struct{ FutureField map[string]bool }
	}
	if err := json.Unmarshal(patched, &tree); err != nil || !tree.Spec.FutureField["kept"] {
		t.Errorf("a field that is not known did not survive: %s", patched)
	}
}

// TestAPortOfAPodIsPatchedByItsNumber: the pod must be decoded so that its integers are those of the patch.
func TestAPortOfAPodIsPatchedByItsNumber(t *testing.T) {
	policy := compileEarly(t, `subsets: [{name: a, patch: {spec: {containers: [{name: main, ports: [{containerPort: 80, name: http}]}]}}}]`)
	raw := []byte(`{"metadata":{"generateName":"web-"},"spec":{"containers":[{"name":"main","image":"i","ports":[{"containerPort":80}]}]}}`)
	var object podObject
	if err := json.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	operations, err := object.patchFor(policy, 0, v1beta1.AdmittedSubset{Name: "web", Subset: "a", Pick: "m"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	patched := applied(t, raw, operations)
	if ports := podIn(t, patched).Spec.Containers[0].Ports; len(ports) != 1 || ports[0].Name != "http" {
		t.Errorf("%s", patched)
	}
}

// TestAPodOfACompatibleSpreadCarriesWhatClientsOfOpenKruiseRead: at its creation it has the record, the terms and the tolerations of its own subset, and
// nothing of another one. Its scheduler is its own choice. The API server may ask again.
func TestAPodOfACompatibleSpreadCarriesWhatClientsOfOpenKruiseRead(t *testing.T) {
	const subsets = `subsets:
- name: zone-a
  maxReplicas: 2
  requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}
  preferredNodeSelector: [{weight: 7, preference: {matchExpressions: [{key: disk, operator: In, values: [ssd]}]}}]
  tolerations: [{key: a, operator: Exists}]
- name: zone-b
  maxReplicas: 3
  requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}
  tolerations: [{key: b, operator: Exists}]
`
	policy := compileAs(t, v1beta1.CompatibleWithKruise, subsets)
	for _, tc := range []struct {
		name, scheduler, affinity string
		want, required, preferred string
	}{
		{"plain", "", "", v1beta1.SchedulerName, "zone=a", "7 disk=ssd"},
		{"of the default scheduler", "default-scheduler", "", v1beta1.SchedulerName, "zone=a", "7 disk=ssd"},
		{"of Volcano", "volcano", "", "volcano", "zone=a", "7 disk=ssd"},
		{"with terms of its own", "volcano", `"affinity":{"nodeAffinity":{
			"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"arch","operator":"In","values":["arm64"]}]},{"matchExpressions":[{"key":"arch","operator":"In","values":["amd64"]}]}]},
			"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"rack","operator":"In","values":["r1"]}]}}]}},`,
			"volcano", "arch=arm64,zone=a arch=amd64,zone=a", "1 rack=r1, 7 disk=ssd"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw := []byte(`{"metadata":{"generateName":"web-","labels":{"app":"web"}},"spec":{"schedulerName":"` + tc.scheduler + `",` + tc.affinity + `"containers":[{"name":"main","image":"i"}]}}`)
			admitted := v1beta1.AdmittedSubset{Name: "web", Subset: "zone-a", Pick: "m"}
			for again := range 3 {
				var object podObject
				if err := json.Unmarshal(raw, &object); err != nil {
					t.Fatal(err)
				}
				operations, err := object.patchFor(policy, 0, admitted, nil)
				if err != nil {
					t.Fatal(err)
				}
				if again > 0 && len(operations) > 0 {
					t.Errorf("asked again it answers %v", operations)
				}
				raw = applied(t, raw, operations)
			}
			pod := podIn(t, raw)
			if got := pod.Annotations[v1beta1.MatchedAnnotation]; got != `{"name":"web","subset":"zone-a","uid":"m"}` {
				t.Errorf("record %s", got)
			}
			if subset.RecordIn(pod) != nil {
				t.Error("the record counts although no Binding wrote it")
			}
			if pod.Spec.SchedulerName != tc.want {
				t.Errorf("scheduler %q, want %q", pod.Spec.SchedulerName, tc.want)
			}
			if len(pod.Spec.Tolerations) != 1 || pod.Spec.Tolerations[0].Key != "a" {
				t.Errorf("tolerations %v", pod.Spec.Tolerations)
			}
			affinity := pod.Spec.Affinity.NodeAffinity
			var required, preferred []string
			for _, term := range affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
				required = append(required, inWords(term))
			}
			for _, term := range affinity.PreferredDuringSchedulingIgnoredDuringExecution {
				preferred = append(preferred, fmt.Sprintf("%d %s", term.Weight, inWords(term.Preference)))
			}
			if got := strings.Join(required, " "); got != tc.required {
				t.Errorf("required %s, want %s", got, tc.required)
			}
			if got := strings.Join(preferred, ", "); got != tc.preferred {
				t.Errorf("preferred %s, want %s", got, tc.preferred)
			}
		})
	}
	t.Run("beyond all quotas", func(t *testing.T) {
		raw := []byte(`{"metadata":{"generateName":"web-"},"spec":{"schedulerName":"volcano","containers":[{"name":"main","image":"i"}]}}`)
		var object podObject
		if err := json.Unmarshal(raw, &object); err != nil {
			t.Fatal(err)
		}
		operations, err := object.patchFor(policy, subset.None, v1beta1.AdmittedSubset{Name: "web", Pick: "m"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		pod := podIn(t, applied(t, raw, operations))
		if _, recorded := pod.Annotations[v1beta1.MatchedAnnotation]; recorded || pod.Spec.Affinity != nil || len(pod.Spec.Tolerations) > 0 || pod.Spec.SchedulerName != "volcano" {
			t.Errorf("%+v", pod)
		}
	})
}

// inWords is a term of expressions with one value each.
func inWords(term corev1.NodeSelectorTerm) string {
	var parts []string
	for _, e := range term.MatchExpressions {
		parts = append(parts, e.Key+"="+strings.Join(e.Values, "|"))
	}
	return strings.Join(parts, ",")
}

// onePlaceEach are subsets of which each leaves its mark on the pod's containers.
const onePlaceEach = `
subsets:
- {name: a, maxReplicas: 1, patch: {spec: {containers: [{name: main, env: [{name: A, value: x}]}, {name: sidecar, image: i}]}}}
- {name: b, maxReplicas: 1, patch: {spec: {containers: [{name: main, env: [{name: B, value: x}]}]}}}
- {name: c}`

// earlyReplica is one replica of the webhook, with bookings of its own.
func earlyReplica(t *testing.T, clock clock.PassiveClock, objects []client.Object) http.Handler {
	t.Helper()
	owners := ownersIn(t, objects...)
	early := &earlyBinding{owners: owners, bookings: newBookings(clock)}
	return &podReviews{answer: (&podAdmission{owners: owners, early: early.review}).review, clock: clock}
}

// patchedAs is the subset picked for a pod, with the marks of subsets on its containers: "a: A".
func patchedAs(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	admitted := subset.AdmittedOf(pod)
	if admitted == nil {
		t.Fatalf("nothing was picked: %v", pod.Annotations)
	}
	text := admitted.Subset + ":"
	for _, container := range pod.Spec.Containers {
		for _, env := range container.Env {
			text += " " + env.Name
		}
	}
	return text
}

func TestAnEarlyBoundPodIsPickedForOnceHoweverOftenItIsReviewed(t *testing.T) {
	objects, clock := webObjects(t, onePlaceEach), clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	replica, other := earlyReplica(t, clock, objects), earlyReplica(t, clock, objects)
	fresh := func() *corev1.Pod { return webPod(t, `{containers: [{name: main, image: i}]}`) }
	expect := func(what string, pod *corev1.Pod, want string) {
		t.Helper()
		if got := patchedAs(t, pod); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	trial := func(r *admissionv1.AdmissionRequest) { r.DryRun = ptr.To(true) }

	first, _ := send(t, replica, fresh())
	expect("the first review", first, "a: A")
	changed := first.DeepCopy()
	changed.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "token", MountPath: "/token"}}
	for _, again := range []http.Handler{replica, replica, other} {
		admitted, response := send(t, again, changed)
		expect("the same pod again", admitted, "a: A")
		if response.Patch != nil {
			t.Errorf("asked again, it answers %s", response.Patch)
		}
	}
	// It is booked, once, by both.
	tried, _ := send(t, other, fresh(), trial)
	expect("a trial", tried, "b: B")
	second, _ := send(t, replica, fresh())
	expect("the second pod", second, "b: B")
	third, _ := send(t, replica, fresh())
	expect("the third pod", third, "c:")
	// The other has filled b meanwhile and does not know the second pod, which has the patch already.
	elsewhere, _ := send(t, other, fresh())
	expect("a pod of the other replica", elsewhere, "b: B")
	second, _ = send(t, other, second)
	expect("the second pod again, elsewhere", second, "b: B")
	// A trial takes nothing, also not the second time.
	clock.SetTime(clock.Now().Add(pickTTL + time.Second))
	send(t, replica, changed, trial)
	late, _ := send(t, replica, fresh())
	expect("a pod after all picks have expired", late, "a: A")
}

func TestAPickThatWasCopiedFromAnotherPodCountsForNothing(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	replica := earlyReplica(t, clock, webObjects(t, onePlaceEach))
	fresh := webPod(t, `{containers: [{name: main, image: i}]}`)
	original, _ := send(t, replica, fresh)
	before := original.Annotations[v1beta1.AdmittedAnnotation]
	for name, tc := range map[string]struct {
		value string
		after time.Duration
		want  string
	}{
		"within a request":                        {before, time.Minute, "a"},
		"by a replica whose clock is behind":      {before, -time.Minute, "a"},
		"longer after than any request takes":     {before, time.Minute + time.Second, "b"},
		"with a mark that no pick of Berth has":   {strings.Replace(before, `"pick":"`, `"pick":"`+strings.Repeat("x", maxPickLength), 1), time.Minute, "b"},
		"of another spread":                       {strings.Replace(before, `"web"`, `"other"`, 1), 0, "b"},
		"of a subset that is gone":                {strings.Replace(before, `"a"`, `"gone"`, 1), 0, "b"},
		"of no subset, because all were full":     {strings.Replace(before, `"a"`, `""`, 1), 0, "b"},
		"without a time, as before there was one": {`{"name":"web","subset":"a","pick":"p"}`, 0, "b"},
		"that nobody can read":                    {`{`, 0, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			now := clocktesting.NewFakePassiveClock(time.Unix(1000, 0).Add(tc.after))
			replica := earlyReplica(t, now, webObjects(t, onePlaceEach))
			if first, _ := send(t, replica, fresh); subset.AdmittedOf(first).Subset != "a" {
				t.Fatal("a was full")
			}
			copied := original.DeepCopy()
			copied.Annotations[v1beta1.AdmittedAnnotation] = tc.value
			admitted, _ := send(t, replica, copied)
			got := subset.AdmittedOf(admitted)
			if got.Subset != tc.want || (got.Pick == subset.AdmittedOf(original).Pick) != (tc.want == "a") {
				t.Errorf("got %+v, want subset %s", got, tc.want)
			}
		})
	}
}

func TestALabelByWhichTheWorkloadWouldLoseItsPodIsLeftAsItIs(t *testing.T) {
	policy := compileEarly(t, `
subsets: [{name: a, patch: {metadata: {labels: {app: other, tier: elastic}}, spec: {containers: [{name: main, env: [{name: A, value: b}]}]}}}]
`)
	raw := []byte(`{"metadata":{"generateName":"web-","labels":{"app":"web","tier":"base"}},"spec":{"containers":[{"name":"main","image":"i"}]}}`)
	tests := map[string]struct {
		selector labels.Selector
		want     map[string]string
	}{
		"by which it selects":  {labels.SelectorFromSet(labels.Set{"app": "web"}), map[string]string{"app": "web", "tier": "elastic"}},
		"by others":            {labels.SelectorFromSet(labels.Set{"x": "y"}), map[string]string{"app": "other", "tier": "elastic"}},
		"that nobody knows of": {nil, map[string]string{"app": "other", "tier": "elastic"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var object podObject
			if err := json.Unmarshal(raw, &object); err != nil {
				t.Fatal(err)
			}
			operations, err := object.patchFor(policy, 0, v1beta1.AdmittedSubset{Name: "web", Subset: "a", Pick: "m"}, tc.selector)
			if err != nil {
				t.Fatal(err)
			}
			pod := podIn(t, applied(t, raw, operations))
			if !maps.Equal(pod.Labels, tc.want) || len(pod.Spec.Containers[0].Env) != 1 {
				t.Errorf("labels %v, want %v", pod.Labels, tc.want)
			}
		})
	}
}

// applied is what the API server makes of an answer.
func applied(t *testing.T, raw []byte, operations []jsonpatch.Operation) []byte {
	t.Helper()
	text, err := json.Marshal(operations)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatchapply.DecodePatch(text)
	if err != nil {
		t.Fatal(err)
	}
	patched, err := patch.Apply(raw)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return patched
}

func podIn(t *testing.T, text []byte) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := json.Unmarshal(text, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestAdmissionPassesOverASubsetThatHadNoNodeOfLate(t *testing.T) {
	const adaptively = onePlaceEach + "\nscheduleStrategy: {type: Adaptive, adaptive: {rescheduleCriticalSeconds: 30, unschedulableLastSeconds: 60}}"
	since := time.Unix(1000, 0)
	left := v1beta1.WorkloadSpreadStatus{Moves: []v1beta1.Move{{From: "a", To: "b", Time: metav1.NewTime(since)}}}
	waited := v1beta1.WorkloadSpreadStatus{SubsetStatuses: []v1beta1.SubsetStatus{{Name: "a",
		Conditions: []metav1.Condition{{Type: v1beta1.ConditionSchedulable, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(since)}}}}}
	for name, tc := range map[string]struct {
		status v1beta1.WorkloadSpreadStatus
		after  time.Duration
		want   string
	}{
		"pods had to leave it":            {left, time.Second, "b: B"},
		"pods had to leave it, long ago":  {left, time.Minute, "a: A"},
		"pods wait in it":                 {waited, 31 * time.Second, "b: B"},
		"pods wait in it, since just now": {waited, 30 * time.Second, "a: A"},
	} {
		objects := webObjects(t, adaptively)
		objects[0].(*v1beta1.WorkloadSpread).Status = tc.status
		pod, _ := send(t, earlyReplica(t, clocktesting.NewFakePassiveClock(since.Add(tc.after)), objects), webPod(t, `{containers: [{name: main, image: i}]}`))
		if got := patchedAs(t, pod); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// The pods of a StatefulSet come in any order, and each gets the subset of its ordinal.
func TestAdmissionPicksTheSubsetOfAnOrdinal(t *testing.T) {
	objects := webObjects(t, onePlaceEach)
	spread := objects[0].(*v1beta1.WorkloadSpread)
	spread.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db"}
	objects = append(objects, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "db"},
		Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), Ordinals: &appsv1.StatefulSetOrdinals{Start: 5}}})
	handler := earlyReplica(t, clocktesting.NewFakePassiveClock(time.Unix(1000, 0)), objects)
	for _, tc := range [][2]string{{"db-7", "c"}, {"db-6", "b"}, {"db-5", "a"}} {
		pod := webPod(t, `{containers: [{name: main, image: i}]}`)
		pod.Name = tc[0]
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "db", Controller: ptr.To(true)}}
		admitted, _ := send(t, handler, pod)
		if got := subset.AdmittedOf(admitted); got == nil || got.Subset != tc[1] {
			t.Errorf("%s: got %+v, want subset %q", tc[0], got, tc[1])
		}
	}
}

// countingReader counts the requests for whole objects of a cluster, and fails them while err is not nil.
type countingReader struct {
	client.Client
	reads int
	err   error
}

func (c *countingReader) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if _, whole := into.(*unstructured.Unstructured); whole {
		if c.reads++; c.err != nil {
			return c.err
		}
	}
	return c.Client.Get(ctx, key, into, opts...)
}

// Of an advanced StatefulSet the webhook has the metadata only. It reads the reserved ordinals once for each version of the spec.
func TestAdmissionPicksTheSubsetOfAnOrdinalPastReservedOnes(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "apps.kruise.io", Version: "v1beta1", Kind: "StatefulSet"}
	objects := webObjects(t, onePlaceEach)
	objects[0].(*v1beta1.WorkloadSpread).Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps.kruise.io/v1alpha1", Kind: "StatefulSet", Name: "db"}
	set := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "shop", "name": "db", "uid": "db", "generation": int64(1)},
		"spec":     map[string]any{"replicas": int64(3), "reserveOrdinals": []any{int64(0), "2-6", int64(8)}}}}
	set.SetGroupVersionKind(kind)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
	scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind("StatefulSetList"), &unstructured.UnstructuredList{})
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kind.GroupVersion()})
	mapper.Add(kind, meta.RESTScopeNamespace)
	live := &countingReader{Client: withControllers(fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(append(objects, set)...).
		WithIndex(&v1beta1.WorkloadSpread{}, lineage.TargetField, lineage.TargetKeyOf)).Build()}
	owners := lineage.Over(live.Client, lineage.NewKinds(mapper, live, clock.RealClock{}), clock.RealClock{})
	if unwatchable, err := owners.Watch(t.Context(), kind.GroupKind()); err != nil || unwatchable != nil {
		t.Fatal(unwatchable, err)
	}
	replica := func() http.Handler {
		now := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
		early := &earlyBinding{owners: owners, bookings: newBookings(now)}
		return &podReviews{answer: (&podAdmission{owners: owners, early: early.review}).review, clock: now}
	}
	expect := func(handler http.Handler, want ...[2]string) {
		t.Helper()
		for _, tc := range want {
			pod := webPod(t, `{containers: [{name: main, image: i}]}`)
			pod.Name = tc[0]
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps.kruise.io/v1beta1", Kind: "StatefulSet", Name: "db", UID: "db", Controller: ptr.To(true)}}
			admitted, _ := send(t, handler, pod)
			if got := subset.AdmittedOf(admitted); got == nil || got.Subset != tc[1] {
				t.Errorf("%s: got %+v, want subset %q", tc[0], got, tc[1])
			}
		}
	}
	expectReads := func(want int) {
		t.Helper()
		if live.reads != want {
			t.Errorf("%d requests, want %d", live.reads, want)
		}
		live.reads = 0
	}
	live.err = errors.New("the API server does not answer")
	expect(replica(), [2]string{"db-9", "a"}, [2]string{"db-1", "b"}) // in the order of creation
	expectReads(2)
	live.err = nil
	expect(replica(), [2]string{"db-9", "c"}, [2]string{"db-7", "b"}, [2]string{"db-1", "a"})
	expectReads(1)
	set = set.DeepCopy()
	if err := live.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set); err != nil {
		t.Fatal(err)
	}
	set.SetGeneration(2)
	set.Object["spec"].(map[string]any)["reserveOrdinals"] = []any{"0-6"}
	if err := live.Update(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	expect(replica(), [2]string{"db-9", "c"}, [2]string{"db-8", "b"}, [2]string{"db-7", "a"})
	expectReads(1)
}
