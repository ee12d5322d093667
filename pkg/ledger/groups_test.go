package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	fiveThenEight = `subsets:
- {name: a, maxReplicas: 5, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, maxReplicas: 8, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}
scheduleStrategy: {whenFull: %s}`
)

// askAsGroup returns the places that the group may try, "each by itself", or the reason of a refusal.
func (w *world) askAsGroup(name string, atLeast int, with []*corev1.Pod, pods ...*corev1.Pod) (string, []*Decision) {
	event := GroupAsks{Group: types.NamespacedName{Namespace: "ns", Name: name}, Pods: pods, AtLeast: int32(atLeast)} //nolint:gosec // small
	for _, pod := range with {
		event.With = append(event.With, pod.UID)
	}
	switch fx := w.apply(event); {
	case fx.Places != nil:
		var names []string
		for _, place := range fx.Places {
			names = append(names, place.Name())
		}
		return strings.Join(names, " "), fx.Places
	case fx.Answer.Reason != "":
		return string(fx.Answer.Reason), nil
	default:
		return "each by itself", nil
	}
}

// try runs the PreFilter of a pod of a group. The decision is nil if it is refused.
func (w *world) try(pod *corev1.Pod, place *Decision) *Decision {
	return w.apply(PodAsks{Pod: pod, Try: true, Place: place}).Answer.Decision
}

// tryAll lets all pods try a place, and takes that back.
func (w *world) tryAll(place *Decision, pods ...*corev1.Pod) []*Decision {
	w.t.Helper()
	made := make([]*Decision, len(pods))
	for i, pod := range pods {
		if made[i] = w.try(pod, place); made[i] == nil || !w.apply(SlotTried{UID: pod.UID, Decision: made[i]}).OK {
			w.t.Fatalf("%s has no slot in %q", pod.Name, place.Name())
		}
	}
	for _, pod := range slices.Backward(pods) {
		w.apply(SlotReturned{UID: pod.UID})
	}
	return made
}

