package ledger

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
	"github.com/berth-project/berth/test/testkit/worlds"
)

var (
	statefulSetKind = schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}
	advancedSetKind = schema.GroupKind{Group: v1beta1.GroupVersion.Group, Kind: "StatefulSet"}
)

// setWorld has a StatefulSet "db" with a controller and a scheduler. All subsets have nodes.
type setWorld struct {
	*world
	start, replicas int32
	// reserved are the ordinals that an advanced StatefulSet reserves. Nil means a StatefulSet of group apps. Its spec is read with each change,
	// unless unread is true.
	reserved      map[int32]bool
	unread        bool
	setGeneration int64
	uid           types.UID
	revision      int
	spec          string
	generation    int64
	// pods by ordinal.
	pods map[int32]*corev1.Pod
	made int
}

func newSetWorld(tb rapid.TB, replicas int32, spec string) *setWorld {
	tb.Helper()
	w := &setWorld{world: emptyWorld(tb), uid: "db-uid", replicas: replicas, revision: 1, spec: spec, pods: map[int32]*corev1.Pod{}}
	w.show()
	return w
}

// show shows the ledger the StatefulSet and its spread.
func (w *setWorld) show() {
	w.t.Helper()
	w.generation++
	w.showSet()
	if w.reserved == nil {
		w.spreadOf("web", w.generation, "StatefulSet", "db", w.spec)
		return
	}
	object := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "spread-uid-web", Generation: w.generation}}
	object.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps.kruise.io/v1beta1", Kind: "StatefulSet", Name: "db"}
	if err := yaml.UnmarshalStrict([]byte(w.spec), &object.Spec); err != nil {
		w.t.Fatalf("parsing the spec: %v", err)
	}
	w.apply(SpreadSeen{Spread: object})
	if !w.unread {
		w.readSet() // whoever follows the spread reads its workload
	}
}

func newAdvancedSetWorld(tb rapid.TB, replicas int32, spec string, reserved ...int32) *setWorld {
	tb.Helper()
	w := &setWorld{world: emptyWorld(tb), replicas: replicas, uid: "db-uid", revision: 1, spec: spec, pods: map[int32]*corev1.Pod{}}
	w.reserves(reserved...)
	w.show()
	return w
}

// reserves reserves these ordinals and no others. showSet shows it.
func (w *setWorld) reserves(ordinals ...int32) {
	w.reserved = map[int32]bool{}
	for _, ordinal := range ordinals {
		w.reserved[ordinal] = true
	}
}

// readSet tells the ledger what is read of the advanced StatefulSet.
func (w *setWorld) readSet() {
	var reserved []any
	for ordinal := range w.reserved {
		reserved = append(reserved, int64(ordinal))
	}
	read := workload.ReadOrdinals(&unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "db", "uid": string(w.uid), "generation": w.setGeneration},
		"spec":     map[string]any{"ordinals": map[string]any{"start": int64(w.start)}, "reserveOrdinals": reserved}}})
	w.apply(ReplicasRead{Workload: Workload{Namespace: "ns", Group: "apps.kruise.io", Kind: "StatefulSet", Name: "db"}, Version: "v1beta1",
		Replicas: w.replicas, Known: true, Ordinals: read})
}

// ordinals are those of the pods that the controller wants.
func (w *setWorld) ordinals() (wanted []int32) {
	for ordinal := w.start; len(wanted) < int(w.replicas); ordinal++ {
		if !w.reserved[ordinal] {
			wanted = append(wanted, ordinal)
		}
	}
	return wanted
}

func (w *setWorld) showSet() {
	if w.setGeneration++; w.reserved != nil {
		w.apply(OwnerSeen{Kind: advancedSetKind, Object: &metav1.PartialObjectMetadata{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: w.uid, Generation: w.setGeneration}}})
		if !w.unread {
			w.readSet()
		}
		return
	}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "db-uid"}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To(w.replicas)}}
	if w.start > 0 {
		set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: w.start}
	}
	w.apply(OwnerSeen{Kind: statefulSetKind, Object: set})
}

