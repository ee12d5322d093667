package descheduler

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// errNotLeading ends a process that has lost its lease. What it was about to do is written in the spreads' statuses; the next leader goes by that.
var errNotLeading = errors.New("the lease was lost")

// lead does something while this process holds the lease.
func (d *descheduler) lead(ctx context.Context, do func(context.Context)) error {
	election := &d.options.Server.LeaderElection
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, election.ResourceNamespace, election.ResourceName, d.guard.CoreV1(), d.guard.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())})
	if err != nil {
		return fmt.Errorf("making the lease: %w", err)
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: election.ResourceName, Lock: lock, ReleaseOnCancel: true,
		LeaseDuration: election.LeaseDuration.Duration, RenewDeadline: election.RenewDeadline.Duration, RetryPeriod: election.RetryPeriod.Duration,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: do, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("electing a leader: %w", err)
	}
	elector.Run(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return errNotLeading
}
