package checker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// history is a recording that a test writes. Its spread "web" gives subset a 2 slots of each revision. Node "node" is in all subsets.
type history struct {
	Checker
	t        *testing.T
	revision int
}

func newHistory(t *testing.T, scope string) *history {
	t.Helper()
	h := &history{t: t}
	h.node("node", "")
	h.node("gone", "a")
	h.show(map[string]any{"apiVersion": "apps.kruise.io/v1beta1", "kind": "WorkloadSpread", "metadata": map[string]any{"namespace": "ns", "name": "web"},
		"spec": map[string]any{
			"targetRef":        map[string]any{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web"},
			"scheduleStrategy": map[string]any{"quotaScope": scope},
			"subsets": []any{
				map[string]any{"name": "a", "maxReplicas": int64(2), "requiredNodeSelector": inPool("NotIn", "b")},
				map[string]any{"name": "b", "requiredNodeSelector": inPool("NotIn", "a")},
			},
		}})
	return h
}

// inPool is a term about the label pool of nodes.
func inPool(operator, pool string) map[string]any {
	return map[string]any{"matchExpressions": []any{map[string]any{"key": "pool", "operator": operator, "values": []any{pool}}}}
}

// node records a node of a pool.
func (h *history) node(name, pool string) {
	h.t.Helper()
	h.show(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name, "labels": map[string]any{"pool": pool}}})
}

// lose records that a node is gone.
func (h *history) lose(name string) {
	h.t.Helper()
	h.revision++
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name, "resourceVersion": fmt.Sprint(h.revision)}}}
	h.record(watch.Event{Type: watch.Deleted, Object: u}, false)
}

// bind records a pod that Berth binds to a node in a subset.
func (h *history) bind(name, node, subset string) {
	h.t.Helper()
	h.show(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "ns", "name": name, "uid": name,
		"labels":      map[string]any{"controller-revision-hash": "r"},
		"annotations": map[string]any{"apps.kruise.io/matched-workloadspread": fmt.Sprintf(`{"name":"web","subset":%q,"uid":%q}`, subset, name)}},
		"spec": map[string]any{"nodeName": node}})
}

func (h *history) show(object map[string]any) {
	h.t.Helper()
	h.revision++
	u := &unstructured.Unstructured{Object: object}
	u.SetResourceVersion(fmt.Sprint(h.revision))
	h.record(watch.Event{Type: watch.Modified, Object: u}, false)
}

// pod records a pod of a revision. A pod in subset "" has no node.
func (h *history) pod(name, hash, subset string) {
	h.t.Helper()
	h.podOf("", name, hash, subset)
}

// workload records the StatefulSet "web" with a UID.
func (h *history) workload(uid string) {
	h.t.Helper()
	h.show(map[string]any{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": map[string]any{"namespace": "ns", "name": "web", "uid": uid}})
}

// podOf records a pod whose controller has this UID. "" is an orphan.
func (h *history) podOf(owner, name, hash, subset string) {
	h.t.Helper()
	object := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "ns", "name": name, "uid": name,
		"labels": map[string]any{"controller-revision-hash": hash}}}
	if subset != "" {
		object["spec"] = map[string]any{"nodeName": "node"}
		object["metadata"].(map[string]any)["annotations"] = map[string]any{
			"apps.kruise.io/matched-workloadspread": fmt.Sprintf(`{"name":"web","subset":%q,"uid":%q}`, subset, name)}
	}
	if owner != "" {
		object["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": owner, "controller": true}}
	}
	h.show(object)
}

func (h *history) expectViolations(parts ...string) {
	h.t.Helper()
	got := h.Violations()
	ok := len(got) == len(parts)
	for i := 0; ok && i < len(parts); i++ {
		ok = strings.Contains(got[i], parts[i])
	}
	if !ok {
		h.t.Errorf("violations %q, want %q", got, parts)
	}
}

