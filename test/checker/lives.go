package checker

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Life is what became of a pod.
type Life struct {
	Name, UID string
	// Scopes are the revisions that the pod had, each from its moment on. The first one is that of its creation.
	Scopes []Scope
	// Subset is where Berth bound the pod. Empty if it did not, or if it bound the pod in no subset.
	Subset string
	// Created, Bound and Gone are zero if the checker has not seen that. A pod that is about to end is gone: its slot is free.
	Created, Bound, Gone Moment
}

// Scope is a revision of a pod.
type Scope struct {
	Name string
	Moment
}

// Moment is when something happened.
type Moment struct {
	// Revision is that of the API server. 0 if it has not happened.
	Revision int64
	// Seen is when the checker saw it, which is a little later.
	Seen time.Time
}

// RevisionAt is the latest revision that the checker had seen at a time.
func (c *Checker) RevisionAt(at time.Time) (latest int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.events {
		if !e.seen.After(at) {
			latest = max(latest, e.revision)
		}
	}
	return latest
}

// Lives returns the pods with the label app that were in a namespace since Start, in the order in which they appeared.
func (c *Checker) Lives(namespace, app string) []Life {
	events, _ := c.recorded()
	lives := map[string]*Life{}
	var order []string
	for _, e := range events {
		if e.object.GetKind() != "Pod" || e.object.GetNamespace() != namespace || e.object.GetLabels()["app"] != app {
			continue
		}
		uid, now := string(e.object.GetUID()), Moment{e.revision, e.seen}
		life := lives[uid]
		if life == nil {
			life = &Life{Name: e.object.GetName(), UID: uid, Created: now}
			lives[uid], order = life, append(order, uid)
		}
		if scope := readPod(e.object).scope; len(life.Scopes) == 0 || life.Scopes[len(life.Scopes)-1].Name != scope {
			life.Scopes = append(life.Scopes, Scope{scope, now})
		}
		if node, _, _ := unstructured.NestedString(e.object.Object, "spec", "nodeName"); node != "" && life.Bound.Revision == 0 {
			life.Bound, life.Subset = now, readPod(e.object).subset
		}
		if (e.deleted || !readPod(e.object).active) && life.Gone.Revision == 0 {
			life.Gone = now
		}
	}
	all := make([]Life, 0, len(order))
	for _, uid := range order {
		all = append(all, *lives[uid])
	}
	return all
}
