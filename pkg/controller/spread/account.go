package spread

import (
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// account is what is known about the pods of one spread. It is updated pod by pod: an update costs the same whatever the number of pods.
type account struct {
	basis
	roster *subset.Roster
	pods   map[string]*entry // by name

	// Active pods: without a node; in no subset; adopted by a subset; in a subset whose spec patch they did not get at admission.
	pending, unplaced, adopted, withoutPatch int32
	// foreign are active pods that others bound, by the scheduler that their spec names. Pods older than the spread are left out,
	// unless they name another scheduler: nobody could have divided them.
	foreign map[string]int32
	// overfull are failed pods that a kubelet refused because another scheduler had filled its node.
	overfull int32
	// revisions counts the active pods of each revision.
	revisions map[string]int32
	// unschedulable are the pods for which the scheduler found no node, by what they wait for.
	unschedulable map[waiter]int32
	// searching are the same pods, by name.
	searching map[string]*entry
	// terminating are terminating pods. unwritten are pods that were adopted by a subset and lack a record, or the subset's label. Both are by name.
	terminating, unwritten map[string]*entry
	// refused are the pods that the API server refused to update.
	refused refusals
	// requests of the pod that was seen last. Nil if the cache has none.
	requests corev1.ResourceList
	// recount is when all pods are counted again.
	recount time.Time
}

// basis is what an account was made from. When it changes, a new account is made.
type basis struct {
	policy   *subset.Policy
	spread   string
	workload types.UID
	// since is when the spread was created, in seconds.
	since int64
	// latest is the revision that the workload rolls out; see subset.Roster. Empty for a spread that does not behave as OpenKruise's.
	latest string
}

// waiter is what a pending pod waits for: a slot and a node, in the subset that admission picked or in any subset. Pods with equal waiters wait for
// the same.
type waiter struct {
	revision string
	asks     subset.Candidate
}

// entry is one pod of an account.
type entry struct {
	*subset.Member
	podFacts
}

// podFacts are what the status needs to know about a pod and the model does not.
type podFacts struct {
	// label is the subset label that the pod carries.
	label string
	// until is by when the pod should be gone, if it is being deleted.
	until *metav1.Time
	// unschedulable is true if the scheduler found no node for the pod.
	unschedulable bool
	// overfull is true if a kubelet refused the pod for lack of room.
	overfull bool
	// scheduler that the pod's spec names.
	scheduler string
}

func openAccount(of basis) *account {
	plan := of.policy.Plan(0)
	roster := of.policy.NewRoster(&plan, of.spread)
	roster.Latest = of.latest
	return &account{
		basis: of, roster: roster, pods: map[string]*entry{},
		foreign: map[string]int32{}, revisions: map[string]int32{}, unschedulable: map[waiter]int32{}, searching: map[string]*entry{}, terminating: map[string]*entry{}, unwritten: map[string]*entry{},
	}
}

// take adds a pod, or updates it.
func (a *account) take(pod *corev1.Pod, node *corev1.Node) {
	observed := subset.Observe(pod, node)
	observed.CostIgnored = !scalesByCost(pod)
	observed.OfJob = workload.IsOfJob(pod)
	unschedulable, _ := podstate.IsUnschedulable(pod)
	if pod.Spec.Resources != nil {
		a.requests = pod.Spec.Resources.Requests
	}
	a.put(observed, podFacts{label: pod.Labels[v1beta1.SubsetLabel], until: pod.DeletionTimestamp, unschedulable: unschedulable, overfull: refusedForLackOfRoom(pod), scheduler: pod.Spec.SchedulerName})
}

func (a *account) put(pod subset.Pod, s podFacts) {
	e := a.pods[pod.Name]
	switch {
	case e == nil:
		e = &entry{}
	case e.UID != pod.UID: // another pod of the same name
		a.drop(pod.Name)
	default:
		a.count(e, -1)
	}
	a.pods[pod.Name] = e
	e.Member, e.podFacts = a.roster.Put(pod), s
	a.count(e, 1)
}

// drop forgets a pod. An unknown pod is no error.
func (a *account) drop(name string) {
	if e, known := a.pods[name]; known {
		a.count(e, -1)
		a.roster.Remove(e.UID)
		delete(a.pods, name)
	}
}

// count adds a pod to the counts, or subtracts it.
func (a *account) count(e *entry, by int32) {
	if e.until != nil {
		keep(a.terminating, e, by)
	}
	if e.overfull {
		a.overfull += by
	}
	if !e.Active {
		return
	}
	tally(a.revisions, e.Revision, by)
	in := e.Subset
	switch {
	case e.NodeName == "":
		a.pending += by
		if e.unschedulable {
			tally(a.unschedulable, a.waiterOf(e), by)
			keep(a.searching, e, by)
		}
	case in == subset.None:
		a.unplaced += by
	case e.Adopted || e.BoundByOthers():
		a.adopted += by
		if e.Record == nil || e.label != a.policy.Subsets[in].Name {
			keep(a.unwritten, e, by)
		}
	}
	if a.isForeign(e) {
		tally(a.foreign, e.scheduler, by)
	}
	if in != subset.None && a.policy.Subsets[in].PatchesSpec {
		if admitted := e.Admitted; admitted == nil || admitted.Spread != a.spread || admitted.Subset != a.policy.Subsets[in].Name {
			a.withoutPatch += by
		}
	}
}

// isForeign is true for a pod that Berth should have placed and did not. In a spread that behaves as OpenKruise's, other schedulers may place the pods
// that admission picked a subset for.
func (a *account) isForeign(e *entry) bool {
	if !e.BoundByOthers() {
		return false
	}
	if _, picked := a.policy.AdmittedTo(e.Admitted, a.spread); picked && a.policy.Kruise {
		return false
	}
	switch e.scheduler {
	case v1beta1.SchedulerName, "": // bound by a client that did not ask the scheduler
		return false
	case corev1.DefaultSchedulerName:
		return e.Created.Unix() > a.since
	default:
		return true
	}
}

// refusedForLackOfRoom is true if the kubelet ended the pod before it started: the reason is OutOfcpu, OutOfmemory, OutOfpods or OutOf with another resource.
func refusedForLackOfRoom(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && strings.HasPrefix(pod.Status.Reason, "OutOf")
}

func (a *account) waiterOf(e *entry) waiter {
	within, admitted := a.policy.AdmittedTo(e.Admitted, a.spread)
	if !admitted {
		return waiter{revision: e.Revision}
	}
	return waiter{e.Revision, subset.Candidate{Admitted: true, Within: within}}
}

func keep(in map[string]*entry, e *entry, by int32) {
	if by > 0 {
		in[e.Name] = e
	} else {
		delete(in, e.Name)
	}
}

func tally[K comparable](counts map[K]int32, key K, by int32) {
	if counts[key] += by; counts[key] == 0 {
		delete(counts, key)
	}
}

// agrees is true if another account of the same basis has the same counts.
func (a *account) agrees(with *account) bool {
	for name, e := range a.pods {
		other := with.pods[name]
		if other == nil || other.UID != e.UID || other.Subset != e.Subset || other.Adopted != e.Adopted || other.Active != e.Active {
			return false
		}
	}
	return len(a.pods) == len(with.pods) && a.pending == with.pending && a.unplaced == with.unplaced && a.adopted == with.adopted &&
		a.withoutPatch == with.withoutPatch && a.overfull == with.overfull && maps.Equal(a.foreign, with.foreign) && maps.Equal(a.revisions, with.revisions) && maps.Equal(a.unschedulable, with.unschedulable) &&
		len(a.terminating) == len(with.terminating) && len(a.unwritten) == len(with.unwritten)
}

// changes are what has happened since each account was last updated. They are safe for concurrent use. The zero value is ready to use.
type changes struct {
	mu       sync.Mutex
	bySpread map[types.NamespacedName]change
}

// change is the part of an account that is out of date.
type change struct {
	// everything: which pods belong to the spread, or to which subset.
	everything bool
	// pods by name.
	pods sets.Set[string]
}

func (c *changes) ofPod(spread types.NamespacedName, pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.bySpread[spread]
	if now.everything {
		return
	}
	if now.pods == nil {
		now.pods = sets.New[string]()
	}
	now.pods.Insert(pod)
	c.set(spread, now)
}

func (c *changes) ofEverything(spread types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(spread, change{everything: true})
}

func (c *changes) set(spread types.NamespacedName, to change) {
	if c.bySpread == nil {
		c.bySpread = map[types.NamespacedName]change{}
	}
	c.bySpread[spread] = to
}

// take returns the changes of a spread and forgets them. Later changes are for the next call.
func (c *changes) take(spread types.NamespacedName) change {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.bySpread[spread]
	delete(c.bySpread, spread)
	return taken
}

// any is true if there are changes of the spread.
func (c *changes) any(spread types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, found := c.bySpread[spread]
	return found
}
