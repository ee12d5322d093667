package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
	"github.com/berth-project/berth/test/testkit/worlds"
)

// storm is a world with a scheduler. It runs a cycle for each woken pod, among events of every kind.
type storm struct {
	*world
	h *worlds.History
	// calm is true for a world without changes that may put a subset over its quota.
	calm bool
	// ranked is true if spreads have minimums and shares.
	ranked bool
	// sets is true for a world in which half of the pods belong to a StatefulSet.
	sets bool
	// tight is true for a world without room: small quotas, full nodes, pods that preempt, and a spread that comes after its pods.
	tight bool
	pods  map[string]*stormPod
	// refusing are the subsets in which each bind is refused.
	refusing map[string]bool
	// room is false for a subset and a pod size if the subset's nodes are full for it.
	room       map[string]bool
	replicas   map[string]int32
	generation int64
	made       int
	log        []string
}

type stormPod struct {
	*corev1.Pod
	// awake is true if the pod will have another cycle.
	awake bool
	// held is true if another plugin refuses the pod before it can ask.
	held bool
	// free is true if no spread divides the pod, so that it needs nothing from the ledger.
	free bool
	// decision of the current cycle. Nil if the pod is not in a cycle.
	decision *Decision
	reserved bool
	sent     bool
	bound    bool
	// doubted are the subsets of the pod's binds without an answer.
	doubted []string
	// gated is true if the pod has a gate in the current cycle. toOpen is true if the opener looks at the pod some time.
	gated, toOpen bool
	// asked is true if the pod has asked before.
	asked bool
	// late is what the pod becomes by a patch of its gate that may still happen.
	late []*corev1.Pod
	// in is the subset in which the bound pod counts. Empty if there is none.
	in string
	// victimsIn is the subset in which the pod waits for victims to terminate. Empty if it waits for none. vain are those in which it need not look for victims in this round.
	victimsIn string
	vain      map[string]bool
	// failing is how often, and since when, the pod has lost the nodes that it has found in a subset. leaves is the subset in which that was too often. Empty if there is none.
	failing failing
	leaves  string
}

func (s *storm) do(event Event) Effects {
	fx := s.apply(event)
	s.awake = nil
	for _, pod := range fx.Wake {
		if p := s.pods[pod.Name]; p != nil {
			p.awake = true
		}
	}
	line := fmt.Sprintf("%T%s", event, describeEvent(event))
	if fx.Answer.Decision != nil {
		line += " -> " + fx.Answer.Decision.Name()
	} else if fx.Answer.Reason != "" {
		line += " -> " + string(fx.Answer.Reason)
	}
	for _, pod := range fx.Wake {
		line += " wakes " + pod.Name
	}
	s.log = append(s.log, line)
	return fx
}

func describeEvent(event Event) string {
	switch ev := event.(type) {
	case PodSeen:
		return fmt.Sprintf(" %s %v on %q, gates %v, %v", ev.Pod.Name, ev.Pod.Labels, ev.Pod.Spec.NodeName, ev.Pod.Spec.SchedulingGates, ev.Pod.Annotations)
	case PodAsks:
		return " " + ev.Pod.Name
	case ClusterChanged:
		return " " + string(ev.UID)
	case SpreadSeen:
		return fmt.Sprintf(" %s %+v %+v", ev.Spread.Name, ev.Spread.Spec.Subsets, ev.Spread.Spec.ScheduleStrategy)
	case NodeFound:
		return " " + string(ev.UID) + " " + ev.Decision.Name()
	case NoNodeFound:
		return " " + string(ev.UID) + " " + ev.Decision.Name()
	case OwnerSeen:
		return " " + ev.Object.GetName()
	default:
		return fmt.Sprintf(" %+v", ev)
	}
}

func (s *storm) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s\nFAULT: %s", strings.Join(s.log, "\n"), fmt.Sprintf(format, args...))
}

func (s *storm) owner(kind, name, parent string) {
	object := metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")}
	if parent != "" {
		object.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: parent, UID: types.UID(parent + "-uid"), Controller: ptr.To(true)}}
	}
	switch kind {
	case "StatefulSet":
		s.do(OwnerSeen{Kind: statefulSetKind, Object: &appsv1.StatefulSet{ObjectMeta: object, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To(s.replicas[name]),
			Ordinals: &appsv1.StatefulSetOrdinals{Start: s.replicas[name] % 3}}}})
	case "Deployment":
		s.do(OwnerSeen{Kind: deploymentKind, Object: &appsv1.Deployment{ObjectMeta: object, Spec: appsv1.DeploymentSpec{Replicas: ptr.To(s.replicas[name])}}})
	default:
		s.do(OwnerSeen{Kind: replicaSetKind, Object: &appsv1.ReplicaSet{ObjectMeta: object, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(s.replicas[name])}}})
	}
}

var stormOwners = map[string]string{"rs1": "web", "rs2": "web", "rs3": "api", "rs4": ""}

func (s *storm) showOwner(name string) {
	if name == "db" {
		s.owner("StatefulSet", name, "web")
	} else if parent, isSet := stormOwners[name]; isSet {
		s.owner("ReplicaSet", name, parent)
	} else {
		s.owner("Deployment", name, "")
	}
}

