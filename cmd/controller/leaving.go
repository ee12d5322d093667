package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// errLeaving is what a replica that was told to end says of its readiness.
var errLeaving = errors.New("the process is ending")

// leaveSlowly returns a context for all that serves, which ends a delay after ctx does, and a readiness check that fails as soon as ctx ends. Until every
// node has heard that a pod ends, the API server may still be sent to it, and what is asked of a closed port is refused. The lease is kept for as long: a
// replica that leads works on, and gives it back when it ends.
func leaveSlowly(ctx context.Context, delay time.Duration) (serving context.Context, staying healthz.Checker) {
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		klog.FromContext(ctx).Info("Serving on until nobody asks any more", "delay", delay)
		time.AfterFunc(delay, end)
	})
	return serving, func(*http.Request) error {
		if ctx.Err() != nil {
			return errLeaving
		}
		return nil
	}
}