// restart replaces the ledger by one that begins with what the API server has.
func (w *setWorld) restart() {
	old := w.world
	w.world = emptyWorld(old.t)
	w.now = old.now
	w.show()
	for _, ordinal := range slices.Sorted(maps.Keys(w.pods)) {
		w.see(w.pods[ordinal])
	}
}

// make makes the pod with this ordinal, and shows it to the ledger.
func (w *setWorld) make(ordinal int32) *corev1.Pod {
	w.made++
	name := fmt.Sprintf("db-%d", ordinal)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(fmt.Sprintf("%s-%d", name, w.made)),
		Labels:          map[string]string{"controller-revision-hash": fmt.Sprintf("v%d", w.revision)},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: w.uid, Controller: ptr.To(true)}}}}
	if w.reserved != nil {
		pod.OwnerReferences[0].APIVersion = "apps.kruise.io/v1beta1"
	}
	w.pods[ordinal] = pod
	w.see(pod)
	return pod
}

func (w *setWorld) unmake(ordinal int32) {
	w.apply(PodGone{UID: w.pods[ordinal].UID})
	delete(w.pods, ordinal)
}

// place binds a pod where the ledger wants it, if the ledger lets it go.
func (w *setWorld) place(ordinal int32) {
	w.t.Helper()
	pod := w.pods[ordinal]
	answer := w.ask(pod)
	if pod.Spec.NodeName != "" || answer.Decision == nil {
		return
	}
	if !w.reserve(pod, answer.Decision) || !w.startBind(pod, answer.Decision) {
		w.t.Fatalf("%s lost its slot in %q", pod.Name, answer.Decision.Name())
	}
	w.pods[ordinal] = onNode(pod, "node-"+answer.Decision.Name(), answer.Decision.Name())
	w.see(w.pods[ordinal])
}

// scale has the controller make the missing pods in this order, or delete those above from the top.
func (w *setWorld) scale(replicas int32, order func([]int32)) {
	w.t.Helper()
	w.replicas = replicas
	w.showSet()
	for _, ordinal := range slices.Backward(slices.Sorted(maps.Keys(w.pods))) {
		if !slices.Contains(w.ordinals(), ordinal) {
			w.unmake(ordinal)
		}
	}
	var missing []int32
	for _, ordinal := range w.ordinals() {
		if w.pods[ordinal] == nil {
			missing = append(missing, ordinal)
		}
	}
	order(missing)
	for _, ordinal := range missing {
		w.make(ordinal)
	}
	for _, ordinal := range missing {
		w.place(ordinal)
	}
}

func inOrder([]int32) {}

// roll updates the pods from the top down to an ordinal.
func (w *setWorld) roll(downTo int32) {
	w.t.Helper()
	for _, ordinal := range slices.Backward(slices.Sorted(maps.Keys(w.pods))) {
		if ordinal >= downTo {
			w.unmake(ordinal)
			w.make(ordinal)
			w.place(ordinal)
		}
	}
}

// layout is where the pods are, by ordinal: "aabb". It has - for a pod of no subset, and . for one without a node.
func (w *setWorld) layout() string {
	var layout strings.Builder
	for _, ordinal := range slices.Sorted(maps.Keys(w.pods)) {
		pod := w.pods[ordinal]
		switch record := subset.RecordOf(pod); {
		case pod.Spec.NodeName == "":
			layout.WriteString(".")
		case record.Subset == "":
			layout.WriteString("-")
		default:
			layout.WriteString(record.Subset)
		}
	}
	return layout.String()
}

func (w *setWorld) expect(want string) {
	w.t.Helper()
	if got := w.layout(); got != want {
		w.t.Errorf("the pods are in %s, want %s", got, want)
	}
}

func (w *setWorld) expectHeld(pod *corev1.Pod, want v1beta1.Reason) {
	w.t.Helper()
	if answer := w.ask(pod); answer.Decision != nil || answer.Reason != want {
		w.t.Errorf("%s: got decision %v and reason %q, want it held for %s", pod.Name, answer.Decision, answer.Reason, want)
	}
}

func TestAStatefulSetKeepsItsLowestOrdinalsInTheFirstSubset(t *testing.T) {
	w := newSetWorld(t, 0, twoThenAny)
	w.scale(6, inOrder)
	w.expect("aabbbb")
	w.revision++
	w.roll(0) // from 5 to 0
	w.expect("aabbbb")
	w.scale(3, inOrder)
	w.expect("aab")
}