func TestThePodsOfOthersGetTheirRecordsAboveTheQuota(t *testing.T) {
	bound := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "ns", "name": "p2", "uid": "p2",
		"labels": map[string]any{"controller-revision-hash": "r"}}, "spec": map[string]any{"nodeName": "node"}}
	h := newHistory(t, "Revision")
	h.pod("p0", "r", "a")
	h.pod("p1", "r", "a")
	h.show(bound)
	h.pod("p2", "r", "a")
	h.expectViolations()
	h.pod("p2", "r", "b")
	h.expectViolations("pod ns/p2 was recorded in ns/web/a and is now in ns/web/b")
}

func TestAPodUpdatedInPlaceCountsInItsNewRevision(t *testing.T) {
	t.Run("a bind that finds its new revision full is a violation", func(t *testing.T) {
		h := newHistory(t, "Revision")
		h.pod("p0", "old", "a")
		h.pod("p1", "old", "a")
		h.pod("p0", "new", "a")
		h.pod("p1", "new", "a")
		h.pod("p2", "new", "")
		h.expectViolations()
		h.pod("p2", "new", "a")
		h.expectViolations("pod ns/p2 is number 3 in subset a")
	})
	t.Run("its old revision has its slot again", func(t *testing.T) {
		h := newHistory(t, "Revision")
		h.pod("p0", "old", "a")
		h.pod("p1", "old", "a")
		h.pod("p0", "new", "a")
		h.pod("p2", "old", "a")
		h.expectViolations()
	})
	t.Run("the update itself is none, although its new revision is full", func(t *testing.T) {
		h := newHistory(t, "Revision")
		h.pod("p0", "old", "a")
		h.pod("p1", "new", "a")
		h.pod("p2", "new", "a")
		h.pod("p0", "new", "a")
		h.expectViolations()
	})
	t.Run("it changes nothing where the quota is that of the whole workload", func(t *testing.T) {
		h := newHistory(t, "Workload")
		h.pod("p0", "old", "a")
		h.pod("p1", "old", "a")
		h.pod("p0", "new", "a")
		h.expectViolations()
		h.pod("p2", "newer", "a")
		h.expectViolations("pod ns/p2 is number 3 in subset a")
	})
}

func TestAPodCountsForTheWorkloadThatOwnsItNow(t *testing.T) {
	const violation = "is number 3 in subset a of spread ns/web, whose quota is 2"
	begin := func(t *testing.T) *history {
		t.Helper()
		h := newHistory(t, "Revision")
		h.workload("first")
		h.podOf("first", "p0", "r", "a")
		h.podOf("first", "p1", "r", "a")
		h.expectViolations()
		return h
	}
	t.Run("a workload of the same name with another UID begins with no pods", func(t *testing.T) {
		h := begin(t)
		h.workload("second")
		h.podOf("second", "p2", "r", "a")
		h.podOf("second", "p3", "r", "a")
		h.expectViolations()
		h.podOf("second", "p4", "r", "a")
		h.expectViolations(violation)
	})
	t.Run("the previous workload has no more slots for that", func(t *testing.T) {
		h := begin(t)
		h.workload("second")
		h.podOf("first", "p2", "r", "a")
		h.expectViolations(violation)
	})
	t.Run("an orphan takes no slot", func(t *testing.T) {
		h := begin(t)
		h.podOf("", "p0", "r", "a")
		h.podOf("first", "p2", "r", "a")
		h.expectViolations()
		h.podOf("first", "p3", "r", "a")
		h.expectViolations(violation)
	})
	t.Run("an orphan that is adopted takes one", func(t *testing.T) {
		h := begin(t)
		h.workload("second")
		for _, name := range []string{"p0", "p1"} {
			h.podOf("", name, "r", "a")
			h.podOf("second", name, "r", "a")
		}
		h.podOf("second", "p2", "r", "a")
		h.expectViolations(violation)
	})
	t.Run("a pod whose node is gone or has other labels keeps its slot", func(t *testing.T) {
		h := begin(t)
		h.show(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "ns", "name": "p0", "uid": "p0", "labels": map[string]any{"controller-revision-hash": "r"},
			"annotations": map[string]any{"apps.kruise.io/matched-workloadspread": `{"name":"web","subset":"a","uid":"p0"}`}, "ownerReferences": []any{map[string]any{"uid": "first", "controller": true}}},
			"spec": map[string]any{"nodeName": "gone"}})
		h.podOf("first", "p2", "r", "a")
		h.expectViolations(violation)
	})
	t.Run("its other labels do not matter", func(t *testing.T) {
		h := newHistory(t, "Workload")
		h.workload("first")
		h.podOf("first", "p0", "r", "a")
		h.podOf("first", "p1", "", "a")
		h.podOf("first", "p0", "s", "a")
		h.podOf("first", "p2", "t", "a")
		h.expectViolations(violation)
	})
}

