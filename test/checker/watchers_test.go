package checker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// TestChildren forges histories of a UnitedDeployment of 12 replicas.
func TestChildren(t *testing.T) {
	type write struct {
		kind, name, subset string
		n                  int64
		ago                time.Duration
		deleted, listed    bool
	}
	const whole = "UnitedDeployment"
	child := func(name string, n int64) write { return write{kind: "Deployment", name: name, subset: name, n: n} }
	for name, tc := range map[string]struct {
		writes  []write
		surge   int
		checked int
		want    []string
	}{
		"as many as the total":                 {[]write{{kind: whole, n: 12}, child("a", 6), child("b", 6)}, 0, 2, nil},
		"one more":                             {[]write{{kind: whole, n: 12}, child("a", 6), child("b", 7)}, 0, 2, []string{"all children together for 13; the total is 12"}},
		"the surge":                            {[]write{{kind: whole, n: 12}, child("a", 6), child("b", 7)}, 1, 2, nil},
		"a total that was lowered just now":    {[]write{{kind: whole, n: 12}, {kind: whole, n: 6}, child("a", 12)}, 0, 1, nil},
		"one that was lowered a while ago":     {[]write{{kind: whole, n: 12, ago: time.Hour}, {kind: whole, n: 6, ago: time.Hour}, child("a", 12)}, 0, 1, []string{"for 12; the total is 6"}},
		"one that was raised and lowered":      {[]write{{kind: whole, n: 12}, {kind: whole, n: 14}, {kind: whole, n: 6}, child("a", 14)}, 0, 1, nil},
		"a child that is gone asks for none":   {[]write{{kind: whole, n: 12}, child("a", 12), {kind: "Deployment", name: "a", deleted: true}, child("b", 12)}, 0, 2, nil},
		"a second child of a subset":           {[]write{{kind: whole, n: 12}, child("a", 1), {kind: "Deployment", name: "again", subset: "a", n: 1}}, 0, 2, []string{"again is a second child: Deployment a"}},
		"what was there is in no order":        {[]write{{kind: whole, n: 12, listed: true}, {kind: "Deployment", name: "a", subset: "a", n: 13, listed: true}}, 0, 0, nil},
		"it counts for what comes later":       {[]write{{kind: whole, n: 12, listed: true}, {kind: "Deployment", name: "a", subset: "a", n: 12, listed: true}, child("b", 1)}, 0, 1, []string{"for 13; the total is 12"}},
		"a recording without UnitedDeployment": {[]write{child("a", 1)}, 0, 0, []string{"nothing was judged"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Children{Surge: tc.surge, Grace: time.Minute, stop: func() {}, recording: &Checker{}}
			for i, w := range tc.writes {
				u := &unstructured.Unstructured{Object: map[string]any{"kind": w.kind, "spec": map[string]any{"replicas": w.n}}}
				u.SetName(w.name)
				u.SetUID(types.UID(w.kind + w.name))
				u.SetLabels(map[string]string{subsetName: w.subset})
				u.SetResourceVersion(fmt.Sprint(i + 1))
				kind := watch.Modified
				if w.deleted {
					kind = watch.Deleted
				}
				c.recording.record(watch.Event{Type: kind, Object: u}, w.listed)
				c.recording.events[i].seen = c.recording.events[i].seen.Add(-w.ago)
			}
			got, checked := c.Violations()
			expect(t, got, tc.want)
			if checked != tc.checked {
				t.Errorf("%d checked, want %d", checked, tc.checked)
			}
		})
	}
	t.Run("an error of the watch is a violation", func(t *testing.T) {
		c := &Children{stop: func() {}, recording: &Checker{}}
		c.recording.fail("the watch of deployments ended")
		got, _ := c.Violations()
		expect(t, got, []string{"the watch of deployments ended", "nothing was judged"})
	})
}

