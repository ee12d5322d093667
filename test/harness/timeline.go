package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// All stands for all resources in the methods of Timeline.
const All = "*"

// Timeline makes the API server behind a proxy one whose caches are late: lists from its cache are old, and watches show nothing newer. Reads that Kubernetes serves from
// storage stay as they are: a GET, a LIST without resourceVersion, and the start of a watch that begins with a list, which waits until the cache is as new as storage. It also ends and
// refuses watches, and sees each write.
type Timeline struct {
	// NoWatchLists makes the API server one that does not start watches with a list (feature gate WatchList), so that clients list from its cache.
	NoWatchLists bool

	forward http.Handler

	mu sync.Mutex
	// changed is closed and replaced after each change of what follows.
	changed chan struct{}
	// late has the revision that the cache of a resource shows. It shows everything of resources without one.
	late map[string]int64
	// ahead is how far the API server's clock is ahead, as its answers for /version say.
	ahead time.Duration
	// cut are the resources that cannot be listed or watched. expired is until which revision watches of a resource cannot be resumed.
	cut     sets.Set[string]
	expired map[string]int64
	// reads counts the reads by kind.
	reads map[string]int
	// served counts answers that no up-to-date API server would have given, by kind.
	served map[string]int
	writes []string
	at     AtWrite
}

// AtWrite is called with the number of a write, from 1, and must call commit once, which returns when the API server has answered. If it returns true, the client gets no answer.
type AtWrite func(number int, write string, commit func()) (lost bool)

var infos = apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

func newTimeline() *Timeline {
	return &Timeline{changed: make(chan struct{}), late: map[string]int64{}, cut: sets.New[string](), expired: map[string]int64{}, reads: map[string]int{}, served: map[string]int{}}
}

// change changes the timeline and wakes all watches.
func (t *Timeline) change(do func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	do()
	close(t.changed)
	t.changed = make(chan struct{})
}

// Lag keeps the caches of these resources as they are now until CatchUp.
func (t *Timeline) Lag(ctx context.Context, resources ...string) error {
	now, err := t.revision(ctx)
	if err != nil {
		return err
	}
	t.change(func() {
		for _, resource := range resources {
			t.late[resource] = now
		}
	})
	return nil
}

// CatchUp makes all caches show everything.
func (t *Timeline) CatchUp() {
	t.change(func() { clear(t.late) })
}

// Cut ends all watches of these resources, and refuses new ones and lists until Mend.
func (t *Timeline) Cut(resources ...string) {
	t.change(func() { t.cut.Insert(resources...) })
}

// Mend ends all cuts. If compacted, no watch can be resumed from before: clients must list again.
func (t *Timeline) Mend(ctx context.Context, compacted bool) error {
	now, err := t.revision(ctx)
	if err != nil {
		return err
	}
	t.change(func() {
		if compacted {
			for resource := range t.cut {
				t.expired[resource] = now
			}
		}
		t.cut.Clear()
	})
	return nil
}

// AtWrites begins to count writes, and calls a function with each. Leases, events, reviews and dry runs do not count. Nil calls nothing.
func (t *Timeline) AtWrites(do AtWrite) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at, t.writes = do, nil
}

// KillAtWrites kills the client right after writes for which isOne returns true. Their answers are lost. If late, the API server gets such a write only after the kill and a pause.
func (t *Timeline) KillAtWrites(kill func(), pause time.Duration, isOne func(number int) (is, late bool)) {
	t.AtWrites(func(number int, _ string, commit func()) (lost bool) {
		t.mu.Lock()
		is, late := isOne(number)
		t.mu.Unlock()
		switch {
		case !is:
			commit()
		case late:
			kill()
			time.Sleep(pause) // the fault is the time that passes
			commit()
			t.count("late write")
		default:
			commit()
			kill()
		}
		return is
	})
}

// Writes are those since AtWrites: verb, resource and name.
func (t *Timeline) Writes() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.writes)
}

// Reads counts the reads by verb, resource and which revision the client has asked for.
func (t *Timeline) Reads() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.reads)
}

// Served counts the faults that clients have met.
func (t *Timeline) Served() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.served)
}

func (t *Timeline) count(fault string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.served[fault]++
}

