package members

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestNobodyWaitsForASlowErrand: one that takes longer than Patience goes on until its deadline, and its value is kept for a while.
func TestNobodyWaitsForASlowErrand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := map[string]time.Duration{"quick": 10 * time.Millisecond, "slow": 3 * time.Second, "silent": time.Hour}
		ended := make(chan string, 10)
		e := Errands[string]{Ended: func(one Errand) { ended <- one.Member }}
		names := []Errand{}
		for _, member := range []string{"quick", "slow", "silent"} {
			names = append(names, Errand{types.NamespacedName{Name: "web"}, member})
		}
		var calls atomic.Int32
		each := func(within time.Duration, want ...string) {
			t.Helper()
			began := time.Now()
			values := e.Each(t.Context(), names, func(*string) bool { return true }, func(ctx context.Context, i int) string {
				calls.Add(1)
				select {
				case <-time.After(takes[names[i].Member]):
					return "done"
				case <-ctx.Done():
					return "deadline"
				}
			})
			for i, value := range values {
				if got := ""; value != nil {
					if got = *value; got != want[i] {
						t.Errorf("%s: %q, want %q", names[i].Member, got, want[i])
					}
				} else if want[i] != "" {
					t.Errorf("%s has not ended, want %q", names[i].Member, want[i])
				}
			}
			if took := time.Since(began); took != within {
				t.Errorf("waited for %s, want %s", took, within)
			}
		}
		each(DefaultPatience, "done", "", "")
		each(takes["quick"], "done", "", "") // the others go on
		if calls.Load() != 4 || e.Runs(names[0]) || !e.Runs(names[1]) || e.Late(names[1]) != nil {
			t.Errorf("%d calls, %v", calls.Load(), e.all)
		}
		time.Sleep(takes["slow"])
		synctest.Wait()
		if got := e.Late(names[1]); got == nil || *got != "done" || len(ended) != 1 || e.Runs(names[1]) || e.Late(names[1]) != nil {
			t.Errorf("got %v, %d ended", got, len(ended))
		}
		takes["slow"] = 20 * time.Millisecond
		each(takes["quick"], "done", "", "") // it was slow
		time.Sleep(defaultDeadline)
		each(takes["slow"], "done", "done", "") // and is not any more; the silent one has ended in between
		time.Sleep(defaultDeadline + lateFor + time.Second)
		synctest.Wait()
		if got := e.Late(names[2]); got != nil || len(e.all) > 0 || e.kept.Load() != 0 {
			t.Errorf("an old value is kept: %v, %v", got, e.all)
		}
	})
}

// TestAnAnswerThatComesLateIsTaken once, and not if it is stale.
func TestAnAnswerThatComesLateIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e Errands[int]
		calls, names := 0, []Errand{{Member: "slow"}}
		ask := func(stale bool) *int {
			return e.Each(t.Context(), names, func(*int) bool { return stale }, func(context.Context, int) int {
				calls++
				n := calls
				time.Sleep(3 * time.Second)
				return n
			})[0]
		}
		for i, want := range []int{0, 1, 0, 0} {
			got := 0
			if answer := ask(i == 3); answer != nil {
				got = *answer
			}
			if got != want {
				t.Errorf("call %d: got %d, want %d", i, got, want)
			}
			time.Sleep(3 * time.Second)
			synctest.Wait()
		}
		if calls != 3 {
			t.Errorf("%d requests", calls)
		}
	})
}
