package workloadspread

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/subset"
)

// promise is what the binds of a pod may yet make true, in the words that their records have for it. It is kept while the pod has no entry that
// could hold the slots, because its spread was deleted, is invalid, or has no subset of such a name: records name their spread and their subset,
// and ones of the same names that come later find the slots taken. It ends with an entry that holds them, the outcome of the binds, or the pod.
type promise struct {
	spread types.NamespacedName
	// sent is the subset of a bind without an outcome yet. Empty if there is none.
	sent string
	// uncertain and doubtUntil are as in an entry.
	uncertain  []string
	doubtUntil time.Time
}

// promise remembers the slots of an entry, which the policy gave it, that its binds may take: next to those that the policy had no subset for.
func (l *ledger) promise(e *entry, policy *subset.Policy) {
	if e.state != binding && e.uncertain == 0 {
		return
	}
	p := l.promises[e.pod.UID]
	if p == nil || p.spread != e.spread.key {
		p = &promise{spread: e.spread.key}
	}
	if e.doubtUntil.After(p.doubtUntil) {
		p.doubtUntil = e.doubtUntil
	}
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

// redeem gives an entry the slots that were promised to its pod under a spread of this name. Those that the policy has no subset for stay promised.
func (l *ledger) redeem(e *entry) {
	p, policy := l.promises[e.pod.UID], e.spread.policy
	if p == nil || policy == nil || p.spread != e.spread.key {
		return
	}
	index, uncertain := e.subset, e.uncertain
	if p.sent != "" {
		e.state = binding
		if index = policy.Index(p.sent); index != subset.None {
			p.sent = ""
		}
	}
	p.uncertain = slices.DeleteFunc(p.uncertain, func(name string) bool {
		i := policy.Index(name)
		if i != subset.None {
			uncertain = uncertain.With(i)
		}
		return i != subset.None
	})
	if p.doubtUntil.After(e.doubtUntil) {
		e.doubtUntil = p.doubtUntil
	}
	l.keepPromise(e.pod.UID, p)
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
