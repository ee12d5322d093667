package ledger

import (
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-project/berth/pkg/workload"
)

// ownerTree is the tree of everything that owns pods, directly or through others.
type ownerTree struct {
	byID  map[ownerID]*owner
	byKey map[Workload]map[types.UID]*owner
	// ends are kinds whose objects end the owner chain, unless they were seen.
	ends sets.Set[schema.GroupKind]
}

// ownerID is everything that a reference says of an owner. Anybody may write the UID of somebody else's workload into a reference.
type ownerID struct {
	Workload
	uid types.UID
}

func idOf(namespace string, ref workload.Owner) ownerID {
	return ownerID{WorkloadOf(namespace, ref), ref.UID}
}

// owner is an object that owns pods or other owners, or may own some.
type owner struct {
	ownerID
	// object is nil until the owner is seen, and after it was deleted.
	object metav1.Object
	// read is the generation that OwnerRead has shown before the watch. Else 0.
	read int64
	// seen is true once the parent is known. It stays true after the owner was deleted, as long as there are pods below it.
	seen     bool
	parent   *owner
	children map[*owner]bool
	pods     map[types.UID]*entry
}

// position of the pod in its StatefulSet. It is 0 if the pod has none, or if it does not decide where the pod belongs. The account has a policy.
func (e *entry) position() int32 {
	if !e.account.policy.GoByOrdinal() {
		return 0
	}
	return e.ordinals().Position(e.pod.Name, e.owner.Name)
}

// ordinals that the controller of the pod gives. Those that were read count until the controller is seen with another spec.
func (e *entry) ordinals() *workload.Ordinals {
	read := e.account.ordinals
	if read != nil && e.owner.object != nil && e.owner.object.GetGeneration() > read.Generation {
		read = nil
	}
	return workload.OrdinalsOf(workload.Owner{Kind: e.owner.kind(), Name: e.owner.Name, UID: e.owner.uid}, e.owner.object, read)
}

// awaitsOrdinals is true if the ordinals of the pod's controller are being read. Only those of the workload that a spread names are.
func (l *Ledger) awaitsOrdinals(e *entry) bool {
	return workload.HidesOrdinals(e.owner.kind()) && e.owner.Workload == e.account.workload && e.account.policy.GoByOrdinal() &&
		!l.owners.ends.Has(e.owner.kind()) && e.ordinals() == nil
}

func (o *owner) kind() schema.GroupKind { return schema.GroupKind{Group: o.Group, Kind: o.Kind} }

// of is the owner that a reference names. It is created if it is not known.
func (f *ownerTree) of(id ownerID) *owner {
	if o := f.byID[id]; o != nil {
		return o
	}
	o := &owner{ownerID: id, children: map[*owner]bool{}, pods: map[types.UID]*entry{}}
	f.byID[id] = o
	if f.byKey[id.Workload] == nil {
		f.byKey[id.Workload] = map[types.UID]*owner{}
	}
	f.byKey[id.Workload][id.uid] = o
	return o
}

// prune forgets an owner that is not known to exist and has nothing below it.
func (f *ownerTree) prune(o *owner) {
	for o != nil && o.object == nil && len(o.pods) == 0 && (len(o.children) == 0 || o.isRing()) {
		delete(f.byID, o.ownerID)
		if delete(f.byKey[o.Workload], o.uid); len(f.byKey[o.Workload]) == 0 {
			delete(f.byKey, o.Workload)
		}
		parent := o.parent
		if o.parent = nil; parent != nil {
			delete(parent.children, o)
		}
		o = parent
	}
}

// isRing is true if the owner is its own owner through others, and nothing in that ring or below it exists. Anybody may write such references.
func (o *owner) isRing() bool {
	for at := o; at != nil && at.object == nil && len(at.pods) == 0 && len(at.children) == 1; {
		if at = at.parent; at == o {
			return true
		}
	}
	return false
}

// object is the existing object with a name. Nil if none is known.
func (f *ownerTree) object(key Workload) metav1.Object {
	for _, o := range f.byKey[key] {
		if o.object != nil {
			return o.object
		}
	}
	return nil
}

// below calls visit with every pod below the owners of a name.
func (f *ownerTree) below(key Workload, visit func(*entry)) {
	for _, o := range f.byKey[key] {
		o.walk(visit, workload.LongestOwnerChain)
	}
}

func (o *owner) walk(visit func(*entry), depth int) {
	if depth == 0 {
		return
	}
	for _, e := range o.pods {
		visit(e)
	}
	for child := range o.children {
		child.walk(visit, depth-1)
	}
}