// revision is the latest revision in storage. Every component may list pods.
func (t *Timeline) revision(ctx context.Context) (int64, error) {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/pods?limit=1", nil)
	r.Header.Set("Accept", "application/json")
	answer := httptest.NewRecorder()
	t.forward.ServeHTTP(answer, r)
	if answer.Code != http.StatusOK {
		return 0, fmt.Errorf("reading the latest revision: %d %s", answer.Code, answer.Body)
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(answer.Body.Bytes(), &list); err != nil {
		return 0, fmt.Errorf("reading the latest revision: %w", err)
	}
	return strconv.ParseInt(list.ResourceVersion, 10, 64)
}

// isCut and lateOf need the lock.
func (t *Timeline) isCut(resource string) bool { return t.cut.HasAny(resource, All) }

func (t *Timeline) lateOf(resource string) (revision int64, is bool) {
	if revision, is = t.late[resource]; !is {
		revision, is = t.late[All]
	}
	return revision, is
}

// ServeHTTP implements http.Handler.
func (t *Timeline) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/version" {
		t.version(w, r)
		return
	}
	info, err := infos.NewRequestInfo(r)
	if err != nil || !info.IsResourceRequest {
		t.forward.ServeHTTP(w, r)
		return
	}
	query := r.URL.Query()
	switch info.Verb {
	case "get":
		t.read(info, query.Get("resourceVersion"), "")
		t.forward.ServeHTTP(w, r)
	case "list":
		t.read(info, query.Get("resourceVersion"), query.Get("continue"))
		t.list(w, r, info)
	case "watch":
		kind := ""
		if query.Get("sendInitialEvents") == "true" {
			kind = "from a list "
		}
		t.read(info, kind+query.Get("resourceVersion"), "")
		t.watch(w, r, info)
	default:
		t.write(w, r, info)
	}
}

// Jump moves the API server's clock, by which the descheduler goes.
func (t *Timeline) Jump(by time.Duration) {
	t.change(func() { t.ahead += by })
}

func (t *Timeline) version(w http.ResponseWriter, r *http.Request) {
	answer := httptest.NewRecorder()
	t.forward.ServeHTTP(answer, r)
	t.mu.Lock()
	ahead := t.ahead
	t.mu.Unlock()
	maps.Copy(w.Header(), answer.Header())
	if now, err := http.ParseTime(answer.Header().Get("Date")); err == nil {
		w.Header().Set("Date", now.Add(ahead).UTC().Format(http.TimeFormat))
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the client may be gone
}

func (t *Timeline) read(info *apirequest.RequestInfo, revision, more string) {
	if _, err := strconv.Atoi(revision); err == nil && revision != "0" {
		revision = "a revision"
	}
	if more != "" {
		revision = "the next page"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads[strings.TrimSpace(fmt.Sprintf("%s %s %s", info.Verb, info.Resource, revision))]++
}

// list answers from an old cache, if the client has asked for any or not older than a revision, and the cache is old.
func (t *Timeline) list(w http.ResponseWriter, r *http.Request, info *apirequest.RequestInfo) {
	t.mu.Lock()
	cut := t.isCut(info.Resource)
	old, isLate := t.lateOf(info.Resource)
	t.mu.Unlock()
	query := r.URL.Query()
	asked := query.Get("resourceVersion")
	switch {
	case cut:
		t.count("list refused")
		panic(http.ErrAbortHandler)
	case !isLate || asked == "" || query.Get("continue") != "" || query.Get("resourceVersionMatch") == string(metav1.ResourceVersionMatchExact):
		t.forward.ServeHTTP(w, r)
	case revisionOf(asked) > old:
		t.count("list of a newer revision than the cache's")
		tooNew(w)
	default:
		t.count("old list")
		query.Set("resourceVersion", strconv.FormatInt(old, 10))
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
		query.Del("limit") // a cache ignores it
		again := r.Clone(r.Context())
		again.URL.RawQuery = query.Encode()
		t.forward.ServeHTTP(w, again)
	}
}

// tooNew is the answer of a cache that does not know a revision yet.
func tooNew(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusGatewayTimeout)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout,
		Reason: metav1.StatusReasonTimeout, Message: "Too large resource version",
		Details: &metav1.StatusDetails{RetryAfterSeconds: 1, Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}}}) // the client may be gone
}

func revisionOf(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64) // none is 0
	return n
}