func TestAGroupIsOfferedEachSubsetWithRoomForAllOfIt(t *testing.T) {
	for name, tc := range map[string]struct {
		whenFull, strategy string
		taken              int
		size, atLeast      int
		want               string
	}{
		"it fits into both":                                   {size: 5, atLeast: 5, strategy: "Adaptive", want: "a b"},
		"strategy Fixed has one place":                        {size: 5, atLeast: 5, want: "a"},
		"it fits into the second":                             {size: 8, atLeast: 8, strategy: "Adaptive", want: "b"},
		"it fits into none":                                   {size: 9, atLeast: 9, want: "SubsetsFull"},
		"what must run together fits":                         {size: 9, atLeast: 6, want: "b"},
		"a subset for all comes before one for the least":     {size: 7, atLeast: 2, strategy: "Adaptive", want: "b a"},
		"strategy Fixed prefers a subset for all":             {size: 7, atLeast: 2, want: "b"},
		"pods beyond all quotas are let go, all of them":      {size: 9, atLeast: 9, whenFull: "Schedule", want: ""},
		"the first subset has too little left":                {taken: 1, size: 5, atLeast: 5, strategy: "Adaptive", want: "b"},
		"both have something left, and neither has enough":    {taken: 8, size: 6, atLeast: 6, want: "SubsetsFull"},
		"strategy Fixed goes to the first with room for all":  {taken: 3, size: 3, atLeast: 3, want: "b"},
		"strategy Adaptive has no place without enough slots": {taken: 3, size: 3, atLeast: 3, strategy: "Adaptive", want: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 100)
			spec := fmt.Sprintf(strings.Replace(fiveThenEight, "whenFull", "type: "+orElse(tc.strategy, "Fixed")+", whenFull", 1), orElse(tc.whenFull, "Wait"))
			w.spread(1, spec)
			for i := range tc.taken {
				pod := w.pod(fmt.Sprintf("single%d", i))
				w.seeBound(pod, "node", w.schedule(pod).Name())
			}
			if got, _ := w.askAsGroup("g", tc.atLeast, nil, w.podsNamed("g", tc.size)...); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func TestACycleOfAGroupThatIsThrownAwayLeavesNothing(t *testing.T) {
	w := newWorld(t, 100)
	w.spread(1, fmt.Sprintf(fiveThenEight, "Wait"))
	pods := w.podsNamed("g", 5)
	_, places := w.askAsGroup("g", 5, nil, pods...)
	for _, place := range places {
		w.tryAll(place, pods...)
	}
	w.expectKept("a=0 b=0")
	// a pod without a slot in the middle, and one that tried but found no node
	w.try(pods[0], places[0])
	w.expectKept("a=0 b=0")
	w.expectAwake()
}

func TestAPodOfAGroupThatLosesItsNodeGivesItsSlotBack(t *testing.T) {
	for name, lose := range map[string]func(*world, *corev1.Pod, *Decision){
		"before the bind": func(w *world, pod *corev1.Pod, _ *Decision) { w.unreserve(pod) },
		"a refused bind":  func(w *world, pod *corev1.Pod, d *Decision) { w.startBind(pod, d); w.bindRefused(pod) },
		"it was deleted":  func(w *world, pod *corev1.Pod, _ *Decision) { w.delete(pod) },
		"its spread moves": func(w *world, _ *corev1.Pod, _ *Decision) {
			w.spreadGone()
			w.spread(1, fmt.Sprintf(fiveThenEight, "Wait"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 100)
			w.spread(1, fmt.Sprintf(fiveThenEight, "Wait"))
			pods := w.podsNamed("g", 5)
			_, places := w.askAsGroup("g", 5, nil, pods...)
			d := w.tryAll(places[0], pods...)[0]
			if !w.reserve(pods[0], d) {
				t.Fatal("a pod of a group cannot reserve what it has tried")
			}
			w.expectKept("a=1 b=0")
			lose(w, pods[0], d)
			w.expectKept("a=0 b=0")
		})
	}
}

func TestTheRestOfAGroupGoesWhereItsPodsAre(t *testing.T) {
	w := newWorld(t, 100)
	w.spread(1, fmt.Sprintf(fiveThenEight, "Wait"))
	pods := w.podsNamed("g", 8)
	_, places := w.askAsGroup("g", 8, nil, pods...)
	for i, d := range w.tryAll(places[0], pods...) {
		if !w.reserve(pods[i], d) || !w.startBind(pods[i], d) {
			t.Fatal("a pod of a group cannot be bound where it tried")
		}
		w.seeBound(pods[i], "node-b", "b")
	}
	late := w.pod("late")
	if got, _ := w.askAsGroup("g", 1, pods, late); got != "SubsetsFull" {
		t.Errorf("got %q, although subset a is not where the group is", got)
	}
	w.awake = nil
	w.delete(pods[3])
	w.expectAwake("late")
	if got, _ := w.askAsGroup("g", 1, slices.Delete(slices.Clone(pods), 3, 4), late); got != "b" {
		t.Errorf("got %q, want the subset of the group", got)
	}
}

func TestAGroupIsWokenAsAWhole(t *testing.T) {
	w := newWorld(t, 100)
	w.spread(1, fmt.Sprintf(fiveThenEight, "Wait"))
	var singles []*corev1.Pod
	for i := range 13 {
		pod := w.pod(fmt.Sprintf("s%02d", i))
		w.seeBound(pod, "node", w.schedule(pod).Name())
		singles = append(singles, pod)
	}
	group, single := w.podsNamed("g", 3), w.pod("one")
	w.askAsGroup("g", 3, nil, group...)
	w.expectChoice(single, "SubsetsFull")
	w.awake = nil
	w.delete(singles[12]) // of subset b
	w.expectAwake("one")  // it does not wait for the group, which needs more
	w.schedule(single)
	w.delete(singles[0]) // of subset a
	w.delete(singles[11])
	w.expectAwake()
	w.delete(singles[1])
	w.delete(singles[2])
	w.expectAwake("g0", "g1", "g2")
	if w.apply(Audit{}); w.missed != 0 {
		t.Errorf("%d wake-ups were missed", w.missed)
	}
	w.apply(GroupChanged{Group: types.NamespacedName{Namespace: "ns", Name: "g"}})
	if got, _ := w.askAsGroup("g", 3, nil, group...); got != "a" {
		t.Errorf("got %q", got)
	}
}

func TestAGroupThatNeedsLessIsTriedAgain(t *testing.T) {
	w := newWorld(t, 100)
	w.spread(1, fmt.Sprintf(fiveThenEight, "Wait"))
	pods := w.podsNamed("g", 9)
	w.askAsGroup("g", 9, nil, pods...)
	w.apply(GroupChanged{Group: types.NamespacedName{Namespace: "ns", Name: "other"}})
	w.expectAwake()
	w.apply(GroupChanged{Group: types.NamespacedName{Namespace: "ns", Name: "g"}})
	w.expectAwake("g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7", "g8")
	if got, _ := w.askAsGroup("g", 8, nil, pods...); got != "b" {
		t.Errorf("got %q, want the subset for eight", got)
	}
}

func TestPodsOfOneGroupButNotOfOneSpreadAskByThemselves(t *testing.T) {
	w := newWorld(t, 100)
	w.spread(1, fmt.Sprintf(fiveThenEight, "Wait"))
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "bare", UID: "bare-uid"}}
	w.see(bare)
	next := podOf("rs-uid", "next")
	next.Labels["pod-template-hash"] = "v2"
	w.see(next)
	for _, other := range []*corev1.Pod{bare, next} {
		if got, _ := w.askAsGroup("g", 2, nil, w.pod("a"), other); got != "each by itself" {
			t.Errorf("beside %s: got %q", other.Name, got)
		}
	}
	picked := opened(podOf("rs-uid", "picked"), "a")
	w.see(picked)
	if got, _ := w.askAsGroup("g", 2, nil, w.pod("a"), picked); got != "a" {
		t.Errorf("beside a pod with an open gate: got %q, want its subset", got)
	}
	elsewhere := opened(podOf("rs-uid", "elsewhere"), "b")
	w.see(elsewhere)
	if got, _ := w.askAsGroup("g", 3, nil, w.pod("a"), picked, elsewhere); got != "each by itself" {
		t.Errorf("beside two subsets: got %q", got)
	}
}