func TestOrdinalsDecideInWhateverOrderThePodsCome(t *testing.T) {
	const wait = `, scheduleStrategy: {whenFull: Wait}}`
	for name, tc := range map[string]struct {
		spec, want string
		start      int32
	}{
		"counts":                                        {spec: `{subsets: [{name: a, maxReplicas: 2}, {name: b}]}`, want: "aabbbbbb"},
		"the first ordinal is another":                  {spec: `{subsets: [{name: a, maxReplicas: 2}, {name: b}]}`, want: "aabbbbbb", start: 4},
		"one quota scope":                               {spec: `{subsets: [{name: a, maxReplicas: 2}, {name: b}], scheduleStrategy: {quotaScope: Workload}}`, want: "aabbbbbb"},
		"pods beyond all quotas are let go":             {spec: `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 3}]}`, want: "aabbb---"},
		"quotas that add up to the replicas, with Wait": {spec: `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 6}]` + wait, want: "aabbbbbb"},
		"a percentage and the rest":                     {spec: `{subsets: [{name: a, maxReplicas: "30%"}, {name: b}]}`, want: "abbabbab"},
		"shares":                                        {spec: `{subsets: [{name: a, maxReplicas: "50%"}, {name: b, maxReplicas: "50%"}]}`, want: "abababab"},
		"weights":                                       {spec: `{subsets: [{name: a, weight: 1}, {name: b, weight: 3}]}`, want: "bbabbbab"},
		"minimums":                                      {spec: `{subsets: [{name: a, minReplicas: 1, maxReplicas: 4}, {name: b, minReplicas: 2}]}`, want: "abbaaabb"},
		"Adaptive":                                      {spec: `{subsets: [{name: a, maxReplicas: 2}, {name: b}], scheduleStrategy: {type: Adaptive}}`, want: "aabbbbbb"},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				r := rand.New(rand.NewPCG(seed, 1))
				w := newSetWorld(t, 0, tc.spec)
				w.start = tc.start
				w.scale(8, func(missing []int32) {
					r.Shuffle(len(missing), func(i, j int) { missing[i], missing[j] = missing[j], missing[i] })
				})
				w.expect(tc.want)
				w.scale(r.Int32N(8), inOrder)
				w.expect(tc.want[:w.replicas])
			}
		})
	}
}

// Each revision has the quotas for itself, so a roll-out that stops half-way has the layout of the whole set.
func TestAPartitionedRolloutKeepsTheLayout(t *testing.T) {
	w := newSetWorld(t, 0, twoThenAny)
	w.scale(5, inOrder)
	w.revision++
	w.roll(1)
	w.expect("aabbb")
	w.restart()
	w.scale(6, inOrder)
	w.expect("aabbbb")
	w.roll(0)
	w.expect("aabbbb")
}

const layoutWorld = "a StatefulSet"

func TestTheLayoutFollowsTheOrdinals(t *testing.T) { worlds.Check(t, layoutWorld, 200, layoutHistory) }

