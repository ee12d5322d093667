package webhook

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

func controlledBy(replicaSet string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: replicaSet, UID: types.UID(replicaSet), Controller: ptr.To(true)}}
}

// boundPod is a pod of a ReplicaSet, on a node of pool a.
func boundPod(name, replicaSet, revision string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "shop", name, types.UID(name)
	p.Labels = map[string]string{"app": "web", "pod-template-hash": revision}
	p.Annotations = map[string]string{}
	p.OwnerReferences = controlledBy(replicaSet)
	p.Spec.NodeName = "node-a"
	p.Status.Phase = corev1.PodRunning
	return p
}

// recorded has the pod carry what Berth leaves on one that it has bound.
func recorded(p *corev1.Pod, spread, in string) *corev1.Pod {
	p.Annotations[v1beta1.MatchedAnnotation] = fmt.Sprintf(`{"name":%q,"subset":%q,"uid":%q}`, spread, in, p.UID)
	return admittedTo(p, spread, in)
}

func admittedTo(p *corev1.Pod, spread, in string) *corev1.Pod {
	p.Annotations[v1beta1.AdmittedAnnotation] = fmt.Sprintf(`{"name":%q,"subset":%q,"pick":%q}`, spread, in, p.UID)
	return p
}

func nodeOf(pool string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + pool, Labels: map[string]string{"pool": pool}}}
}

func replicaSetOf(deployment, name string) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "Deployment", Name: deployment, UID: types.UID(deployment), Controller: ptr.To(true)}}}}
}

// earlyPools has room for more of the spread's strategy and of its spec.
const earlyPools = `
scheduleStrategy: {binding: Early%s}
subsets:
- {name: a, maxReplicas: 3, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
%s`

// Three pods are on nodes of a, which takes three, or are not counted there. A fourth is admitted, and should the controller find that a has no room
// for it, it is replaced and the next one is admitted.
func TestAPodIsPickedForWhereTheControllerWillNotReplaceIt(t *testing.T) {
	const workloadScope = ", quotaScope: Workload"
	for name, tc := range map[string]struct {
		strategy, spec string
		pod            func(name string) *corev1.Pod
		// elsewhere: the pods are no concern of the spread, and are not on its roster.
		elsewhere bool
		want      string
	}{
		"records of this spread count": {pod: func(n string) *corev1.Pod {
			return recorded(boundPod(n, "web-1", "r1"), "web", "a")
		}, want: "b"},
		"records of this spread count where the node is of another subset": {pod: func(n string) *corev1.Pod {
			return recorded(boundPod(n, "web-1", "r1"), "web", "b")
		}, want: "a"},
		"pods that somebody else bound count by their nodes": {pod: func(n string) *corev1.Pod {
			return boundPod(n, "web-1", "r1")
		}, want: "b"},
		"so do those that were picked for, whatever was picked": {pod: func(n string) *corev1.Pod {
			return admittedTo(boundPod(n, "web-1", "r1"), "web", "b")
		}, want: "b"},
		"records of another spread, which is gone, leave the pods to their nodes": {pod: func(n string) *corev1.Pod {
			return recorded(boundPod(n, "web-1", "r1"), "web-before", "b")
		}, want: "b"},
		"so do those of another spread that let them go": {pod: func(n string) *corev1.Pod {
			return recorded(boundPod(n, "web-1", "r1"), "web-before", "")
		}, want: "b"},
		"so do those of a subset that was renamed": {pod: func(n string) *corev1.Pod {
			return recorded(boundPod(n, "web-1", "r1"), "web", "a-before")
		}, want: "b"},
		"pods that were let go count nowhere": {pod: func(n string) *corev1.Pod {
			return recorded(boundPod(n, "web-1", "r1"), "web", "")
		}, want: "a"},
		"pods of another ReplicaSet count with scope Workload": {strategy: workloadScope, pod: func(n string) *corev1.Pod {
			return boundPod(n, "web-0", "r0")
		}, want: "b"},
		"so do their records of another spread": {strategy: workloadScope, pod: func(n string) *corev1.Pod {
			return recorded(boundPod(n, "web-0", "r0"), "web-before", "a")
		}, want: "b"},
		"pods of another revision do not count": {pod: func(n string) *corev1.Pod {
			return boundPod(n, "web-0", "r0")
		}, want: "a"},
		"also those of the same controller": {pod: func(n string) *corev1.Pod {
			return boundPod(n, "web-1", "r0")
		}, want: "a"},
		"pods of the same revision and another controller count": {pod: func(n string) *corev1.Pod {
			return boundPod(n, "web-0", "r1")
		}, want: "b"},
		"pods of another workload do not count": {strategy: workloadScope, elsewhere: true, pod: func(n string) *corev1.Pod {
			return boundPod(n, "other-1", "r1")
		}, want: "a"},
		"pods that the spread does not select do not count": {spec: "targetFilter: {selector: {matchLabels: {app: web}}}", elsewhere: true, pod: func(n string) *corev1.Pod {
			p := boundPod(n, "web-1", "r1")
			p.Labels["app"] = "debug"
			return p
		}, want: "a"},
		"pods without a controller do not count": {elsewhere: true, pod: func(n string) *corev1.Pod {
			p := recorded(boundPod(n, "web-1", "r1"), "web", "a")
			p.OwnerReferences = nil
			return p
		}, want: "a"},
		"pods on a node that is gone count nowhere": {pod: func(n string) *corev1.Pod {
			p := boundPod(n, "web-1", "r1")
			p.Spec.NodeName = "gone"
			return p
		}, want: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			text := fmt.Sprintf(earlyPools, tc.strategy, tc.spec)
			objects := append(webObjects(t, text), replicaSetOf("web", "web-0"), replicaSetOf("other", "other-1"), nodeOf("a"))
			clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
			early := &earlyBinding{owners: ownersIn(t, objects...), bookings: newBookings(clock)}
			handler := &podReviews{answer: (&podAdmission{owners: early.owners, early: early.review}).review, clock: clock}
			policy := compileEarly(t, text)
			plan := policy.Plan(4)
			roster := policy.NewRoster(&plan, "web")
			for i := range 3 {
				pod := tc.pod(fmt.Sprint("old-", i))
				early.bookings.seen(pod)
				if node := nodeOf("a"); !tc.elsewhere {
					if pod.Spec.NodeName != node.Name {
						node = nil
					}
					roster.Put(subset.Observe(pod, node))
				}
			}
			fresh := webPod(t, `{containers: [{name: main, image: i}]}`)
			fresh.Labels["pod-template-hash"] = "r1"
			admitted, _ := send(t, handler, fresh)
			if got := subset.AdmittedOf(admitted).Subset; got != tc.want {
				t.Errorf("picked %s, want %s", got, tc.want)
			}
			admitted.Name, admitted.UID = "new", "new"
			roster.Put(subset.Observe(admitted, nil))
			for _, pod := range roster.Overbooked() {
				t.Errorf("the controller replaces pod %s", pod.Name)
			}
		})
	}
}