func TestAPodIsBoundToANodeOfItsSubset(t *testing.T) {
	refused := func(pod, subset, node string) string {
		return fmt.Sprintf("pod ns/%s is bound in subset %s of spread ns/web, and node %s is none of that subset", pod, subset, node)
	}
	begin := func(t *testing.T) *history {
		t.Helper()
		h := newHistory(t, "Revision")
		h.node("n", "a")
		h.bind("p0", "n", "a")
		h.expectViolations()
		return h
	}
	t.Run("one of another subset is a violation", func(t *testing.T) {
		h := begin(t)
		h.bind("p1", "n", "b")
		h.expectViolations(refused("p1", "b", "n"))
	})
	t.Run("a node that is made again with other labels is of another subset", func(t *testing.T) {
		h := begin(t)
		h.lose("n")
		h.node("n", "b")
		h.bind("p1", "n", "b")
		h.expectViolations()
		h.bind("p2", "n", "a")
		h.expectViolations(refused("p2", "a", "n"))
	})
	t.Run("the same is true of one whose labels change", func(t *testing.T) {
		h := begin(t)
		h.node("n", "b")
		h.bind("p1", "n", "a")
		h.expectViolations(refused("p1", "a", "n"))
	})
	t.Run("whose pods keep their slots", func(t *testing.T) {
		h := begin(t)
		h.bind("p1", "n", "a")
		h.lose("n")
		h.node("n", "b")
		h.node("other", "a")
		h.bind("p2", "other", "a")
		h.expectViolations("pod ns/p2 is number 3 in subset a")
	})
	t.Run("a node that is made again with the labels that it had is of the subset that it was of", func(t *testing.T) {
		h := begin(t)
		h.lose("n")
		h.node("n", "a")
		h.bind("p1", "n", "a")
		h.expectViolations()
	})
	t.Run("a node that has got another name is not known by the previous one", func(t *testing.T) {
		h := begin(t)
		h.lose("n")
		h.node("renamed", "a")
		h.bind("p1", "renamed", "a")
		h.expectViolations()
		h.bind("p2", "n", "a")
		h.expectViolations(refused("p2", "a", "n"), "pod ns/p2 is number 3 in subset a")
	})
	t.Run("the scheduler may not have seen the change", func(t *testing.T) {
		h := begin(t)
		h.NodeGrace = time.Minute
		h.lose("n")
		h.node("n", "b")
		h.bind("p1", "n", "a")
		h.expectViolations()
	})
	t.Run("a pod that was there before has found its node at some time", func(t *testing.T) {
		h := begin(t)
		h.bind("p1", "n", "b")
		h.events[len(h.events)-1].listed = true
		h.expectViolations()
	})
	t.Run("a heartbeat changes nothing", func(t *testing.T) {
		h := begin(t)
		h.node("n", "a")
		h.node("n", "a")
		if n := len(h.events); n != 5 { // three nodes, the spread and the pod
			t.Errorf("%d events are kept", n)
		}
	})
}

