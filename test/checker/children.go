package checker

import (
	"context"
	"fmt"
	"time"

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

	// Grace is how long a write may go by the total before a change. The default is 5 s.
	Grace time.Duration

	stop      context.CancelFunc
	recording *Checker
}

// WatchChildren watches from now on, until Violations is called. It leaves out kinds that the API server does not serve.
func WatchChildren(client dynamic.Interface, namespace string) (*Children, error) {
	ctx, stop := context.WithCancel(context.Background())
	c := &Children{Grace: 5 * time.Second, stop: stop, recording: &Checker{namespace: namespace}}
	for _, resource := range united {
		if err := c.recording.start(ctx, client, resource); err != nil && !apierrors.IsNotFound(err) {
			stop()
			return nil, err
		}
	}
	return c, nil
}

// Violations ends the watch. It returns every write that made the children ask for too much, in the order in which the API server committed the writes. A
// write may go by a total that was changed within the Grace: its controller may not have seen the change. checked is how many writes asked for more than
// before. To have seen no UnitedDeployment is a violation too: then nothing was judged.
func (c *Children) Violations() (violations []string, checked int) {
	events, violations := c.recording.recorded()
	c.stop()
	asks, places := map[types.UID]int64{}, map[types.UID]string{}
	var totals []total
	for _, e := range events {
		n, _, _ := unstructured.NestedInt64(e.object.Object, "spec", "replicas")
		if e.object.GetKind() == "UnitedDeployment" {
			if c.Of == "" || e.object.GetName() == c.Of {
				totals = append(totals, total{from: e.seen, is: n})
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
		if n <= before || e.deleted || e.listed || len(totals) == 0 { // nobody knows in which order those were written that were there before the watch
			continue
		}
		checked++
		var sum int64
		for _, n := range asks {
			sum += n
		}
		highest := int64(0)
		for i, total := range totals {
			if i+1 == len(totals) || !totals[i+1].from.Before(e.seen.Add(-c.Grace)) {
				highest = max(highest, total.is)
			}
		}
		if sum > highest+int64(c.Surge) {
			violations = append(violations, fmt.Sprintf("at revision %d %s asks for %d, and all children together for %d; the total is %d, and was %d at most within %v",
				e.revision, e.object.GetName(), n, sum, totals[len(totals)-1].is, highest, c.Grace))
		}
	}
	if len(totals) == 0 {
		violations = append(violations, "no UnitedDeployment was seen, so nothing was judged")
	}
	return violations, checked
}

// total is what a UnitedDeployment asks for from some time on.
type total struct {
	from time.Time
	is   int64
}