func TestAGroupIsTriedWhenAPodLeavesItWhileItWaits(t *testing.T) {
	w := newWorld(t, 100)
	w.spread(1, fmt.Sprintf(fiveThenEight, "Wait"))
	pods := w.podsNamed("g", 9)
	w.askAsGroup("g", 9, nil, pods...)
	w.expectAwake()
	w.delete(pods[0]) // a pod that has joined the group meanwhile is held with it
	w.expectAwake("g0")
	w.delete(pods[0])
	w.expectAwake()
}

// waitAsGroup lets a group try each of its places in vain.
func (w *world) waitAsGroup(name string, atLeast int, pods ...*corev1.Pod) string {
	w.t.Helper()
	got, places := w.askAsGroup(name, atLeast, nil, pods...)
	for _, place := range places {
		for _, pod := range pods {
			if d := w.try(pod, place); d != nil && !w.apply(SlotTried{UID: pod.UID, Decision: d}).OK {
				w.t.Fatalf("%s may not take the slot that it was offered", pod.Name)
			}
		}
		for _, pod := range slices.Backward(pods) {
			w.apply(SlotReturned{UID: pod.UID})
		}
	}
	w.apply(GroupWaits{Group: types.NamespacedName{Namespace: "ns", Name: name}, Pods: pods, AtLeast: int32(atLeast)}) //nolint:gosec // small
	return got
}

// openWaiting opens the gates of the pods that wait for a node, and returns the subsets of all: - for those that do not wait, and () for no subset.
func (w *world) openWaiting(pods []*corev1.Pod) (in string) {
	w.t.Helper()
	for i, pod := range pods {
		d, divided := w.ledger.WaitsForNode(pod.UID)
		if !divided {
			w.t.Fatalf("%s is not divided", pod.Name)
		}
		if d == nil {
			in += "-"
			continue
		}
		in += orElse(d.Name(), "()")
		pods[i] = opened(pod, d.Name())
		w.see(pods[i])
	}
	return in
}

