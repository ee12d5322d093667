package checker

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// history is a recording that a test writes. Its spread "web" gives subset a 2 slots of each revision.
type history struct {
	Checker
	t        *testing.T
	revision int
}

func newHistory(t *testing.T, scope string) *history {
	t.Helper()
	h := &history{t: t}
	h.show(map[string]any{"apiVersion": "apps.kruise.io/v1beta1", "kind": "WorkloadSpread", "metadata": map[string]any{"namespace": "ns", "name": "web"},
		"spec": map[string]any{
			"targetRef":        map[string]any{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web"},
			"scheduleStrategy": map[string]any{"quotaScope": scope},
			"subsets":          []any{map[string]any{"name": "a", "maxReplicas": int64(2)}},
		}})
	return h
}

func (h *history) show(object map[string]any) {
	h.t.Helper()
	h.revision++
	u := &unstructured.Unstructured{Object: object}
	u.SetResourceVersion(fmt.Sprint(h.revision))
	h.record(watch.Event{Type: watch.Modified, Object: u})
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