// counted is what a pick of a new pod of ReplicaSet web-1 counts.
func counted(t *testing.T, early *earlyBinding, policy *subset.Policy) (subset.Counts, int32) {
	t.Helper()
	owners, err := early.ownersBelow(t.Context(), "shop", boundPod("new", "web-1", "r1"), workload.Owner{Kind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	in := candidate{spread: types.NamespacedName{Namespace: "shop", Name: "web"}, policy: policy, revision: "r1", owners: owners,
		node: func(name string) (*corev1.Node, error) { return early.owners.Node(t.Context(), name) }}
	counts, alike, err := early.bookings.count(&in)
	if err != nil {
		t.Fatal(err)
	}
	return counts, alike
}

func TestAdoptedPodsCountWhereTheModelSays(t *testing.T) {
	const text = `
scheduleStrategy: {binding: Early}
subsets: [{name: a, patch: {metadata: {labels: {tier: a}}}}, {name: b, patch: {metadata: {labels: {tier: b}}}}]`
	early := &earlyBinding{owners: ownersIn(t, append(webObjects(t, text), nodeOf("a"))...), bookings: newBookings(clocktesting.NewFakePassiveClock(time.Unix(1000, 0)))}
	for name, picked := range map[string]string{"p1": "", "p2": "b", "p3": "a", "p4": ""} {
		pod := boundPod(name, "web-1", "r1")
		if picked != "" {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1beta1.AdmittedAnnotation, fmt.Sprintf(`{"name":"web","subset":%q,"pick":%q}`, picked, name))
		}
		if name == "p4" {
			pod.Labels["tier"] = "b"
		}
		early.bookings.seen(pod)
	}
	for _, kruise := range []bool{false, true} {
		policy, want := compileEarly(t, text), subset.Counts{3, 1}
		if policy.Kruise = kruise; kruise {
			want = subset.Counts{2, 2}
		}
		if counts, alike := counted(t, early, policy); !slices.Equal(counts, want) || alike != 4 {
			t.Errorf("OpenKruise's %t: counts %v and %d of the revision, want %v and 4", kruise, counts, alike, want)
		}
	}
}

func TestAPodThatItsControllerReleasedCountsNoMore(t *testing.T) {
	for name, tc := range map[string]func(*corev1.Pod) *corev1.Pod{
		"that somebody else bound": func(p *corev1.Pod) *corev1.Pod { return p },
		"that Berth bound":         func(p *corev1.Pod) *corev1.Pod { return recorded(p, "web", "a") },
	} {
		t.Run(name, func(t *testing.T) {
			text := fmt.Sprintf(earlyPools, "", "")
			policy := compileEarly(t, text)
			early := &earlyBinding{owners: ownersIn(t, append(webObjects(t, text), nodeOf("a"))...), bookings: newBookings(clocktesting.NewFakePassiveClock(time.Unix(1000, 0)))}
			b := early.bookings
			count := func() int32 {
				kept, _ := counted(t, early, policy)
				return kept.At(0)
			}
			pod := tc(boundPod("p", "web-1", "r1"))
			b.seen(pod)
			if n := count(); n != 1 {
				t.Fatalf("counts %d times", n)
			}
			released := pod.DeepCopy()
			released.Labels["app"], released.OwnerReferences = "debug", nil
			b.seen(released)
			if n := count(); n != 0 {
				t.Errorf("counts %d times", n)
			}
			b.gone(released)
			expectNothingKept(t, b)
		})
	}
}

func expectNothingKept(t *testing.T, b *bookings) {
	t.Helper()
	if len(b.pods)+len(b.controllers)+len(b.picks) > 0 {
		t.Errorf("there are no pods, and it keeps %v, %v and %v", b.pods, b.controllers, b.picks)
	}
}

// randomBooking is a pod in one of the states in which the bookings may see it.
func randomBooking(r *rand.Rand, name string) *corev1.Pod {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	p := boundPod(name, one("web-0", "web-1", "web-1", "other-1"), one("r0", "r1", "r1"))
	p.Labels["app"] = one("web", "web", "web", "debug")
	p.Spec.NodeName = one("node-a", "node-b", "node-z", "gone", "")
	spreads, subsets := []string{"web", "web", "before"}, []string{"a", "b", "renamed", ""}
	switch r.IntN(4) {
	case 0:
		admittedTo(p, one(spreads...), one(subsets...))
	case 1, 2:
		recorded(p, one(spreads...), one(subsets...))
	}
	switch r.IntN(8) {
	case 0:
		p.Status.Phase = corev1.PodSucceeded
	case 1:
		p.OwnerReferences = nil
	}
	return p
}

func TestAdmissionCountsAsTheModelDoes(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		text := fmt.Sprintf(earlyPools, []string{"", ", quotaScope: Workload"}[seed%2], "targetFilter: {selector: {matchLabels: {app: web}}}")
		nodes := map[string]*corev1.Node{}
		objects := append(webObjects(t, text), replicaSetOf("web", "web-0"), replicaSetOf("other", "other-1"))
		for _, pool := range []string{"a", "b", "z"} {
			nodes["node-"+pool] = nodeOf(pool)
			objects = append(objects, client.Object(nodeOf(pool)))
		}
		early := &earlyBinding{owners: ownersIn(t, objects...), bookings: newBookings(clocktesting.NewFakePassiveClock(time.Unix(1000, 0)))}
		policy := compileEarly(t, text)
		last := map[string]*corev1.Pod{}
		for range 60 {
			name := fmt.Sprint("p", r.IntN(20))
			if known := last[name]; known != nil && r.IntN(5) == 0 {
				early.bookings.gone(known)
				delete(last, name)
				continue
			}
			last[name] = randomBooking(r, name)
			early.bookings.seen(last[name])
		}
		var bound []subset.Pod
		want, wantAlike := make(subset.Counts, len(policy.Subsets)), int32(0)
		scope := policy.ScopeOf("r1")
		for _, pod := range last {
			if !policy.Selects(pod.Labels) || len(pod.OwnerReferences) == 0 || pod.OwnerReferences[0].Name == "other-1" {
				continue
			}
			observed := subset.Observe(pod, nodes[pod.Spec.NodeName])
			bound = append(bound, observed)
			index, _ := policy.AdmittedTo(observed.Admitted, "web")
			admitted := observed.Admitted != nil && observed.Admitted.Spread == "web"
			if observed.Active && observed.Revision == "r1" && (observed.NodeName != "" || admitted) {
				wantAlike++
			}
			if observed.Active && observed.NodeName == "" && index != subset.None && policy.ScopeOf(observed.Revision) == scope {
				want[index]++
			}
		}
		for i := range want {
			want[i] += policy.Count(bound, "web").Kept(scope).At(i)
		}
		got, alike := counted(t, early, policy)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d: counts (-model +admission):\n%s", seed, diff)
		}
		if alike != wantAlike {
			t.Fatalf("seed %d: counts %d pods of the revision, want %d", seed, alike, wantAlike)
		}
		for _, pod := range last {
			early.bookings.gone(pod)
		}
		expectNothingKept(t, early.bookings)
	}
}

