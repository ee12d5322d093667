package checker

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// united are the kinds of UnitedDeployments and their children.
var united = []schema.GroupVersionResource{
	{Group: "apps.kruise.io", Version: "v1beta1", Resource: "uniteddeployments"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "apps.kruise.io", Version: "v1alpha1", Resource: "clonesets"},
	{Group: "apps.kruise.io", Version: "v1beta1", Resource: "statefulsets"},
}

// subsetName is the label with the subset of a child.
const subsetName = "apps.kruise.io/subset-name"

// Children checks that no subset has two children of a kind, and that the children of the one UnitedDeployment of a namespace never ask for more than its total and the surge.
type Children struct {
	// Surge is how many replicas more than the total they may ask for.
	Surge int
	// Of is the UnitedDeployment. Empty if all workloads of the namespace are its children.
	Of string

	stop     context.CancelFunc
	watching sync.WaitGroup
	mu       sync.Mutex
	events   []event
}

// WatchChildren watches from now on, until Violations is called. It leaves out kinds that the API server does not serve.
func WatchChildren(client dynamic.Interface, namespace string) (*Children, error) {
	c := &Children{}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	for _, resource := range united {
		watch, err := client.Resource(resource).Namespace(namespace).Watch(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			stop()
			return nil, fmt.Errorf("watching %s: %w", resource.Resource, err)
		}
		c.watching.Go(func() {
			for e := range watch.ResultChan() {
				object, is := e.Object.(*unstructured.Unstructured)
				if !is {
					continue
				}
				revision, _ := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
				c.mu.Lock()
				c.events = append(c.events, event{revision: revision, deleted: e.Type == "DELETED", object: object})
				c.mu.Unlock()
			}
		})
	}
	return c, nil
}

// Violations ends the watch. It returns every write that made the children ask for too much, in the order in which the API server committed the writes. A
// write may go by the total before the latest change: its controller may not have seen the change. checked is how many writes asked for more than before.
func (c *Children) Violations() (violations []string, checked int) {
	c.stop()
	c.watching.Wait()
	slices.SortFunc(c.events, func(a, b event) int { return int(a.revision - b.revision) })
	asks, places := map[types.UID]int64{}, map[types.UID]string{}
	var total, previous int64
	known := false
	for _, e := range c.events {
		n, _, _ := unstructured.NestedInt64(e.object.Object, "spec", "replicas")
		if e.object.GetKind() == "UnitedDeployment" {
			known = true
			if n != total {
				previous, total = total, n
			}
			continue
		}
		if owner := metav1.GetControllerOf(e.object); c.Of != "" && (owner == nil || owner.Kind != "UnitedDeployment" || owner.Name != c.Of) {
			continue
		}
		uid := e.object.GetUID()
		before := asks[uid]
		place := e.object.GetKind() + " " + e.object.GetLabels()[subsetName]
		for other, taken := range places {
			if other != uid && taken == place && places[uid] == "" && !e.deleted {
				violations = append(violations, fmt.Sprintf("at revision %d %s is a second child: %s", e.revision, e.object.GetName(), place))
			}
		}
		asks[uid], places[uid] = n, place
		if e.deleted {
			delete(asks, uid)
			delete(places, uid)
		}
		if n <= before || e.deleted || !known { // children that were there before the watch began are shown in any order
			continue
		}
		checked++
		var sum int64
		for _, n := range asks {
			sum += n
		}
		if sum > max(total, previous)+int64(c.Surge) {
			violations = append(violations, fmt.Sprintf("at revision %d %s asks for %d, and all children together for %d; the total is %d, and was %d",
				e.revision, e.object.GetName(), n, sum, total, previous))
		}
	}
	return violations, checked
}
