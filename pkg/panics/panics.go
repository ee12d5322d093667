// Package panics turns a panic into an error of the request that caused it.
//
// A goroutine that panics ends its process, with every webhook and controller in it. If an object of one tenant causes
// the panic, it does so again after each restart, and nobody can delete protected pods any more. So goroutines that
// work for one budget or one namespace run through this package, and only their request fails. Handlers and reconcilers
// do not need it, because controller-runtime recovers their panics.
package panics

import (
	"context"
	"fmt"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
)

// ToError calls do and returns its error. A panic is logged with its stack, and returned as an error.
func ToError(ctx context.Context, do func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v; see the log", reason)
			klog.FromContext(ctx).Error(err, "Recovered from a panic", "stack", string(debug.Stack()))
		}
	}()
	return do()
}

// Go calls do in a goroutine of the group, as ToError does.
func Go(ctx context.Context, group *errgroup.Group, do func() error) {
	group.Go(func() error { return ToError(ctx, do) })
}