// layoutHistory changes a StatefulSet at random: its replicas, its revision down to a random partition, its pods, and the scheduler.
// Pods come in any order. While nodes have room each pod is in the subset of its ordinal after each change.
func layoutHistory(t rapid.TB, h *worlds.History) {
	subsets := []string{
		`[{name: a, maxReplicas: 2}, {name: b}]`,
		`[{name: a, maxReplicas: 3}, {name: b, maxReplicas: 0}, {name: c, maxReplicas: 20}]`,
		`[{name: a, maxReplicas: "30%"}, {name: b, maxReplicas: "40%"}, {name: c}]`,
		`[{name: a, maxReplicas: "20%"}, {name: b, maxReplicas: "20%"}, {name: c, maxReplicas: "60%"}]`,
		`[{name: a, weight: 1}, {name: b, weight: 1, maxReplicas: 4}, {name: c, weight: 3}]`,
		`[{name: a, minReplicas: 2, maxReplicas: 5}, {name: b, minReplicas: 3}, {name: c}]`,
		`[{name: a, minReplicas: "20%"}, {name: b, minReplicas: 1, weight: 2}, {name: c, minReplicas: "30%", weight: 1}]`,
	}
	strategies := []string{`{}`, `{quotaScope: Workload}`, `{whenFull: Wait}`, `{type: Adaptive}`, `{type: Adaptive, quotaScope: Workload, whenFull: Wait}`}
	spec := fmt.Sprintf(`{subsets: %s, scheduleStrategy: %s}`, h.Pick(subsets...), h.Pick(strategies...))
	w := newSetWorld(t, 0, spec)
	if h.Yes("advanced", 2) {
		w = newAdvancedSetWorld(t, 0, spec)
	}
	w.start = int32(h.Number("start", 2)) * 7
	shuffle := func(ordinals []int32) {
		h.Shuffle(len(ordinals), func(i, j int) { ordinals[i], ordinals[j] = ordinals[j], ordinals[i] })
	}
	scale := func(most int) { w.scale(int32(h.Number("replicas", most)), shuffle) }
	scale(12)
	steps := []string{"scale", "scale", "update", "restart", "evict"}
	if w.reserved != nil {
		steps = append(steps, "reserve")
	}
	for range h.Steps(30) {
		switch h.Pick(steps...) {
		case "scale":
			scale(16)
		case "update":
			w.revision++
			w.roll(w.start + int32(h.Number("partition", int(w.replicas)+1)))
		case "restart":
			w.restart()
		case "reserve": // pods that stay have other positions, so all of them are made again
			w.reserves()
			for range h.Number("reserved", 8) {
				w.reserved[w.start+int32(h.Number("ordinal", 12))] = true
			}
			for _, ordinal := range slices.Sorted(maps.Keys(w.pods)) {
				w.unmake(ordinal)
			}
			scale(16)
		default:
			for _, ordinal := range slices.Sorted(maps.Keys(w.pods)) {
				if h.Yes(fmt.Sprint(ordinal), 3) {
					w.unmake(ordinal)
				}
			}
			w.scale(w.replicas, shuffle)
		}
		policy := w.ledger.byName[spreadKey].policy
		plan := policy.Plan(w.replicas)
		var want strings.Builder
		for position := range w.replicas {
			home, known := policy.SubsetAt(&plan, position+1)
			if !known || home == subset.None {
				t.Fatalf("position %d has no home in %s", position+1, spec)
			}
			want.WriteString(policy.Subsets[home].Name)
		}
		if got := w.layout(); got != want.String() {
			t.Fatalf("%s: the pods are in %s, want %s", spec, got, want.String())
		}
	}
}

// The first ordinal may change while pods wait. Those that belong elsewhere then are tried again.
func TestANewFirstOrdinalWakesPodsThatWait(t *testing.T) {
	w := newSetWorld(t, 4, twoThenAny)
	pod := w.make(2)
	w.expectChoice(pod, "b") // and finds no node
	w.awake = nil
	w.start = 2
	w.showSet()
	w.expectAwake("db-2")
	w.expectChoice(pod, "a")
}

func TestReservedOrdinalsAreNotCounted(t *testing.T) {
	w := newAdvancedSetWorld(t, 0, twoThenAny, 0, 2, 3)
	w.scale(4, slices.Reverse) // 1 4 5 6
	w.expect("aabb")
	w.revision++
	w.roll(0)
	w.expect("aabb")
	w.restart()
	w.scale(6, slices.Reverse)
	w.expect("aabbbb")
}

// The API server has shown the StatefulSet and its pods, and its ordinals are still being read. No order of pods may decide meanwhile.
func TestPodsWaitForTheReservedOrdinals(t *testing.T) {
	w := newAdvancedSetWorld(t, 0, `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 2}]}`, 0, 1, 2, 3)
	w.scale(1, inOrder) // db-4
	w.expect("a")
	w.unread, w.replicas = true, 4
	w.reserves(0, 1, 2, 3, 5)
	w.showSet() // the ordinals that are known are those of the previous spec
	last, second := w.make(8), w.make(6)
	for _, pod := range []*corev1.Pod{last, second} {
		w.expectHeld(pod, v1beta1.ReasonWorkloadNotObserved)
	}
	w.awake = nil
	w.readSet()
	w.expectAwake("db-6", "db-8")
	w.expectChoice(last, "b")
	w.expectChoice(second, "a")
	w.awake = nil
	w.readSet() // again, because the status has changed
	w.expectAwake()
}

