package ui

import (
	"context"
	"fmt"
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
)

// following knows whether the cluster is followed: whether the API server answers, and what it refuses to show.
type following struct {
	clock clock.WithTicker

	mu sync.Mutex
	// notAnswering is why the API server does not answer. Empty if it does.
	notAnswering string
	// refused is why the last list or watch was refused, by its path.
	refused map[string]string
}

func newFollowing(clock clock.WithTicker) *following {
	return &following{clock: clock, refused: map[string]string{}}
}

// problem is why the page may be out of date. Empty if it is not.
func (f *following) problem() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.notAnswering != "" {
		return f.notAnswering
	}
	for _, of := range slices.Sorted(maps.Keys(f.refused)) {
		return fmt.Sprintf("%s cannot be watched: %s", path.Base(of), f.refused[of])
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

// watch is a transport that notes what is refused. The cache asks again by itself.
func (f *following) watch(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err != nil { // ask finds out
			return response, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.refused, r.URL.Path)
		if response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusNotFound {
			f.refused[r.URL.Path] = strings.ToLower(http.StatusText(response.StatusCode))
		}
		return response, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }
