package ui

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
)

const (
	// askInterval is how often the API server is called to see whether it answers. A watch would show that much later.
	askInterval = 5 * time.Second
	askTimeout  = 4 * time.Second
	// watchGapTimeout is how long a watch may be interrupted. The API server ends watches now and then, and clients start them again at once.
	watchGapTimeout = 3 * time.Second
)

// following knows whether the cluster is followed: whether the API server answers, and whether every watch that was started still runs.
type following struct {
	clock clock.WithTicker

	mu sync.Mutex
	// notAnswering is why the API server does not answer. Empty if it does.
	notAnswering string
	// watches by the path of what they watch.
	watches map[string]*watching
}

type watching struct {
	// open is the number of open requests; since is when the last one ended, and why is why the last one was refused.
	open  int
	since time.Time
	why   string
}

func newFollowing(clock clock.WithTicker) *following {
	return &following{clock: clock, watches: map[string]*watching{}}
}

// problem is why the page may be out of date. Empty if it is not.
func (f *following) problem() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.notAnswering != "" {
		return f.notAnswering
	}
	for _, of := range slices.Sorted(maps.Keys(f.watches)) {
		w := f.watches[of]
		if w.open > 0 || f.clock.Since(w.since) < watchGapTimeout {
			continue
		}
		if w.why != "" {
			return fmt.Sprintf("%s cannot be watched: %s", path.Base(of), w.why)
		}
		return path.Base(of) + " are not being watched"
	}
	return ""
}

// ask calls the API server at intervals until the context ends.
func (f *following) ask(ctx context.Context, mgr ctrl.Manager) {
	client, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		f.setNotAnswering(err.Error())
		return
	}
	ticker := f.clock.NewTicker(askInterval)
	defer ticker.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		err := client.Discovery().RESTClient().Get().AbsPath("/version").Do(asking).Error()
		cancel()
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil, apierrors.IsForbidden(err): // which is an answer too
			f.setNotAnswering("")
		case apierrors.IsUnauthorized(err):
			f.setNotAnswering("the API server rejects your credentials")
		default:
			f.setNotAnswering("the API server does not answer")
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}

func (f *following) setNotAnswering(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notAnswering = why
}

// watch is a transport that records which watches run.
func (f *following) watch(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Query().Get("watch") == "" {
			return next.RoundTrip(r)
		}
		response, err := next.RoundTrip(r)
		switch {
		case err != nil:
			f.refused(r.URL.Path, "")
		case response.StatusCode != http.StatusOK:
			f.refused(r.URL.Path, strings.ToLower(http.StatusText(response.StatusCode)))
		default:
			f.begun(r.URL.Path)
			response.Body = &watchBody{ReadCloser: response.Body, ended: sync.OnceFunc(func() { f.over(r.URL.Path) })}
		}
		return response, err
	})
}

func (f *following) begun(of string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watches[of] == nil {
		f.watches[of] = &watching{}
	}
	f.watches[of].open++
}

func (f *following) over(of string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.watches[of]
	if w.open--; w.open == 0 {
		w.since, w.why = f.clock.Now(), ""
	}
}

func (f *following) refused(of, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.watches[of]; w != nil && w.open == 0 {
		w.why = why
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// watchBody records the end of a watch when it cannot be read any more, or is closed.
type watchBody struct {
	io.ReadCloser
	ended func()
}

func (b *watchBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if err != nil {
		b.ended()
	}
	return n, err
}

func (b *watchBody) Close() error {
	b.ended()
	return b.ReadCloser.Close()
}