// Somebody may not let Berth read the StatefulSet. Its pods wait as long as for other news, and then go in the order in which they ask. So they are not
// let go while there are slots.
func TestPodsGoInOrderIfTheirOrdinalsAreNotRead(t *testing.T) {
	w := newAdvancedSetWorld(t, 4, `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 2}]}`)
	w = &setWorld{world: emptyWorld(t), uid: w.uid, replicas: 4, spec: w.spec, reserved: map[int32]bool{}, unread: true, pods: map[int32]*corev1.Pod{}}
	w.show()
	far, near := w.make(90), w.make(4)
	for _, pod := range []*corev1.Pod{far, near} {
		w.expectHeld(pod, v1beta1.ReasonWorkloadNotObserved)
	}
	w.step(2 * time.Second)
	w.expectAwake("db-4", "db-90")
	w.expectChoice(far, "a")
	w.expectChoice(near, "b")
	w.awake = nil
	w.reserves(0, 1, 2, 3)
	w.readSet() // at last
	w.expectAwake("db-4", "db-90")
	w.expectChoice(far, "-") // beyond all quotas
	w.expectChoice(near, "a")
}

// A list that reserves more, or fewer, changes where the pods behind it belong. Pods before it stay asleep.
func TestReservedOrdinalsThatChangeWakeTheirPods(t *testing.T) {
	w := newAdvancedSetWorld(t, 4, twoThenAny)
	first, third := w.make(0), w.make(2)
	w.expectChoice(first, "a")
	w.expectChoice(third, "b") // and both find no node
	w.awake = nil
	w.reserves(1)
	w.showSet()
	w.expectAwake("db-2")
	w.expectChoice(third, "a")
	w.awake = nil
	w.reserves(1, 7)
	w.showSet()
	w.expectAwake()
	w.reserves()
	w.showSet()
	w.expectAwake("db-2")
	w.expectChoice(third, "b")
}

// Reads are not ordered with the watch: an answer may be of the spec before, or of a StatefulSet that is gone.
func TestOnlyTheOrdinalsOfTheStatefulSetThatOwnsAPodCount(t *testing.T) {
	w := newAdvancedSetWorld(t, 4, twoThenAny, 0, 1)
	old := w.ledger.accounts[Workload{Namespace: "ns", Group: "apps.kruise.io", Kind: "StatefulSet", Name: "db"}].ordinals
	w.reserves(1)
	w.showSet()
	pod := w.make(3) // its position is 3
	w.expectChoice(pod, "b")
	late := ReplicasRead{Workload: Workload{Namespace: "ns", Group: "apps.kruise.io", Kind: "StatefulSet", Name: "db"}, Version: "v1beta1", Replicas: 4, Known: true, Ordinals: old}
	w.apply(late)
	w.apply(ReplicasRead{Workload: late.Workload, Version: late.Version, Replicas: 4, Known: true}) // or none, because the read failed
	w.expectChoice(pod, "b")

	stranger := w.make(2)
	w.apply(PodGone{UID: stranger.UID})
	stranger.OwnerReferences[0].UID = "another-uid"
	w.see(stranger)
	w.expectHeld(stranger, v1beta1.ReasonWorkloadNotObserved)
}

// A pod may have no position with the new list either. It does not wait longer for that.
func TestThePodOfAReservedOrdinalIsWokenToo(t *testing.T) {
	w := newAdvancedSetWorld(t, 4, twoThenAny)
	w.unread = true
	w.reserves(1)
	w.showSet()
	pod := w.make(1)
	w.expectHeld(pod, v1beta1.ReasonWorkloadNotObserved)
	w.awake = nil
	w.readSet()
	w.expectAwake("db-1")
	w.expectChoice(pod, "a") // in the order in which pods ask
}