func TestAGangWithoutNodesWaitsForThemInOneSubset(t *testing.T) {
	for name, tc := range map[string]struct {
		adaptive      string
		whenFull      string
		size, atLeast int
		gated         bool
		want, kept    string
	}{
		"in the last one":                        {gated: true, size: 5, atLeast: 5, want: "bbbbb", kept: "a=0 b=5"},
		"in the first, if its pods are replaced": {gated: true, adaptive: ", adaptive: {rescheduleCriticalSeconds: 60}", size: 5, atLeast: 5, want: "aaaaa", kept: "a=5 b=0"},
		"where all of it has room":               {gated: true, adaptive: ", adaptive: {rescheduleCriticalSeconds: 60}", size: 8, atLeast: 2, want: "bbbbbbbb", kept: "a=0 b=8"},
		"as many as have room":                   {gated: true, size: 9, atLeast: 6, want: "bbbbbbbb-", kept: "a=0 b=8"},
		"not without room":                       {gated: true, size: 9, atLeast: 9, want: "---------", kept: "a=0 b=0"},
		"in no subset":                           {gated: true, whenFull: "Schedule", size: 9, atLeast: 9, want: "()()()()()()()()()", kept: "a=0 b=0"},
		"not before the others have come":        {gated: true, size: 5, atLeast: 6, want: "-----", kept: "a=0 b=0"},
		"not without gates":                      {size: 5, atLeast: 5, want: "-----", kept: "a=0 b=0"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 100)
			w.spread(1, fmt.Sprintf(strings.Replace(fiveThenEight, "whenFull", "type: Adaptive, binding: Gated"+tc.adaptive+", whenFull", 1), orElse(tc.whenFull, "Wait")))
			var pods []*corev1.Pod
			for i := range tc.size {
				pod := podOf("rs-uid", fmt.Sprintf("g%d", i))
				if tc.gated {
					pod = withGate(pod)
				}
				w.see(pod)
				pods = append(pods, pod)
			}
			w.waitAsGroup("g", tc.atLeast, pods...)
			w.expectKept(tc.kept)
			if got := w.openWaiting(pods); got != tc.want {
				t.Errorf("gates are opened in %q, want %q", got, tc.want)
			}
			w.expectKept(tc.kept)
		})
	}
}

func TestAGangThatWaitsForNodesStaysInItsSubset(t *testing.T) {
	w := newWorld(t, 100)
	w.spread(1, fmt.Sprintf(strings.Replace(fiveThenEight, "whenFull", "type: Adaptive, binding: Gated, whenFull", 1), "Wait"))
	gatedPods := func(names ...string) (pods []*corev1.Pod) {
		for _, name := range names {
			pods = append(pods, withGate(podOf("rs-uid", name)))
			w.see(pods[len(pods)-1])
		}
		return pods
	}
	pods := gatedPods("g0", "g1", "g2", "g3", "g4", "g5")
	w.waitAsGroup("g", 6, pods...)
	// A cycle that comes before the gates are open: each pod asks for its own subset, and keeps its slot.
	if got, _ := w.askAsGroup("g", 6, nil, pods...); got != "each by itself" {
		t.Errorf("got %q", got)
	}
	w.tryAll(nil, pods...)
	w.expectKept("a=0 b=6")
	w.apply(GroupWaits{Pods: pods, AtLeast: 6})
	if got := w.openWaiting(pods[:5]); got != "bbbbb" {
		t.Errorf("opened in %q", got)
	}
	// Another gang does not get their slots, and waits as a whole.
	if got := w.waitAsGroup("h", 6, gatedPods("h0", "h1", "h2", "h3", "h4", "h5")...); got != "SubsetsFull" {
		t.Errorf("the other gang got %q", got)
	}
	// A pod that is replaced goes where the others wait, although the first subset has room for it.
	w.delete(pods[0])
	pods[0] = gatedPods("late")[0]
	got, places := w.askAsGroup("g", 6, nil, pods...)
	if got != "b" {
		t.Errorf("the new pod may go to %q", got)
	}
	w.tryAll(places[0], pods...)
	w.apply(GroupWaits{Pods: pods, AtLeast: 6})
	if d, _ := w.ledger.WaitsForNode(pods[0].UID); d == nil || d.Name() != "b" {
		t.Errorf("the new pod waits in %+v", d)
	}
	if got := w.openWaiting(pods[1:]); got != "----b" { // four are open
		t.Errorf("opened in %q", got)
	}
	// The quota is lowered before the gate of the new pod is opened.
	w.spread(2, `{subsets: [{name: a, maxReplicas: 5}, {name: b, maxReplicas: 5}], scheduleStrategy: {type: Adaptive, binding: Gated, whenFull: Wait}}`)
	w.apply(GroupWaits{Pods: pods, AtLeast: 6})
	w.expectKept("a=0 b=5")
}

