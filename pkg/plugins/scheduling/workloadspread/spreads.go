package workloadspread

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// workloadKey names a workload without its version, as owner references and spreads both can.
type workloadKey struct {
	namespace, group, kind, name string
}

func keyOf(namespace string, o workload.Owner) workloadKey {
	return workloadKey{namespace: namespace, group: o.Kind.Group, kind: o.Kind.Kind, name: o.Name}
}

func (k workloadKey) String() string { return fmt.Sprintf("%s %q", k.kind, k.name) }

// spread is one WorkloadSpread with the account of its slots.
type spread struct {
	key    types.NamespacedName
	object *v1alpha1.WorkloadSpread
	target workloadKey
	// policy is nil if the spec is invalid, and invalid then says why.
	policy  *subset.Policy
	invalid string

	// plan for the workload's replicas. Made for 0 replicas as long as they are not known, or the spread is shadowed.
	plan          subset.Plan
	replicasKnown bool
	// tally of the slots that are claimed, reserved, being bound, uncertain and bound.
	tally *subset.Tally
	// live pods by owner, waiting ones included.
	live    map[types.UID]int32
	members map[types.UID]*entry
	waiting map[string]*waitlist
	// exhausted are pods of strategy Adaptive for which no subset with quota has a node: one line for each kind, none of them empty.
	exhausted map[kind]*waitlist
	// outside is for each subset what is said of nodes outside of it.
	outside []string
	// metadata is for each subset what a bind sets on its pods.
	metadata []subset.Metadata
	// memo of subsets without a node; see memo.go.
	memo map[memoKey]memoEntry
	// skipUntil is how long no pod waits in a subset, because one has waited there in vain.
	skipUntil []time.Time
	// announced that its pods have to wait.
	announced bool
	// shadowed by an older spread for the same workload.
	shadowed bool
}

// divides is true if the pod, which belongs to the spread's workload, is one that the spread selects.
func (s *spread) divides(pod *corev1.Pod) bool {
	return !s.shadowed && (s.policy == nil || s.policy.Selects(pod.Labels))
}

// spreadIndex finds spreads by name and by workload.
type spreadIndex struct {
	byName       map[types.NamespacedName]*spread
	byTarget     map[workloadKey][]*spread
	perNamespace map[string]int
}

func newSpreadIndex() spreadIndex {
	return spreadIndex{
		byName:       map[types.NamespacedName]*spread{},
		byTarget:     map[workloadKey][]*spread{},
		perNamespace: map[string]int{},
	}
}

// of is the spread that divides the workload's pods, or nil. Of several the oldest counts.
func (x *spreadIndex) of(target workloadKey) *spread {
	for _, s := range x.byTarget[target] {
		if !s.shadowed {
			return s
		}
	}
	return nil
}

func (x *spreadIndex) insert(s *spread) {
	x.byName[s.key] = s
	x.byTarget[s.target] = append(x.byTarget[s.target], s)
	x.perNamespace[s.key.Namespace]++
	x.shadow(s.target)
}

func (x *spreadIndex) remove(s *spread) {
	delete(x.byName, s.key)
	var others []*spread
	for _, other := range x.byTarget[s.target] {
		if other != s {
			others = append(others, other)
		}
	}
	if len(others) == 0 {
		delete(x.byTarget, s.target)
	} else {
		x.byTarget[s.target] = others
		x.shadow(s.target)
	}
	if x.perNamespace[s.key.Namespace]--; x.perNamespace[s.key.Namespace] == 0 {
		delete(x.perNamespace, s.key.Namespace)
	}
}

func (x *spreadIndex) shadow(target workloadKey) {
	for _, s := range x.byTarget[target] {
		s.shadowed = false
		for _, other := range x.byTarget[target] {
			s.shadowed = s.shadowed || other != s && workload.Wins(other.object, s.object)
		}
	}
}

func targetOf(object *v1alpha1.WorkloadSpread) workloadKey {
	return keyOf(object.Namespace, workload.TargetOf(object))
}

// spreadChanged takes in a new or changed spread. A change of nothing but status or metadata is ignored.
func (l *ledger) spreadChanged(object *v1alpha1.WorkloadSpread) {
	l.locked(func() {
		key := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
		s := l.spreads.byName[key]
		if s != nil && s.object.UID == object.UID && s.object.Generation == object.Generation {
			return
		}
		if s != nil && (s.object.UID != object.UID || s.target != targetOf(object)) {
			l.dropSpread(s)
			s = nil
		}
		if s == nil {
			s = &spread{key: key, object: object, target: targetOf(object),
				live: map[types.UID]int32{}, members: map[types.UID]*entry{}, waiting: map[string]*waitlist{}}
			l.spreads.insert(s)
		}
		l.compile(s, object)
		l.reobserve(key.Namespace)
		l.wakeAll(s)
	})
}

// spreadGone takes in that a spread was deleted. Its pods are nobody's, or those of another spread.
func (l *ledger) spreadGone(key types.NamespacedName) {
	l.locked(func() {
		if s := l.spreads.byName[key]; s != nil {
			l.dropSpread(s)
			l.reobserve(key.Namespace)
		}
	})
}

