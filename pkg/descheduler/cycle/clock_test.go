package cycle

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestTheLeastDifferenceThatExplainsAnAnswer(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return noon.Add(d) }
	for name, tc := range map[string]struct {
		asked, answered, shown time.Time
		want                   time.Duration
	}{
		"the same second":                              {at(300 * time.Millisecond), at(400 * time.Millisecond), noon, 0},
		"the next second began while it was asked":     {at(900 * time.Millisecond), at(1100 * time.Millisecond), at(time.Second), 0},
		"the last second ended while it was asked":     {at(900 * time.Millisecond), at(1100 * time.Millisecond), noon, 0},
		"a minute ahead, with half a second of doubt":  {at(500 * time.Millisecond), at(500 * time.Millisecond), at(time.Minute), time.Minute - 500*time.Millisecond},
		"a minute behind, with half a second of doubt": {at(500 * time.Millisecond), at(500 * time.Millisecond), at(-time.Minute), -(time.Minute - 500*time.Millisecond)},
		"an answer that took long explains a lot":      {noon, at(10 * time.Second), at(5 * time.Second), 0},
	} {
		if got := offsetOf(tc.asked, tc.answered, tc.shown); got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}

func TestTheServersClockCounts(t *testing.T) {
	var date string
	code := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Date"] = nil // not the real one
		if date != "" {
			w.Header().Set("Date", date)
		}
		w.WriteHeader(code)
	}))
	defer server.Close()
	c := &serverClock{client: server.Client(), url: server.URL + "/version"}
	expect := func(what string, ahead time.Duration) {
		t.Helper()
		c.align(t.Context(), time.Minute)
		if got := time.Until(c.Now()) - ahead; got.Abs() > 30*time.Second {
			t.Errorf("%s: it is ahead by %s more than %s", what, got, ahead)
		}
		if got := c.Since(time.Now().Add(-time.Hour)) - ahead - time.Hour; got.Abs() > 30*time.Second {
			t.Errorf("%s: an hour ago was %s longer ago", what, got)
		}
	}
	expect("a server that does not tell", 0)
	date = time.Now().UTC().Add(time.Hour).Format(http.TimeFormat)
	expect("a server that is an hour ahead", time.Hour)
	date, code = time.Now().UTC().Add(-time.Hour).Format(http.TimeFormat), http.StatusForbidden
	expect("one that is an hour behind, and tells nothing else", -time.Hour)
	date = "yesterday"
	expect("a date that is none", -time.Hour)
	server.Close()
	expect("no server", -time.Hour)
}