const earlyPercentages = `
scheduleStrategy: {binding: Early}
subsets:
- {name: a, maxReplicas: "30%", requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
- {name: b, maxReplicas: "70%", requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}`

func TestPercentagesAreOfThePodsThereAreUntilTheReplicasAreKnown(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	b, policy := newBookings(clock), compileEarly(t, earlyPercentages)
	made := 0
	// create has pods made, some of which are not in the cache yet, and says where they were picked for: "a 3, b 7, none 0".
	create := func(pods int, ask candidate) string {
		t.Helper()
		counts := map[int]int{}
		ask.spread, ask.policy, ask.owners, ask.mayLag = types.NamespacedName{Namespace: "shop", Name: "web"}, policy, onlyOf("web-1"), true
		ask.node = func(string) (*corev1.Node, error) { return nodeOf("a"), nil }
		for range pods {
			made++
			pod := boundPod(fmt.Sprint("p", made), "web-1", ask.revision)
			ask.mark, pod.Spec.NodeName = pod.Name, ""
			verdict, err := b.book(&ask)
			if err != nil {
				t.Fatal(err)
			}
			index := verdict.Subset
			if counts[index]++; made%3 > 0 && !ask.trial {
				picked := ""
				if index != subset.None {
					picked = policy.Subsets[index].Name
				}
				b.seen(admittedTo(pod, "web", picked))
			}
		}
		return fmt.Sprintf("a %d, b %d, none %d", counts[0], counts[1], counts[subset.None])
	}
	expect := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	expect(create(1, candidate{revision: "r1", trial: true}), "a 0, b 1, none 0")
	expect(create(10, candidate{revision: "r1"}), "a 3, b 7, none 0")
	// It is scaled up to 20. The status says 10 by now, and of a rollout with one of a new revision it is right.
	expect(create(3, candidate{revision: "r2", replicas: 10}), "a 1, b 2, none 0")
	expect(create(10, candidate{revision: "r1", replicas: 10}), "a 3, b 7, none 0")
	// Pods that were adopted are pods that there are.
	for i := range 3 {
		b.seen(boundPod(fmt.Sprint("adopted", i), "web-1", "r3"))
	}
	for i := range 7 {
		b.seen(recorded(boundPod(fmt.Sprint("placed", i), "web-1", "r3"), "web", "b"))
	}
	expect(create(1, candidate{revision: "r3", replicas: 10}), "a 0, b 1, none 0")
	// It says 20, and that is so: pods that are too many are replaced until nothing else can be expected, and then let go.
	expect(create(1, candidate{revision: "r1", replicas: 20}), "a 0, b 1, none 0")
	clock.SetTime(clock.Now().Add(maxLag))
	expect(create(1, candidate{revision: "r1", replicas: 20}), "a 1, b 0, none 0")
	clock.SetTime(clock.Now().Add(time.Second))
	expect(create(1, candidate{revision: "r1", replicas: 20}), "a 0, b 0, none 1")
	// Other news, which may be old as well.
	expect(create(1, candidate{revision: "r1", replicas: 21}), "a 0, b 1, none 0")
}

