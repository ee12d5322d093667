package guard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

// registry reads which budgets a namespace has. All who ask while a reading goes on share the next one, so that hundreds cost a few, and nobody is
// answered by one that began before he asked.
type registry struct {
	live client.Reader
	// revision is what is asked for, as in metav1.ListOptions.
	revision string

	mu sync.Mutex
	// readings has a key for each namespace that is being read: what those wait for who have asked since it began, nil if nobody has.
	readings map[string]*reading
}

// reading is the budgets of a namespace, once done is closed.
type reading struct {
	done    chan struct{}
	budgets v1alpha1.PodUnavailableBudgetList
	err     error
}

const (
	// fromMemory has the API server answer from its own memory, which a new budget reaches within milliseconds, well before its status says Enforcing,
	// unless that API server is cut off from its store.
	fromMemory = "0"
	// committed has the API server make sure of what is in its store. That may take a tenth of a second.
	committed = ""
)

func newRegistry(live client.Reader, revision string) *registry {
	return &registry{live: live, revision: revision, readings: map[string]*reading{}}
}

// ask begins to read, or joins a reading that begins later.
func (r *registry) ask(ctx context.Context, namespace string) *reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, going := r.readings[namespace]
	if next == nil {
		next = &reading{done: make(chan struct{})}
	}
	if going {
		r.readings[namespace] = next
		return next
	}
	r.readings[namespace] = nil
	go r.serve(context.WithoutCancel(ctx), namespace, next)
	return next
}

// serve reads until nobody has asked since the last time. What it reads is for all who wait, so it does not end with the request that has begun it.
func (r *registry) serve(ctx context.Context, namespace string, next *reading) {
	for next != nil {
		readCtx, cancel := context.WithTimeout(ctx, readPatience)
		options := &client.ListOptions{Namespace: namespace, Raw: &metav1.ListOptions{ResourceVersion: r.revision}}
		if err := r.live.List(readCtx, &next.budgets, options); err != nil {
			next.err = fmt.Errorf("listing the budgets of namespace %s: %w", namespace, err)
		}
		cancel()
		close(next.done)
		next = r.next(namespace)
	}
}

func (r *registry) next(namespace string) *reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.readings[namespace]
	if next == nil {
		delete(r.readings, namespace)
	} else {
		r.readings[namespace] = nil
	}
	return next
}

// readPatience is how long a reading may take. Those who wait for it have given up by then.
const readPatience = DefaultPatience + 2*time.Second

// covering waits for the names of the budgets that may cover the pod.
func (r *reading) covering(ctx context.Context, pod *corev1.Pod) ([]types.NamespacedName, error) {
	select {
	case <-r.done:
		return covering(&r.budgets, pod), r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// covering are the budgets that may cover the pod, by name, so that all processes ask them in the same order. Which of them do is known once they
// and their workloads are read.
func covering(pubs *v1alpha1.PodUnavailableBudgetList, pod *corev1.Pod) []types.NamespacedName {
	var names []types.NamespacedName
	for i := range pubs.Items {
		pub := &pubs.Items[i]
		policy, errs := budget.Compile(pub)
		if len(errs) > 0 {
			continue // the controller says so in the budget's conditions
		}
		if policy.Target != nil || policy.Selector.Matches(labels.Set(pod.Labels)) {
			names = append(names, client.ObjectKeyFromObject(pub))
		}
	}
	slices.SortFunc(names, func(a, b types.NamespacedName) int { return strings.Compare(a.Name, b.Name) })
	return names
}
