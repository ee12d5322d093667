package ledger

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// canonical describes everything in a ledger that decides about its future. Two ledgers with equal descriptions give equal effects to equal events.
// Times are relative to now, and orders are ranks. It leaves out what is computed from the rest (shape, rules, own, metadata, members), and what does not
// change in a small world: nodes, and owners whose chain is complete.
func canonical(l *Ledger, now time.Time) string {
	var b strings.Builder
	when := func(at time.Time) string {
		if at.IsZero() {
			return "-"
		}
		return at.Sub(now).String()
	}
	var orders []uint64
	for _, e := range l.pods {
		if e.search != nil {
			orders = append(orders, e.order)
		}
	}
	slices.Sort(orders)
	for _, uid := range slices.Sorted(maps.Keys(l.pods)) {
		e := l.pods[uid]
		fmt.Fprintf(&b, "%s %v on %q by %v, %s %q in %q", uid, e.pod.Labels, e.pod.Spec.NodeName, e.owner.ownerID, e.stage, e.slot, e.scope)
		if e.search != nil {
			fmt.Fprint(&b, e.pod.Spec.SchedulingGates, e.pod.Annotations)
		}
		if e.account != nil {
			fmt.Fprintf(&b, " of %v", e.account.workload)
		}
		for _, d := range e.uncertain {
			fmt.Fprintf(&b, " maybe %s until %s", d.slot, when(d.until))
		}
		if e.ending {
			b.WriteString(" ending")
		}
		if e.record != nil {
			fmt.Fprintf(&b, " record %v", *e.record)
		}
		if s := e.search; s != nil {
			rank, _ := slices.BinarySearch(orders, s.order)
			fmt.Fprintf(&b, " #%d waits %d, woken %t, overdue %t, tried %b, preempted %b, lent %t, nominated %t, stays %t, asked %d, news by %s", rank, s.wait, s.woken,
				s.overdue, s.tried, s.preempted, s.lent, s.nominated, s.stays, s.asked, when(s.newsBy))
			if s.list != nil {
				fmt.Fprintf(&b, ", listed in %v", s.list.class)
			}
			if s.probeOf != nil {
				fmt.Fprintf(&b, ", probe of %v", s.probeOf.class)
			}
			if s.failing.in != "" {
				fmt.Fprintf(&b, ", failed %d times in %s since %s", s.failing.times, s.failing.in, when(s.failing.since))
			}
			fmt.Fprint(&b, ", unbindable ", s.unbindable, ", for its group ", s.forGroup)
			if s.together != nil {
				fmt.Fprintf(&b, ", together %v", *s.together)
			}
			if l.hasTimer(e) {
				b.WriteString(", timer")
			}
		}
		b.WriteByte('\n')
	}
	var accounts []string
	for _, a := range l.accounts {
		accounts = append(accounts, canonicalAccount(a, now, when))
	}
	slices.Sort(accounts)
	fmt.Fprint(&b, accounts, l.ended, l.ended == nil, l.lowest, l.perNamespace, l.Counts())
	fmt.Fprint(&b, " blind until ", when(l.blindUntil))
	fmt.Fprint(&b, " unresolved ", slices.Sorted(maps.Keys(l.unresolved)))
	for _, node := range slices.Sorted(maps.Keys(l.unclassified)) {
		fmt.Fprint(&b, " unclassified ", node, slices.Sorted(maps.Keys(l.unclassified[node])))
	}
	var timers []string
	for _, it := range l.timers {
		if it.list != nil {
			timers = append(timers, fmt.Sprint(it.list.class, when(it.at)))
		}
	}
	slices.Sort(timers)
	fmt.Fprint(&b, timers)
	return b.String()
}

func canonicalAccount(a *account, now time.Time, when func(time.Time) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%v", a.workload)
	for _, s := range a.spreads {
		fmt.Fprintf(&b, " %s %d", s.UID, s.Generation) // in a small world each spec has a generation of its own
	}
	fmt.Fprintf(&b, " invalid %t, live %v, replicas %t %d %v %v, announced %t", a.policy == nil, a.live, a.replicasKnown, a.question, a.explained, a.plan, a.announced)
	if a.policy == nil {
		return b.String()
	}
	for _, scope := range slices.Sorted(slices.Values(a.tally.Scopes())) {
		fmt.Fprintf(&b, " kept %q %v", scope, a.tally.Kept(scope))
	}
	for _, until := range a.skipUntil {
		fmt.Fprintf(&b, " skip %t %s", now.Before(until), when(until))
	}
	var lists []string
	for _, w := range a.exhausted {
		lists = append(lists, fmt.Sprintf("%v probes %d, %s %s", w.class, w.probes, w.backoff, when(w.retryAt)))
	}
	slices.Sort(lists)
	fmt.Fprint(&b, lists)
	return b.String()
}

// hasTimer is true if a timer will wake the pod.
func (l *Ledger) hasTimer(e *entry) bool {
	return slices.ContainsFunc(l.timers, func(t timer) bool { return t.pod == e && t.at.Equal(e.newsBy) })
}

// TestCanonicalKnowsEveryField fails if a field is added to the ledger: decide whether canonical must describe it, and list it here.
func TestCanonicalKnowsEveryField(t *testing.T) {
	for of, want := range map[reflect.Type]string{
		reflect.TypeFor[Ledger](): "observation questions pods owners accounts byName blindUntil perNamespace nodes unclassified ended unresolved lowest order timers change served now effects",
		reflect.TypeFor[entry]():  "pod owner account scope stage ending slot uncertain record search",
		reflect.TypeFor[search](): "order wait list woken overdue probeOf own shape rules tried preempted lent nominated stays failing unbindable forGroup together asked newsBy",
		reflect.TypeFor[account](): "workload spreads dividing members live read ordinals policy invalid plan replicasKnown explained asked question tally metadata waiting exhausted " +
			"skipUntil announced",
		reflect.TypeFor[waitlist]():      "account class pods exhausted probes backoff retryAt",
		reflect.TypeFor[owner]():         "ownerID object read seen parent children pods",
		reflect.TypeFor[uncertainBind](): "slot until",
		reflect.TypeFor[timer]():         "at pod list",
	} {
		var got []string
		for i := range of.NumField() {
			got = append(got, of.Field(i).Name)
		}
		if fields := strings.Join(got, " "); fields != want {
			t.Errorf("%s has the fields %q, and canonical knows %q", of, fields, want)
		}
	}
}
