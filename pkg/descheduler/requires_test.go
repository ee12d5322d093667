package descheduler

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/flowcontrol"
)

// TestAnAttemptThatIsCutOffHidesNothing: also if the limiter of the client cuts it off, whose error has no type.
func TestAnAttemptThatIsCutOffHidesNothing(t *testing.T) {
	lists := fake.NewSimpleMetadataClient(fake.NewTestScheme())
	limiter, attempts := flowcontrol.NewTokenBucketRateLimiter(0.001, 1), 0
	ctx, cancel := context.WithTimeout(t.Context(), 2*look)
	defer cancel()
	lists.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		attempts++
		if err := limiter.Wait(ctx); err != nil {
			return true, nil, err
		}
		return true, nil, errors.New("connection refused")
	})
	r := &required{lists: []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("pods")}}
	began := time.Now()
	err := r.check(ctx, lists, nil)
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("after %d attempts in %s: %v", attempts, time.Since(began), err)
	}
}
