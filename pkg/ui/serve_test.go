package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// newPage is a page over the board of a test.
func newPage(t *testing.T, f *fixture) (*Page, *clocktesting.FakeClock) {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Now()) // by which connections have their deadlines
	return &Page{clock: clock, stream: newStream(f.board, Title{Cluster: "test"}, clock), ended: make(chan struct{})}, clock
}

func TestThePageIsReadOnly(t *testing.T) {
	page, _ := newPage(t, newFixture(t))
	handler := page.Handler()
	for name, tc := range map[string]struct {
		method, path string
		want         int
	}{
		"to write":             {method: http.MethodPost, path: "/", want: http.StatusMethodNotAllowed},
		"to delete":            {method: http.MethodDelete, path: "/events", want: http.StatusMethodNotAllowed},
		"for its head":         {method: http.MethodHead, path: "/", want: http.StatusOK},
		"for something else":   {method: http.MethodGet, path: "/metrics", want: http.StatusNotFound},
		"for a file beside it": {method: http.MethodGet, path: "/page/page.js", want: http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, nil))
			if answer.Code != tc.want {
				t.Errorf("%d %s, want %d", answer.Code, answer.Body, tc.want)
			}
			if policy := answer.Header().Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
				t.Errorf("policy %q", policy)
			}
		})
	}
}

func TestThePageFetchesNothingFromElsewhere(t *testing.T) {
	page, _ := newPage(t, newFixture(t))
	server := httptest.NewServer(page.Handler())
	defer server.Close()
	for path, kind := range map[string]string{"/": "text/html", "/page.js": "text/javascript", "/page.css": "text/css"} {
		answer, body := get(t, server.URL+path)
		if !strings.HasPrefix(answer.Header.Get("Content-Type"), kind) {
			t.Errorf("%s is %q", path, answer.Header.Get("Content-Type"))
		}
		body = strings.ReplaceAll(body, "http://www.w3.org/2000/svg", "") // a name, not an address
		for _, foreign := range []string{"http:", "https:", "url(", "@import", "import ", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("} {
			if strings.Contains(body, foreign) {
				t.Errorf("%s has %s", path, foreign)
			}
		}
	}
}

func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(body)
}

// listen opens the stream of events. next is the next event that is no beat, and beat the next beat.
func listen(t *testing.T, url string) (next, beat func() string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	if kind := answer.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("%s, %s", answer.Status, kind)
	}
	lines := bufio.NewReader(answer.Body)
	read := func(beats bool) string {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			event, found := strings.CutPrefix(strings.TrimSpace(line), "event: ")
			if !found || (event == "beat") != beats {
				continue
			}
			data, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			return event + " " + strings.TrimSpace(strings.TrimPrefix(data, "data: "))
		}
	}
	return func() string { return read(false) }, func() string { return read(true) }
}

func TestABrowserIsToldOverTheWire(t *testing.T) {
	f := newFixture(t, deployment(), replicaSet(), spread("own"), node("n1", "own"))
	page, clock := newPage(t, f)
	if err := page.stream.broadcast(t.Context()); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(page.Handler())
	t.Cleanup(server.Close) // after the browser has left, for which it waits
	next, beat := listen(t, server.URL)
	if got, want := beat(), beatAt(t, "", clock); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	first := next()
	for _, part := range []string{`snapshot {"cluster":"test","namespace":""`, `"keys":[{"label":"pool","values":["own"]},{"label":"topology.kubernetes.io/zone"}]`, `{"name":"n1","in":{"pool":"own"}}`, `"key":"shop/web-spread","order":["own"]`} {
		if !strings.Contains(first, part) {
			t.Errorf("%s is not in %s", part, first)
		}
	}
	if strings.Contains(first, "s3cret") {
		t.Errorf("a label that nothing groups by is told: %s", first)
	}
	page.stream.tellPod(t, pod("a", "n1", "own"))
	if got, want := next(), `news {"pods":[{"uid":"uid-a","namespace":"shop","name":"a","node":"n1","spread":"shop/web-spread","subset":"own","phase":"ready"}]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	page.trouble.Store("the API server does not answer")
	clock.Step(heartbeatInterval)
	if got, want := beat(), beatAt(t, "the API server does not answer", clock); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func beatAt(t *testing.T, trouble string, clock clock.Clock) string {
	t.Helper()
	now, err := json.Marshal(clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`beat {"trouble":%q,"now":%s}`, trouble, now)
}

func TestABrowserThatLeavesIsForgotten(t *testing.T) {
	page, _ := newPage(t, newFixture(t))
	server := httptest.NewServer(page.Handler())
	defer server.Close()
	ctx, leave := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	leave()
	server.Close() // waits for what is being served
	if n := len(page.stream.readers); n != 0 {
		t.Errorf("%d readers are left", n)
	}
}

func TestServeEndsWithItsContextAndWithItsCluster(t *testing.T) {
	open := func() (*Page, net.Listener) {
		page, _ := newPage(t, newFixture(t))
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return page, listener
	}
	page, listener := open()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- page.Serve(ctx, listener) }()
	next, _ := listen(t, strings.TrimSuffix(URL(listener), "/"))
	next() // a stream is open
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("after its context: %v", err)
	}

	page, listener = open()
	page.secret = "s3cret"
	ctx, cancel = context.WithCancel(t.Context())
	go func() { ended <- page.Serve(ctx, listener) }()
	next, _ = listen(t, URL(listener)+"s3cret")
	next()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, URL(listener), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Body.Close(); answer.StatusCode != http.StatusNotFound {
		t.Errorf("without the secret: %s", answer.Status)
	}
	cancel()
	<-ended

	page, listener = open()
	page.endedBy = errors.New("the cluster is gone")
	close(page.ended)
	if err := page.Serve(t.Context(), listener); !errors.Is(err, page.endedBy) {
		t.Errorf("after its cluster: %v", err)
	}
}

func TestWhoServesThePageToOthersIsWarned(t *testing.T) {
	for address, warned := range map[string]bool{"127.0.0.1:0": false, "[::]:0": true} {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		if warning := Warning(listener); (warning != "") != warned || warned && !strings.Contains(warning, listener.Addr().String()) {
			t.Errorf("on %s: %q", listener.Addr(), warning)
		}
	}
}
