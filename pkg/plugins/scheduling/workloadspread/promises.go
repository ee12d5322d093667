package workloadspread

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/subset"
)

// promise is what the binds of a pod may yet make true, in the words that their records have for it. It is kept while the pod has no entry that
// could hold the slots, because its spread was deleted or is invalid: records name their spread, and one of the same name that comes later
// finds the slots taken. It ends with an entry of that spread, the outcome of the binds, or the pod.
type promise struct {
	spread types.NamespacedName
	// sent is the subset of a bind without an outcome yet. Empty if there is none.
	sent string
	// uncertain and doubtUntil are as in an entry.
	uncertain  []string
	doubtUntil time.Time
}

// promise remembers the slots of an entry, which the policy gave it, that its binds may take.
func (l *ledger) promise(e *entry, policy *subset.Policy) {
	if e.state != binding && e.uncertain == 0 {
		return
	}
	p := &promise{spread: e.spread.key, doubtUntil: e.doubtUntil}
	for i := range policy.Subsets {
		name := policy.Subsets[i].Name
		if e.state == binding && e.subset == i {
			p.sent = name
		}
		if e.uncertain.Has(i) {
			p.uncertain = append(p.uncertain, name)
		}
	}
	l.keepPromise(e.pod.UID, p)
}

// keepPromise keeps a promise as long as there is something to it.
func (l *ledger) keepPromise(uid types.UID, p *promise) {
	if p.sent != "" || len(p.uncertain) > 0 {
		l.promises[uid] = p
	} else if l.promises[uid] == p {
		delete(l.promises, uid)
	}
}

// redeem gives an entry the slots that were promised to its pod under a spread of this name.
func (l *ledger) redeem(e *entry) {
	p, policy := l.promises[e.pod.UID], e.spread.policy
	if p == nil || policy == nil || p.spread != e.spread.key {
		return
	}
	delete(l.promises, e.pod.UID)
	index := subset.None
	if p.sent != "" {
		e.state, index = binding, policy.Index(p.sent)
	}
	var uncertain subset.Mask
	for i := range policy.Subsets {
		if slices.Contains(p.uncertain, policy.Subsets[i].Name) {
			uncertain = uncertain.With(i)
		}
	}
	e.doubtUntil = p.doubtUntil
	l.setSlots(e, index, uncertain)
}

// promiseRefused is bindRefused for a pod with a promise.
func (l *ledger) promiseRefused(uid types.UID) {
	if p := l.promises[uid]; p != nil {
		p.sent = ""
		l.keepPromise(uid, p)
	}
}

// promiseUncertain is bindUncertain for a pod with a promise.
func (l *ledger) promiseUncertain(uid types.UID, doubtUntil time.Time) {
	if p := l.promises[uid]; p != nil && p.sent != "" {
		p.uncertain = append(p.uncertain, p.sent)
		p.sent, p.doubtUntil = "", doubtUntil
	}
}

// promiseSettled is bindSettled for a pod with a promise.
func (l *ledger) promiseSettled(uid types.UID, readAt time.Time) {
	if p := l.promises[uid]; p != nil && !readAt.Before(p.doubtUntil) {
		p.uncertain = nil
		l.keepPromise(uid, p)
	}
}
