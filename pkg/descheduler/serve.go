package descheduler

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/component-base/metrics/legacyregistry"
)

// serve serves metrics and health, if the options have a port, as the framework's package app does. That package has no
// function for it alone. The returned function stops serving.
func serve(ctx context.Context, options *Options) (stop func(), _ error) {
	if options.Server.SecureServingInfo == nil {
		return func() {}, nil
	}
	paths := mux.NewPathRecorderMux("berth-descheduler")
	if !options.Server.DisableMetrics {
		paths.Handle("/metrics", legacyregistry.HandlerWithReset())
	}
	healthz.InstallHandler(paths, healthz.PingHealthz)
	ctx, cancel := context.WithCancel(ctx)
	stopped, _, err := options.Server.SecureServingInfo.Serve(paths, 0, ctx.Done())
	if err != nil {
		cancel()
		return nil, fmt.Errorf("serving metrics and health: %w", err)
	}
	return func() {
		cancel()
		<-stopped
	}, nil
}
