package checker

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Ready checks that enough pods with a label are ready at each revision.
type Ready struct {
	floor   int
	watcher watch.Interface
	ended   chan struct{}

	mu         sync.Mutex
	ready      map[types.UID]bool
	fewest     int
	ending     bool
	violations []string
}

// WatchReady watches the pods with a label until End. The floor is a count: the caller turns a percentage or a maxUnavailable into one.
func WatchReady(ctx context.Context, client dynamic.Interface, namespace, label string, floor int) (*Ready, error) {
	pods := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return nil, err
	}
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		options.LabelSelector = label
		return pods.Watch(ctx, options)
	}})
	if err != nil {
		return nil, err
	}
	r := &Ready{floor: floor, watcher: watcher, ended: make(chan struct{}), ready: map[types.UID]bool{}}
	for i := range list.Items {
		if isUp(&list.Items[i]) {
			r.ready[list.Items[i].GetUID()] = true
		}
	}
	if r.fewest = len(r.ready); r.fewest < floor {
		watcher.Stop()
		return nil, fmt.Errorf("%d pods with %s are ready, and %d must be", r.fewest, label, floor)
	}
	go func() {
		defer close(r.ended)
		for event := range watcher.ResultChan() {
			r.see(event)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.ending {
			r.violations = append(r.violations, "the watch of pods has ended")
		}
	}()
	return r, nil
}

func (r *Ready) see(event watch.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending { // an error, or what nobody waits for
		return
	}
	pod, is := event.Object.(*unstructured.Unstructured)
	if !is {
		r.violations = append(r.violations, fmt.Sprintf("the watch of pods has an error: %v", event.Object))
		return
	}
	if event.Type == watch.Bookmark {
		return
	}
	if event.Type != watch.Deleted && isUp(pod) {
		r.ready[pod.GetUID()] = true
	} else {
		delete(r.ready, pod.GetUID())
	}
	if r.fewest = min(r.fewest, len(r.ready)); len(r.ready) < r.floor {
		r.violations = append(r.violations, fmt.Sprintf("at revision %s %d pods are ready, and %d must be; pod %s", pod.GetResourceVersion(), len(r.ready), r.floor, pod.GetName()))
	}
}

// isUp is true for a ready pod that nobody has deleted.
func isUp(pod *unstructured.Unstructured) bool {
	if pod.GetDeletionTimestamp() != nil {
		return false
	}
	conditions, _, _ := unstructured.NestedSlice(pod.Object, "status", "conditions")
	for _, each := range conditions {
		if condition, is := each.(map[string]any); is && condition["type"] == "Ready" {
			return condition["status"] == "True"
		}
	}
	return false
}

// End ends the watch. It returns the violations, and how many pods were ready at least.
func (r *Ready) End() (violations []string, fewest int) {
	r.mu.Lock()
	r.ending = true
	r.mu.Unlock()
	r.watcher.Stop()
	<-r.ended
	return r.violations, r.fewest
}