func TestPodsOfAGroupThatAskByThemselvesWaitByThemselves(t *testing.T) {
	w := newWorld(t, 100)
	w.spread(1, fmt.Sprintf(gatedOneEach, ", type: Adaptive"))
	var pods []*corev1.Pod
	for i := range 3 {
		pods = append(pods, withGate(podOf("rs-uid", fmt.Sprintf("g%d", i))))
		w.see(pods[i])
	}
	next := withGate(podOf("rs-uid", "next"))
	next.Labels["pod-template-hash"] = "v2" // so the group is not of one scope
	w.see(next)
	pods = append(pods, next)
	w.apply(GroupWaits{Pods: pods, AtLeast: 1})
	if got := w.openWaiting(pods); got != "ba-b" {
		t.Errorf("gates are opened in %q", got)
	}
}

// fleet is two groups, and single pods, among random events. It counts by itself what is where.
type fleet struct {
	*world
	draw     *rand.Rand
	quotas   [2]int
	places   [2]int // of the nodes of each subset
	adaptive bool
	groups   [2]*gang
	singles  map[string]*corev1.Pod
	// in is the subset of each pod that has a node.
	in   map[types.UID]int
	made int
	log  []string
}

type gang struct {
	name          string
	size, atLeast int
	pods          map[string]*corev1.Pod
}

func (f *fleet) say(format string, args ...any) { f.log = append(f.log, fmt.Sprintf(format, args...)) }

func (f *fleet) fatalf(format string, args ...any) {
	f.t.Helper()
	f.t.Fatalf("%s\nFAULT: %s", strings.Join(f.log, "\n"), fmt.Sprintf(format, args...))
}

// TestNoHistoryOfTwoGroupsBlocksOne plays random histories of two groups in one spread: pods come and go, groups are tried, fail, and are tried again. No
// subset is ever above its quota, no pod of a group has a slot between cycles, and when nothing happens any more, no group waits that has room.
func TestNoHistoryOfTwoGroupsBlocksOne(t *testing.T) {
	whole := 0
	for seed := range uint64(1000) {
		f := &fleet{world: newWorld(t, 100), draw: rand.New(rand.NewPCG(seed, 0)), singles: map[string]*corev1.Pod{}, in: map[types.UID]int{}}
		f.quotas, f.places = [2]int{1 + f.draw.IntN(8), 1 + f.draw.IntN(8)}, [2]int{1 + f.draw.IntN(10), 1 + f.draw.IntN(10)}
		f.adaptive = f.draw.IntN(2) == 0
		strategy := map[bool]string{true: "Adaptive", false: "Fixed"}[f.adaptive]
		f.spread(1, fmt.Sprintf(`{subsets: [{name: a, maxReplicas: %d}, {name: b, maxReplicas: %d}], scheduleStrategy: {type: %s, whenFull: Wait}}`, f.quotas[0], f.quotas[1], strategy))
		f.say("seed %d: quotas %v, places %v, %s", seed, f.quotas, f.places, strategy)
		for i := range f.groups {
			size := 2 + f.draw.IntN(6)
			f.groups[i] = &gang{name: fmt.Sprintf("g%d", i), size: size, atLeast: 1 + f.draw.IntN(size), pods: map[string]*corev1.Pod{}}
			f.say("group %d has %d pods, at least %d together", i, size, f.groups[i].atLeast)
		}
		for range 60 {
			f.event()
			f.judge()
		}
		whole += f.rest()
	}
	if whole < 500 {
		t.Errorf("only %d of 2000 groups were placed with all of their pods", whole)
	}
}