// A StatefulSet that replaces another of its name begins with generation 1.
func TestTheOrdinalsOfAReplacedStatefulSetCount(t *testing.T) {
	w := newAdvancedSetWorld(t, 4, twoThenAny)
	w.setGeneration = 7
	w.showSet()
	w.uid, w.setGeneration = "new-uid", 0
	w.reserves(0, 1, 2)
	w.showSet()
	w.expectChoice(w.make(4), "a")
	w.expectChoice(w.make(5), "b")
	w.expectChoice(w.make(3), "a")
}

// While positions are not known, nobody can say whom a free slot is for. It must not stay free after that.
func TestASlotThatCameFreeMeanwhileIsFound(t *testing.T) {
	w := newAdvancedSetWorld(t, 2, `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 1}], scheduleStrategy: {quotaScope: Workload, whenFull: Wait}}`)
	stranger := onNode(w.make(9), "node-b", "b")
	w.see(stranger)
	stray := w.make(1)
	w.expectChoice(stray, "a") // because its home, b, is full
	w.unread = true
	w.showSet()
	w.apply(PodGone{UID: stranger.UID})
	w.awake = nil
	w.readSet()
	w.expectAwake("db-1")
	w.expectChoice(stray, "b")
}

// Nobody reads the ordinals of a StatefulSet that is not the workload of the spread, or that Berth may not list. Nothing is to wait for.
func TestPodsDoNotWaitForOrdinalsThatAreNotRead(t *testing.T) {
	t.Run("its kind must not be listed", func(t *testing.T) {
		w := newAdvancedSetWorld(t, 4, twoThenAny)
		w = &setWorld{world: emptyWorld(t), uid: w.uid, replicas: 4, spec: w.spec, reserved: map[int32]bool{}, unread: true, pods: map[int32]*corev1.Pod{}}
		w.show()
		w.apply(KindEndsChain{Kind: advancedSetKind, Ends: true})
		w.expectChoice(w.make(8), "a")
	})
	t.Run("the spread names its owner", func(t *testing.T) {
		w := newAdvancedSetWorld(t, 4, twoThenAny)
		w.spreadGone()
		w.spreadOf("web", w.generation+1, "StatefulSet", "parent", w.spec)
		w.apply(OwnerSeen{Kind: advancedSetKind, Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "db-uid",
			Generation: w.setGeneration + 1, OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "parent", UID: "parent-uid", Controller: ptr.To(true)}}}}})
		w.expectChoice(w.make(8), "a")
	})
}

// With strategy Adaptive a pod whose home has no node goes to a later subset first, and looks in its home again when it is made again.
func TestAnOrdinalThatWentOnComesHomeWhenItIsMadeAgain(t *testing.T) {
	w := newSetWorld(t, 0, `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 2}, {name: c, maxReplicas: 4}], scheduleStrategy: {type: Adaptive}}`)
	w.result = func(check *NodeCheck) CheckResult {
		if check.Subset == 1 {
			return Infeasible
		}
		return Feasible
	}
	w.scale(4, slices.Reverse)
	w.expect("aacc")
	w.result = func(*NodeCheck) CheckResult { return Feasible }
	w.scale(6, inOrder)
	w.expect("aacccc")
	w.unmake(3)
	w.scale(6, inOrder)
	w.expect("aacbcc")
	w.scale(1, inOrder)
	w.scale(6, inOrder)
	w.expect("aabbcc")
}

// A pod that finds its home taken waits elsewhere, and is woken as soon as its home has a slot.
func TestAStrayIsWokenForItsHome(t *testing.T) {
	w := newSetWorld(t, 4, `{subsets: [{name: a, maxReplicas: 1}, {name: b, maxReplicas: 2}, {name: c}], scheduleStrategy: {quotaScope: Workload}}`)
	stranger := w.make(7)
	stranger.Name = "other" // has no position, and takes the slot of db-0
	w.apply(PodGone{UID: stranger.UID})
	w.see(stranger)
	w.expectChoice(stranger, "a")
	stray, third := w.make(0), w.make(2)
	w.expectChoice(stray, "b")
	w.expectChoice(third, "b")
	w.awake = nil
	w.apply(PodGone{UID: third.UID}) // no slot for db-0
	w.expectAwake()
	w.apply(PodGone{UID: stranger.UID})
	w.expectAwake("db-0")
	w.expectChoice(stray, "a")
}
