// Package panics makes a panic the error of whoever has caused it.
//
// A goroutine that panics ends its process, with every webhook and controller in it. If an object of one tenant can bring that about, it brings it about
// again after each restart, and nobody's pods can be deleted any more. So goroutines that work for one budget or one namespace are run through here,
// and the request that they work for fails alone. Handlers and reconcilers need nothing of this: controller-runtime recovers them.
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
