package controller

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// account is what is known of the pods of one spread, kept up pod by pod: news of one pod costs the same whatever the number of pods.
type account struct {
	basis
	roster *subset.Roster
	pods   map[string]*entry // by name

	// Active pods: without a node; in no subset; adopted by a subset; in a subset whose patch of the spec they were not given at admission.
	pending, unplaced, adopted, withoutPatch int32
	// strangers are active bound pods without a record of Berth, by the scheduler that their spec names. Those that are older than the spread are left out
	// unless they have chosen a scheduler themselves: nobody could have divided them.
	strangers map[string]int32
	// active pods of each revision.
	revisions map[string]int32
	// unschedulable are those that the scheduler found no node for, by what they wait for.
	unschedulable map[waiter]int32
	// terminating pods, and those that were adopted by a subset and do not carry its label, by name.
	terminating, unlabelled map[string]*entry
	// refused are the pods that could not be written.
	refused refusals
	// recount is when all pods are to be counted anew.
	recount time.Time
}

// basis is what an account was opened for. It does not outlast a change of that.
type basis struct {
	policy   *subset.Policy
	spread   string
	workload types.UID
	// since is the second in which the spread was made.
	since int64
}

// waiter is what a pending pod asks for: a slot and a node in the subset that admission picked for it, or in any. Pods of which it is equal wait alike.
type waiter struct {
	revision string
	asks     subset.Candidate
}

// entry is one pod of an account.
type entry struct {
	*subset.Member
	signs
}

// signs are what the status tells of a pod and the model does not ask for.
type signs struct {
	// label of the subset that it carries.
	label string
	// until is when the pod has to be gone, if it is being deleted.
	until *metav1.Time
	// unschedulable: the scheduler found no node for it.
	unschedulable bool
	// scheduler that its spec names.
	scheduler string
}

func openAccount(of basis) *account {
	plan := of.policy.Plan(0)
	return &account{
		basis: of, roster: of.policy.NewRoster(&plan, of.spread), pods: map[string]*entry{},
		strangers: map[string]int32{}, revisions: map[string]int32{}, unschedulable: map[waiter]int32{}, terminating: map[string]*entry{}, unlabelled: map[string]*entry{},
	}
}

// take takes in a pod, or what is new of it.
func (a *account) take(pod *corev1.Pod, node *corev1.Node) {
	observed := subset.Observe(pod, node)
	observed.CostIgnored = !scalesByCost(pod)
	a.put(observed, signs{label: pod.Labels[v1alpha1.SubsetLabel], until: pod.DeletionTimestamp, unschedulable: isUnschedulable(pod), scheduler: pod.Spec.SchedulerName})
}

func (a *account) put(pod subset.Pod, s signs) {
	e := a.pods[pod.Name]
	switch {
	case e == nil:
		e = &entry{}
	case e.UID != pod.UID: // another of the same name
		a.drop(pod.Name)
	default:
		a.count(e, -1)
	}
	a.pods[pod.Name] = e
	e.Member, e.signs = a.roster.Put(pod), s
	a.count(e, 1)
}

// drop forgets a pod. One that is not known is no error.
func (a *account) drop(name string) {
	if e, known := a.pods[name]; known {
		a.count(e, -1)
		a.roster.Remove(e.UID)
		delete(a.pods, name)
	}
}

// count adds a pod to the counts, or takes back what it has added.
func (a *account) count(e *entry, by int32) {
	if e.until != nil {
		keep(a.terminating, e, by)
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
		}
	case in == subset.None:
		a.unplaced += by
	case e.Adopted:
		a.adopted += by
		if e.label != a.policy.Subsets[in].Name {
			keep(a.unlabelled, e, by)
		}
	}
	if a.isStranger(e) {
		tally(a.strangers, e.scheduler, by)
	}
	if in != subset.None && a.policy.Subsets[in].PatchesSpec {
		if admitted := e.Admitted; admitted == nil || admitted.Spread != a.spread || admitted.Subset != a.policy.Subsets[in].Name {
			a.withoutPatch += by
		}
	}
}

// isStranger is true for a pod that Berth had no part in, although it could have had.
func (a *account) isStranger(e *entry) bool {
	if e.NodeName == "" || e.Record != nil {
		return false
	}
	switch e.scheduler {
	case v1alpha1.SchedulerName, "": // bound by somebody who did not ask the scheduler
		return false
	case corev1.DefaultSchedulerName:
		return e.Created.Unix() > a.since
	default:
		return true
	}
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

// agrees is true if another account of the same basis has come to the same.
func (a *account) agrees(with *account) bool {
	for name, e := range a.pods {
		other := with.pods[name]
		if other == nil || other.UID != e.UID || other.Subset != e.Subset || other.Adopted != e.Adopted || other.Active != e.Active {
			return false
		}
	}
	return len(a.pods) == len(with.pods) && a.pending == with.pending && a.unplaced == with.unplaced && a.adopted == with.adopted &&
		a.withoutPatch == with.withoutPatch && maps.Equal(a.strangers, with.strangers) && maps.Equal(a.revisions, with.revisions) && maps.Equal(a.unschedulable, with.unschedulable) &&
		len(a.terminating) == len(with.terminating) && len(a.unlabelled) == len(with.unlabelled)
}

// accounts of all spreads. Each is in the hands of the worker that reconciles its spread; looking them up is safe for concurrent use.
type accounts struct{ bySpread sync.Map }

func (a *accounts) of(spread types.NamespacedName) *account {
	known, _ := a.bySpread.Load(spread)
	account, _ := known.(*account)
	return account
}

func (a *accounts) keep(spread types.NamespacedName, account *account) {
	a.bySpread.Store(spread, account)
}
func (a *accounts) close(spread types.NamespacedName) { a.bySpread.Delete(spread) }

// changes are what has happened since the accounts were last looked at. They are safe for concurrent use. The zero value is ready.
type changes struct {
	mu       sync.Mutex
	bySpread map[types.NamespacedName]change
}

// change is what of an account is out of date.
type change struct {
	// everything: which pods belong to the spread, or where they belong.
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

// take are the changes of a spread, which are then no longer remembered. What comes after the call is left for the next one.
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
