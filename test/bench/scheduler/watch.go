package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// binds are the binds of a namespace's pods that a watch has seen.
type binds struct {
	mu    sync.Mutex
	seen  map[types.UID]bool
	pools map[string]int
	times []time.Time
	// first is closed at the first bind.
	first chan struct{}
	// enough is closed when the expected number of pods is bound.
	enough chan struct{}
	want   int
}

// watchBinds watches until the context ends.
func (c *cluster) watchBinds(ctx context.Context, namespace string, poolOf func(node string) string) (*binds, error) {
	b := &binds{seen: map[types.UID]bool{}, pools: map[string]int{}, first: make(chan struct{}), enough: make(chan struct{}), want: -1}
	listWatch := cache.NewListWatchFromClient(c.fast.CoreV1().RESTClient(), "pods", namespace, fields.ParseSelectorOrDie("spec.nodeName!="))
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: listWatch, ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
			pod := obj.(*corev1.Pod)
			b.take(pod.UID, poolOf(pod.Spec.NodeName))
		}}})
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("watching pods: %w", ctx.Err())
	}
	return b, nil
}

func (b *binds) take(uid types.UID, pool string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen[uid] {
		return
	}
	b.seen[uid] = true
	b.pools[pool]++
	b.times = append(b.times, time.Now())
	if len(b.times) == 1 {
		close(b.first)
	}
	if len(b.times) == b.want {
		close(b.enough)
	}
}

func (b *binds) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.times)
}

// wait returns when this number of pods have been bound.
func (b *binds) wait(ctx context.Context, count int) error {
	b.mu.Lock()
	b.want, b.enough = count, make(chan struct{})
	if len(b.times) >= count {
		close(b.enough)
	}
	enough := b.enough
	b.mu.Unlock()
	select {
	case <-enough:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for %d binds, %d are done: %w", count, b.count(), ctx.Err())
	}
}

// result returns the times of the binds, and the number of pods in each pool.
func (b *binds) result() (times []time.Time, pools map[string]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.times, b.pools
}

// boundPods are the names of the pods with a node.
func (c *cluster) boundPods(ctx context.Context, namespace string) ([]string, error) {
	pods, err := c.fast.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName!="})
	if err != nil {
		return nil, err
	}
	names := make([]string, len(pods.Items))
	for i := range pods.Items {
		names[i] = pods.Items[i].Name
	}
	return names, nil
}
