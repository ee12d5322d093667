package webhook

import (
	"context"
	"fmt"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// signal has an item if something has changed.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

// on sends the signal for each event of an object in the cache that matters.
func (s signal) on(ctx context.Context, objects cache.Cache, kind client.Object, matters func(client.Object) bool) error {
	announce := func(object any) {
		if o, is := object.(client.Object); is && matters(o) { // a tombstone is none: repeat looks again after its interval at the latest
			select {
			case s <- struct{}{}:
			default: // a change is announced already
			}
		}
	}
	informer, err := objects.GetInformer(ctx, kind)
	if err == nil {
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: announce, UpdateFunc: func(_, object any) { announce(object) }, DeleteFunc: announce})
	}
	if err != nil {
		return fmt.Errorf("watching %T: %w", kind, err)
	}
	return nil
}

// retryInterval is the delay before a retry after an error.
const retryInterval = time.Second

// repeat calls look at once, after each signal and after each interval, until the context ends. After an error, which it logs, it calls look again
// after retryInterval.
func repeat(ctx context.Context, clock clock.Clock, s signal, interval time.Duration, what string, look func(context.Context) error) {
	for {
		next := interval
		if err := look(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, what)
			next = retryInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-s:
		case <-clock.After(next):
		}
	}
}
