package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// errLeaving is the result of the readiness check after the process was told to stop.
var errLeaving = errors.New("the process is ending")

// leaveSlowly returns a context for the servers, which ends a delay after ctx does, and a readiness check that fails as
// soon as ctx ends. Until every node knows that a pod terminates, it may still send requests of the API server to the
// pod, and a closed port would refuse them. The lease is kept during the delay: a replica that leads continues to work,
// and releases the lease at the end.
func leaveSlowly(ctx context.Context, delay time.Duration) (serving context.Context, staying healthz.Checker) {
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		klog.FromContext(ctx).Info("Serving for a while after the signal, until no requests arrive any more", "delay", delay)
		time.AfterFunc(delay, end)
	})
	return serving, func(*http.Request) error {
		if ctx.Err() != nil {
			return errLeaving
		}
		return nil
	}
}