// TestWhatWasListedIsJudgedAtTheList: a Deployment has changed since its pods were bound, for example because a pod became ready. Its spread has not.
func TestWhatWasListedIsJudgedAtTheList(t *testing.T) {
	written := &history{t: t}
	written.node("node", "")
	written.spread(anyStrategy())
	written.bind("p0", "node", "b")
	written.bind("p1", "node", "b")
	written.deployment()
	h := &history{t: t}
	for _, e := range []int{0, 4, 5, 1, 2, 3} { // in the order of watched
		list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{*written.events[e].object.DeepCopy()}}
		list.SetResourceVersion(fmt.Sprint(len(written.events)))
		h.recordList(list)
	}
	h.expectViolations()
	h.revision = len(written.events)
	h.bind("p2", "node", "b")
	h.expectViolations("pod ns/p2 is number 3 in subset b of spread ns/web, whose quota is 2")
}

// TestAWatchMayBeLate: each kind has its own watch, so a pod may be seen before the quota that was raised for it.
func TestAWatchMayBeLate(t *testing.T) {
	for name, strategy := range map[string]map[string]any{"a quota": {}, "a share that is lent": {"type": "Adaptive"}} {
		t.Run(name, func(t *testing.T) {
			h := forge(t)
			inShares := func(object map[string]any) {
				object["spec"].(map[string]any)["subsets"].([]any)[0].(map[string]any)["maxReplicas"] = "50%"
			}
			h.spread(strategy, inShares)
			h.bind("p0", "node", "b")
			h.bind("p1", "node", "b")
			h.show(map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"namespace": "ns", "name": "web", "uid": "web"}, "spec": map[string]any{"replicas": int64(6)}})
			h.events[len(h.events)-1].seen = time.Now().Add(time.Second)
			h.bind("p2", "node", "b")
			h.expectViolations()
			for i := range 4 {
				h.bind(fmt.Sprint("q", i), "node", "b")
			}
			if len(h.Violations()) == 0 {
				t.Error("seven pods for six replicas are no violation")
			}
		})
	}
}

// TestOthersReadWhereAPodMayRun: a node autoscaler knows no spread.
func TestOthersReadWhereAPodMayRun(t *testing.T) {
	show := func(h *history, pool, gate, reason string) {
		pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "ns", "name": "p", "uid": "p"}, "spec": map[string]any{},
			"status": map[string]any{"conditions": []any{map[string]any{"type": "PodScheduled", "reason": reason}}}}
		if gate != "" {
			pod["spec"] = map[string]any{"schedulingGates": []any{map[string]any{"name": gate}}}
		} else {
			pod["metadata"].(map[string]any)["annotations"] = map[string]any{"berth.dev/admitted-subset": `{"name":"web","subset":"a","pick":"p"}`}
		}
		if pool != "" {
			pod["spec"].(map[string]any)["affinity"] = map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{
				"nodeSelectorTerms": []any{inPool("NotIn", pool)}}}}
		}
		h.show(pod)
	}
	elsewhere := "pod ns/p was opened in subset a of spread ns/web, and by its own terms it may run on node late, which is none of that subset"
	for name, tc := range map[string]struct {
		do   func(*history)
		want []string
	}{
		"the terms of its subset": {do: func(h *history) { show(h, "b", "", "") }},
		"those of another one":    {func(h *history) { show(h, "a", "", "") }, []string{elsewhere}},
		"no terms":                {func(h *history) { show(h, "", "", "Unschedulable") }, []string{elsewhere}},
		"it has a gate":           {do: func(h *history) { show(h, "", "berth.dev/subset", "SchedulingGated") }},
		"it has a gate, and waits for a node": {func(h *history) { show(h, "", "berth.dev/subset", "Unschedulable") },
			[]string{"pod ns/p has a gate, and says that it waits for a node"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t, "Revision")
			tc.do(h)
			h.node("late", "b")
			h.expectViolations(tc.want...)
		})
	}
}