func (l *ledger) dropSpread(s *spread) {
	l.spreads.remove(s)
	if next := l.spreads.of(s.target); next == nil {
		l.workloads.forget(s.target)
	} else if next.policy != nil {
		l.replan(next) // it may have been shadowed
	}
	l.wakeAll(s)
	for uid := range s.members {
		l.forget(uid)
	}
}

// compile replaces the policy of a spread and counts its pods anew. Slots keep the name of their subset, not its place in the list. There are
// none while a policy is invalid, and none of a subset that it lacks; those that binds may yet take are promised then.
func (l *ledger) compile(s *spread, object *v1alpha1.WorkloadSpread) {
	before := s.policy
	policy, errs := subset.Compile(&object.Spec, field.NewPath("spec"))
	s.object, s.policy, s.invalid, s.tally, s.plan = object, policy, "", nil, subset.Plan{}
	s.announced = false
	s.waiting, s.exhausted = map[string]*waitlist{}, map[kind]*waitlist{}
	s.memo, s.skipUntil = map[memoKey]memoEntry{}, make([]time.Time, len(object.Spec.Subsets))
	if len(errs) > 0 {
		s.invalid = errs.ToAggregate().Error()
	} else {
		s.tally = policy.NewTally()
		s.outside = make([]string, len(policy.Subsets))
		for i := range s.outside {
			s.outside[i] = fmt.Sprintf("node(s) outside of subset %q", policy.Subsets[i].Name)
		}
		s.metadata = make([]subset.Metadata, len(policy.Subsets))
		l.replan(s)
	}
	for _, e := range s.members {
		e.woken, e.place = false, waitplace{}
		e.tried, e.preempted, e.again, e.preempting, e.nominated, e.exhausted, e.since = 0, 0, false, false, false, false, nil
		e.wasExhausted, e.parked = false, false
		if before != nil {
			l.promise(e, before)
		}
		index := rename(e.subset, before, policy)
		if e.state == reserved && index == subset.None {
			e.state = claimed // no bind is sent that holds no slot; whether the pod may go without one is for the new policy to say
		}
		e.subset, e.uncertain, e.scope = subset.None, 0, ""
		if policy == nil {
			continue
		}
		e.scope = policy.ScopeOf(subset.RevisionOf(e.pod))
		if e.state == bound {
			index = l.classify(e)
		}
		l.setSlots(e, index, 0)
		l.redeem(e)
	}
}

// rename is the subset of one policy that has the name of a subset of another, or subset.None.
func rename(index int, from, to *subset.Policy) int {
	if index == subset.None || from == nil || to == nil {
		return subset.None
	}
	return to.Index(from.Subsets[index].Name)
}

// replan reads the workload's replicas, and the selector of its pods. It reports whether any quota became different. A shadowed spread divides
// nothing and does not ask: if it named other paths, it and the older spread would have the replicas read in turns for ever.
func (l *ledger) replan(s *spread) bool {
	var selector labels.Selector // read only if a patch sets labels, for workloads have news often
	if slices.ContainsFunc(s.policy.Subsets, func(in subset.Subset) bool { return len(in.Metadata.Labels) > 0 }) {
		selector = l.workloads.selector(s.target)
	}
	for i := range s.metadata {
		s.metadata[i] = s.policy.Subsets[i].MetadataFor(selector)
	}
	var replicas int32
	var known bool
	if !s.shadowed {
		replicas, known = l.workloads.replicas(s.target, &s.object.Spec)
	}
	if s.plan.Quota != nil && s.replicasKnown == known && s.plan.Replicas == max(replicas, 0) {
		return false
	}
	s.plan, s.replicasKnown = s.policy.Plan(replicas), known
	return true
}

// workloadChanged takes in news of a workload. If they change a quota, the pods that wait for them are woken.
func (l *ledger) workloadChanged(target workloadKey) {
	l.locked(func() {
		for _, s := range l.spreads.byTarget[target] {
			if s.policy == nil || !l.replan(s) {
				continue
			}
			for _, e := range s.members {
				if e.held {
					l.wake(e)
				}
			}
			for scope := range s.waiting {
				l.wakeNext(s, scope)
			}
			for _, list := range s.exhausted {
				l.wake(list.lines[0][0])
			}
		}
	})
}

// wakeAll wakes every pod of the spread that is not on its way to a node.
func (l *ledger) wakeAll(s *spread) {
	for _, e := range s.members {
		if e.state <= claimed && e.pod.Spec.NodeName == "" {
			l.wake(e)
		}
	}
}

// reobserve looks at every pod of a namespace again, because the spreads in it have changed.
func (l *ledger) reobserve(namespace string) {
	for _, pod := range l.pods.inNamespace(namespace) {
		if e := l.entries[pod.UID]; e != nil && e.state > waiting {
			// What this process knows of the pod may be newer than the cache.
			pod = e.pod
		}
		l.observeLocked(pod)
	}
}

// namespaces that have a spread.
func (l *ledger) namespaces() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := make([]string, 0, len(l.spreads.perNamespace))
	for name := range l.spreads.perNamespace {
		names = append(names, name)
	}
	return names
}
