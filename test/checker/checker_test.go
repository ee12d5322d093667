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
	object := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "ns", "name": name, "uid": name,
		"labels": map[string]any{"controller-revision-hash": hash}}}
	if subset != "" {
		object["spec"] = map[string]any{"nodeName": "node"}
		object["metadata"].(map[string]any)["annotations"] = map[string]any{
			"apps.kruise.io/matched-workloadspread": fmt.Sprintf(`{"name":"web","subset":%q,"uid":%q}`, subset, name)}
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
