package ui

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
)

const (
	// askInterval is how often the API server is called to see whether it answers. A watch would show that much later.
	askInterval = 5 * time.Second
	askTimeout  = 4 * time.Second
)

// ask calls the API server at intervals until the context ends, to know whether it answers.
func (p *Page) ask(ctx context.Context, mgr ctrl.Manager) {
	client, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		p.trouble.Store(err.Error())
		return
	}
	ticker := p.clock.NewTicker(askInterval)
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
			p.trouble.Store("")
		case apierrors.IsUnauthorized(err):
			p.trouble.Store("the API server rejects your credentials")
		default:
			p.trouble.Store("the API server does not answer")
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}