func (ev OwnersListed) apply(l *Ledger) {
	for _, object := range ev.Objects {
		OwnerSeen{Kind: ev.Kind, Object: object}.apply(l)
	}
}

func (ev OwnerSeen) apply(l *Ledger) {
	o := l.owners.of(idOfObject(ev.Kind, ev.Object))
	wasSeen, had, before := o.seen, o.parent, o.object
	if ev.Object.GetGeneration() < o.read {
		return // the watch is behind
	}
	o.read = 0
	o.object, o.seen, o.parent = ev.Object, true, nil
	if ref := workload.ControllerOf(ev.Object); ref != nil && !workload.EndsChain(ref.Kind) {
		o.parent = l.owners.of(idOf(o.Namespace, *ref))
		o.parent.children[o] = true
	}
	if had != nil && had != o.parent {
		delete(had.children, o)
		l.owners.prune(had)
	}
	if !wasSeen || had != o.parent {
		o.walk(func(e *entry) {
			if l.reassign(e) || l.isUnresolved(e) {
				l.wake(e)
			}
		}, workload.LongestOwnerChain)
	}
	if firstOrdinal(before) != firstOrdinal(o.object) {
		l.wakeRenumbered(o.pods)
	}
	l.workloadNews(o.Workload)
}

// wakeRenumbered wakes those of the pods that asked with another position than they have now: they belong elsewhere.
func (l *Ledger) wakeRenumbered(pods map[types.UID]*entry) {
	for _, e := range pods {
		if e.search != nil && e.account != nil && e.account.policy != nil && e.asked != e.position() {
			l.wake(e)
		}
	}
}

// firstOrdinal is 0 for what is no StatefulSet.
func firstOrdinal(owner metav1.Object) int32 {
	if set, is := owner.(*appsv1.StatefulSet); is {
		return workload.FirstOrdinal(set)
	}
	return 0
}

func idOfObject(kind schema.GroupKind, object metav1.Object) ownerID {
	return idOf(object.GetNamespace(), workload.Owner{Kind: kind, Name: object.GetName(), UID: object.GetUID()})
}

func (ev OwnerGone) apply(l *Ledger) {
	o := l.owners.byID[idOfObject(ev.Kind, ev.Object)]
	if o == nil {
		return
	}
	before := o.object
	o.object = nil
	if firstOrdinal(before) != 0 {
		l.wakeRenumbered(o.pods)
	}
	l.workloadNews(o.Workload)
	l.owners.prune(o)
}

func (ev KindEndsChain) apply(l *Ledger) {
	if !ev.Ends {
		l.owners.ends.Delete(ev.Kind)
		return
	}
	l.owners.ends.Insert(ev.Kind)
	for _, e := range l.unresolved {
		l.wake(e)
	}
}

// resolve finds the account that divides the pod. It walks from owner to owner, and the nearest workload with a spread counts. The account is nil if
// there is none. Missing is the owner at which the walk ended because that owner has not been seen.
func (l *Ledger) resolve(e *entry) (a *account, missing *owner) {
	if l.perNamespace[e.pod.Namespace] == 0 {
		return nil, nil
	}
	o := e.owner
	for range workload.LongestOwnerChain {
		if o == nil {
			return nil, nil
		}
		if a := l.accounts[o.Workload]; a != nil && a.divides(e.pod) {
			return a, nil
		}
		if !o.seen {
			if l.owners.ends.Has(o.kind()) {
				return nil, nil
			}
			l.effects.Want = append(l.effects.Want, o.kind())
			return nil, o
		}
		o = o.parent
	}
	return nil, nil
}

// predecessorsRun is true as long as pods run that a deleted workload of the same name has left behind. The garbage collector is about to delete them, and the
// pods of the new workload would find their slots taken.
func (l *Ledger) predecessorsRun(a *account) (run bool) {
	if l.owners.object(a.workload) == nil {
		return false
	}
	for _, o := range l.owners.byKey[a.workload] {
		if o.seen && o.object == nil {
			o.walk(func(left *entry) { run = run || left.account == a && left.stage == stageBound && !left.ending }, workload.LongestOwnerChain)
		}
	}
	return run
}

// isUnresolved is true for a pod without an account that waits for news.
func (l *Ledger) isUnresolved(e *entry) bool { return l.unresolved[e.pod.UID] != nil }

// endWaitForNews ends a pod's wait for news.
func (l *Ledger) endWaitForNews(e *entry) {
	if e.search != nil && e.wait == forNews {
		delete(l.unresolved, e.pod.UID)
		e.wait = forCycle
	}
}
