package sites

import (
	"testing"
	"time"
)

func TestAClusterThatDoesNotAnswer(t *testing.T) {
	now := time.Unix(10_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, tc := range map[string]struct {
		before       string
		since, heard time.Time
		refuses      bool
		want         Silence
		again        time.Duration
	}{
		"it has just ceased to":                    {"Ready", ago(time.Hour), ago(time.Second), false, Silence{ago(time.Second), true, false, false}, Doubt - time.Second},
		"it has just ceased to, nobody knows when": {"", time.Time{}, time.Time{}, false, Silence{now, true, false, false}, Doubt},
		"the status is right after a restart":      {"Unreachable", ago(time.Minute), ago(time.Second), false, Silence{ago(time.Minute), false, false, false}, LostAfter - time.Minute},
		"it is lost":                               {"Unreachable", ago(LostAfter), now, false, Silence{ago(LostAfter), false, true, false}, 0},
		"it stays lost":                            {"Lost", ago(time.Hour), now, false, Silence{ago(time.Hour), false, true, false}, 0},
		"it refuses the hub":                       {"Unreachable", ago(time.Minute), ago(time.Second), true, Silence{ago(time.Second), true, false, true}, Doubt - time.Second},
		"one that refuses is not lost":             {"Refusing", ago(time.Hour), now, true, Silence{ago(time.Hour), false, false, true}, 0},
		"unless it was":                            {"Lost", ago(time.Hour), now, true, Silence{ago(time.Hour), false, true, true}, 0},
		"one that refused and now is down":         {"Refusing", ago(time.Hour), ago(time.Minute), false, Silence{ago(time.Minute), false, false, false}, LostAfter - time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			clock := ClockAt(now)
			got := clock.Silent(tc.before, tc.since, &Cluster{Since: tc.heard, Lives: tc.refuses}, LostAfter)
			if got != tc.want || clock.Again != tc.again {
				t.Errorf("got %+v, again after %v; want %+v, %v", got, clock.Again, tc.want, tc.again)
			}
		})
	}
}

func TestNamesOfNow(t *testing.T) {
	var n Names
	n.Add("a", "id-a")
	n.Add("d", "id-c")
	for _, tc := range []struct{ name, identity, want string }{
		{"a", "id-a", "a"}, {"c", "id-c", "d"}, {"b", "id-b", "b"}, {"b", "", "b"}, {"a", "id-c", "a"},
	} {
		if got := n.Now(tc.name, tc.identity); got != tc.want {
			t.Errorf("%s, %s: got %s, want %s", tc.name, tc.identity, got, tc.want)
		}
	}
}

func TestBackoff(t *testing.T) {
	for _, tc := range []struct {
		first    time.Duration
		failures int32
		want     time.Duration
	}{
		{time.Minute, 0, time.Minute}, {time.Minute, 1, time.Minute}, {time.Minute, 3, 4 * time.Minute}, {time.Minute, 7, LongestRetry}, {time.Minute, 1 << 30, LongestRetry}, {3 * time.Hour, 5, 3 * time.Hour}, {0, 1 << 30, 0},
	} {
		if got := Backoff(tc.first, tc.failures); got != tc.want {
			t.Errorf("%v after %d: got %v, want %v", tc.first, tc.failures, got, tc.want)
		}
	}
}
