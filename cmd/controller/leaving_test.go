package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAReplicaThatEndsIsNotReadyAtOnceAndServesOnForTheDelay(t *testing.T) {
	for name, delay := range map[string]time.Duration{"with a delay": 10 * time.Second, "without": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				told, tell := context.WithCancel(t.Context())
				serving, staying := leaveSlowly(told, delay)
				if err := staying(nil); err != nil || serving.Err() != nil {
					t.Fatalf("before the signal: ready %v, serving %v", err, serving.Err())
				}
				tell()
				if err := staying(nil); !errors.Is(err, errLeaving) {
					t.Errorf("ready after the signal: %v", err)
				}
				started := time.Now()
				<-serving.Done()
				if took := time.Since(started); took != delay {
					t.Errorf("it served on for %s, want %s", took, delay)
				}
			})
		})
	}
}