// watch forwards events that the cache shows, one by one.
func (t *Timeline) watch(w http.ResponseWriter, r *http.Request, info *apirequest.RequestInfo) {
	t.mu.Lock()
	cut, expired, noWatchLists := t.isCut(info.Resource), max(t.expired[info.Resource], t.expired[All]), t.NoWatchLists
	t.mu.Unlock()
	asked, listing := revisionOf(r.URL.Query().Get("resourceVersion")), r.URL.Query().Get("sendInitialEvents") == "true"
	switch {
	case cut:
		t.count("watch refused")
		panic(http.ErrAbortHandler)
	case listing && noWatchLists:
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
		return
	case asked != 0 && asked < expired:
		t.count("watch of a revision that is gone")
		refuse(w, http.StatusGone, metav1.StatusReasonExpired, fmt.Sprintf("too old resource version: %d (%d)", asked, expired))
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	request := r.Clone(ctx)
	request.Header.Set("Accept", strings.ReplaceAll(r.Header.Get("Accept"), "application/vnd.kubernetes.protobuf", "application/json"))
	request.Header.Del("Accept-Encoding")
	events := &eventQueue{arrived: make(chan struct{}, 1), began: make(chan struct{}), header: http.Header{}}
	go func() {
		defer events.end()
		defer func() { _ = recover() }() // the reverse proxy aborts when the answer breaks
		t.forward.ServeHTTP(events, request)
	}()
	select {
	case <-events.began:
	case <-ctx.Done():
		return
	}
	maps.Copy(w.Header(), events.header)
	w.WriteHeader(events.code)
	flush := http.NewResponseController(w)
	_ = flush.Flush() // the client may be gone
	floor := asked
	if listing {
		floor = math.MaxInt64 // until its first list is complete, it shows everything
	}
	for {
		line, more := events.next(ctx)
		if !more {
			return
		}
		revision, complete := revisionIn(line)
		if events.code == http.StatusOK && !t.await(ctx, info.Resource, revision, floor) {
			t.count("watch ended")
			panic(http.ErrAbortHandler)
		}
		if complete {
			floor = revision
		}
		if _, err := w.Write(line); err != nil {
			return
		}
		_ = flush.Flush()
	}
}

// await returns when the cache shows a revision. It returns false if the watch is cut or its client is gone.
func (t *Timeline) await(ctx context.Context, resource string, revision, floor int64) bool {
	held := false
	for {
		t.mu.Lock()
		limit, isLate := t.lateOf(resource)
		cut, changed := t.isCut(resource), t.changed
		if is := isLate && revision > max(limit, floor); is && !held {
			t.served["event held back"]++
			held = true
		} else if !is && !cut {
			t.mu.Unlock()
			return true
		}
		t.mu.Unlock()
		if cut {
			return false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// revisionIn is the revision of an event. Complete is true for the bookmark after which a watch has shown its first list.
func revisionIn(line []byte) (revision int64, complete bool) {
	var event struct {
		Object struct{ Metadata metav1.ObjectMeta }
	}
	if json.Unmarshal(line, &event) != nil {
		return 0, false // not for us to judge
	}
	return revisionOf(event.Object.Metadata.ResourceVersion), event.Object.Metadata.Annotations[metav1.InitialEventsAnnotationKey] == "true"
}

// write forwards a write and counts it.
func (t *Timeline) write(w http.ResponseWriter, r *http.Request, info *apirequest.RequestInfo) {
	switch {
	case info.Resource == "leases", info.Resource == "events", strings.HasSuffix(info.Resource, "reviews"), r.URL.Query().Get("dryRun") != "":
		t.forward.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	answer := httptest.NewRecorder()
	commit := func() {
		request := r.Clone(context.WithoutCancel(r.Context()))
		request.Body = io.NopCloser(bytes.NewReader(body))
		t.forward.ServeHTTP(answer, request)
	}
	t.mu.Lock()
	what := fmt.Sprintf("%s %s %s", info.Verb, strings.TrimSuffix(info.Resource+"/"+info.Subresource, "/"), info.Name)
	t.writes = append(t.writes, what)
	number, at := len(t.writes), t.at
	t.mu.Unlock()
	if at == nil {
		commit()
	} else if at(number, what, commit) {
		t.count("answer lost")
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the client may be gone
}

// eventQueue takes the lines of a watch from the API server, however long its client waits for them.
type eventQueue struct {
	header  http.Header
	code    int
	began   chan struct{}
	arrived chan struct{}

	mu    sync.Mutex
	rest  []byte
	lines [][]byte
	ended bool
}

// Header implements http.ResponseWriter.
func (q *eventQueue) Header() http.Header { return q.header }

// WriteHeader implements http.ResponseWriter.
func (q *eventQueue) WriteHeader(code int) {
	if q.code == 0 {
		q.code = code
		close(q.began)
	}
}

// Flush implements http.Flusher.
func (q *eventQueue) Flush() {}

// Write implements http.ResponseWriter.
func (q *eventQueue) Write(p []byte) (int, error) {
	q.WriteHeader(http.StatusOK)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rest = append(q.rest, p...)
	for {
		advance, line, _ := bufio.ScanLines(q.rest, false)
		if advance == 0 {
			break
		}
		q.lines = append(q.lines, append(slices.Clone(line), '\n'))
		q.rest = slices.Clone(q.rest[advance:])
	}
	q.wake()
	return len(p), nil
}

func (q *eventQueue) wake() {
	select {
	case q.arrived <- struct{}{}:
	default:
	}
}

func (q *eventQueue) end() {
	q.WriteHeader(http.StatusBadGateway)
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.rest) > 0 {
		q.lines, q.rest = append(q.lines, q.rest), nil
	}
	q.ended = true
	q.wake()
}

// next returns the next line. More is false after the last one, or if the context has ended.
func (q *eventQueue) next(ctx context.Context) (line []byte, more bool) {
	for {
		q.mu.Lock()
		if len(q.lines) > 0 {
			line, q.lines = q.lines[0], q.lines[1:]
			q.mu.Unlock()
			return line, true
		}
		ended := q.ended
		q.mu.Unlock()
		if ended {
			return nil, false
		}
		select {
		case <-q.arrived:
		case <-ctx.Done():
			return nil, false
		}
	}
}
