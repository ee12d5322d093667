package ui

import (
	"context"
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

// following knows whether the API server answers.
type following struct {
	clock clock.WithTicker

	mu sync.Mutex
	// notAnswering is why the API server does not answer. Empty if it does.
	notAnswering string
}

// problem is why the page may be out of date. Empty if it is not.
func (f *following) problem() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.notAnswering
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
