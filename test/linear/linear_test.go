package linear

import (
	"strings"
	"testing"
	"time"
)

// TestForgedHistories are accepted if some order of them obeys the quotas, and refused if none does.
func TestForgedHistories(t *testing.T) {
	for name, tc := range map[string]struct {
		quotas Quotas
		forge  func(*History)
		want   string
	}{
		"as many as the quota": {Quotas{"a": 2}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Bound("q", "a", 2)
			h.Waited("", nil, 4, 9)
		}, ""},
		"one more than the quota": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Bound("q", "a", 2)
		}, "bind q in a"},
		"a subset without a limit": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "b", 0)
			h.Bound("q", "b", 2)
		}, ""},
		"a slot that may be free in time": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Bound("q", "a", 4)
			h.Gone("p", 2)
		}, ""},
		"a slot that is free too late": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Bound("q", "a", 4)
			h.Gone("p", 6)
		}, "bind q in a"},
		"a slot that is credited twice": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Gone("p", 2)
			h.Bound("q", "a", 4)
			h.Bound("r", "a", 6)
		}, "bind r in a"},
		"a quota that was raised": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Edited(Quotas{"a": 2}, 2, 6)
			h.Bound("q", "a", 4)
		}, ""},
		"a quota that was lowered before": {Quotas{"a": 2}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Edited(Quotas{"a": 1}, 2, 3)
			h.Bound("q", "a", 4)
		}, "bind q in a"},
		"a pod waits, and a slot is free": {Quotas{"a": 2}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Waited("", nil, 2, 9)
		}, "wait for a slot"},
		"a pod waits until a slot is taken": {Quotas{"a": 2}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Waited("", nil, 2, 9)
			h.Bound("q", "a", 8)
		}, ""},
		"a slot is freed and not given on": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Gone("p", 2)
			h.Waited("", nil, 4, 9)
			h.Bound("q", "a", 10)
		}, "wait for a slot"},
		"a pod waits for a slot that an unknown bind may hold": {Quotas{"a": 2}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Waited("", map[string]int{"a": 1}, 2, 9)
		}, ""},
		"each scope has slots of its own": {Quotas{"a": 1}, func(h *History) {
			h.Changed("q", "next", 1, 1)
			h.Bound("p", "a", 2)
			h.Bound("q", "a", 4)
			h.Waited("", nil, 6, 9)
			h.Waited("next", nil, 6, 9)
		}, ""},
		"one more than the quota in a scope": {Quotas{"a": 1}, func(h *History) {
			h.Changed("p", "next", 1, 1)
			h.Changed("q", "next", 1, 1)
			h.Bound("p", "a", 2)
			h.Bound("q", "a", 4)
		}, "bind q in a"},
		"a pod that changes its scope leaves its slot": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Changed("p", "next", 2, 5)
			h.Bound("q", "a", 4)
		}, ""},
		"its slot is free too late": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Bound("q", "a", 4)
			h.Changed("p", "next", 6, 9)
		}, "bind q in a"},
		"its slot is free and not given on": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Changed("p", "next", 2, 3)
			h.Waited("", nil, 4, 9)
		}, "wait for a slot"},
		"it takes a slot of the new scope": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Changed("p", "next", 2, 3)
			h.Changed("q", "next", 4, 4)
			h.Bound("q", "a", 6)
		}, "bind q in a"},
		"it comes into a full subset": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Changed("q", "next", 1, 1)
			h.Bound("q", "a", 2)
			h.Changed("p", "next", 4, 6)
			h.Waited("next", nil, 7, 9)
		}, ""},
		"a pod waits in another scope than the free slot": {Quotas{"a": 1}, func(h *History) {
			h.Bound("p", "a", 0)
			h.Waited("next", nil, 2, 9)
		}, "wait for a slot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			h := New(tc.quotas)
			tc.forge(h)
			err := h.Check(time.Minute)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), "ends before "+tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
