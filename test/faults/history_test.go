package faults

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
	"github.com/berth-project/berth/test/linear"
)

const (
	// patience is how long a pod may wait while a slot is free: for the scheduler's back-off of 10 s, and for a scheduler that starts again. In its second half the
	// scheduler must be idle: one that binds other pods gets to this one later, however long that takes on a slow machine.
	patience = 20 * time.Second
	// held is how long the scheduler takes a bind for possible that may have failed: twice its bindTimeout.
	held = 10 * time.Second
	// late is how long after an event the checker may see it.
	late = 2 * time.Second
)

// change is an edit of the quotas.
type change struct {
	quotas     linear.Quotas
	sent, done time.Time
}

// limits are the quotas of a spread. A subset that takes all the rest has none.
func limits(spread string) linear.Quotas {
	quotas := linear.Quotas{}
	for subset, n := range spreads[spread].want {
		if strings.Contains(spreads[spread].spec, in(subset, "")) {
			continue
		}
		quotas[subset] = n
	}
	return quotas
}

// attempt is a bind that the scheduler sent.
type attempt struct {
	subset string
	harness.Exchange
}

// expectLinearizable checks that the binds, deletions and edits of a burst have an order that obeys the quotas, that the scheduler sent each bind, and that pods waited only while
// no slot was free. sharp is how many times it was sure about the latter, because no bind was under way.
func expectLinearizable(t *testing.T, watcher *checker.Checker, p *harness.Proxy, ns, spread string, edits []change) (sharp int) {
	t.Helper()
	attempts := map[string][]attempt{}
	for _, exchange := range p.Exchanges() {
		path := strings.Split(exchange.Path, "/")
		if path[4] != ns {
			continue
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(exchange.Body, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var record struct{ Subset string }
		if text := object.(*corev1.Binding).Annotations[v1beta1.MatchedAnnotation]; json.Unmarshal([]byte(text), &record) != nil {
			t.Fatalf("the bind of %s has no record: %q", exchange.Path, text)
		}
		uid := string(object.(*corev1.Binding).UID) // a StatefulSet gives a name again
		attempts[uid] = append(attempts[uid], attempt{record.Subset, exchange})
	}
	history := linear.New(limits(spread))
	for _, e := range edits {
		history.Edited(e.quotas, watcher.RevisionAt(e.sent), watcher.RevisionAt(e.done.Add(late))) // the scheduler sees it a little later
	}
	var unknown []attempt
	lives := watcher.Lives(ns, spread)
	for i, life := range lives {
		sent, pod := attempts[life.UID], fmt.Sprint(life.Name, "/", i)
		if !spreads[spread].revisions && (len(life.Scopes) > 1 || life.Scopes[0].Name != lives[0].Scopes[0].Name) {
			t.Fatalf("%s: pod %s has another revision than the first pod, which only a workload with revisions may have", spread, life.Name)
		}
		for i, scope := range life.Scopes {
			seen := scope.Revision
			if i > 0 {
				seen = watcher.RevisionAt(scope.Seen.Add(late)) // by the scheduler, which knows new pods only by their revision
			}
			history.Changed(pod, scope.Name, scope.Revision, seen)
		}
		if life.Bound.Revision > 0 && life.Subset == "" {
			t.Errorf("%s: pod %s is bound in no subset, although it has to wait, or a subset has no limit", spread, life.Name)
		}
		if life.Subset != "" {
			history.Bound(pod, life.Subset, life.Bound.Revision)
			committed := -1
			for i, a := range sent {
				if a.subset == life.Subset && a.Sent.Before(life.Bound.Seen) {
					committed = i
				}
			}
			if committed < 0 {
				t.Errorf("%s: pod %s is bound in %s, and the scheduler has not sent that", spread, life.Name, life.Subset)
				continue
			}
			sent = slices.Delete(slices.Clone(sent), committed, committed+1)
			if life.Gone.Revision > 0 {
				history.Gone(pod, life.Gone.Revision)
			}
		}
		unknown = append(unknown, sent...)
	}
	windows := 0
	for _, w := range waits(lives, attempts, time.Now()) {
		mayHold := map[string]int{}
		for _, a := range unknown {
			if a.isPossible(w) {
				mayHold[a.subset]++
			}
		}
		windows++
		if len(mayHold) == 0 {
			sharp++
		}
		history.Waited(w.scope, mayHold, watcher.RevisionAt(w.from), watcher.RevisionAt(w.to.Add(late)))
	}
	if err := history.Check(time.Minute); err != nil {
		t.Errorf("%s: %v", spread, err)
	}
	t.Logf("%s: %d pods, %d binds without effect; %d times a pod waited for %v, %d of them without a bind under way", spread, len(lives), len(unknown), windows, patience, sharp)
	return sharp
}

// window is a span in which a pod of a scope waited.
type window struct {
	scope    string
	from, to time.Time
}

// isPossible is true if the bind is under way at some moment of the span, or the scheduler may take it for that.
func (a attempt) isPossible(w window) bool {
	return a.Sent.Before(w.to) && a.Answered.Add(held).After(w.from)
}

// waits are the spans of patience in which a pod of a scope waited for a slot all the time, and the scheduler was idle in the end. Spans begin a quarter of that apart. A pod
// whose own binds fail has a slot.
func waits(lives []checker.Life, attempts map[string][]attempt, now time.Time) (all []window) {
	if len(lives) == 0 {
		return nil
	}
	for from := lives[0].Created.Seen; !from.Add(patience).After(now); from = from.Add(patience / 4) {
		to := from.Add(patience)
		isBusy := func(a attempt) bool { return a.Sent.Before(to) && a.Answered.After(to.Add(-patience/2)) }
		if anyOf(attempts, isBusy) {
			continue
		}
		var scopes []string
		for _, life := range lives {
			scope := life.Scopes[len(life.Scopes)-1]
			without := func(m checker.Moment) bool { return m.Revision == 0 || m.Seen.After(to.Add(late)) }
			has := func(a attempt) bool { return a.isPossible(window{from: from, to: to}) }
			if !slices.Contains(scopes, scope.Name) && !scope.Seen.After(from) && without(life.Bound) && without(life.Gone) && !slices.ContainsFunc(attempts[life.UID], has) {
				scopes, all = append(scopes, scope.Name), append(all, window{scope.Name, from, to})
			}
		}
	}
	return all
}

func anyOf(attempts map[string][]attempt, is func(attempt) bool) bool {
	for _, of := range attempts {
		if slices.ContainsFunc(of, is) {
			return true
		}
	}
	return false
}