func (s *storm) hideOwner(name string) {
	kind := deploymentKind
	if name == "db" {
		kind = statefulSetKind
	} else if _, isSet := stormOwners[name]; isSet {
		kind = replicaSetKind
	}
	s.do(OwnerGone{Kind: kind, Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")}}})
}

const inZones = `subsets:
- {name: a, %s, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, %s, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}
- {name: c, %s}
scheduleStrategy: {%s}`

var stormStrategies = []string{
	"whenFull: Wait", "whenFull: Schedule", "whenFull: Wait, binding: Early", "whenFull: Wait, quotaScope: Workload",
	"type: Adaptive, whenFull: Wait", "type: Adaptive, whenFull: Schedule", "type: Adaptive, whenFull: Wait, quotaScope: Workload",
	"type: Adaptive, whenFull: Wait, binding: Gated, adaptive: {rescheduleCriticalSeconds: 1, unschedulableLastSeconds: 3}",
	"whenFull: Wait, binding: Gated", "whenFull: Schedule, binding: Gated", "type: Adaptive, whenFull: Wait, binding: Gated",
	"type: Adaptive, whenFull: Schedule, binding: Gated",
	"type: Adaptive, whenFull: Wait, adaptive: {preemption: BeforeNextSubset}", "type: Adaptive, whenFull: Schedule, adaptive: {preemption: BeforeNextSubset}",
	"whenFull: Wait, podReplacementPolicy: TerminationComplete", "type: Adaptive, whenFull: Schedule, podReplacementPolicy: TerminationComplete",
}

func (s *storm) newSpec(strategy string) string {
	largest := 4
	if s.tight {
		largest = 2
	}
	quota := func() string { return fmt.Sprintf("maxReplicas: %d", 1+s.h.Number("quota", largest)) }
	percent := !s.calm && s.h.Yes("percent", 5)
	switch {
	case percent && s.ranked: // a share without a node goes to the others
		return fmt.Sprintf(inZones, `maxReplicas: "30%"`, `maxReplicas: "50%", minReplicas: 1`, `maxReplicas: "20%"`, strategy)
	case percent:
		return fmt.Sprintf(inZones, `maxReplicas: "30%"`, `maxReplicas: "50%"`, "maxReplicas: null", strategy)
	case s.ranked:
		weighted := s.h.Number("weight", 4)
		quota = func() string {
			return fmt.Sprintf("maxReplicas: %d, minReplicas: %d, weight: %d", 2+s.h.Number("quota", 3), s.h.Number("min", 3), weighted*s.h.Number("times", 3))
		}
	}
	return fmt.Sprintf(inZones, quota(), quota(), quota(), strategy)
}

func (s *storm) showSpread(name, kind, target, spec string) {
	s.generation++
	s.t.Helper()
	before := len(s.log)
	s.spreadOf(name, s.generation, kind, target, spec)
	for _, woken := range s.awake {
		if p := s.pods[woken]; p != nil {
			p.awake = true
		}
	}
	s.awake = nil
	s.log = append(s.log[:before], fmt.Sprintf("spread %s on %s %s: %s", name, kind, target, spec))
}

func (s *storm) newPod() {
	s.made++
	owners := []string{"rs1", "rs1", "rs2", "rs3", "rs4"}
	switch {
	case s.tight:
		owners = owners[:1]
	case s.calm:
		owners = owners[:3]
	}
	if s.sets {
		owners = append(owners, "db", "db", "db", "db", "db")[:2*len(owners)]
	}
	rs, name := s.h.Pick(owners...), fmt.Sprintf("p%d", s.made)
	if rs == "db" {
		name = fmt.Sprintf("db-%d", s.h.Number("ordinal", 10))
	}
	if s.pods[name] != nil {
		rs, name = "rs1", fmt.Sprintf("p%d", s.made)
	}
	pod := podOf(types.UID(rs+"-uid"), name)
	pod.OwnerReferences[0].Name = rs
	if pod.Labels["pod-template-hash"] = "v" + rs[2:]; rs == "db" {
		pod.Labels["pod-template-hash"] = s.h.Pick("v1", "v2")
		pod.OwnerReferences[0].Kind, pod.UID = "StatefulSet", types.UID(fmt.Sprintf("p%d-uid", s.made))
	}
	if !s.tight && s.h.Yes("admitted", 6) {
		in := s.h.Pick("to none", "to a", "to b", "to c")
		pod.Annotations = map[string]string{v1beta1.AdmittedAnnotation: fmt.Sprintf(`{"name":"web","subset":%q,"pick":%q}`, strings.TrimPrefix(strings.TrimPrefix(in, "to "), "none"), pod.Name)}
	}
	if s.h.Yes("important", 6) {
		pod.Spec.Priority = ptr.To[int32](10)
	}
	requesting(pod, strconv.Itoa(1+s.h.Number("cpu", 2)))
	if s.gates(pod) || !s.tight && s.h.Yes("gated", 4) { // a spread that was edited since may have added the gate
		pod = withGate(pod)
		if !s.calm && s.h.Yes("opened by the leader before", 4) {
			pod = opened(pod, s.h.Pick("a", "b", "c"))
		}
	}
	p := &stormPod{Pod: pod, awake: true, vain: map[string]bool{}}
	s.pods[pod.Name] = p
	s.do(PodSeen{Pod: pod})
}

func requestOf(pod *corev1.Pod) string {
	return pod.Spec.Containers[0].Resources.Requests.Cpu().String()
}

func (s *storm) hasRoom(p *stormPod, in string) bool {
	picked := pickOf(p.Pod)
	return !s.room[in+requestOf(p.Pod)] && (picked == "" || picked == "c" || picked == in) // c has all nodes
}

// pickOf is the subset whose nodes a pod requires since its gate was opened. Empty if there is none.
func pickOf(pod *corev1.Pod) string {
	if admitted := subset.AdmittedOf(pod); admitted != nil && admitted.Opened {
		return admitted.Subset
	}
	return ""
}

// gates is true if admission adds a gate to the pod.
func (s *storm) gates(pod *corev1.Pod) bool {
	a, _ := s.ledger.resolve(&entry{pod: pod, owner: s.ledger.owners.of(idOf("ns", *workload.ControllerOf(pod)))})
	return a != nil && a.policy != nil && a.policy.EffectiveBinding(false) == v1beta1.GatedBinding
}

// cycle begins a cycle of the pod. The cycle ends here unless the pod finds a node.
func (s *storm) cycle(p *stormPod) {
	p.awake = false
	if p.held {
		s.do(PodRefused{UID: p.UID})
		return
	}
	p.free, p.gated = false, subset.IsGated(p.Pod)
	p.asked = true
	crowded := p.victimsIn != "" && s.isFull(p.victimsIn, s.quotaOf(p.victimsIn)+1)
	event := PodAsks{Pod: p.Pod}
	fx := s.do(event)
	for checks := 0; fx.Check != nil; checks++ {
		if checks > subset.MaxSubsets {
			s.fatalf("%s does not stop looking", p.Name)
		}
		result := Feasible
		switch {
		case !s.hasRoom(p, fx.Check.Policy.Subsets[fx.Check.Subset].Name):
			if result = Feasible; s.h.Pick("finds none", "finds some") == "finds none" {
				result = Infeasible
			}
		case fx.Check.Tried && fx.Check.Policy.Subsets[fx.Check.Subset].Name != p.leaves:
			result = FeasibleAgain
		}
		event.Results.Add(fx.Check, result)
		fx = s.do(event)
	}
	d := fx.Answer.Decision
	s.takesNoVictimTooMany(p, d, crowded)
	if p.leaves != "" && d != nil && d.Name() == p.leaves && s.mayGoElsewhere(p, d) {
		s.fatalf("%s is tried again in %s, where its binds fail", p.Name, p.leaves)
	}
	p.leaves = ""
	switch {
	case d == nil:
		p.free, p.toOpen = fx.Answer.Reason == "", p.gated
		if fx.Answer.Reason == v1beta1.ReasonNoNodeFits && p.gated {
			s.do(PodWaits{UID: p.UID})
		}
	case d.Subset != subset.None && !s.hasRoom(p, d.Name()):
		p.toOpen = p.gated
		if step := s.do(NoNodeFound{UID: p.UID, Decision: d}).Next; step == Preempt {
			nominated := s.tight && s.h.Yes("has victims", 2)
			if p.victimsIn = ""; nominated && d.Policy.Strategy == v1beta1.AdaptiveScheduleStrategy {
				p.victimsIn = d.Name()
			}
			p.vain[d.Name()] = !nominated
			s.do(Preempted{UID: p.UID, Decision: d, Nominated: nominated})
		}
	default:
		p.decision = d
	}
}

// takesNoVictimTooMany is a fault if the pod leaves a subset in which it waits for victims, or goes past one in which it should preempt first. In a crowded subset, pods of another scheduler have
// taken the slot.
func (s *storm) takesNoVictimTooMany(p *stormPod, d *Decision, crowded bool) {
	if p.victimsIn != "" && (d == nil || d.Name() != p.victimsIn) {
		if !crowded {
			s.fatalf("%s does not wait for its victims in %s", p.Name, p.victimsIn)
		}
		p.victimsIn = ""
	}
	if d == nil {
		clear(p.vain)
		return
	}
	if !s.tight || p.victimsIn != "" || !d.Policy.Adaptive.PreemptsFirst || p.Spec.Priority == nil {
		return
	}
	for i := range d.Policy.Subsets {
		name := d.Policy.Subsets[i].Name
		if i == d.Subset {
			return
		}
		if !p.vain[name] && !s.isFull(name, s.quotaOf(name)) {
			s.fatalf("%s goes on to %q, and might have victims in %s", p.Name, d.Name(), name)
		}
	}
}

// mayBeIn is true for a pod that counts in a subset because it is bound there, or may be. The storm knows that without the ledger.
func (s *storm) mayBeIn(p *stormPod, in string) bool {
	switch {
	case p.bound:
		a := s.ledger.byName[spreadKey]
		return p.in == in && (p.DeletionTimestamp == nil || a != nil && a.policy.CountsEnding)
	case p.sent && p.decision.Name() == in:
		return true
	default:
		return slices.Contains(p.doubted, in)
	}
}

func (s *storm) bound(in string) (n int32) {
	for _, p := range s.pods {
		if s.mayBeIn(p, in) {
			n++
		}
	}
	return n
}

// isFull is true if the pods that are in a subset or may be, and those that look for a node there, take all of its slots. All pods are of one scope.
func (s *storm) isFull(in string, quota int32) bool {
	n := s.bound(in)
	for _, p := range s.pods {
		if claim := s.ledger.ClaimOf(p.UID); claim != nil && claim.Name == in && !s.mayBeIn(p, in) {
			n++
		}
	}
	return n >= quota
}

func (s *storm) quotaOf(in string) int32 {
	a := s.ledger.byName[spreadKey]
	return a.plan.Quota[a.policy.Index(in)]
}

// mayGoElsewhere is true if a subset other than that of the decision has a slot and a node for the pod.
func (s *storm) mayGoElsewhere(p *stormPod, d *Decision) bool {
	return slices.ContainsFunc(d.Policy.Subsets, func(in subset.Subset) bool {
		return in.Name != d.Name() && s.hasRoom(p, in.Name) && !s.isFull(in.Name, s.quotaOf(in.Name))
	})
}

// lose counts a node that the pod had found.
func (s *storm) lose(p *stormPod, d *Decision) {
	if !s.tight || d.Policy.Strategy != v1beta1.AdaptiveScheduleStrategy || d.Subset == subset.None {
		return
	}
	if p.failing.in != d.Name() {
		p.failing = failing{in: d.Name(), since: s.now}
	}
	if p.failing.times++; p.failing.times >= 3 && !s.now.Before(p.failing.since.Add(30*time.Second)) {
		p.failing, p.leaves, p.vain[d.Name()] = failing{}, d.Name(), true
	}
}

// goOn does the next step of a pod that is in a cycle.
func (s *storm) goOn(p *stormPod) {
	d := p.decision
	end := func() {
		p.decision, p.reserved, p.sent, p.awake = nil, false, false, true
		if p.leaves == "" {
			clear(p.vain) // its next cycle begins with the first subset
		}
	}
	switch {
	case !p.reserved:
		if p.reserved = s.do(NodeFound{UID: p.UID, Decision: d}).OK; !p.reserved {
			end()
		}
		p.victimsIn = ""
	case !p.sent && s.h.Yes("loses its node", 3):
		s.do(NodeLost{UID: p.UID})
		s.lose(p, d)
		end()
	case !p.sent:
		if p.sent = s.do(BindSent{UID: p.UID, Decision: d}).OK; !p.sent {
			s.do(NodeLost{UID: p.UID})
			s.lose(p, d)
			end()
		} else if s.tight && d.Subset != subset.None && s.bound(d.Name()) > s.quotaOf(d.Name()) {
			s.fatalf("%s is bound to %s, where %d pods are or may be; the quota is %d", p.Name, d.Name(), s.bound(d.Name()), s.quotaOf(d.Name()))
		} else if p.gated && !s.patch(p, d) {
			s.do(BindRefused{UID: p.UID})
			s.do(NodeLost{UID: p.UID})
			end()
		}
	default:
		outcomes := []string{"bound", "bound", "bound", "bound", "refused", "no answer"}
		if s.refusing[d.Name()] {
			outcomes = []string{"refused"}
		}
		switch s.h.Pick(outcomes...) {
		case "refused":
			s.do(BindRefused{UID: p.UID})
			s.do(NodeLost{UID: p.UID})
			s.lose(p, d)
			end()
		case "no answer":
			s.do(BindUnknown{UID: p.UID, Until: s.now.Add(time.Second)})
			s.do(NodeLost{UID: p.UID})
			p.doubted = append(p.doubted, d.Name())
			end()
		default:
			s.bind(p, d.Name())
		}
	}
}

// patch opens the gate of a pod in the subset of a decision, which may be nil. It is false if the scheduler gets no answer or a refusal.
func (s *storm) patch(p *stormPod, d *Decision) bool {
	spread, policy, index := "", (*subset.Policy)(nil), subset.None
	if d != nil {
		spread, policy, index = d.Spread.Name, d.Policy, d.Subset
	}
	open, err := policy.Open(p.Pod, spread, index, s.now)
	if err != nil {
		s.fatalf("opening the gate: %v", err)
	}
	if !subset.IsGated(p.Pod) {
		is, want := subset.AdmittedOf(p.Pod), subset.AdmittedOf(open) // nobody opens it again
		return is == nil && want == nil || is != nil && want != nil && is.Spread == want.Spread && is.Subset == want.Subset
	}
	switch s.h.Pick("opened", "opened", "opened", "opened", "not opened", "maybe opened") {
	case "opened":
		s.open(p, open)
		return true
	case "maybe opened":
		p.late = append(p.late, open)
	}
	return false
}

func (s *storm) open(p *stormPod, open *corev1.Pod) {
	changed := p.DeepCopy()
	changed.Spec.SchedulingGates, changed.Spec.Affinity, changed.Annotations = open.Spec.SchedulingGates, open.Spec.Affinity, open.Annotations
	p.Pod, p.late = changed, nil
	s.do(PodSeen{Pod: p.Pod})
}

// lookAtGate is what the opener does for a pod that waits for a node.
func (s *storm) lookAtGate(p *stormPod) {
	p.toOpen = false
	d, divided := s.ledger.WaitsForNode(p.UID)
	if d != nil && p.decision != nil {
		s.fatalf("%s waits for a node in %q in the middle of a cycle", p.Name, d.Name())
	}
	if subset.IsGated(p.Pod) && (!divided || d != nil) {
		p.toOpen = !s.patch(p, d) // it tries again later
	}
}

func (s *storm) bind(p *stormPod, in string) {
	s.t.Helper()
	if subset.IsGated(p.Pod) {
		s.fatalf("%s is bound, and it has a gate", p.Name)
	}
	node := "node-a"
	if in == "b" {
		node = "node-b"
	}
	p.Pod = onNode(p.Pod, node, in)
	p.decision, p.awake, p.bound, p.in = nil, false, true, in
	s.do(PodSeen{Pod: p.Pod})
}

// stormSteps are what may happen, as often as they are there. What comes after the calm ones may put a subset over its quota.
var stormSteps = slices.Concat(slices.Repeat([]string{"go on with"}, 12), slices.Repeat([]string{"create"}, 10),
	[]string{"delete", "delete", "a second passes for", "hold", "room in", "audit", "show again", "rest", "open", "late patch of"})

var wildSteps = slices.Concat(stormSteps, []string{"relabel", "relabel", "give away", "owner", "edit", "other spread", "delete spread", "node", "bind elsewhere", "nominate"})

var tightSteps = slices.Concat(stormSteps, slices.Repeat([]string{"room in"}, 4), []string{"fail", "bind elsewhere", "bind elsewhere", "the spread comes", "binds fail in",
	"a minute passes for"})

func (s *storm) step() {
	kinds := wildSteps
	switch {
	case s.tight:
		kinds = tightSteps
	case s.calm:
		kinds = stormSteps
	}
	kind := "create"
	if len(s.pods) > 0 {
		kind = s.h.Pick(kinds...)
	}
	var p *stormPod
	switch kind {
	case "create", "room in", "audit", "rest", "owner", "edit", "other spread", "delete spread", "node", "the spread comes", "binds fail in":
	default:
		p = s.pods[s.h.Pick(slices.Sorted(maps.Keys(s.pods))...)]
	}
	switch kind {
	case "create":
		if len(s.pods) < 12 {
			s.newPod()
		}
	case "go on with":
		switch {
		case p.bound:
		case p.decision != nil:
			s.goOn(p)
		default:
			s.cycle(p)
		}
	case "delete":
		if p.bound && p.DeletionTimestamp == nil && s.h.Yes("slowly", 2) {
			p.Pod = terminating(p.Pod)
			s.do(PodSeen{Pod: p.Pod})
			break
		}
		s.do(PodGone{UID: p.UID})
		delete(s.pods, p.Name)
	case "fail": // two schedulers have filled the node, and the kubelet refuses the pod
		if p.bound {
			failed := p.DeepCopy()
			failed.Status.Phase, failed.Status.Reason = corev1.PodFailed, "OutOfcpu"
			s.do(PodSeen{Pod: failed})
			delete(s.pods, p.Name)
		}
	case "binds fail in":
		in := s.h.Pick("a", "b", "c")
		s.refusing[in] = !s.refusing[in]
	case "a minute passes for": // it is tried again and again
		for range 16 {
			switch {
			case p.bound:
			case p.decision != nil:
				s.goOn(p)
			default:
				s.cycle(p)
			}
			s.now = s.now.Add(4 * time.Second)
			s.do(TimePassed{})
		}
	case "the spread comes":
		if s.generation == 0 {
			s.showSpread("web", "Deployment", "web", s.newSpec(s.h.Pick(tightStrategies...)))
		}
	case "a second passes for":
		s.now = s.now.Add(time.Second)
		if s.do(TimePassed{}); p.bound || len(p.doubted) == 0 {
			break
		}
		if in := s.h.Pick(append(slices.Repeat([]string{"it is not bound"}, len(p.doubted)), p.doubted...)...); in != "it is not bound" {
			s.bind(p, in)
		} else if p.decision == nil {
			s.now = s.now.Add(time.Second)
			s.do(TimePassed{})
			s.do(BindDisproved{UID: p.UID, ReadAt: s.now})
			p.doubted = nil
		}
	case "hold":
		p.held = !p.held
		p.awake = p.awake || !p.held && !p.bound
	case "room in":
		in := s.h.Pick("a1", "a2", "b1", "b2", "c1", "c2")
		if s.room[in] = !s.room[in]; !s.room[in] {
			s.thereIsRoom(in)
		}
	case "audit":
		s.do(Audit{})
	case "open":
		if p.toOpen {
			s.lookAtGate(p)
		}
	case "late patch of":
		if len(p.late) > 0 {
			s.open(p, p.late[s.h.Number("patch", len(p.late))])
		}
	case "show again":
		s.do(PodSeen{Pod: p.DeepCopy()})
	case "rest":
		s.rest()
	case "relabel":
		changed := p.DeepCopy()
		changed.Labels["pod-template-hash"] = s.h.Pick("v1", "v2")
		p.Pod = changed
		s.do(PodSeen{Pod: changed})
	case "give away":
		p.Pod = ownedBy(p.Pod, "", "")
		rs := s.h.Pick("rs1", "rs2", "rs3", "rs4")
		p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = rs, types.UID(rs+"-uid")
		s.do(PodSeen{Pod: p.Pod})
	case "owner":
		names := []string{"rs1", "rs2", "rs3", "rs4", "web", "api"}
		if s.sets {
			names = append(names, "db", "db")
		}
		name := s.h.Pick(names...)
		if s.h.Yes("gone", 3) {
			s.hideOwner(name)
		} else {
			s.replicas[name] = int32(s.h.Number("replicas", 12))
			s.showOwner(name)
		}
	case "edit":
		s.showSpread("web", "Deployment", s.h.Pick("web", "web", "web", "api"), s.newSpec(s.h.Pick(stormStrategies...)))
	case "other spread":
		switch s.h.Pick("of rs1", "second", "broken", "filtered") {
		case "of rs1":
			s.showSpread("set", "ReplicaSet", "rs1", s.newSpec(s.h.Pick(stormStrategies...)))
		case "second":
			s.showSpread("second", "Deployment", "web", s.newSpec(s.h.Pick(stormStrategies...)))
		case "broken":
			s.showSpread("web", "Deployment", "web", `subsets: [{name: a, maxReplicas: -1}]`)
		default:
			s.showSpread("set", "ReplicaSet", "rs2", `{targetFilter: {selector: {matchLabels: {pod-template-hash: v1}}}, subsets: [{name: b, maxReplicas: 2}]}`)
		}
	case "delete spread":
		s.do(SpreadGone{Key: types.NamespacedName{Namespace: "ns", Name: s.h.Pick("web", "set", "second")}})
	case "node":
		if s.h.Pick("gone", "there") == "gone" {
			s.do(NodeGone{Name: "node-b"})
		} else {
			s.seeNode("node-b", "b")
			s.awake = nil
		}
	case "bind elsewhere":
		nodes := []string{"node-a", "node-b", "node-x"}
		if s.tight {
			nodes = nodes[:2]
		}
		if !p.bound && p.decision == nil && len(p.doubted) == 0 && !subset.IsGated(p.Pod) && (!s.tight || p.free || !p.asked) {
			p.Pod = onNode(p.Pod, s.h.Pick(nodes...), "-")
			p.bound, p.awake, p.in = true, false, strings.TrimPrefix(p.Spec.NodeName, "node-")
			s.do(PodSeen{Pod: p.Pod})
		}
	case "nominate":
		if !p.bound {
			p.Pod = p.DeepCopy()
			p.Status.NominatedNodeName = strings.TrimPrefix(s.h.Pick("nowhere", "node-a", "node-b"), "nowhere")
			s.do(PodSeen{Pod: p.Pod})
		}
	}
	s.check()
}

// thereIsRoom makes the scheduler's queue ask the ledger about the waiting pods.
func (s *storm) thereIsRoom(where string) {
	change := new(int)
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		p := s.pods[name]
		if p.bound || p.awake || p.decision != nil {
			continue
		}
		if claimed := s.ledger.ClaimOf(p.UID); claimed != nil && claimed.Name+requestOf(p.Pod) == where {
			p.awake = true
		}
		for _, node := range []string{"node-a", "node-b"} {
			if node := s.ledger.nodes[node]; node != nil && s.do(ClusterChanged{UID: p.UID, Change: change, Node: node, OnNode: true}).OK {
				p.awake = true
			}
		}
	}
}

// check compares the ledger's counts with an independent recount.
func (s *storm) check() {
	s.t.Helper()
	l := s.ledger
	if s.missed > 0 {
		s.fatalf("an audit missed %d", s.missed)
	}
	var counts podCounts
	unresolved, members := 0, 0
	for uid, e := range l.pods {
		if p := s.pods[e.pod.Name]; p == nil || p.UID != uid {
			s.fatalf("%s has ended, and the ledger has it", uid)
		}
		to, _ := l.resolve(e)
		if to != e.account {
			s.fatalf("%s is in another account than it resolves to", uid)
		}
		if l.isUnresolved(e) {
			unresolved++
			if e.account != nil || e.wait != forNews {
				s.fatalf("%s is unresolved and waits for %d", uid, e.wait)
			}
		}
		if (e.search == nil) != (e.stage == stageBound) {
			s.fatalf("%s is %s and has search %v", uid, e.stage, e.search)
		}
		if e.stage > stageClaimed && e.search != nil && e.list != nil {
			s.fatalf("%s is %s and waits in a list", uid, e.stage)
		}
		if e.account == nil {
			if e.search != nil && (e.list != nil || e.probeOf != nil || e.woken) {
				s.fatalf("%s has no account and stands somewhere", uid)
			}
			continue
		}
		members++
		if e.account.members[uid] != e || e.scope != e.account.scopeOf(e.pod) {
			s.fatalf("%s is no member, or not of its scope", uid)
		}
		if p := s.pods[e.pod.Name]; e.stage <= stageClaimed && p != nil && !p.asked {
			if in, counts := e.picked(); counts && in != subset.None && !e.holds().Has(in) {
				s.fatalf("%s requires the nodes of subset %d, has not asked, and holds no slot there", uid, in)
			}
		}
		if e.ending && e.slot == "" {
			continue
		}
		counts.stages[e.stage]++
		if len(e.uncertain) > 0 {
			counts.Uncertain++
		}
	}
	if unresolved != len(l.unresolved) {
		s.fatalf("unresolved are %v", l.unresolved)
	}
	for name, pods := range l.unclassified {
		for uid := range pods {
			if e := l.pods[uid]; e == nil || e.stage != stageBound || e.pod.Spec.NodeName != name {
				s.fatalf("%s is unclassified", uid)
			}
		}
	}
	for _, a := range l.accounts {
		members -= len(a.members)
		if a.policy == nil {
			continue
		}
		tally, firm := a.policy.NewTally(), a.policy.NewTally()
		probes := map[*waitlist]int{}
		live := map[types.UID]int32{}
		for _, e := range a.members {
			for i := range a.policy.Subsets {
				if e.holds().Has(i) {
					tally.Add(e.scope, i)
				}
				if _, picked := e.picked(); e.holds().Has(i) && (e.stage < stageBound || e.record != nil) && (!picked || e.stage >= stageBinding || e.mayBeBoundIn(a.policy.Subsets[i].Name)) {
					firm.Add(e.scope, i) // a pick may put claims over the quota, and another scheduler its pods
				}
			}
			if !e.ending {
				live[e.owner.uid]++
			} else if e.holds() != 0 && !a.policy.CountsEnding {
				s.fatalf("%s terminates and holds %v", e.pod.Name, e.holds())
			}
			if in, _ := a.policy.RecordedIn(e.record, a.active().Name); e.ending && a.policy.CountsEnding && in != subset.None && !e.holds().Has(in) {
				s.fatalf("%s has its slot until it is gone, and holds %v", e.pod.Name, e.holds())
			}
			if e.search != nil && e.woken && e.list != a.waiting[e.scope] {
				s.fatalf("%s was woken and is in no waitlist", e.pod.UID)
			}
			if e.search != nil && e.probeOf != nil {
				probes[e.probeOf]++
			}
		}
		if !maps.Equal(live, a.live) {
			s.fatalf("live are %v, want %v", a.live, live)
		}
		for _, scope := range append(tally.Scopes(), a.tally.Scopes()...) {
			if !slices.Equal(tally.Kept(scope), a.tally.Kept(scope)) {
				s.fatalf("tally of %s: %v, want %v", scope, a.tally.Kept(scope), tally.Kept(scope))
			}
		}
		for _, scope := range tally.Scopes() {
			counts.OverQuota += a.policy.OverQuota(&a.plan, tally.Kept(scope))
			if over := a.policy.OverQuota(&a.plan, firm.Kept(scope)); s.calm && over > 0 {
				s.fatalf("%d over quota", over)
			}
		}
		for scope, w := range a.waiting {
			if len(w.pods) == 0 || !slices.IsSortedFunc(w.pods, byOrder) {
				s.fatalf("waitlist of %s is empty or not in order", scope)
			}
		}
		for _, w := range a.exhausted {
			if w.probes != probes[w] || w.probes+len(w.pods) == 0 {
				s.fatalf("waitlist of %s: %d probes, want %d", w.class.scope, w.probes, probes[w])
			}
		}
	}
	if members != 0 || counts != l.Counts() {
		s.fatalf("counts are %+v, want %+v; %d members too many", l.Counts(), counts, -members)
	}
	for _, p := range s.pods {
		e := l.pods[p.UID]
		may := slices.Clone(p.doubted)
		if p.sent && !p.bound {
			may = append(may, p.decision.Name())
		}
		for _, in := range may {
			if !p.bound && in != "" && e.slot != in && !e.mayBeBoundIn(in) {
				s.fatalf("%s may be in %s, and its slot is free", p.Name, in)
			}
		}
	}
}

// rest runs cycles until no pod is awake. Then no pod may sleep that could go.
func (s *storm) rest() {
	s.t.Helper()
	limit := 200 + 100*len(s.pods)
	clear(s.refusing)
	for cycles := 0; ; cycles++ {
		var names []string
		for _, name := range slices.Sorted(maps.Keys(s.pods)) {
			if p := s.pods[name]; p.decision != nil || (p.awake || p.toOpen) && !p.bound {
				names = append(names, "then "+name)
			}
		}
		if len(names) == 0 {
			break
		}
		s.h.Line()
		next := s.pods[strings.TrimPrefix(s.h.Pick(names...), "then ")]
		if cycles > limit {
			s.fatalf("the pods do not come to rest; %s is tried again and again", next.Name)
		}
		switch {
		case next.decision != nil:
			s.goOn(next)
		case next.awake:
			s.cycle(next)
		default:
			s.lookAtGate(next)
		}
		s.check()
	}
	for _, p := range s.pods {
		e := s.ledger.pods[p.UID]
		if why := s.isIllegible(p, e); why != "" {
			s.fatalf("%s sleeps: %s; %s", p.Name, why, s.describe(e))
		}
		if p.free && !p.bound && !p.held && e.account != nil {
			s.fatalf("%s sleeps, and was not told of its spread", p.Name)
		}
		if !p.bound && !p.held && !p.free {
			if why := s.couldGo(p, e); why != "" {
				s.fatalf("%s sleeps: %s; %s", p.Name, why, s.describe(e))
			}
		}
	}
}

func (s *storm) describe(e *entry) string {
	text := fmt.Sprintf("scope %q kept %v quota %v", e.scope, s.kept(e), s.quota(e))
	if e.account != nil {
		for uid, m := range e.account.members {
			text += fmt.Sprintf("\n  %s scope %q stage %s slot %q uncertain %v", uid, m.scope, m.stage, m.slot, m.uncertain)
			if m.search != nil {
				text += fmt.Sprintf(" wait %d woken %t listed %t probe %t tried %b", m.wait, m.woken, m.list != nil, m.probeOf != nil, m.tried)
			}
		}
		text += fmt.Sprintf("\n  %+v", e.account.active().Spec.ScheduleStrategy)
	}
	return text
}

func (s *storm) kept(e *entry) subset.Counts {
	if e.policy() == nil {
		return nil
	}
	return e.account.tally.Kept(e.scope)
}

func (s *storm) quota(e *entry) []int32 {
	if e.policy() == nil {
		return nil
	}
	return e.account.plan.Quota
}

// couldGo returns why a sleeping pod should be awake, or "".
func (s *storm) couldGo(p *stormPod, e *entry) string {
	l := s.ledger
	l.now = s.now
	if e.account == nil {
		if _, missing := l.resolve(e); missing == nil && (!subset.WasAdmitted(e.pod) && !subset.AwaitsSpread(e.pod) || l.lateForNews(e)) {
			return "no spread divides it"
		}
		return ""
	}
	if held := l.held(e).Reason != ""; held || e.wait == forNews {
		if e.wait == forNews && !held && !l.hasTimer(e) { // otherwise it is woken within the time of observation
			return "the news is here"
		}
		return ""
	}
	a := e.account
	kept, c := a.tally.Kept(e.scope), l.candidate(e)
	switch e.wait {
	case forSlot:
		if len(e.uncertain) == 0 && a.policy.Admit(&a.plan, kept, c).Allowed() {
			return "there is a slot"
		}
	case forAnyNode:
		if len(e.uncertain) > 0 {
			return "" // only it may use the slots that it holds; it is tried again when the outcome is known
		}
		c.Lent = true // a subset with quota had no node for it
		for i := range a.policy.Subsets {
			if e.unbindable.Has(i) {
				continue // it is tried there again after a while
			}
			if a.policy.HasRoom(&a.plan, kept, i, c) && s.hasRoom(p, a.policy.Subsets[i].Name) {
				return "there is a slot and a node in " + a.policy.Subsets[i].Name
			}
		}
	case forNode:
		claim := e.index()
		if claim != subset.None && s.hasRoom(p, a.policy.Subsets[claim].Name) {
			return "there is a node"
		}
		if s.tight && claim != subset.None && !a.policy.HasRoom(&a.plan, kept, claim, c) {
			return "another pod has taken its slot"
		}
		if !a.isAdaptive() && !c.Admitted && !l.nominatedTo(e).Has(claim) {
			if c.HasHome {
				if c.Home != subset.None && c.Home != claim && a.policy.Next(&a.plan, kept, c, 0) != claim {
					return "there is a better slot"
				}
				return ""
			}
			if a.policy.IsRanked() {
				return ""
			}
			for i, quota := range a.plan.Quota {
				if (claim == subset.None || i < claim) && subset.Free(quota, kept.At(i)) > 0 {
					return "there is an earlier slot"
				}
			}
		}
	default:
		return "nobody woke it"
	}
	return ""
}

// isIllegible returns what is wrong with the gate or the pick of a sleeping pod, or "".
func (s *storm) isIllegible(p *stormPod, e *entry) string {
	if p.bound || e.policy() == nil {
		return ""
	}
	a, c := e.account, s.ledger.candidate(e)
	kept := a.tally.Kept(e.scope)
	switch {
	case p.gated && !subset.IsGated(p.Pod) && !p.held:
		return "its gate is open, and it was not tried again"
	case subset.IsGated(p.Pod) && e.wait == forNode && !e.nominated && !s.ledger.hasTimer(e) && !p.held:
		return "it waits for a node, and its gate is closed"
	case subset.IsGated(p.Pod) && e.wait == forAnyNode && !p.held:
		for i := range a.policy.Subsets {
			if a.policy.HasRoom(&a.plan, kept, i, c) {
				return "there is a slot in which its gate could be opened"
			}
		}
	case len(e.uncertain) > 0: // it is tried again when the outcome is known
	case c.Admitted && c.Within != subset.None && subset.AdmittedOf(p.Pod).Opened && !p.held && e.index() != c.Within && a.policy.HasRoom(&a.plan, kept, c.Within, c):
		return "it holds no slot where it must go, and there is one"
	}
	return ""
}

func (s *storm) end() {
	for _, p := range s.pods {
		s.do(PodGone{UID: p.UID})
	}
	if s.ledger.Counts() != (podCounts{}) {
		s.fatalf("counts without pods: %+v", s.ledger.Counts())
	}
	for _, name := range []string{"web", "set", "second"} {
		s.do(SpreadGone{Key: types.NamespacedName{Namespace: "ns", Name: name}})
	}
	for _, name := range []string{"rs1", "rs2", "rs3", "rs4", "web", "api", "db"} {
		s.hideOwner(name)
	}
	for name := range s.ledger.nodes {
		s.do(NodeGone{Name: name})
	}
	s.now = s.now.Add(2 * time.Minute)
	s.do(TimePassed{})
	l := s.ledger
	if left := len(l.pods) + len(l.owners.byID) + len(l.owners.byKey) + len(l.accounts) + len(l.byName) + len(l.perNamespace) + len(l.nodes) + len(l.unclassified) +
		len(l.unresolved) + len(l.timers); left != 0 {
		s.fatalf("something is left of what is gone: %+v", l)
	}
}

// storms play a scheduler among random events of every kind. There are two revisions, and workloads with spreads at two levels.
// Spreads are edited, become invalid, are deleted and created again. Half of the histories have spreads with minimums and shares. There are percentages, owners that arrive late or are deleted, and
// pods that change in place. With sets, half of the pods belong to a StatefulSet, whose first ordinal changes as well. Its pods have homes, and may be strays.
//
// After each event the test counts again. From time to time it runs cycles until no pod is woken any more, which must be
// soon. Then it looks for sleeping pods that could go.
func storms(sets bool) worlds.Play {
	return func(t rapid.TB, h *worlds.History) {
		s := &storm{world: emptyWorld(t), h: h, sets: sets, pods: map[string]*stormPod{}, room: map[string]bool{}, replicas: map[string]int32{}}
		s.calm, s.ranked = h.Pick("wild", "calm", "wild") == "calm", h.Yes("ranked", 2)
		names := []string{"rs1", "rs2", "rs3", "rs4", "web", "api"}
		if s.sets {
			names = append(names, "db")
		}
		for _, name := range names {
			s.replicas[name] = 10
			if s.calm || !h.Yes(name+" comes late", 4) {
				s.showOwner(name)
			}
		}
		s.showSpread("web", "Deployment", "web", s.newSpec(h.Pick(stormStrategies...)))
		for range h.Steps(150) {
			s.step()
		}
		s.rest()
		s.end()
	}
}

// tightStorms play it where there is no room. All pods are of one revision, most of strategy Adaptive. They preempt, and find victims or none. All binds of a subset may fail. In half of the histories the spread comes
// after the first pods. Until a pod knows it, another scheduler may bind the pod. Kubelets refuse pods.
//
// The test counts by itself before each bind. No pod may leave the victims that it waits for, nor go on from a subset in which it should preempt first.
func tightStorms(t rapid.TB, h *worlds.History) {
	s := &storm{world: emptyWorld(t), h: h, tight: true, calm: true, pods: map[string]*stormPod{}, room: map[string]bool{}, refusing: map[string]bool{}, replicas: map[string]int32{"rs1": 10, "web": 10}}
	s.showOwner("web")
	s.showOwner("rs1")
	if !h.Yes("the spread comes late", 2) {
		s.showSpread("web", "Deployment", "web", s.newSpec(h.Pick(tightStrategies...)))
	}
	for range h.Steps(150) {
		s.step()
	}
	s.rest()
	s.end()
}

var tightStrategies = append(slices.Repeat([]string{"type: Adaptive, whenFull: Wait", "type: Adaptive, whenFull: Wait, adaptive: {preemption: BeforeNextSubset}", "whenFull: Wait"}, 2),
	"type: Adaptive, whenFull: Schedule, adaptive: {preemption: BeforeNextSubset}", "type: Adaptive, whenFull: Wait, podReplacementPolicy: TerminationComplete")

const (
	stormWorld  = "a storm"
	stormOfSets = "a storm with a StatefulSet"
	tightStorm  = "a tight storm"
)

func TestNoPodSleepsThatCouldGo(t *testing.T) { worlds.Check(t, stormWorld, 1000, storms(false)) }

func TestNoPodOfAStatefulSetSleepsThatCouldGo(t *testing.T) {
	worlds.Check(t, stormOfSets, 300, storms(true))
}

func TestNoPodTakesAVictimOrASlotTooMany(t *testing.T) {
	worlds.Check(t, tightStorm, 1000, tightStorms)
}