func TestALagIsOverAfterAWhileAndBeginsAnewAfterQuiet(t *testing.T) {
	var l lag
	now := time.Unix(1000, 0)
	for i, step := range []struct {
		after    time.Duration
		replicas int32
		isOver   bool
	}{{0, 10, false}, {maxLag, 10, false}, {time.Second, 10, true}, {maxLag, 10, true}, {maxLag + 1, 10, false}, {maxLag, 10, false}, {1, 10, true}, {1, 20, false}} {
		now = now.Add(step.after)
		if l.meet(step.replicas, now); l.isOver() != step.isOver {
			t.Errorf("step %d: over is %t", i, l.isOver())
		}
	}
}

func TestTheReplicasOfAKindThatIsNotInTheCacheMayLag(t *testing.T) {
	objects := webObjects(t, earlyPercentages)
	spread, deployment := objects[0].(*v1beta1.WorkloadSpread), objects[2].(*appsv1.Deployment)
	spread.Status.ObservedReplicas, deployment.Spec.Replicas = 4, ptr.To[int32](8)
	metadata := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet"}}
	for name, tc := range map[string]struct {
		target client.Object
		want   int32
		lags   bool
	}{
		"a Deployment":                        {deployment, 8, false},
		"a workload that is not in the cache": {nil, 4, true},
		"a kind that is not built in":         {metadata, 4, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got, lags := replicasOrObserved(tc.target, spread); got != tc.want || lags != tc.lags {
				t.Errorf("got %d, %t; want %d, %t", got, lags, tc.want, tc.lags)
			}
		})
	}
	spread.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet", Name: "web"}
	spread.Status.ObservedReplicas = 0 // they come in one file, and the status has not seen the workload
	handler, picked := earlyReplica(t, clocktesting.NewFakePassiveClock(time.Unix(1000, 0)), objects), map[string]int{}
	for range 10 {
		pod := webPod(t, `{containers: [{name: main, image: i}]}`)
		pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "apps.kruise.io/v1alpha1", "CloneSet", "web"
		admitted, _ := send(t, handler, pod)
		picked[subset.AdmittedOf(admitted).Subset]++
	}
	if diff := cmp.Diff(map[string]int{"a": 3, "b": 7}, picked); diff != "" {
		t.Errorf("picked (-want +got):\n%s", diff)
	}
}