func expect(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.EqualFunc(got, want, strings.Contains) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func readyPod(name, status string, deleted bool) *unstructured.Unstructured {
	metadata := map[string]any{"name": name, "uid": name, "resourceVersion": "7"}
	if deleted {
		metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	}
	return &unstructured.Unstructured{Object: map[string]any{"metadata": metadata,
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": status}}}}}
}

func TestReady(t *testing.T) {
	const violation = "at revision 7 1 pods are ready, and 2 must be; pod p"
	for name, tc := range map[string]struct {
		event watch.Event
		want  []string
	}{
		"a pod that stays ready":   {watch.Event{Type: watch.Modified, Object: readyPod("p", "True", false)}, nil},
		"a pod that is not ready":  {watch.Event{Type: watch.Modified, Object: readyPod("p", "False", false)}, []string{violation}},
		"a pod that is to end":     {watch.Event{Type: watch.Modified, Object: readyPod("p", "True", true)}, []string{violation}},
		"a pod that is gone":       {watch.Event{Type: watch.Deleted, Object: readyPod("p", "True", false)}, []string{violation}},
		"a pod that comes besides": {watch.Event{Type: watch.Added, Object: readyPod("r", "False", false)}, nil},
		"a bookmark":               {watch.Event{Type: watch.Bookmark, Object: readyPod("", "", false)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Ready{floor: 2, fewest: 2, ready: map[types.UID]bool{"p": true, "q": true}}
			r.see(tc.event)
			expect(t, r.violations, tc.want)
			if want := 2 - len(tc.want); r.fewest != want {
				t.Errorf("at least %d were ready, want %d", r.fewest, want)
			}
		})
	}
}

func TestLives(t *testing.T) {
	h := forge(t)
	labels := func(hash string) map[string]any { return map[string]any{"app": "web", "pod-template-hash": hash} }
	h.bound(aPod{name: "p", record: `"subset":"a"`, labels: labels("r")})
	h.bound(aPod{name: "q", record: `"subset":""`, labels: labels("s")})
	h.see(aPod{name: "p", node: "node", record: `"subset":"a"`, labels: labels("s")})
	h.see(aPod{name: "p", node: "node", record: `"subset":"a"`, labels: labels("s"), deleted: true})
	h.see(aPod{name: "waits", labels: labels("r")})
	h.see(aPod{name: "other"})
	var got []string
	for _, l := range h.Lives("ns", "web") {
		var scopes []string
		for _, s := range l.Scopes {
			scopes = append(scopes, fmt.Sprint(s.Name, " from ", s.Revision))
		}
		got = append(got, fmt.Sprintf("%s %q %v: %d %d %d", l.Name, l.Subset, scopes, l.Created.Revision, l.Bound.Revision, l.Gone.Revision))
	}
	want := []string{`p "a" [r from 4 s from 8]: 4 5 9`, `q "" [s from 6]: 6 7 0`, `waits "" [r from 10]: 10 0 0`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRecount changes one field of a true status at a time.
func TestRecount(t *testing.T) {
	for name, tc := range map[string]struct {
		field string
		value any
		want  []string
	}{
		"a true status":                {"observedReplicas", int64(4), nil},
		"an older generation":          {"observedGeneration", int64(1), []string{"status.observedGeneration is 1, and it is 2"}},
		"other replicas":               {"observedReplicas", int64(5), []string{"status.observedReplicas is 5, and it is 4"}},
		"a pod that does not wait":     {"pendingPods", int64(0), []string{"status.pendingPods is 0, and it is 1"}},
		"a pod in no subset":           {"unplacedPods", int64(1), []string{"status.unplacedPods is 1, and it is 0"}},
		"a pod that Berth bound":       {"adoptedPods", int64(1), []string{"status.adoptedPods is 1, and it is 0"}},
		"a pod too many":               {"surplusPods", int64(1), []string{"status.surplusPods is 1, and it is 0"}},
		"a pod in the wrong subset":    {"subsetStatuses", statuses(1, 1), []string{"subsetStatuses[0].replicas is 1, and it is 2", "missingReplicas is 1, and it is 0", "subsetStatuses[1].replicas is 1, and it is 0", "missingReplicas is 1, and it is 2"}},
		"subsets that are not counted": {"subsetStatuses", []any{}, []string{"subsetStatuses, their number, is 0, and it is 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := forge(t)
			h.bound(aPod{name: "p", record: `"subset":"a"`})
			h.bound(aPod{name: "q", record: `"subset":"a"`})
			h.see(aPod{name: "waits"})
			h.spread(anyStrategy(), func(object map[string]any) {
				object["metadata"].(map[string]any)["generation"] = int64(2)
				status := map[string]any{"observedGeneration": int64(2), "observedReplicas": int64(4), "pendingPods": int64(1), "subsetStatuses": statuses(2, 0)}
				status[tc.field] = tc.value
				object["status"] = status
			})
			r := recount{workloads: map[string]*unstructured.Unstructured{}, owners: map[string]string{}, nodes: map[string]*unstructured.Unstructured{}}
			last := map[string]*unstructured.Unstructured{}
			for _, e := range h.events {
				switch object := e.object; object.GetKind() {
				case "Pod":
					last[object.GetName()] = object
				case "Node":
					r.nodes[object.GetName()] = object
				default:
					r.workloads[object.GetKind()+" ns/"+object.GetName()] = object
					r.owners[string(object.GetUID())] = controllerOf(object)
				}
			}
			for _, pod := range last {
				r.pods = append(r.pods, *pod)
			}
			expect(t, r.compare(r.workloads["WorkloadSpread ns/web"]), tc.want)
		})
	}
}

// statuses are those of the subsets a and b, which have a quota of 2 each.
func statuses(a, b int64) []any {
	return []any{map[string]any{"name": "a", "replicas": a, "missingReplicas": 2 - a}, map[string]any{"name": "b", "replicas": b, "missingReplicas": 2 - b}}
}