func (f *fleet) event() {
	switch g := f.groups[f.draw.IntN(2)]; f.draw.IntN(10) {
	case 0, 1, 2, 3:
		f.join(g)
	case 4, 5, 6:
		f.cycleOf(g)
	case 7:
		if len(f.singles) < 4 {
			f.made++
			pod := f.pod(fmt.Sprintf("single-p%d", f.made))
			f.singles[pod.Name] = pod
			f.say("%s comes", pod.Name)
			f.cycle(pod)
		}
	case 8:
		f.remove(g.pods)
	default:
		f.remove(f.singles)
	}
}

// join makes a pod of a group, unless it has all.
func (f *fleet) join(g *gang) {
	if len(g.pods) < g.size {
		f.made++
		pod := f.pod(fmt.Sprintf("%s-p%d", g.name, f.made))
		g.pods[pod.Name] = pod
		f.say("%s comes", pod.Name)
	}
}

func (f *fleet) remove(pods map[string]*corev1.Pod) {
	if len(pods) == 0 {
		return
	}
	name := sortedKeys(pods)[f.draw.IntN(len(pods))]
	f.say("%s is deleted", name)
	f.delete(pods[name])
	delete(f.in, pods[name].UID)
	delete(pods, name)
}

func sortedKeys(pods map[string]*corev1.Pod) (names []string) {
	for name := range pods {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// used is how many pods are on the nodes of a subset.
func (f *fleet) used(in int) (n int) {
	for _, at := range f.in {
		if at == in {
			n++
		}
	}
	return n
}

// cycle is that of a single pod.
func (f *fleet) cycle(pod *corev1.Pod) {
	d := f.ask(pod).Decision
	if d == nil {
		return
	}
	if f.used(d.Subset) >= f.places[d.Subset] {
		step := f.apply(NoNodeFound{UID: pod.UID, Decision: d}).Next
		if step == Preempt {
			f.apply(Preempted{UID: pod.UID, Decision: d})
		}
		return
	}
	f.bind(pod, d)
}

// bind lets a pod reserve and bind. It may fail.
func (f *fleet) bind(pod *corev1.Pod, d *Decision) {
	if !f.reserve(pod, d) {
		f.fatalf("%s cannot reserve in %s", pod.Name, d.Name())
	}
	switch f.draw.IntN(12) {
	case 0:
		f.say("%s loses its node", pod.Name)
		f.unreserve(pod)
	case 1:
		f.startBind(pod, d)
		f.say("the bind of %s is refused", pod.Name)
		f.bindRefused(pod)
	default:
		if !f.startBind(pod, d) {
			f.fatalf("%s cannot be bound in %s", pod.Name, d.Name())
		}
		f.in[pod.UID] = d.Subset
		f.say("%s is bound in %s", pod.Name, d.Name())
		f.seeBound(pod, "node", d.Name())
	}
}

// pending are the pods of a group without a node, and with those that have one.
func (f *fleet) pending(g *gang) (pending, with []*corev1.Pod) {
	for _, name := range sortedKeys(g.pods) {
		if _, bound := f.in[g.pods[name].UID]; bound {
			with = append(with, g.pods[name])
		} else {
			pending = append(pending, g.pods[name])
		}
	}
	return pending, with
}

// isHeld is true if the gate holds the group, or if it has too few pods.
func (f *fleet) isHeld(g *gang) bool {
	pending, with := f.pending(g)
	return len(pending) == 0 || len(pending)+len(with) < g.atLeast || slices.ContainsFunc(pending, func(pod *corev1.Pod) bool { return f.ledger.WaitsForSlot(pod.UID) })
}

// cycleOf is the cycle of a group, as kube-scheduler has it. It is true if the group had one.
func (f *fleet) cycleOf(g *gang) bool {
	if f.isHeld(g) {
		return false
	}
	pending, with := f.pending(g)
	atLeast := max(g.atLeast-len(with), 1)
	text, places := f.askAsGroup(g.name, atLeast, with, pending...)
	f.say("%s asks for %d of %d: %s", g.name, atLeast, len(pending), text)
	for _, place := range places {
		found, made := f.simulate(place, pending)
		if found < atLeast {
			continue
		}
		for i, pod := range pending {
			if made[i] != nil {
				f.bind(pod, made[i])
			}
		}
		return true
	}
	return true
}

func (f *fleet) simulate(place *Decision, pods []*corev1.Pod) (found int, made []*Decision) {
	made = make([]*Decision, len(pods))
	for i, pod := range pods {
		d := f.try(pod, place)
		if d == nil || f.used(d.Subset)+found >= f.places[d.Subset] {
			continue
		}
		if !f.apply(SlotTried{UID: pod.UID, Decision: d}).OK {
			f.fatalf("%s cannot try %s", pod.Name, d.Name())
		}
		made[i] = d
		found++
	}
	for i, pod := range slices.Backward(pods) {
		if made[i] != nil {
			f.apply(SlotReturned{UID: pod.UID})
		}
	}
	return found, made
}

// judge looks at what must hold between two events.
func (f *fleet) judge() {
	f.t.Helper()
	for in := range f.quotas {
		if f.used(in) > f.quotas[in] {
			f.fatalf("subset %d has %d pods", in, f.used(in))
		}
	}
	for _, g := range f.groups {
		pending, _ := f.pending(g)
		for _, pod := range pending {
			if claim := f.ledger.ClaimOf(pod.UID); claim != nil {
				f.fatalf("%s holds a slot of %s between cycles", pod.Name, claim.Name)
			}
		}
	}
}

// rest lets all pods that may be tried have their cycles, until nothing changes. Then no group waits that has room. It returns how many groups are complete.
func (f *fleet) rest() (whole int) {
	f.t.Helper()
	f.say("rest")
	for range 30 {
		for _, name := range sortedKeys(f.singles) {
			if pod := f.singles[name]; !f.ledger.WaitsForSlot(pod.UID) {
				if _, bound := f.in[pod.UID]; !bound {
					f.cycle(pod)
				}
			}
		}
		for _, g := range f.groups {
			f.join(g)
			f.cycleOf(g)
		}
		f.judge()
	}
	if f.apply(Audit{}); f.missed != 0 {
		f.fatalf("%d wake-ups were missed", f.missed)
	}
	for _, g := range f.groups {
		pending, with := f.pending(g)
		needs := max(g.atLeast-len(with), 1)
		if len(pending) == 0 {
			if len(with) == g.size {
				whole++
			}
			continue
		}
		if len(pending)+len(with) < g.atLeast {
			continue
		}
		places := f.placesOf(g, len(pending))
		places = append(places, f.placesOf(g, needs)...)
		if len(places) > 0 && !f.adaptive {
			places = places[:1] // it waits for nodes there
		}
		for _, in := range places {
			if nodes := f.places[in] - f.used(in); nodes >= needs {
				f.fatalf("%s waits for %d slots, which subset %d has, and %d places", g.name, needs, in, nodes)
			}
		}
	}
	return whole
}

// placesOf are the subsets with so many free slots that are open to the group: that of its pods, or any.
func (f *fleet) placesOf(g *gang, slots int) (places []int) {
	_, with := f.pending(g)
	at := map[int]bool{}
	for _, pod := range with {
		at[f.in[pod.UID]] = true
	}
	for in, free := range f.quotas {
		free -= f.used(in)
		for _, pod := range f.singles {
			if claim := f.ledger.ClaimOf(pod.UID); claim != nil && claim.Name == []string{"a", "b"}[in] {
				free--
			}
		}
		if free >= slots && (len(at) != 1 || at[in]) {
			places = append(places, in)
		}
	}
	return places
}