// BenchmarkPick is what a pick costs without what it reads from the cache.
func BenchmarkPick(b *testing.B) {
	for name, mark := range map[string]func(*corev1.Pod) *corev1.Pod{
		"3000 pods of this spread":      func(p *corev1.Pod) *corev1.Pod { return recorded(p, "web", "a") },
		"3000 pods that others bound":   func(p *corev1.Pod) *corev1.Pod { return p },
		"3000 pods of a renamed subset": func(p *corev1.Pod) *corev1.Pod { return recorded(p, "web", "before") },
	} {
		b.Run(name, func(b *testing.B) {
			policy := compileEarly(b, fmt.Sprintf(earlyPools, "", ""))
			all := newBookings(clocktesting.NewFakePassiveClock(time.Unix(1000, 0)))
			for i := range 3000 {
				pod := boundPod(fmt.Sprint("p", i), "web-1", "r1")
				pod.Spec.NodeName = fmt.Sprint("n", i%300)
				all.seen(mark(pod))
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := all.book(&candidate{
					spread: types.NamespacedName{Namespace: "shop", Name: "web"}, policy: policy, owners: onlyOf("web-1"), revision: "r1", mark: "mark", replicas: 3000,
					node: func(string) (*corev1.Node, error) { return nodeOf("a"), nil },
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// onlyOf is one owner of pods, with no spread of a nearer one.
func onlyOf(uid types.UID) []owner {
	return []owner{{uid, func(map[string]string) bool { return false }}}
}

func TestPicksWhosePodsDoNotComeAreBounded(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	b := newBookings(clock)
	web, gone := types.NamespacedName{Namespace: "shop", Name: "web"}, types.NamespacedName{Namespace: "shop", Name: "gone"}
	b.keep(gone, place{subset: "a"}, "first")
	for i := range 3 * maxPicks {
		clock.SetTime(clock.Now().Add(time.Microsecond))
		b.keep(web, place{subset: "a"}, fmt.Sprint(i))
	}
	picks := b.picks[web]
	if len(picks) != maxPicks {
		t.Errorf("%d picks are remembered, want %d", len(picks), maxPicks)
	}
	if _, latest := picks[fmt.Sprint(3*maxPicks-1)]; !latest {
		t.Error("the latest was forgotten, whose pod is the most likely to come")
	}
	clock.SetTime(clock.Now().Add(pickTTL + time.Second))
	b.keep(web, place{subset: "a"}, "later")
	if len(b.picks) != 1 || len(b.picks[web]) != 1 {
		t.Errorf("%d spreads, %d picks of web: picks that are over stay, also those of spreads that nobody asks for again", len(b.picks), len(b.picks[web]))
	}
}
